"""Large images, solved tile by tile, with one certificate for the whole image.

Every tile is solved with a margin of its neighbours' pixels. The image is blended from the tiles,
and each tile keeps the dual variables of its core: every filter response belongs to one core. The
bound that they prove together holds for the whole image (``problems.windows``), whatever the
margin. Errors from narrow margins show in the gap, and another sweep with wider margins removes
them.

Memory holds the image, its data and one tile. Dual variables, as slopes p / t in 16 bits, and the
weights that a guide read are stored on disk (``tile_tasks``): a sweep is one task for each tile,
and its certificate a sum over all cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from convexlift.precision import full_precision
from convexlift.problems.claims import RADIUS, Claim, Guarantee, relative_gap
from convexlift.problems.rounding import gamma
from convexlift.problems.variational import VariationalProblem
from convexlift.problems.windows import LargeProblem, Window
from convexlift.proofs import Proof
from convexlift.solvers.autograd import refuse_gradients
from convexlift.solvers.ledger import Callback
from convexlift.solvers.method import Method
from convexlift.solvers.solution import History, Progress, Record, Solution, Status, StopWhen
from convexlift.solvers.stopwatch import Stopwatch
from convexlift.solvers.tile_tasks import TileJob, Tiles, TileTask, tile_job
from convexlift.tensors import Blocks

Result = TypeVar("Result")
SHARE = 0.8
"""The gap of single tiles in the first sweep, as a share of the tolerance; seams take the rest."""


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
        method: the method for each tile.
        stop: the gap of the whole image; iterations count for each tile, seconds for all together.
        callback: called with a ``Progress`` after every tile, whose iteration is the number of
            tiles so far; it returns ``True`` to stop. Objectives and gaps are those of the last
            sweep, infinite in the first one.
    """
    if not isinstance(problem, LargeProblem):
        refuse_gradients(problem)
        problem = LargeProblem.of(problem)
    with torch.no_grad(), full_precision(), tile_job(problem, tiles or Tiles(), method) as job:
        return _Sweeps(job, stop or StopWhen(), callback).run()


