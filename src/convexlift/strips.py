"""How many numbers of a large array a device is given at once, and which.

A CPU is fast on parts that fit its cache. A GPU is fast on anything large, since launches take
time there; but intermediate results of a whole array may not fit its memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

AT_ONCE = 32
"""Parts on a GPU are this many times as large as those that fit the cache of a CPU."""


def at_once(cached: int, device: torch.device) -> int:
    """As many numbers as are computed at once, if a CPU takes ``cached``."""
    return cached if device.type == "cpu" else AT_ONCE * cached


def channel_slices(group: int, channels: int, some: int) -> Iterator[tuple[slice, slice]]:
    """A few of ``channels`` outputs at a time, and their inputs, ``group`` for each output."""
    for first in range(0, channels, some):
        yield slice(first, first + some), slice(group * first, group * (first + some))


def local(values: Tensor, images: slice, channels: slice, rows: slice) -> Tensor:
    """The part at a place of numbers for each channel, (1, C, 1, 1), or each image or entry too."""
    here = values[images if len(values) > 1 else slice(None), channels]
    return here if here.shape[-2] == 1 else here[..., rows, :]


def give_back() -> None:
    """Give freed memory back, where the C library can do so; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB for later ones. With images of 16 MB, the holes of a
    large solve take a tenth of its memory. The call takes milliseconds.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    """The function of glibc, if there is one."""
    if sys.platform != "linux":
        return None
    found: ctypes._NamedFuncPointer | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
