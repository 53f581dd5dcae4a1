"""Symmetries of scanners: rays that are mirror images of each other need one row of weights.

A square has eight symmetries and a rectangle four, the flips of rows and columns; transposing an
image exchanges rays by rows and rays by columns. A ray through x is a mirrored ray through the
mirrored image, with the same weights: 200 angles of a half turn are 25 angles and eight images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.operators.tomography.rays import Crossings, Floats, Grid, inside

SAME_START, SAME_SLOPE = 1e-9, 1e-12
"""Rays closer than this, in pixels and in pixels a step, are the same."""
FEW = 8
"""Rows join others that are this many times as numerous."""
FLIPS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))
"""The four flips of an image; the same again after transposing makes eight."""
TURNED = len(FLIPS)
"""From this number on, mirrorings transpose first."""


@dataclass(frozen=True)
class Orbit:
    """Rows of weights that are used with the same mirror images.

    Attributes:
        mirrors: numbers of the mirror images.
        start: where the rays of these rows start, as in ``Crossings``.
        slope: their slopes.
        steps: their steps, and the number of places to be at each.
        ray: the rays of the sinogram that use these rows.
        slot: the row and mirror image of each: row * len(mirrors) + position in ``mirrors``.
        length: the lengths of their steps.
    """

    mirrors: tuple[int, ...]
    start: Floats
    slope: Floats
    steps: tuple[int, int]
    ray: NDArray[np.int64]
    slot: NDArray[np.int64]
    length: Floats

    @property
    def samples(self) -> int:
        """How many crossings the rows have; each has two weights."""
        first, last = inside(self.start, self.slope, *self.steps)
        return int((last - first).sum())


def mirrored(x: Tensor, number: int) -> Tensor:
    """Mirror image ``number`` of (..., H, W)."""
    turned = x.mT if number >= TURNED else x
    return turned.flip(FLIPS[number % TURNED])


def unmirrored(x: Tensor, number: int) -> Tensor:
    """The inverse of ``mirrored``, which is also its adjoint."""
    flipped = torch.flip(x, FLIPS[number % TURNED])
    return flipped.mT if number >= TURNED else flipped


def orbits(by_rows: Crossings, by_columns: Crossings, grid: Grid) -> list[Orbit]:
    """All rays, sorted by the mirror images with which their rows of weights are used."""
    sizes = (grid.height, grid.width)
    rows, columns = _canonical(by_rows, sizes), _canonical(by_columns, sizes[::-1])
    columns.mirror += TURNED
    if sizes[0] != sizes[1]:
        columns.key[:, 0] = 1  # rays by rows and by columns share no rows of weights
    key = np.concatenate([rows.key, columns.key])
    mirror = np.concatenate([rows.mirror, columns.mirror])
    start = np.concatenate([rows.start, columns.start])
    slope = np.concatenate([rows.slope, columns.slope])
    ray = np.concatenate([by_rows.ray, by_columns.ray])
    length = np.concatenate([by_rows.length, by_columns.length])
    _, first, row = np.unique(key, axis=0, return_index=True, return_inverse=True)
    row = row.reshape(-1)
    used = np.zeros(len(first), dtype=np.int64)
    np.bitwise_or.at(used, row, 1 << mirror)
    used = _merged(used)
    found = []
    for bits in np.unique(used):
        mirrors = tuple(k for k in range(2 * TURNED) if bits >> k & 1)
        members = used == bits
        place = np.cumsum(members) - 1
        chosen = np.flatnonzero(members[row])
        rank = np.searchsorted(mirrors, mirror[chosen])
        found.append(
            Orbit(
                mirrors=mirrors,
                start=start[first[members]],
                slope=slope[first[members]],
                steps=sizes if mirrors[0] < TURNED else sizes[::-1],
                ray=ray[chosen],
                slot=place[row[chosen]] * len(mirrors) + rank,
                length=length[chosen],
            )
        )
    return found


def _merged(used: NDArray[np.int64]) -> NDArray[np.int64]:
    """A few rows that need only some of the mirror images of many other rows join these.

    A separate matrix, with its own copies of images, would cost more than unused products.
    """
    patterns, counts = np.unique(used, return_counts=True)
    used = used.copy()
    for bits, count in zip(patterns, counts, strict=True):
        larger = (patterns & bits == bits) & (counts >= FEW * count)
        if larger.any():
            used[used == bits] = patterns[larger][np.argmax(counts[larger])]
    return used


@dataclass
class _Canonical:
    """Each ray mirrored so that its slope is largest, then its start smallest."""

    start: Floats
    slope: Floats
    mirror: NDArray[np.int64]
    key: NDArray[np.int64]


def _canonical(rays: Crossings, sizes: tuple[int, int]) -> _Canonical:
    steps, size = sizes
    start, slope = rays.start, rays.slope
    end = start + slope * (steps - 1)
    starts = np.stack([start, size - 1 - start, end, size - 1 - end])  # in the order of FLIPS
    slopes = np.stack([slope, -slope, -slope, slope])
    whole_starts = np.rint(starts / SAME_START).astype(np.int64)
    whole_slopes = np.rint(slopes / SAME_SLOPE).astype(np.int64)
    best = np.zeros(len(start), dtype=np.int64)
    each = np.arange(len(start))
    for k in range(1, TURNED):
        steeper = whole_slopes[k] - whole_slopes[best, each]
        earlier = whole_starts[k] < whole_starts[best, each]
        best = np.where((steeper > 0) | ((steeper == 0) & earlier), k, best)
    key = np.stack([np.zeros_like(best), whole_slopes[best, each], whole_starts[best, each]], 1)
    return _Canonical(starts[best, each], slopes[best, each], best, key)
