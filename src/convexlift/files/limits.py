"""Protection from damaged and hostile files: limits on declared sizes, and one-line errors.

A header of a few bytes can declare terabytes. Declared sizes are checked before memory is allocated
for them, against a number of megapixels and against the most that a file of that length can hold.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

MEGAPIXELS = 500.0
"""Default limit in millions of numbers, over all pages and channels."""

SMALL = 16.0
"""Megapixels that any file may declare: constant images compress without bound."""

EXPANSION = 1100.0
"""Largest expansion of a compressed byte; deflate reaches at most 1032."""

_WRITTEN_FOR_PEOPLE = (ValueError, OSError, EOFError, SyntaxError, ImportError, NotImplementedError)
"""Errors with readable messages; all others describe the decoder's code."""


class BoundedReader(io.BufferedReader):
    """A file opened for reading whose ``read`` allocates no more than the rest of the file.

    Decoders ask for as many bytes as a header declares, and Python allocates all of them before it
    notices that the file has fewer.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._length = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes."""
        left = max(self._length - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


def allowed_megapixels(length: int, itemsize: float, expansion: float = EXPANSION) -> float:
    """The default limit for a file of ``length`` bytes whose numbers take ``itemsize`` bytes."""
    return min(MEGAPIXELS, max(SMALL, expansion * length / itemsize / 1e6))


def require_plausible(
    path: Path,
    shape: Sequence[int],
    itemsize: float,
    max_megapixels: float | None,
    expansion: float = EXPANSION,
) -> None:
    """Raise ValueError, without the name of the file, if the file declares too large a size.

    Args:
        path: the file.
        shape: the size its header declares, over all pages and channels.
        itemsize: bytes of one number.
        max_megapixels: replaces both limits, or None.
        expansion: largest number of bytes that a stored byte can become; 1 without compression.
    """
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"its header declares the size {tuple(shape)}; copy or export it again")
    declared = math.prod(shape) / 1e6
    length = path.stat().st_size
    limit = max_megapixels
    if limit is None:
        limit = allowed_megapixels(length, itemsize, expansion)
    if declared > limit:
        raise ValueError(
            f"its header declares {declared:.4g} megapixels, but the limit for its "
            f"{length} bytes is {limit:.4g}; if that is correct, allow it with "
            f"--max-megapixels {math.ceil(declared)} (max_megapixels= in Python)"
        )


def require_limit(name: str, value: float | None) -> None:
    """Raise ValueError unless a limit is a positive number or None."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0, got {value:g}")


def reason_of(error: BaseException) -> str:
    """One line about why a file could not be decoded; decoders raise nearly every type of error."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "it needs more memory than is available"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if text and isinstance(error, _WRITTEN_FOR_PEOPLE) and not isinstance(error, UnicodeError):
        return text
    if isinstance(error, struct.error | zlib.error | EOFError):
        return "it is cut short or damaged"
    return f"it is damaged, or of an unsupported kind ({type(error).__name__})"
