"""What scanners are made of, checked before any work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.tomography.rays import Floats, Grid

T = TypeVar("T")


def checked_grid(
    name: str, image_size: int | tuple[int, int], extent: float | tuple[float, float] | None
) -> Grid:
    """Pixels of ``image_size`` = (height, width) over a rectangle of ``extent``."""
    sizes = _pair(image_size)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise ValueError(
            f"{name} needs image_size=N or (height, width) of whole numbers from 1, "
            f"got {image_size!r}"
        )
    height, width = sizes
    extents = (float(height), float(width)) if extent is None else _pair(extent)
    if not all(math.isfinite(e) and e > 0 for e in extents):
        raise ValueError(
            f"{name} needs extent > 0, the height and width of the image in units of length, "
            f"got {extent!r}"
        )
    return Grid(height, width, float(extents[0]) / height, float(extents[1]) / width)


def checked_angles(name: str, angles: int | Tensor | Sequence[float], turn: float) -> Floats:
    """Angles in radians; a number of them is spread evenly over [0, turn)."""
    if isinstance(angles, int) and not isinstance(angles, bool):
        if angles < 1:
            raise ValueError(f"{name} needs at least one angle, got angles={angles}")
        return np.arange(angles, dtype=np.float64) * (turn / angles)
    values = torch.as_tensor(angles, dtype=torch.float64).detach().cpu()
    if values.ndim != 1 or values.numel() == 0:
        raise ValueError(
            f"{name} needs angles=N or a list of angles in radians, got the shape "
            f"{tuple(values.shape)}"
        )
    if not (finite := torch.isfinite(values)).all():
        place = int((~finite).nonzero()[0])
        raise ValueError(f"{name} got angles[{place}] = {float(values[place])}")
    return values.numpy().copy()


def checked_bins(name: str, bins: int, bin_width: float, offset: float) -> Floats:
    """The centres of the bins, on a detector whose middle is at ``offset``."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"{name} needs bins=N, a whole number from 1, got {bins!r}")
    if not (math.isfinite(bin_width) and bin_width > 0):
        raise ValueError(f"{name} needs bin_width > 0, got {bin_width}")
    if not math.isfinite(offset):
        raise ValueError(f"{name} needs a finite detector_offset, got {offset}")
    return (np.arange(bins, dtype=np.float64) - (bins - 1) / 2) * bin_width + offset


def _pair(value: T | tuple[T, T]) -> tuple[T, T]:
    if not isinstance(value, tuple):
        return (value, value)
    if len(value) != 2:
        raise ValueError(f"a number or a pair (height, width) was expected, got {value!r}")
    return value
