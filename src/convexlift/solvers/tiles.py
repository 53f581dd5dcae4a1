"""Large images, solved tile by tile, with one certificate for the whole image.

Every tile is solved with a margin of its neighbours' pixels. The image is blended from the tiles,
and of the dual variables each tile keeps those of its core: every filter response belongs to one
core. The bound that they prove together holds for the whole image (``problems.windows``), whatever
the margin was. What margins leave undone shows in the gap, and another sweep with wider margins
takes it away.

Memory holds the image, its data and one tile. Dual variables, as slopes p / t in 16 bits, and the
weights that a guide read wait on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from convexlift.networks.adaptive import ConditionedNetwork
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.parts import require_at_least
from convexlift.problems.claims import RADIUS, Claim, Guarantee, relative_gap
from convexlift.problems.rounding import gamma
from convexlift.problems.variational import VariationalProblem
from convexlift.problems.windows import DUAL, CoreSums, LargeProblem, Window, core_sums
from convexlift.proofs import Proof
from convexlift.solvers.autograd import refuse_gradients
from convexlift.solvers.ledger import Callback, Stopwatch
from convexlift.solvers.loop import solve_roughly
from convexlift.solvers.method import Method
from convexlift.solvers.solution import History, Progress, Record, Solution, Status, StopWhen
from convexlift.tensors import Blocks, full_precision

Step = TypeVar("Step")
SHARE = 0.8
"""Of the tolerance, the gap of single tiles in the first sweep; the rest is for their seams."""
BLEND = 8
"""Pixels on both sides of a seam over which images are blended."""
STEPS = 2**16 - 1
"""Of a slope, between the ends of its interval: both ends are stored exactly."""


@dataclass(frozen=True)
class Tiles:
    """How a large image is divided.

    Args:
        size: side of a core, in pixels; a multiple of 16, so that guides that work on a coarser
            grid see the grid of the whole image.
        overlap: the margin of a tile in the first sweep, a multiple of 16; it doubles with every
            sweep.
        sweeps: the largest number of sweeps.
        folder: for temporary files, which take some 6 bytes for each filter and pixel; by default
            where the system puts its temporary files.
    """

    size: int = 512
    overlap: int = 32
    sweeps: int = 3
    folder: Path | None = None

    def __post_init__(self) -> None:
        require_at_least(1, sweeps=self.sweeps)
        require_at_least(16, size=self.size, overlap=self.overlap)
        if self.size % 16 or self.overlap % 16:
            raise ValueError(
                f"size and overlap of tiles are multiples of 16, got {self.size} and {self.overlap}"
            )

    def cores(self, size: tuple[int, int]) -> list[Window]:
        """A partition of an image; the last row and column take the rest, if it is narrow."""
        rows, columns = (self._edges(length) for length in size)
        return [
            Window(*vertical, *horizontal)
            for vertical in itertools.pairwise(rows)
            for horizontal in itertools.pairwise(columns)
        ]

    def _edges(self, length: int) -> list[int]:
        edges = list(range(0, max(1, length - self.size // 2), self.size))
        return [*edges, length]


def solve_tiles(
    problem: VariationalProblem | LargeProblem,
    *,
    tiles: Tiles | None = None,
    method: Method | None = None,
    stop: StopWhen | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solve one large image tile by tile, to one certified gap.

    For regularizers of one layer, and data that belong to single pixels: denoising and inpainting.
    The solution has no ``state``, no ``duals`` and no proof file: they would not fit the memory.

    Args:
        problem: the problem; a ``LargeProblem`` conditions adaptive regularizers tile by tile.
        tiles: how the image is divided.
        method: for each tile.
        stop: the gap of the whole image; iterations are those of a tile, seconds those of all.
        callback: called with a ``Progress`` after every tile, whose iteration is the number of
            tiles so far; it returns ``True`` to stop. Objectives and gaps are those of the last
            sweep, infinite in the first one.
    """
    if not isinstance(problem, LargeProblem):
        refuse_gradients(problem)
        problem = LargeProblem.of(problem)
    with torch.no_grad(), full_precision():
        return _Sweeps(problem, tiles or Tiles(), method, stop or StopWhen(), callback).run()


