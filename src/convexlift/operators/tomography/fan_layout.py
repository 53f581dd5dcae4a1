"""Fans on flat detectors for kernels: the rays near a pixel in closed form.

Ray k leaves the source with the direction u + k v, and d is a pixel's place as seen from there.
With the cross product a x b = a_0 b_1 - a_1 b_0, the ray through the pixel has the number

    k(d) = - (d x u) / (d x v)

Kernels compute it in single precision, which is enough to know the few rays that may be less than a
pixel away. Weights come from their crossings: line a of the pixels, a row or a column, is crossed
by ray k of a run at

    c_k(a) = c(a) + scale(a) offset_k

where c is the crossing of the run's first ray, and scale is an affine function that is 0 at the
source and 1 at the edge of the image behind it. So a ray is one number, and none of its digits are
lost to the distance of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.operators.tomography.ray_layout import Integers, RayRuns
from convexlift.operators.tomography.rays import Floats, Grid, Lines

Counts = NDArray[np.int64]
ENTRY = 32
"""Entries begin with ENTRY * run + rays before."""
MOST = 16
"""The most rays near two pixels; more of them are found by bisection."""
OVERHEAD = 2
"""An entry's work apart from its rays, compared with that for a ray."""
REGIONS = 16
"""Rows, and columns, of regions; each has a list of entries, so more regions need more memory."""
STRAIGHT_TOLERANCE = 1e-13
"""Rounding may turn a fan's rays by this angle away from equal distances on a flat detector."""
LARGEST_SLACK = 0.25
"""The most rays by which k(d) may be too small in single precision."""
CLEARANCE = 2.0
"""Pixels between the image and the line through a source that is parallel to its detector."""
NEAREST = 1e-3
"""Pixels between a source and the edge where ``scale`` is 1."""
NOWHERE = 1e30
"""The offset of a placeholder for a missing ray, far from every pixel."""


@dataclass(frozen=True)
class FanRuns:
    """Runs of rays that leave a source for a flat detector, and where they pass.

    Kernels handle two pixels next to each other on a line. The rays that may be near them come in
    entries of ``at_once`` rays. Numbers of 32 bits come in pairs, as kernels load them.

    Attributes:
        guess: numerator and denominator of the first ray near two pixels, plus 1/2, as affine
            functions of the pixels' line and of the first one's place across; (runs, 6), float32.
        line: c and scale as affine functions of the line; (runs, 4).
        offset: of each ray, all runs one after the other.
        places: the first ray of a run in the sinogram, and in ``offset``; (runs, 2).
        entries: the runs that pass a region, those by rows first: ENTRY * run + rays before these,
            and the last possible number of the first ray; (entries, 2).
        bounds: where a region's runs by rows begin, those by columns begin, and end; (regions, 3).
        region: rows and columns of tiles in a region.
        at_once: the number of rays of an entry.
    """

    guess: NDArray[np.float32]
    line: Floats
    offset: Floats
    places: Integers
    entries: Integers
    bounds: Integers
    region: tuple[int, int]
    at_once: int


