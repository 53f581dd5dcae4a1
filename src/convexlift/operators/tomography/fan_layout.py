"""Fans for kernels: the rays near a pixel in closed form.

Ray k leaves the source with the direction u + k v, and d is a pixel's place as seen from there.
With the cross product a x b = a_0 b_1 - a_1 b_0, the ray through the pixel has the number

    k(d) = - (d x u) / (d x v)

on a flat detector, and nearly so on each of some parts of a curved one. Kernels compute it in
single precision, which is enough to know the few rays that may be less than a pixel away. Weights
come from their crossings: line a of the pixels, a row or a column, is crossed by ray k of a run at

    c_k(a) = c(a) + scale(a) offset_k

where c is the crossing of the run's first ray, and scale is an affine function that is 0 at the
source and 1 at the edge of the image behind it. So a ray is one number, and none of its digits are
lost to the distance of the source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.operators.tomography.ray_layout import Integers, RayRuns
from convexlift.operators.tomography.rays import Floats, Grid, Lines

Counts = NDArray[np.int64]
ENTRY = 32
"""Entries begin with ENTRY * run + rays before."""
MOST = 24
"""The most rays near two pixels; more of them are found by bisection."""
LARGEST_ENTRY = 8
"""The most rays of an entry, whose loop is unrolled."""
OVERHEAD = 2
"""An entry's work apart from its rays, compared with that for a ray."""
REGIONS = 16
"""Rows, and columns, of regions; each has a list of entries, so more regions need more memory."""
CHUNK = 1024
"""Runs whose places in all regions are computed at a time, to save memory."""
PARTS = (1, 2, 4, 8, 16)
"""Parts of a view in which a curved detector may be nearly flat."""
LARGEST_ERROR = 0.125
"""The most rays by which k(d) may be wrong in single precision, or on a curved detector."""
AHEAD = 2
"""Entries that kernels load ahead."""
CLEARANCE = 2.0
"""Pixels between the image and the line through a source that is parallel to its detector."""
NEAREST = 1e-3
"""Pixels between a source and the edge where ``scale`` is 1."""
NOWHERE = 1e30
"""The offset of a placeholder for a missing ray, far from every pixel."""


@dataclass(frozen=True)
class FanRuns:
    """Runs of rays that leave a source, and where they pass.

    Kernels handle two pixels next to each other on a line. The rays that may be near them come in
    entries of ``at_once`` rays. Numbers of 32 bits come in pairs, as kernels load them.

    Attributes:
        guess: numerator and denominator of the first ray near two pixels, plus 1/2, as affine
            functions of the pixels' line and of the first one's place across; (runs, 6), float32.
        line: c and scale as affine functions of the line; (runs, 4).
        offsets: of each ray, all runs one after the other.
        places: the first ray of a run in the sinogram, and in ``offsets``; (runs, 2).
        entries: the runs that pass a region, those by rows first: ENTRY * run + rays before these,
            and the last possible number of the first ray; (entries, 2).
        bounds: where a region's runs by rows begin, those by columns begin, and end; (regions, 3).
        region: rows and columns of tiles in a region.
        at_once: the number of rays of an entry.
    """

    guess: NDArray[np.float32]
    line: Floats
    offsets: Floats
    places: Integers
    entries: Integers
    bounds: Integers
    region: tuple[int, int]
    at_once: int


def fan_runs(lines: Lines, grid: Grid, found: RayRuns, tile: tuple[int, int]) -> FanRuns | None:
    """For fans whose sources are not too near, nor their rays to each other; else None."""
    if np.ptp(lines.x, axis=1).any() or np.ptp(lines.y, axis=1).any() or not len(found.runs):
        return None
    for parts in PARTS:
        if lines.x.shape[1] >= 3 * parts:
            with np.errstate(divide="ignore", invalid="ignore"):  # from rays that do not differ
                runs = _runs(lines, grid, found, parts)
            if runs is not None:
                return _layout(runs, grid, found, tile, lines.x.size)
    return None


def _layout(
    runs: _Runs, grid: Grid, found: RayRuns, tile: tuple[int, int], rays: int
) -> FanRuns | None:
    """Unless there are too many rays near a pixel."""
    region, low, high = _regions(grid, tile)
    near = [_near(runs[b : b + CHUNK], low, high) for b in range(0, len(runs.first), CHUNK)]
    passes, most = (np.concatenate(parts) for parts in zip(*near, strict=True))
    if most[passes].max(initial=1) > MOST:
        return None
    at_once = _at_once(most[passes], runs.count, rays)
    length = _rounded_up(runs.count, at_once)
    begin = np.minimum(runs.first, rays - length)  # placeholders are in the sinogram, too
    entries, bounds = _entries(passes, most, runs.along, length, at_once)
    start, slope = found.start[runs.first], found.slope[runs.first]
    reach = runs.edge - runs.source
    return FanRuns(
        guess=_guess(runs, runs.first - begin),
        line=np.stack([start, slope, -runs.source / reach, 1 / reach], axis=1),
        offsets=_offsets(runs, found, begin, length),
        places=np.stack([begin, np.cumsum(length) - length], axis=1).astype(np.int32),
        entries=entries,
        bounds=bounds,
        region=region,
        at_once=at_once,
    )