@dataclass(frozen=True, eq=False)
class _Start:
    """A state to continue from."""

    x: Tensor
    duals: Blocks


class _Sweeps:
    """The state of a solve: the image, the tiles on disk, and what is proven so far."""

    def __init__(
        self, large: LargeProblem, tiles: Tiles, method: Method | None, stop: StopWhen,
        callback: Callback | None,
    ) -> None:  # fmt: skip
        self.large, self.tiles, self.method, self.stop = large, tiles, method, stop
        self.callback, self.clock = callback, Stopwatch()
        self.cores = tiles.cores(large.size)
        self.x = torch.zeros_like(large.fidelity.y)
        self.ended: Status | None = None
        self.iterations = self.done = 0
        self.first: VariationalProblem | None = None
        self.history = History()
        self.weight_map: Tensor | None = None

    def run(self) -> Solution:
        """Sweep until the gap is small enough, or nothing more can be done."""
        with _store(self.tiles.folder, self.large) as store:
            for sweep in range(self.tiles.sweeps):
                image = self._sweep(store, sweep)
                if sweep and self.ended:
                    break  # the last complete sweep counts
                self.x = self.large.bounds.project(image)
                record = self._certified(store)
                self.history.records.append(record)
                if float(record.gap) <= (self.stop.gap or 0.0):
                    self.ended = Status.CONVERGED
                if self.ended:
                    break
        return self._solution()

    def _sweep(self, store: _Store, sweep: int) -> Tensor:
        """Solve every tile, with margins and tolerances of this sweep; the blended image."""
        margin = self.tiles.overlap * 2**sweep
        image = torch.zeros_like(self.x)
        for number, core in enumerate(self.cores):
            outer = core.grown(margin, self.large.size)
            problem, solution = self._finished(partial(self._tile, store, outer, sweep))
            self.first = self.first or problem
            self.iterations = max(self.iterations, int(solution.iterations.max()))
            store.save(number, problem, core.within(outer), solution.duals[DUAL])
            self._draw(problem.regularizer, core, outer)
            outer.of(image).add_(solution.x * _ramps(core, outer, self.large.size).to(image))
            self.done += 1
            self._look_around(solution.status[0], image)
        return image

    def _tile(
        self, store: _Store, outer: Window, sweep: int
    ) -> tuple[VariationalProblem, Solution]:
        problem = self.large.window(outer)
        start = None
        if sweep:  # from the image and the dual variables of the last one
            p = store.duals(problem, self.cores, outer).to(self.x)
            start = _Start(outer.of(self.x), Blocks({DUAL: p}))
        stop = self._tile_stop(sweep)
        return problem, solve_roughly(problem, method=self.method, stop=stop, start=start)

    def _finished(self, step: Callable[[], Step]) -> Step:
        """The result of a step, which is done again, as the last ones are, if Ctrl-C ends it."""
        try:
            return step()
        except KeyboardInterrupt:
            if self.ended is Status.INTERRUPTED:
                raise
            self.ended = Status.INTERRUPTED
            return step()

    def _tile_stop(self, sweep: int) -> StopWhen:
        gap = None if self.stop.gap is None else SHARE * self.stop.gap / 2**sweep
        if self.ended:  # the tiles that are left keep their start
            return StopWhen(gap=gap, max_iterations=0)
        left = None
        if self.stop.seconds is not None:
            left = max(1e-3, self.stop.seconds - self.clock.seconds())
        return replace(self.stop, gap=gap, seconds=left)

    def _look_around(self, status: Status, image: Tensor) -> None:
        """End early if a tile did, or the callback asks for it."""
        if self.ended is None and status in (Status.INTERRUPTED, Status.TIME_LIMIT):
            self.ended = status
        if self.callback is None or self.ended:
            return
        with self.clock.paused():
            last = self.history[-1] if self.history else _UNKNOWN
            now = replace(last, iteration=self.done, seconds=self.clock.seconds())
            if self.callback(Progress(**vars(now), x=image, tiles=len(self.cores))) is True:
                self.ended = Status.STOPPED

    def _certified(self, store: _Store) -> Record:
        """Objective and bound of the whole image, in spite of rounding."""
        sums = [self._finished(partial(self._core_sums, store, core)) for core in self.cores]
        count = len(sums)
        data_term, regularizer, bound = (
            math.fsum(getattr(each, name) for each in sums)
            for name in ("data_term", "regularizer", "bound")
        )
        objective = (data_term + regularizer) * (1 + gamma(4)) + gamma(count) * abs(regularizer)
        bound = bound - gamma(4) * math.fsum(abs(each.bound) for each in sums)
        return _record(self.done, self.clock.seconds(), objective, data_term, regularizer, bound)

    def _core_sums(self, store: _Store, core: Window) -> CoreSums:
        assert self.first is not None
        outer = core.grown(2 * self.large.radius, self.large.size)
        regularizer = store.regularizer(self.first.regularizer, self.cores, outer)
        problem = self.large.window(outer, regularizer)
        p = store.duals(problem, self.cores, outer)
        return core_sums(self.large, problem, core, outer, outer.of(self.x), p)

    def _draw(self, regularizer: InputConvexNetwork, core: Window, outer: Window) -> None:
        """Keep the part of a tile of the map of weights, if there is one."""
        weights = regularizer.weight_map
        if weights is not None:
            if self.weight_map is None:
                self.weight_map = weights.new_zeros((1, 1, *self.large.size))
            core.of(self.weight_map).copy_(core.within(outer).of(weights))

    def _solution(self) -> Solution:
        assert self.first is not None
        record = self.history[-1]
        proven = bool(torch.isfinite(record.lower_bound) & torch.isfinite(record.objective))
        guarantee = (Guarantee.GLOBAL if proven else Guarantee.NONE,)
        claim = Claim(self.x, record.objective, record.lower_bound, record.gap, guarantee, RADIUS,
                      Blocks({}), torch.ones_like(record.gap), None)  # fmt: skip
        return Solution(
            x=self.x, objective=record.objective, lower_bound=record.lower_bound, gap=record.gap,
            status=(self.ended or Status.ITERATION_LIMIT,), guarantee=guarantee,
            iterations=torch.tensor([self.iterations]), seconds=self.clock.seconds(),
            history=self.history, state=None, duals=Blocks({}), proof=Proof(self.first, claim),
            weight_map=self.weight_map,
        )  # fmt: skip


