"""Fans on flat detectors for kernels: the rays near a pixel in closed form.

Ray k leaves the source with the direction u + k v, and d is a pixel's place as seen from there.
With the cross product a x b = a_0 b_1 - a_1 b_0, the ray through the pixel has the number

    k(d) = - (d x u) / (d x v)

Kernels round it in single precision, which is enough to know the few rays that may be less than a
pixel away. Their weights come from their crossings: line a of the pixels, a row or a column, is
crossed by ray k of a run at

    c_k(a) = c(a) + scale(a) offset_k

with affine functions c, the crossing of the first ray, and scale, which is 1 at an edge of the image
and 0 at the source. So a ray is one number, without digits lost to the distance of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.operators.tomography.ray_layout import Integers, RayRuns
from convexlift.operators.tomography.rays import Floats, Grid, Lines

USUAL = 2
"""Rays of a run near a pixel, in most places of a fan; kernels always look at so many."""
ENTRY = 32
"""Entries of lists are ENTRY * run + most."""
REGIONS = 16
"""Rows and columns of regions: each has a list of its runs, so more of them need more memory."""
STRAIGHT_TOLERANCE = 1e-13
"""Rounding may turn a fan's rays by this angle away from equal distances on a flat detector."""
LARGEST_SLACK = 0.125
"""The most bins that a number k(d) may be wrong in single precision."""
CLEARANCE = 2.0
"""Pixels between the image and the line through a source that is parallel to its detector."""
NEAREST = 1e-3
"""Pixels between a source and the edge at which ``scale`` is 1."""
NOWHERE = 1e30
"""The offset of a placeholder for a missing ray, far from every pixel."""


@dataclass(frozen=True)
class FanRuns:
    """Runs of rays that leave a source for a flat detector, and where they pass.

    Attributes:
        guess: numerator and denominator of the first ray near a pixel, plus 1/2, as affine
            functions of the pixel's line and its place across; (runs, 6), in single precision.
        line: c and scale as affine functions of the line; (runs, 4).
        offset: of each ray, all runs one after the other.
        places: the first ray of a run in the sinogram, and in ``offset``, and their number;
            (runs, 3).
        entries: the runs that pass a region, by rows and then by columns, each with the number of
            rays that can be less than a pixel away from a pixel: ENTRY * run + number.
        bounds: where a region's runs by rows begin, those by columns begin, and end; (regions, 3).
        region: rows and columns of tiles in a region.
        most: the largest number of rays in ``entries``.
    """

    guess: NDArray[np.float32]
    line: Floats
    offset: Floats
    places: Integers
    entries: Integers
    bounds: Integers
    region: tuple[int, int]
    most: int


def fan_runs(lines: Lines, grid: Grid, found: RayRuns, tile: tuple[int, int]) -> FanRuns | None:
    """For fans on flat detectors whose sources are not too near; else None."""
    pencils = _pencils(lines, grid)
    if pencils is None or not len(found.runs):
        return None
    first, count, along, _ = found.runs.T.astype(np.int64)
    views, bins = lines.x.shape
    view, each, across = first // bins, np.arange(len(first)), 1 - along
    u, v = (part[:, view] for part in pencils)
    source = np.stack([grid.rows(lines.y[view, 0]), grid.columns(lines.x[view, 0])])
    sizes = np.array([grid.height, grid.width])
    facing = np.sign(_cross(u, v))
    axes = np.stack([along, across, np.full_like(along, 2)])
    number = _Numbers(
        (facing * np.stack([-u[1], u[0], _cross(source, u)]))[axes, each],
        (facing * np.stack([v[1], -v[0], -_cross(source, v)]))[axes, each],
    )
    corners = [(a, b) for a in (-1, sizes[along]) for b in (-1, sizes[across])]
    depth = np.stack([_at(number.bottom, *corner) for corner in corners]).min(0)
    advance = (u + np.stack([first, first + count - 1])[:, None] % bins * v)[:, along, each]
    edge = np.where(advance[0] > 0, sizes[along] - 1, 0)  # the farther one, as rays go
    reach = edge - source[along, each]
    near = (depth < CLEARANCE * np.hypot(*v)) | (np.abs(reach) < NEAREST)
    if near.any() or (advance[0] * advance[1] <= 0).any():
        return None
    length = np.maximum(count, USUAL)
    begin = np.minimum(first, views * bins - length)
    number = number.counted_from(begin - view * bins)
    # How a larger bin goes across
    way = np.where(along, -1, 1) * facing * np.sign(advance[0])
    guess, slack = number.guess(way, sizes[along], sizes[across], length)
    if slack.max() > LARGEST_SLACK:
        return None
    entries, bounds, region = _lists(number, slack, first - begin, count, along, grid, tile)
    start, slope = found.start, found.slope
    line = [start[first], slope[first], -source[along, each] / reach, 1 / reach]
    where = np.cumsum(length) - length
    run = np.repeat(each, length)
    ray = np.arange(len(run)) + (begin - where)[run]
    crossing = start[ray] + slope[ray] * edge[run]
    own = (ray >= first[run]) & (ray < (first + count)[run])
    offset = np.where(own, crossing - (start[first] + slope[first] * edge)[run], NOWHERE)
    return FanRuns(
        guess=guess,
        line=np.stack(line, axis=1),
        offset=offset,
        places=np.stack([begin, where, length], axis=1).astype(np.int32),
        entries=entries,
        bounds=bounds,
        region=region,
        most=int((entries % ENTRY).max(initial=USUAL)),
    )