@dataclass(frozen=True)
class _Runs:
    """Runs in their own coordinates: the line of a pixel and its place across.

    Attributes:
        first: the first ray in the sinogram; (runs,) like the others.
        count: the number of rays.
        along: the axis of lines, 0 for rows.
        top: k(d) = top / bottom, counted from the first ray, both affine: by line, place and 1.
        bottom: positive in and around the image.
        rising: whether larger k are at larger places.
        source: its line.
        edge: the line of the image that is farthest from it, on the side of the rays.
        wrong: by how many rays k(d) may be wrong.
    """

    first: Counts
    count: Counts
    along: Counts
    top: Floats
    bottom: Floats
    rising: NDArray[np.bool_]
    source: Floats
    edge: Counts
    wrong: Floats

    def __getitem__(self, part: slice) -> _Runs:
        """Some of the runs."""
        return _Runs(*(getattr(self, name)[..., part] for name in self.__dataclass_fields__))


def _runs(lines: Lines, grid: Grid, found: RayRuns, parts: int) -> _Runs | None:
    """With views in parts; None where sources are too near, or parts of the detector not flat."""
    bins = lines.x.shape[1]
    first, count, along, part = _split(found.runs.astype(np.int64), bins, parts)
    view, each, across = first // bins, np.arange(len(first)), 1 - along
    u, v = _pencils(lines, grid, view, part, parts)
    u = u + (first % bins - _edges(bins, parts)[part]) * v
    source = np.stack([grid.rows(lines.y[view, 0]), grid.columns(lines.x[view, 0])])
    facing = np.sign(_cross(u, v))
    order = np.stack([along, across, np.full_like(along, 2)])
    top = (facing * np.stack([-u[1], u[0], _cross(source, u)]))[order, each]
    bottom = (facing * np.stack([v[1], -v[0], -_cross(source, v)]))[order, each]
    sizes = np.array([grid.height, grid.width])
    steps, size = sizes[along], sizes[across]
    ends = np.stack([u, u + (count - 1) * v])[:, along, each]  # how the outer rays advance
    edge = np.where(ends[0] > 0, steps - 1, 0)
    corners = np.stack([_at(bottom, a, b) for a in (-1, steps) for b in (-1, size + 1)])
    far = corners.min(0) >= CLEARANCE * np.hypot(*v)
    far &= np.abs(edge - source[along, each]) >= NEAREST
    if not (far & (ends[0] * ends[1] > 0)).all():
        return None
    rising = np.where(along, -facing, facing) * ends[0] > 0
    # Affine functions take five roundings, and the reciprocal is not quite one.
    terms = [_at(np.abs(form), steps, size + 2) for form in (top, bottom)]
    largest = count + 2 * MOST
    wrong = 2.0**-24 * (5 * (terms[0] + largest * terms[1]) / corners.min(0) + 8 * largest)
    runs = _Runs(first, count, along, top, bottom, rising, source[along, each], edge, wrong)
    runs = replace(runs, wrong=wrong + _bent(runs, found))
    return runs if runs.wrong.max() <= LARGEST_ERROR else None


def _split(runs: Counts, bins: int, parts: int) -> tuple[Counts, Counts, Counts, Counts]:
    """First ray, count and axis of runs that end with parts of their views, and the part."""
    edges, begin = _edges(bins, parts), runs[:, 0] % bins
    low = np.maximum(begin, edges[:-1, None])
    high = np.minimum(begin + runs[:, 1], edges[1:, None])
    run, part = np.nonzero((low < high).T)
    first = runs[run, 0] - begin[run] + low[part, run]
    return first, (high - low)[part, run], runs[run, 2], part


def _edges(bins: int, parts: int) -> Counts:
    """The first bins of parts of a view, and the number of bins."""
    return np.arange(parts + 1) * bins // parts


def _pencils(
    lines: Lines, grid: Grid, view: Counts, part: Counts, parts: int
) -> tuple[Floats, Floats]:
    """u and v of parts of views, by their first, middle and last bins; (2, runs)."""
    edges = _edges(lines.x.shape[1], parts)
    rays = np.stack([-lines.dy / grid.pixel_height, lines.dx / grid.pixel_width])
    first, last = edges[part], edges[part + 1] - 1
    middle = (first + last) // 2
    begin, between, end = (rays[:, view, b] for b in (first, middle, last))
    scale = -_cross(between, begin) * (last - middle)
    scale /= _cross(between, end) * (middle - first)
    return begin, (scale * end - begin) / (last - first)


def _bent(runs: _Runs, found: RayRuns) -> Floats:
    """By how many rays k(d) is wrong on the rays themselves."""
    number, run, begins = _one_after_another(runs.count)
    ray = runs.first[run] + number
    line, place = runs.edge[run], found.start[ray] + found.slope[ray] * runs.edge[run]
    k = _at(runs.top[:, run], line, place) / _at(runs.bottom[:, run], line, place)
    return np.maximum.reduceat(np.abs(k - number), begins)