def _record(
    iteration: int, seconds: float, objective: float, data_term: float, regularizer: float,
    bound: float,
) -> Record:  # fmt: skip
    numbers = [[objective], [data_term], [regularizer], [bound]]
    J, D, R, lower = torch.tensor(numbers, dtype=torch.float64)
    return Record(iteration, seconds, J, D, R, lower, relative_gap(J, lower))


_UNKNOWN = _record(0, 0.0, math.inf, math.inf, math.inf, -math.inf)
"""Before the first sweep has ended."""


def _ramps(core: Window, outer: Window, size: tuple[int, int]) -> Tensor:
    """The shares of a tile in the pixels around it, (H, W); all tiles together have 1."""

    def ramp(begin: int, end: int, first: int, last: int, length: int) -> Tensor:
        middles = torch.arange(first, last) + 0.5
        share = torch.ones(last - first)
        if begin > 0:
            share = share.minimum((middles - (begin - BLEND)) / (2 * BLEND))
        if end < length:
            share = share.minimum(((end + BLEND) - middles) / (2 * BLEND))
        return share.clamp(0, 1)

    rows = ramp(core.top, core.bottom, outer.top, outer.bottom, size[0])
    columns = ramp(core.left, core.right, outer.left, outer.right, size[1])
    return rows[:, None] * columns


