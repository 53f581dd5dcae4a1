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
STRAIGHT_TOLERANCE = 1e-13
"""Rounding may turn a fan's rays by this angle away from equal distances on a flat detector."""
FARTHEST_BIN = 2.0**18
"""Places of pixels on a detector are split by a shift that has room for twice as many bins."""
CLEARANCE = 2.0
"""Pixels between the image and the line through a source that is parallel to its detector."""
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


@dataclass(frozen=True)
class FanRuns:
    """Runs of rays that leave a source for a flat detector, with bins k in closed form.

    Ray k has the direction u + k v, and d is a pixel's place as seen from the source. With the
    cross product a x b = a_0 b_1 - a_1 b_0, the bin through a pixel is k(d) = - (d x u) / (d x v),
    and ray k passes it at a distance of (d x v) (k - k(d)) / (u_0 + k v_0) pixels along its row,
    the same with -(u_1 + k v_1) along its column.

    Attributes:
        fan: of each run, as affine functions of a pixel's row and column, -(d x u), d x v and a
            number with the sign of a bin's step across; then how the first two change by a step
            across, and the two numbers of the divisor; (runs, 13).
        places: the first ray of the view, the first bin and the number of bins of the run, and how
            many of its rays can be less than a pixel away from a pixel; (runs, 4).
        most: the largest of these numbers.
    """

    fan: Floats
    places: Integers
    most: int


def fan_runs(lines: Lines, grid: Grid, runs: Integers) -> FanRuns | None:
    """For fans on flat detectors whose sources are not too near; else None."""
    bins = lines.x.shape[1]
    if bins < 3 or not len(runs) or np.ptp(lines.x, axis=1).any() or np.ptp(lines.y, axis=1).any():
        return None
    rays = np.stack([-lines.dy / grid.pixel_height, lines.dx / grid.pixel_width])
    u, v = _pencils(rays)
    straight = u[..., None] + np.arange(bins) * v[..., None]
    size = np.hypot(*rays) * np.hypot(*straight)
    if not (np.abs(_cross(rays, straight)) <= STRAIGHT_TOLERANCE * size).all():
        return None
    each, view, first = np.arange(len(runs)), runs[:, 0] // bins, runs[:, 0] % bins
    along, across = runs[:, 2], 1 - runs[:, 2]  # axes: 0 of rows, 1 of columns
    u, v = u[:, view], v[:, view]
    source = np.stack([grid.rows(lines.y[view, 0]), grid.columns(lines.x[view, 0])])
    sign = np.where(along, -1.0, 1.0)
    divisor = sign * np.stack([u[along, each], v[along, each]])
    ends = divisor[0] + divisor[1] * np.stack([first, first + runs[:, 1] - 1])
    if not _seen_from_afar(source, u, v, grid) or (ends[0] * ends[1] <= 0).any():
        return None
    minus = np.stack([-u[1], u[0], _cross(source, u)])  # -(d x u), by row, column and 1
    below = np.stack([v[1], -v[0], -_cross(source, v)])  # d x v
    step = np.stack([across, along, -source[along, each]]) * (sign * _cross(u, v))
    changes = np.stack([minus[across, each], below[across, each]])
    fan = np.concatenate([minus, below, step, changes, divisor])
    places = np.stack([view * bins, first, runs[:, 1], runs[:, 3]], axis=1).astype(np.int32)
    return FanRuns(np.ascontiguousarray(fan.T), places, int(runs[:, 3].max()))


def _seen_from_afar(source: Floats, u: Floats, v: Floats, grid: Grid) -> bool:
    """Whether all pixels, and their neighbours outside, have a place on the detector.

    The place -(d x u) / (d x v) is largest and smallest at corners, if d x v does not vanish.
    """
    corners = np.array([[-1, -1, grid.height, grid.height], [-1, grid.width, -1, grid.width]])
    d = corners[:, None] - source[..., None]
    depth = _cross(d, v[..., None]) * np.sign(_cross(u, v))[:, None]
    far = depth >= CLEARANCE * np.hypot(*v)[:, None]
    return bool((far & (np.abs(_cross(d, u[..., None])) <= FARTHEST_BIN * depth)).all())


def _pencils(ray: Floats) -> tuple[Floats, Floats]:
    """u and v with u + k v along ``ray`` (2, views, bins), by its first, middle and last bins."""
    last = ray.shape[-1] - 1
    middle = last // 2
    begin, between, end = ray[..., 0], ray[..., middle], ray[..., last]
    scale = -_cross(between, begin) * (last - middle) / (_cross(between, end) * middle)
    return begin, (scale * end - begin) / last


def _cross(a: Floats, b: Floats) -> Floats:
    product: Floats = a[0] * b[1] - a[1] * b[0]
    return product