def fan_runs(lines: Lines, grid: Grid, found: RayRuns, tile: tuple[int, int]) -> FanRuns | None:
    """For fans on flat detectors, with sources and rays that are not too near; else None."""
    runs = _runs(lines, grid, found)
    if runs is None:
        return None
    guess, slack = _guess(runs)
    region, low, high = _regions(grid, tile)
    passes, most = _near(runs, low, high, slack)
    if slack.max() > LARGEST_SLACK or most[passes].max(initial=1) > MOST:
        return None
    at_once = _at_once(most[passes], runs.count, lines.x.size)
    length = _rounded_up(runs.count, at_once)
    begin = np.minimum(runs.first, lines.x.size - length)  # placeholders are in the sinogram, too
    guess[:3] += (runs.first - begin) * guess[3:]
    entries, bounds = _entries(passes, most, runs.along, length, at_once)
    scale = np.stack([-runs.source, np.ones_like(runs.source)]) / (runs.edge - runs.source)
    return FanRuns(
        guess=np.ascontiguousarray(guess.T, dtype=np.float32),
        line=np.stack([found.start[runs.first], found.slope[runs.first], *scale], axis=1),
        offset=_offsets(runs, found, begin, length),
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
        steps: the number of lines.
        size: the number of places.
    """

    first: Counts
    count: Counts
    along: Counts
    top: Floats
    bottom: Floats
    rising: NDArray[np.bool_]
    source: Floats
    edge: Counts
    steps: Counts
    size: Counts


def _runs(lines: Lines, grid: Grid, found: RayRuns) -> _Runs | None:
    """Unless detectors are not flat, or sources too near."""
    pencils = _pencils(lines, grid)
    if pencils is None or not len(found.runs):
        return None
    bins = lines.x.shape[1]
    first, count, along, _ = found.runs.T.astype(np.int64)
    view, each, across = first // bins, np.arange(len(first)), 1 - along
    u, v = (part[:, view] for part in pencils)
    u = u + first % bins * v
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
    return _Runs(
        first, count, along, top, bottom, rising, source[along, each], edge, steps, size
    )  # fmt: skip


def _guess(runs: _Runs) -> tuple[Floats, Floats]:
    """FanRuns.guess, transposed, and by how many rays it may be too small.

    The first ray near two pixels comes after k(d) of the place beside them where rays have smaller
    numbers. Single precision may be wrong by half of the slack, so that much is taken off.
    """
    beside = np.where(runs.rising, -1, 2)
    top, bottom = (form + _moved(form, beside) for form in (runs.top, runs.bottom))
    top = top + 0.5 * bottom
    terms = [_at(np.abs(form), runs.steps, runs.size) for form in (top, bottom)]
    ends = [(a, b) for a in (0, runs.steps) for b in (0, runs.size - 1)]
    smallest = np.min([_at(bottom, a, b) for a, b in ends], axis=0)
    largest = runs.count + 2 * MOST
    # Each affine function takes five roundings, and the reciprocal is not quite one.
    wrong = 2.0**-24 * (5 * (terms[0] + largest * terms[1]) / smallest + 8 * largest)
    return np.concatenate([top - wrong * bottom, bottom]) / terms[1], 2 * wrong


def _regions(grid: Grid, tile: tuple[int, int]) -> tuple[tuple[int, int], Counts, Counts]:
    """Tiles in a region, and its first and last rows and columns; (2, regions)."""
    sizes = (grid.height, grid.width)
    tiles = [-(-size // side) for size, side in zip(sizes, tile, strict=True)]
    region = (-(-tiles[0] // REGIONS), -(-tiles[1] // REGIONS))
    extents = [region[0] * tile[0], region[1] * tile[1]]
    begins = [np.arange(0, size, extent) for size, extent in zip(sizes, extents, strict=True)]
    low = np.stack(np.meshgrid(*begins, indexing="ij")).reshape(2, -1)
    return region, low, np.minimum(low.T + extents, sizes).T - 1


def _near(runs: _Runs, low: Counts, high: Counts, slack: Floats) -> tuple[Any, Counts]:
    """Whether a run passes a region, and how many rays can be near two pixels; (runs, regions).

    From a place to the one at a distance of 3, k(d) grows by 3 turn / (bottom there bottom here).
    """
    along, across = runs.along, 1 - runs.along
    corners = [
        (a, b)
        for a in (low[along], high[along])
        for b in (low[across] - 1, high[across] + 2)
    ]  # fmt: skip
    change = runs.top[1] * runs.bottom - runs.bottom[1] * runs.top
    # Quotients of affine functions are largest and smallest at corners.
    top, bottom, turn = (
        np.stack([_at(form[..., None], a, b) for a, b in corners])
        for form in (runs.top, runs.bottom, change)
    )
    k = top / bottom
    wide = slack[:, None]
    passes = (k.max(0) >= -wide) & (k.min(0) <= runs.count[:, None] - 1 + wide)
    span = 3 * (np.abs(turn) / bottom).max(0) * (1 / bottom).max(0)
    return passes, np.minimum(np.ceil(span + wide), runs.count[:, None]).astype(np.int64)


def _at_once(most: Counts, count: Counts, rays: int) -> int:
    """The number of rays in an entry for which there is least to do."""

    def work(at_once: int) -> float:
        fits = _rounded_up(count, at_once).max() <= rays
        entries = _rounded_up(most, at_once).sum() / at_once
        return float(entries) * (at_once + OVERHEAD) if fits else np.inf

    return min(range(1, MOST + 1), key=work)


def _entries(
    passes: NDArray[np.bool_], most: Counts, along: Counts, length: Counts, at_once: int
) -> tuple[Integers, Integers]:
    """FanRuns.entries and FanRuns.bounds."""
    most = np.where(passes, _rounded_up(most, at_once), 0)
    place, run = np.nonzero(passes.T)
    repeats = most[run, place] // at_once
    place, run = np.repeat(place, repeats), np.repeat(run, repeats)
    number = np.arange(len(run)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    entries = np.stack([ENTRY * run + at_once * number, length[run] - most[run, place]], axis=1)
    ends = np.cumsum(most.sum(0)) // at_once
    begins = np.append(0, ends[:-1])
    bounds = [begins, begins + most[along == 0].sum(0) // at_once, ends]
    return entries.astype(np.int32), np.stack(bounds, axis=1).astype(np.int32)


def _offsets(runs: _Runs, found: RayRuns, begin: Counts, length: Counts) -> Floats:
    """FanRuns.offset, with placeholders."""
    run = np.repeat(np.arange(len(length)), length)
    ray = np.arange(len(run)) + np.repeat(begin - (np.cumsum(length) - length), length)
    first, edge = runs.first[run], runs.edge[run]
    offset = found.start[ray] - found.start[first] + (found.slope[ray] - found.slope[first]) * edge
    own = (ray >= first) & (ray < first + runs.count[run])
    return np.where(own, offset, NOWHERE)


def _pencils(lines: Lines, grid: Grid) -> tuple[Floats, Floats] | None:
    """u and v of each view (2, views), by its first, middle and last bins, if they fit the others.

    """
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


def _moved(form: Floats, places: Counts) -> Floats:
    """What an affine function gains at a place so many places on."""
    return np.stack([np.zeros_like(form[0]), np.zeros_like(form[0]), form[1] * places])


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
