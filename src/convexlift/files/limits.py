"""Limits on the sizes that files declare, checked before any memory is allocated.

A header of a few bytes can declare terabytes. Two limits apply: a number of megapixels, and what a
file of that length can hold at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

MEGAPIXELS = 500.0
"""Millions of numbers, over all pages and channels, that are read unless a limit is given."""

SMALL = 16.0
"""Megapixels that any file may declare: constant images compress without bound."""

EXPANSION = 1100.0
"""Bytes that a byte of a compressed file can become; deflate makes at most 1032."""


def allowed_megapixels(length: int, itemsize: float, expansion: float = EXPANSION) -> float:
    """The default limit of a file of ``length`` bytes whose numbers take ``itemsize`` bytes."""
    return min(MEGAPIXELS, max(SMALL, expansion * length / itemsize / 1e6))


def require_plausible(
    path: Path,
    shape: Sequence[int],
    itemsize: float,
    max_megapixels: float | None,
    expansion: float = EXPANSION,
) -> None:
    """Raise ValueError, without the name of the file, if it declares too much.

    Args:
        path: of the file.
        shape: that its header declares, over all pages and channels.
        itemsize: bytes of one number.
        max_megapixels: replaces both limits, or None.
        expansion: bytes that a stored byte can become; 1 without compression.
    """
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"its header declares the size {tuple(shape)}; copy or export it again")
    declared = math.prod(shape) / 1e6
    length = path.stat().st_size
    limit = allowed_megapixels(length, itemsize, expansion)
    if max_megapixels is not None:
        limit = max_megapixels
    if declared > limit:
        raise ValueError(
            f"its header declares {declared:.4g} megapixels, and the limit for its "
            f"{length} bytes is {limit:.4g}; if that is no mistake, allow it with "
            f"--max-megapixels {math.ceil(declared)} (max_megapixels= in Python)"
        )


def require_limit(name: str, value: float | None) -> None:
    """Raise ValueError unless a limit is a positive number, or None."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0, got {value:g}")