@dataclass(frozen=True)
class _Numbers:
    """k(d) = top / bottom > 0, both affine: by a pixel's line, its place across and 1."""

    top: Floats
    bottom: Floats

    def counted_from(self, begin: NDArray[np.int64]) -> _Numbers:
        """The same without ``begin`` rays."""
        return _Numbers(self.top - begin * self.bottom, self.bottom)

    def guess(
        self, way: Floats, steps: NDArray[np.int64], size: NDArray[np.int64], count: Floats
    ) -> tuple[NDArray[np.float32], Floats]:
        """FanRuns.guess, and how many bins it may be too small.

        The first ray near a pixel comes after k(d) of its neighbour across. Single precision may be
        off by half of the slack, so that much is taken off.
        """
        top, bottom = self.top + 0.5 * self.bottom, self.bottom.copy()
        for form in (top, bottom):
            form[2] -= way * form[1]
        largest = [_at(np.abs(form), steps, size) for form in (top, bottom)]
        shallow = np.stack([_at(bottom, a, b) for a in (0, steps - 1) for b in (0, size - 1)])
        unit = 2.0**-24
        wrong = 4 * unit * (largest[0] + (count + 2) * largest[1]) / shallow.min(0)
        wrong += 8 * unit * (count + 2)  # a reciprocal that is nearly one
        guess = np.concatenate([top - wrong * bottom, bottom]) / largest[1]
        return np.ascontiguousarray(guess.T, dtype=np.float32), 2 * wrong


def _lists(
    number: _Numbers, slack: Floats, first: NDArray[np.int64], count: NDArray[np.int64],
    along: NDArray[np.int64], grid: Grid, tile: tuple[int, int],
) -> tuple[Integers, Integers, tuple[int, int]]:  # fmt: skip
    """The runs that pass each region: FanRuns.entries, .bounds and .region."""
    sizes = (grid.height, grid.width)
    tiles = [-(-size // side) for size, side in zip(sizes, tile, strict=True)]
    region = (-(-tiles[0] // REGIONS), -(-tiles[1] // REGIONS))
    begins = [np.arange(0, n, r) * t for n, r, t in zip(tiles, region, tile, strict=True)]
    low = np.stack(np.meshgrid(*begins, indexing="ij")).reshape(2, -1)
    extent = np.array([[region[0] * tile[0]], [region[1] * tile[1]]])
    high = np.minimum(low + extent, np.array(sizes)[:, None]) - 1
    # Quotients of affine functions are largest and smallest at corners.
    top, bottom, turn = (
        np.stack(
            [
                _at(form[..., None], a, b)
                for a in (low[along], high[along])
                for b in (low[1 - along] - 1, high[1 - along] + 1)
            ]
        )
        for form in (
            number.top,
            number.bottom,
            number.top[1] * number.bottom - number.bottom[1] * number.top,
        )
    )
    k = top / bottom
    begin, end = (first - slack)[:, None], (first + count - 1 + slack)[:, None]
    passes = (k.max(0) >= begin) & (k.min(0) <= end)
    # From pixel to pixel across, k grows by turn / (bottom of one * bottom of the other).
    span = 2 * (np.abs(turn) / bottom).max(0) * (1 / bottom).max(0)
    most = np.clip(np.ceil(span + slack[:, None]), USUAL, np.maximum(count, USUAL)[:, None])
    place, run = np.nonzero(passes.T)
    entries = run * ENTRY + most[run, place].astype(np.int64)
    bounds = np.zeros((passes.shape[1], 3), dtype=np.int32)
    bounds[:, 2] = np.cumsum(passes.sum(0))
    bounds[1:, 0] = bounds[:-1, 2]
    bounds[:, 1] = bounds[:, 0] + passes[along == 0].sum(0)
    return entries.astype(np.int32), bounds, region


def _pencils(lines: Lines, grid: Grid) -> tuple[Floats, Floats] | None:
    """u and v of each view (2, views), by its first, middle and last bins; None for others."""
    last = lines.x.shape[1] - 1
    if last < 2 or np.ptp(lines.x, axis=1).any() or np.ptp(lines.y, axis=1).any():
        return None
    rays = np.stack([-lines.dy / grid.pixel_height, lines.dx / grid.pixel_width])
    middle = last // 2
    begin, between, end = rays[..., 0], rays[..., middle], rays[..., last]
    scale = -_cross(between, begin) * (last - middle) / (_cross(between, end) * middle)
    u, v = begin, (scale * end - begin) / last
    straight = u[..., None] + np.arange(last + 1) * v[..., None]
    size = np.hypot(*rays) * np.hypot(*straight)
    flat = np.abs(_cross(rays, straight)) <= STRAIGHT_TOLERANCE * size
    return (u, v) if flat.all() else None


def _at(form: Floats, a: Any, b: Any) -> Floats:
    """An affine function of line a and place b."""
    value: Floats = form[0] * a + form[1] * b + form[2]
    return value


def _cross(a: Floats, b: Floats) -> Floats:
    product: Floats = a[0] * b[1] - a[1] * b[0]
    return product
