"""Joseph's weights as sparse matrices, for CPUs: the fastest way where they are small enough.

Rays that are mirror images of each other share a row of weights. A square has eight symmetries and
a rectangle four, the flips of rows and columns; transposing an image exchanges rays by rows and
rays by columns. A ray through x is a mirrored ray through the mirrored image, with the same
weights: 200 angles of a half turn are 25 angles and eight images. One sparse matrix times all
mirror images of x, side by side, is A x. Its transpose is kept as well, sorted by pixels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.operators.tomography.rays import Crossings, Floats, Grid, Lines, crossings, inside

SAME_START, SAME_SLOPE = 1e-9, 1e-12
"""Rays closer than this, in pixels and in pixels a step, are the same."""
FEW = 8
"""Rows join others that are this many times as numerous."""
FLIPS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))
"""The four flips of an image; the same again after transposing makes eight."""
TURNED = len(FLIPS)
"""From this number on, mirrorings transpose first."""
ROWS_AT_A_TIME = 1024
"""Rows of weights made at once: temporary numbers take tens of megabytes then."""
COLUMNS = 8
"""Vectors that a matrix is multiplied with at once: more would not fit the caches."""


@dataclass(frozen=True)
class Orbit:
    """Rows of weights that are used with the same mirror images.

    Attributes:
        mirrors: numbers of the mirror images.
        start: where the rays of these rows start, as in ``Crossings``.
        slope: their slopes.
        steps: the number of steps, and of pixels at each step.
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


@dataclass(frozen=True)
class WeightTable:
    """The weights of one orbit, and the rays that use them."""

    mirrors: tuple[int, ...]
    matrix: Tensor
    transpose: Tensor
    ray: Tensor
    slot: Tensor
    length: Tensor

    def portions(self, batch: Tensor) -> tuple[Tensor, ...]:
        """The batch in parts of a size that is fast."""
        return torch.split(batch, max(1, COLUMNS // len(self.mirrors)))

    def project(self, x: Tensor, y: Tensor) -> None:
        """Write the integrals of (B, H, W) along this table's rays into y, (B, rays)."""
        images = torch.stack([mirrored(x, k).flatten(1) for k in self.mirrors], dim=1)
        sums = _times(self.matrix, images.flatten(0, 1))  # rows, images * mirrors
        sums = sums.reshape(len(sums), len(x), len(self.mirrors)).transpose(0, 1).flatten(1)
        y[:, self.ray] = self.length * sums[:, self.slot]

    def backproject(self, y: Tensor, x: Tensor) -> None:
        """Add the transpose of this table, applied to its rays of y (B, rays), to x (B, H, W)."""
        count = len(self.mirrors)
        size, pixels = self.matrix.shape
        sums = y.new_zeros((len(y), size * count))
        for image, values in zip(sums, self.length * y[:, self.ray], strict=True):
            image.index_add_(0, self.slot, values)  # some rays are given twice
        rows = sums.reshape(len(y), size, count).transpose(1, 2).flatten(0, 1)
        images = _times(self.transpose, rows).T.contiguous().reshape(len(y), count, pixels)
        for k, number in enumerate(self.mirrors):
            x += unmirrored(images[:, k].reshape(mirrored(x, number).shape), number)


class Tables:
    """Products with A and its transpose, by sparse matrices on the CPU, from ``orbits``."""

    def __init__(
        self, found: list[Orbit], grid: Grid, sinogram_shape: tuple[int, int], dtype: torch.dtype
    ) -> None:
        self.grid = grid
        self.sinogram_shape = sinogram_shape
        self._tables = tuple(_table(orbit, dtype) for orbit in found)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: it never changes, and torch cannot copy sparse matrices."""
        return self

    def project(self, x: Tensor) -> Tensor:
        """A x: (B, H, W) -> (B, angles, bins)."""
        y = x.new_zeros((len(x), self.sinogram_shape[0] * self.sinogram_shape[1]))
        for table in self._tables:
            for images, sinograms in zip(table.portions(x), table.portions(y), strict=True):
                table.project(images, sinograms)
        return y.reshape(-1, *self.sinogram_shape)

    def backproject(self, y: Tensor) -> Tensor:
        """A* y: (B, angles, bins) -> (B, H, W)."""
        x, flat = y.new_zeros((len(y), self.grid.height, self.grid.width)), y.flatten(1)
        for table in self._tables:
            for images, sinograms in zip(table.portions(x), table.portions(flat), strict=True):
                table.backproject(sinograms, images)
        return x


def tables(lines: Lines, grid: Grid, dtype: torch.dtype, most_bytes: int) -> Tables | None:
    """``Tables``, or None where they would take more memory than allowed."""
    found = orbits(*crossings(lines, grid), grid)
    weights = 2 * sum(orbit.samples for orbit in found)
    if 2 * weights * (4 + dtype.itemsize) > most_bytes:  # and an index of 4 bytes for each
        return None
    angles, bins = lines.x.shape
    return Tables(found, grid, (angles, bins), dtype)


def _times(matrix: Tensor, columns: Tensor) -> Tensor:
    """The sparse matrix times vectors that lie in rows; (size, vectors)."""
    if len(columns) == 1:
        return torch.mv(matrix, columns[0])[:, None]
    return matrix @ columns.T.contiguous()


def _table(orbit: Orbit, dtype: torch.dtype) -> WeightTable:
    matrix = _matrix(orbit, dtype)
    return WeightTable(
        mirrors=orbit.mirrors,
        matrix=matrix,
        transpose=_transpose(matrix),
        ray=torch.from_numpy(orbit.ray),
        slot=torch.from_numpy(orbit.slot),
        length=torch.from_numpy(orbit.length).to(dtype),
    )


def _matrix(orbit: Orbit, dtype: torch.dtype) -> Tensor:
    """(1 - f, f) at the two neighbours of each crossing, row by row."""
    steps, size = orbit.steps
    columns, values, counts = [], [], []
    first, last = inside(orbit.start, orbit.slope, steps, size)
    for low in range(0, len(orbit.start), ROWS_AT_A_TIME):
        part = slice(low, low + ROWS_AT_A_TIME)
        # From the first step of the earliest ray to the last of the latest.
        step = np.arange(first[part].min(), last[part].max())
        crossing = orbit.start[part, None] + orbit.slope[part, None] * step
        left = np.floor(crossing)
        fraction = crossing - left
        place = np.stack([left, left + 1], axis=-1)
        weight = np.stack([1 - fraction, fraction], axis=-1)
        real = (place >= 0) & (place < size) & (weight > 0)
        pixel = place + (step * size)[:, None]
        columns.append(torch.from_numpy(pixel[real].astype(np.int32)))
        values.append(torch.from_numpy(weight[real]).to(dtype))
        counts.append(real.sum((1, 2)))
    ends = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int32)
    shape = (len(orbit.start), steps * size)
    return _sparse(torch.from_numpy(ends), torch.cat(columns), torch.cat(values), shape)


def _transpose(matrix: Tensor) -> Tensor:
    """The same weights, pixel by pixel; torch's own conversion takes more time and memory."""
    size, pixels = matrix.shape
    columns, order = torch.sort(matrix.col_indices(), stable=True)
    ends = torch.searchsorted(columns, torch.arange(pixels + 1, dtype=torch.int32))
    del columns
    rows = torch.repeat_interleave(
        torch.arange(size, dtype=torch.int32), matrix.crow_indices().diff()
    )
    return _sparse(ends.int(), rows[order], matrix.values()[order], (pixels, size))


def _sparse(ends: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse matrices beta
        return torch.sparse_csr_tensor(ends, columns, values, shape, check_invariants=False)