class _Sweeps:
    """The state of a solve: the image, and the bounds proven so far."""

    def __init__(self, job: TileJob, stop: StopWhen, callback: Callback | None) -> None:
        self.job, self.stop, self.callback = job, stop, callback
        self.clock = Stopwatch()
        height, width = job.large.size
        self.whole = Window(0, height, 0, width)
        self.x: Tensor | None = None
        self.weight_map: Tensor | None = None
        self.ended: Status | None = None
        self.iterations = self.done = 0
        self.history = History()

    def run(self) -> Solution:
        """Sweep until the gap is small enough, or no progress is possible."""
        for sweep in range(self.job.tiles.sweeps):
            self._sweep(sweep)
            if sweep and self.ended:
                break  # the last complete sweep counts
            if sweep:
                self.job.forget(sweep - 1)
            self.x, self.weight_map = None, None  # frees the old ones before new ones are made
            self.x, self.weight_map = self._finished(self._assembled, sweep)
            record = self._certified(sweep)
            self.history.records.append(record)
            if float(record.gap) <= (self.stop.gap or 0.0):
                self.ended = Status.CONVERGED
            if self.ended:
                break
        return self._solution()

    def _assembled(self, sweep: int) -> tuple[Tensor, Tensor | None]:
        """The image and the map of weights, from the files of all tiles."""
        x = self.job.image(self.whole, sweep).to(self.job.large.fidelity.y.device)
        return x, self.job.weight_map(sweep)

    def _sweep(self, sweep: int) -> None:
        """Solve every tile, with the margins and tolerances of this sweep."""
        shown = None if self.callback is None else torch.zeros_like(self.job.large.fidelity.y)
        for number in range(len(self.job.cores)):
            # Its task is made in the step: after Ctrl-C, the tile keeps its start.
            found = self._finished(lambda k: self.job.solve(self._tile(k, sweep)), number)
            self.iterations = max(self.iterations, found.iterations)
            self.done += 1
            if self.ended is None and found.status in (Status.INTERRUPTED, Status.TIME_LIMIT):
                self.ended = found.status
            if self.callback is not None and shown is not None and not self.ended:
                self.job.add_to(shown, self.whole, TileTask(number, sweep))
                self._tell(self.callback, shown)

    def _tile(self, number: int, sweep: int) -> TileTask:
        gap = None if self.stop.gap is None else SHARE * self.stop.gap / 2**sweep
        if self.ended:  # the remaining tiles keep their start
            return TileTask(number, sweep, StopWhen(gap=gap, max_iterations=0))
        left = None
        if self.stop.seconds is not None:
            left = max(1e-3, self.stop.seconds - self.clock.seconds())
        return TileTask(number, sweep, replace(self.stop, gap=gap, seconds=left))

    def _finished(self, step: Callable[[int], Result], number: int) -> Result:
        """The result of a step, which one Ctrl-C begins again and a second one ends."""
        try:
            return step(number)
        except KeyboardInterrupt:
            if self.ended is Status.INTERRUPTED:
                raise
            self.ended = Status.INTERRUPTED
            return self._finished(step, number)

    def _tell(self, callback: Callback, image: Tensor) -> None:
        """End early if the callback asks for it."""
        with self.clock.paused():
            last = self.history[-1] if self.history else _UNKNOWN
            now = replace(last, iteration=self.done, seconds=self.clock.seconds())
            try:
                if callback(Progress(**vars(now), x=image, tiles=len(self.job.cores))) is True:
                    self.ended = Status.STOPPED
            except KeyboardInterrupt:
                self.ended = Status.INTERRUPTED

    def _certified(self, sweep: int) -> Record:
        """Objective and bound of the whole image, in spite of rounding."""
        count = len(self.job.cores)
        sums = [
            self._finished(lambda k: self.job.share(TileTask(k, sweep)), number)
            for number in range(count)
        ]
        data_term, regularizer, bound = (  # fsum does not depend on the order
            math.fsum(getattr(each, name) for each in sums)
            for name in ("data_term", "regularizer", "bound")
        )
        sizes = data_term + abs(regularizer)
        objective = (data_term + regularizer) + gamma(count + 8) * sizes
        bound = bound - gamma(4) * math.fsum(abs(each.bound) for each in sums)
        return _record(self.done, self.clock.seconds(), objective, data_term, regularizer, bound)

    def _solution(self) -> Solution:
        assert self.x is not None
        record = self.history[-1]
        proven = bool(torch.isfinite(record.lower_bound) & torch.isfinite(record.objective))
        guarantee = (Guarantee.GLOBAL if proven else Guarantee.NONE,)
        claim = Claim(self.x, record.objective, record.lower_bound, record.gap, guarantee, RADIUS,
                      Blocks({}), torch.ones_like(record.gap), None)  # fmt: skip
        return Solution(
            x=self.x, objective=record.objective, lower_bound=record.lower_bound, gap=record.gap,
            status=(self.ended or Status.ITERATION_LIMIT,), guarantee=guarantee,
            iterations=torch.tensor([self.iterations]), seconds=self.clock.seconds(),
            history=self.history, state=None, duals=Blocks({}),
            proof=Proof(self.job.example, claim), weight_map=self.weight_map,
        )  # fmt: skip


def _record(
    iteration: int, seconds: float, objective: float, data_term: float, regularizer: float,
    bound: float,
) -> Record:  # fmt: skip
    numbers = [[objective], [data_term], [regularizer], [bound]]
    J, D, R, lower = torch.tensor(numbers, dtype=torch.float64)
    return Record(iteration, seconds, J, D, R, lower, relative_gap(J, lower))


_UNKNOWN = _record(0, 0.0, math.inf, math.inf, math.inf, -math.inf)
"""A record before the end of the first sweep."""
