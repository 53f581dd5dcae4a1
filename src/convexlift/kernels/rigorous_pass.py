"""The kernels of rigorous claims, compiled at run time like ``first_layer.cu``.

``rigorous_pass.cu`` is for certain filters, ``rigorous_data.cu`` for data of single pixels.
``data_checks.cu``, for the same data, belongs to checks in single precision.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from convexlift.kernels.first_layer import BLOCK, LARGEST_FILTER, WARPS, assembled, module

NAMES = ("values", "minorants", "gathered")
DATA_NAMES = ("data_bounds", "data_checks")
PIXELS = 4
"""Pixels of a thread of these."""
MOST_TAPS = 4096
"""Taps of all filters, an even number each, which share 48 KB with the windows of a tile."""


@cache
def compiled(
    name: str,
    device: torch.device,
    filters: torch.Size,
    *,
    tile: tuple[int, int],
    coarse: int,
    biased: bool,
    pool: int = 0,
    coded: bool = False,
) -> Any:
    """A kernel on a device, or None where there is none.

    Args:
        name: one of ``NAMES``.
        device: on which it will be launched.
        filters: shape of the filters, (channels, 1, rows, columns).
        tile: rows and columns of a program (``first_layer.tile_for``).
        coarse: side of the blocks of pixels that share their multipliers, a multiple of 4; or 1 if
            every pixel has its own, or 0 if all pixels have the same.
        biased: whether every pixel has its own bias.
        pool: side of the blocks of pixels whose sums ``values`` gives, a power of 2; or 0.
        coded: whether dual variables are slopes in 16 bits (``problems.packed_slopes``).
    """
    if device.type != "cuda" or torch.version.cuda is None or not supports(filters):
        return None
    text = source(filters, tile=tile, coarse=coarse, biased=biased, pool=pool, coded=coded)
    return module(device, text, NAMES).get(name)


def supports(filters: torch.Size) -> bool:
    """Whether the kernels take filters of this shape: images of one channel, and few taps."""
    count, channels, *sides = filters
    taps = math.prod(sides)
    few = taps <= LARGEST_FILTER and count * (taps + taps % 2) <= MOST_TAPS
    return channels == 1 and len(sides) == 2 and few


def source(
    filters: torch.Size,
    *,
    tile: tuple[int, int],
    coarse: int,
    biased: bool,
    pool: int = 0,
    coded: bool = False,
) -> str:
    """The text to compile."""
    channels, _, rows, columns = filters
    macros = {
        "WARPS": WARPS, "PIXELS": tile[0] // WARPS, "CHANNELS": channels, "KERNEL_HEIGHT": rows,
        "KERNEL_WIDTH": columns, "COARSE": coarse, "BIASED": int(biased), "POOL": pool,
        "CODED": int(coded), "NUMBER": "double",
    }  # fmt: skip
    return assembled(macros, "tiles.cu", "rigorous_pass.cu", "gathered.cu")


def data_kernel(device: torch.device, name: str) -> Any:
    """One of ``DATA_NAMES`` on a device, or None where there is none."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return module(device, data_source(), DATA_NAMES).get(name)


def data_source() -> str:
    """The text to compile."""
    return assembled({"WARPS": WARPS, "PIXELS": PIXELS}, "rigorous_data.cu", "data_checks.cu")


def data_programs(size: int) -> int:
    """Programs for an image with this many numbers."""
    return -(-size // (math.prod(BLOCK) * PIXELS))
