"""Freed memory, given back to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


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
