"""Where rays run: lines of a scanner, and the places where they cross a grid of pixels.

Everything here is float64 on the host and independent of images, in operators of any precision
and on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DIAGONAL_TOLERANCE = 1e-9
"""Rays this close to a pixel's diagonal step from row to row, in spite of rounding."""


@dataclass(frozen=True)
class Grid:
    """Pixels of a rectangle around the origin; row 0 is at the top, where y is largest."""

    height: int
    width: int
    pixel_height: float
    pixel_width: float

    @property
    def radius(self) -> float:
        """The distance of the corners from the centre."""
        return 0.5 * float(np.hypot(self.height * self.pixel_height, self.width * self.pixel_width))

    def rows(self, y: Floats) -> Floats:
        """The (fractional) row at height y; pixel centres have whole numbers."""
        return (self.height - 1) / 2 - y / self.pixel_height

    def columns(self, x: Floats) -> Floats:
        """The (fractional) column at x."""
        return x / self.pixel_width + (self.width - 1) / 2

    def centres(self) -> tuple[Floats, Floats]:
        """x of every column and y of every row."""
        columns = np.arange(self.width, dtype=np.float64)
        rows = np.arange(self.height, dtype=np.float64)
        x = (columns - (self.width - 1) / 2) * self.pixel_width
        y = ((self.height - 1) / 2 - rows) * self.pixel_height
        return x, y


@dataclass(frozen=True)
class Lines:
    """Points p + l d for all l, with |d| = 1: one line for each angle and bin, (angles, bins)."""

    x: Floats
    y: Floats
    dx: Floats
    dy: Floats


@dataclass(frozen=True)
class Crossings:
    """Rays that meet every row once: ray k crosses row i at column start_k + slope_k i.

    |slope| <= 1. The same record describes rays that meet every column once, with the two words
    exchanged.

    Attributes:
        ray: the indices of the rays in the flattened sinogram, in ascending order.
        start: the crossing of step 0.
        slope: how far the crossing moves from one step to the next.
        length: the length of the ray between two steps.
        first: the first step at which the ray is inside, or less than a pixel outside.
        last: the step after the last one of these.
    """

    ray: NDArray[np.int64]
    start: Floats
    slope: Floats
    length: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def __getitem__(self, part: slice) -> Crossings:
        """Some of the rays."""
        return Crossings(*(getattr(self, name)[part] for name in self.__dataclass_fields__))


def crossings(lines: Lines, grid: Grid) -> tuple[Crossings, Crossings]:
    """Each line with the axis along which it advances faster: by rows, and by columns.

    Lines that miss the image are in neither.
    """
    row, column = grid.rows(lines.y).ravel(), grid.columns(lines.x).ravel()
    down, right = -lines.dy.ravel() / grid.pixel_height, lines.dx.ravel() / grid.pixel_width
    by_rows = np.abs(down) >= np.abs(right) * (1 - DIAGONAL_TOLERANCE)
    return (
        _crossings(by_rows, row, column, down, right, grid.height, grid.width),
        _crossings(~by_rows, column, row, right, down, grid.width, grid.height),
    )


def _crossings(
    chosen: NDArray[np.bool_],
    along: Floats,
    across: Floats,
    advance: Floats,
    drift: Floats,
    steps: int,
    size: int,
) -> Crossings:
    """The chosen lines, which advance ``along`` one axis and drift ``across`` the other."""
    ray = np.flatnonzero(chosen)
    slope = drift[ray] / advance[ray]
    start = across[ray] - along[ray] * slope
    first, last = inside(start, slope, steps, size)
    found = Crossings(ray, start, slope, np.abs(1 / advance[ray]), first, last)
    hits: Any = first < last
    return found[hits]


def inside(
    start: Floats, slope: Floats, steps: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The steps i, from first to before last, with -1 < start + slope i < size.

    There may be one step more at either end: weights there are zero.
    """
    flat = np.abs(slope) < 1e-12
    safe = np.where(flat, 1.0, slope)
    ends = np.sort(np.stack([(-1 - start) / safe, (size - start) / safe]), axis=0)
    within = (start > -1) & (start < size)
    low = np.where(flat, np.where(within, 0, steps), np.floor(ends[0]))
    high = np.where(flat, steps, np.ceil(ends[1]) + 1)
    return np.clip(low, 0, steps).astype(np.int64), np.clip(high, 0, steps).astype(np.int64)