class _Store:
    """Slopes and readings of cores, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, number: int, problem: VariationalProblem, inside: Window, p: Tensor) -> None:
        """Keep the part of a core of a tile's dual variables and readings."""
        (layer,) = problem.network.layers
        h = layer.activation
        t = h.spread(problem.weight * problem.network.output)
        s = inside.of(torch.where(t > 0, p / t, 0.0))
        low, high = h.slopes
        if math.isfinite(high - low):
            s = ((s - low) / (high - low)).clamp(0, 1).mul(STEPS).round().to(torch.int32)
        kept = s.cpu().numpy()
        self._write("slopes", number, kept.astype(np.uint16) if kept.dtype == np.int32 else kept)
        if isinstance(problem.regularizer, ConditionedNetwork):
            for name, read in problem.regularizer.readings.items():
                if read.shape[-2:] != (1, 1):
                    self._write(name, number, inside.of(read).detach().cpu().numpy())

    def regularizer(
        self, network: InputConvexNetwork, cores: list[Window], outer: Window
    ) -> InputConvexNetwork:
        """The network of a window, with the readings of all cores that it meets."""
        if not isinstance(network, ConditionedNetwork):
            return network

        def gathered(name: str, read: Tensor) -> Tensor:
            if read.shape[-2:] == (1, 1):
                return read
            return torch.from_numpy(self._gather(name, cores, outer)).to(read)

        return network.with_readings(gathered)

    def duals(self, problem: VariationalProblem, cores: list[Window], outer: Window) -> Tensor:
        """p = s t in a window."""
        (layer,) = problem.network.layers
        h, low = layer.activation, layer.activation.slopes[0]
        t = h.spread(problem.weight * problem.network.output)
        kept = self._gather("slopes", cores, outer)
        s = torch.from_numpy(kept.astype(np.float64)).to(t.device)
        if kept.dtype == np.uint16:
            s = low + (h.slopes[1] - low) * (s / STEPS)
        return s * t.double()

    def _gather(self, name: str, cores: list[Window], outer: Window) -> np.ndarray:
        whole: np.ndarray | None = None
        for number, core in enumerate(cores):
            if (both := core.meet(outer)) is None:
                continue
            kept = np.load(self._path(name, number), mmap_mode="r")
            if whole is None:
                whole = np.empty((*kept.shape[:-2], *outer.shape), kept.dtype)
            there, here = both.within(outer), both.within(core)
            whole[..., there.top : there.bottom, there.left : there.right] = kept[
                ..., here.top : here.bottom, here.left : here.right
            ]
        assert whole is not None
        return whole

    def _write(self, name: str, number: int, values: np.ndarray) -> None:
        np.save(self._path(name, number), np.ascontiguousarray(values))

    def _path(self, name: str, number: int) -> Path:
        return self.folder / f"{name}-{number}.npy"


@contextlib.contextmanager
def _store(folder: Path | None, large: LargeProblem) -> Iterator[_Store]:
    """A folder that is removed at the end; raises OSError at once if it would not fit the disk."""
    with tempfile.TemporaryDirectory(prefix="convexlift-", dir=folder) as place:
        (layer,) = large.regularizer.layers
        filters = layer.channels * layer.activation.group
        needed = filters * math.prod(large.size) * (2 + 4 * large.regularizer.reads_data)
        free = shutil.disk_usage(place).free
        if needed > 0.95 * free:
            raise OSError(
                f"the dual variables of this image take {needed / 1e9:.1f} GB on disk, and "
                f"{Path(place).parent} has {free / 1e9:.1f} GB; name another folder with "
                "Tiles(folder=...) or the variable TMPDIR, or take a regularizer with fewer filters"
            )
        yield _Store(Path(place))
