"""The geometry of a scanner for kernels: rays in blocks, and the rays that pass each pixel.

Everything here is made once, in double precision on the host. It is as large as a sinogram.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.operators.tomography.rays import DIAGONAL_TOLERANCE, Crossings, Floats, Grid, Lines

Integers = NDArray[np.int32]
AFFINE_TOLERANCE = 1e-11
"""Rounding may put parallel rays this many bins off equal distances."""
OUTSIDE = -16.0
"""The crossing of a placeholder for a missing ray, far from every pixel."""


@dataclass(frozen=True)
class RayBlocks:
    """Neighbouring rays together, which read the same pixels; all blocks have the same size.

    Attributes:
        start: as in ``Crossings``, and so are the next three; (blocks, size).
        slope: zero where a block has fewer rays.
        length: likewise.
        ray: -1 there.
        first: the first step of each block, (blocks,).
        last: the step after its last.
        turned: 1 where its rays go by columns.
    """

    start: Floats
    slope: Floats
    length: Floats
    ray: Integers
    first: Integers
    last: Integers
    turned: Integers


def ray_blocks(
    by_rows: Crossings, by_columns: Crossings, bins: int, shape: tuple[int, int]
) -> RayBlocks:
    """Blocks of ``shape`` = (angles, bins), angles being neighbours by their slopes.

    Inside a block, angles count faster: rays of the same bin are nearest to each other. The
    longest blocks come first, so that the last programs to run are short ones.
    """
    parts = [
        _blocks(rays, bins, shape, turned)
        for turned, rays in enumerate((by_rows, by_columns))
        if len(rays.ray)
    ]
    if not parts:
        nothing, none = np.zeros(0), np.zeros(0, dtype=np.int32)
        return RayBlocks(nothing, nothing, nothing, none, none, none, none)
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in RayBlocks.__dataclass_fields__
    }
    order = np.argsort(joined["first"] - joined["last"], kind="stable")
    return RayBlocks(**{name: values[order] for name, values in joined.items()})


def _blocks(rays: Crossings, bins: int, shape: tuple[int, int], turned: int) -> RayBlocks:
    angle, b = rays.ray // bins, rays.ray % bins
    present, number = np.unique(angle, return_inverse=True)
    mean_slope = np.bincount(number, rays.slope) / np.bincount(number)
    rank = np.empty_like(present)
    rank[np.argsort(mean_slope, kind="stable")] = np.arange(len(present))
    rank = rank[number]
    across = -(-bins // shape[1])
    _, block = np.unique(rank // shape[0] * across + b // shape[1], return_inverse=True)
    count, size = int(block.max()) + 1, shape[0] * shape[1]
    place = block * size + b % shape[1] * shape[0] + rank % shape[0]

    def placed(values: NDArray[Any], empty: float, dtype: type) -> NDArray[Any]:
        found: NDArray[Any] = np.full(count * size, empty, dtype=dtype)
        found[place] = values
        return found.reshape(count, size)

    first, last = np.full(count, np.iinfo(np.int32).max), np.zeros(count)
    np.minimum.at(first, block, rays.first)
    np.maximum.at(last, block, rays.last)
    return RayBlocks(
        start=placed(rays.start, OUTSIDE, np.float64),
        slope=placed(rays.slope, 0.0, np.float64),
        length=placed(rays.length, 0.0, np.float64),
        ray=placed(rays.ray, -1, np.int32),
        first=first.astype(np.int32),
        last=last.astype(np.int32),
        turned=np.full(count, turned, dtype=np.int32),
    )


@dataclass(frozen=True)
class ParallelTurns:
    """Bin b of an angle passes pixel (i, j) at gap |a_0 i + a_1 j + a_2 + 1/gap - b| pixels.

    As in Joseph's method, distances are measured along the row, or the column, of the pixel.

    Attributes:
        turn: (a_0, a_1, a_2) of each angle, (angles, 3).
        gap: the distance of two rays, (angles,).
        most: how many rays of an angle can be less than a pixel away from a pixel.
    """

    turn: Floats
    gap: Floats
    most: int


def parallel_turns(lines: Lines, grid: Grid) -> ParallelTurns | None:
    """For lines that are parallel at each angle, at equal distances; else None."""
    if np.ptp(lines.dx, axis=1).any() or np.ptp(lines.dy, axis=1).any():
        return None
    across_x, across_y = -lines.dy[:, 0], lines.dx[:, 0]
    place = lines.x * across_x[:, None] + lines.y * across_y[:, None]
    bins = place.shape[1]
    per_row, per_column = -grid.pixel_height * across_y, grid.pixel_width * across_x
    by_rows = np.abs(per_column) >= np.abs(per_row) * (1 - DIAGONAL_TOLERANCE)
    per_pixel = np.where(by_rows, np.abs(per_column), np.abs(per_row))
    # One ray has no neighbours; two pixels away is where they do not matter.
    apart = (place[:, -1] - place[:, 0]) / (bins - 1) if bins > 1 else 2 * per_pixel
    if not apart.all():
        return None
    number = (place - place[:, :1]) / apart[:, None]
    if np.abs(number - np.arange(bins)).max() > AFFINE_TOLERANCE * max(1, bins / 1000):
        return None
    x, y = (centres[0] for centres in grid.centres())
    gap = np.abs(apart) / per_pixel
    origin = (x * across_x + y * across_y - place[:, 0]) / apart
    turn = np.stack([per_row / apart, per_column / apart, origin - 1 / gap], axis=1)
    return ParallelTurns(turn, gap, int(np.ceil(2 / gap.min())))


@dataclass(frozen=True)
class RayRuns:
    """Neighbouring rays of an angle that go the same way, by rows or by columns.

    They do not cross inside the image, so their crossings with a row are in order.

    Attributes:
        runs: first ray, number of rays, whether they go by columns, and how many can be less than
            a pixel away from a pixel; (runs, 4).
        start: as in ``Crossings``, for all rays of the sinogram; zero for rays beside the image.
        slope: likewise.
        longest: the largest number of rays.
    """

    runs: Integers
    start: Floats
    slope: Floats
    longest: int


def ray_runs(
    by_rows: Crossings, by_columns: Crossings, grid: Grid, sinogram_shape: tuple[int, int]
) -> RayRuns:
    """All rays that meet the image."""
    angles, bins = sinogram_shape
    start, slope = np.zeros(angles * bins), np.zeros(angles * bins)
    found = []
    for turned, rays in enumerate((by_rows, by_columns)):
        start[rays.ray], slope[rays.ray] = rays.start, rays.slope
        breaks = (np.diff(rays.ray) != 1) | (np.diff(rays.ray // bins) != 0)
        steps = grid.width if turned else grid.height
        for part in np.split(np.arange(len(rays.ray)), np.flatnonzero(breaks) + 1):
            if len(part):
                some = rays[slice(part[0], part[-1] + 1)]
                found.append((some.ray[0], len(part), turned, _most(some, steps)))
    runs = np.array(found, dtype=np.int32).reshape(-1, 4)
    return RayRuns(runs, start, slope, int(runs[:, 1].max(initial=1)))


def _most(rays: Crossings, steps: int) -> int:
    """How many crossings can be less than a pixel away from a pixel: inside a width of 2."""
    if len(rays.ray) == 1:
        return 1
    # Distances of neighbours are affine functions of the step, so smallest at an end.
    ends = np.stack([np.diff(rays.start), np.diff(rays.start + rays.slope * (steps - 1))])
    narrowest = np.abs(ends).min() if (ends > 0).all() or (ends < 0).all() else 0.0
    return int(min(len(rays.ray), np.ceil(2 / max(narrowest, 1e-9))))