def _guess(runs: _Runs, before: Counts) -> NDArray[np.float32]:
    """FanRuns.guess with so many placeholders before the first ray.

    The first ray near two pixels comes after k(d) of the place beside them where rays have smaller
    numbers; and by as much as it may be wrong, it shall rather be too small.
    """
    top = runs.top + (before + 0.5 - runs.wrong) * runs.bottom
    guess = np.stack([*top, *runs.bottom])
    guess[[2, 5]] += np.where(runs.rising, -1, 2) * guess[[1, 4]]
    guess /= np.abs(runs.bottom).max(0)
    return np.ascontiguousarray(guess.T, dtype=np.float32)


def _regions(grid: Grid, tile: tuple[int, int]) -> tuple[tuple[int, int], Counts, Counts]:
    """Tiles in a region, and its first and last rows and columns; (2, regions)."""
    sizes = (grid.height, grid.width)
    tiles = [-(-size // side) for size, side in zip(sizes, tile, strict=True)]
    region = (-(-tiles[0] // REGIONS), -(-tiles[1] // REGIONS))
    extents = [region[0] * tile[0], region[1] * tile[1]]
    begins = [np.arange(0, size, extent) for size, extent in zip(sizes, extents, strict=True)]
    low = np.stack(np.meshgrid(*begins, indexing="ij")).reshape(2, -1)
    return region, low, np.minimum(low.T + extents, sizes).T - 1


def _near(runs: _Runs, low: Counts, high: Counts) -> tuple[NDArray[np.bool_], Counts]:
    """Whether a run passes a region, and how many rays can be near two pixels; (runs, regions).

    From a place to that at a distance of 3, k(d) grows by 3 turn / (bottom here bottom there).
    """
    along, across = runs.along, 1 - runs.along
    lines, places = (low[along], high[along]), (low[across] - 1, high[across] + 2)
    change = runs.top[1] * runs.bottom - runs.bottom[1] * runs.top
    # Quotients of affine functions are largest and smallest at corners.
    top, bottom, turn = (
        np.stack([_at(form[..., None], a, b) for a in lines for b in places])
        for form in (runs.top, runs.bottom, change)
    )
    k, wrong, count = top / bottom, runs.wrong[:, None], runs.count[:, None]
    passes = (k.max(0) >= -wrong) & (k.min(0) <= count - 1 + wrong)
    span = 3 * (np.abs(turn) / bottom).max(0) * (1 / bottom).max(0)
    return passes, np.minimum(np.ceil(span + 2 * wrong), count).astype(np.int64)


def _at_once(most: Counts, count: Counts, rays: int) -> int:
    """The number of rays in an entry for which there is least to do."""

    def work(at_once: int) -> float:
        fits = _rounded_up(count, at_once).max() <= rays
        entries = _rounded_up(most, at_once).sum() / at_once
        return float(entries) * (at_once + OVERHEAD) if fits else np.inf

    return min(range(1, LARGEST_ENTRY + 1), key=work)


def _entries(
    passes: NDArray[np.bool_], most: Counts, along: Counts, length: Counts, at_once: int
) -> tuple[Integers, Integers]:
    """FanRuns.entries and FanRuns.bounds."""
    times = np.where(passes, -(-most // at_once), 0)
    region, run = np.nonzero(passes.T)
    number, each, _ = _one_after_another(times[run, region])
    region, run = region[each], run[each]
    latest = length[run] - at_once * times[run, region]
    entries = np.stack([ENTRY * run + at_once * number, latest], axis=1)
    ends = np.cumsum(times.sum(0))
    begins = ends - times.sum(0)
    bounds = np.stack([begins, begins + times[along == 0].sum(0), ends], axis=1)
    return np.pad(entries, ((0, AHEAD), (0, 0))).astype(np.int32), bounds.astype(np.int32)


def _offsets(runs: _Runs, found: RayRuns, begin: Counts, length: Counts) -> Floats:
    """FanRuns.offsets, with placeholders."""
    number, run, _ = _one_after_another(length)
    ray, first, edge = begin[run] + number, runs.first[run], runs.edge[run]
    offset = found.start[ray] - found.start[first] + (found.slope[ray] - found.slope[first]) * edge
    own = (ray >= first) & (ray < first + runs.count[run])
    return np.where(own, offset, NOWHERE)


def _one_after_another(count: Counts) -> tuple[Counts, Counts, Counts]:
    """For so many members of each set: their numbers there, their sets, and where sets begin."""
    begins = np.cumsum(count) - count
    which = np.repeat(np.arange(len(count)), count)
    return np.arange(len(which)) - begins[which], which, begins


def _at(form: Floats, line: Any, place: Any) -> Floats:
    """The value of an affine function."""
    value: Floats = form[0] * line + form[1] * place + form[2]
    return value


def _rounded_up(count: Counts, step: int) -> Counts:
    """To a multiple of ``step``."""
    return -(-count // step) * step


def _cross(a: Floats, b: Floats) -> Floats:
    product: Floats = a[0] * b[1] - a[1] * b[0]
    return product
