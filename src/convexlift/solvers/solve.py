"""``solve``: the one loop of the library."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from convexlift.problems.certificate import (
    BestBounds,
    Guarantee,
    judge,
    lower_bound,
    prefer_near,
    relative_gap,
    require_consistent,
)
from convexlift.problems.saddle import feasible_duals
from convexlift.problems.variational import Evaluation, VariationalProblem
from convexlift.solvers.lbfgs import LBFGS
from convexlift.solvers.method import Method, Solver, State
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.solution import History, Progress, Record, Solution, Status
from convexlift.solvers.stopping import StopWhen
from convexlift.tensors import Blocks, choose_images, first_non_finite, full_precision

Callback = Callable[[Progress], object]
"""Called at every check; return ``True`` to stop."""


def solve(
    problem: VariationalProblem,
    *,
    method: Method | None = None,
    stop: StopWhen | None = None,
    start: Tensor | State | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Solve a batch of problems, each to its own certified gap.

    Ctrl-C returns the best images so far; so does every other way to end.

    Args:
        problem: what to minimise.
        method: ``PDHG()``, ``PDHG(steps=PaperSteps(c))``, ``Subgradient(step)``, ``NMAPG()`` or
            ``LBFGS()``; unless given, ``suitable_method(problem)``, which needs no tuning.
        stop: when to stop; by default at a relative gap of 1e-3.
        start: initial images, or the ``state`` of an earlier solution to continue from.
        callback: called with a ``Progress`` at every check (the clock stands still meanwhile).
    """
    method = suitable_method(problem) if method is None else method
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be cl.PDHG(), cl.LBFGS(), cl.NMAPG() or cl.Subgradient(step), "
            f"got {method!r}"
        )
    stop = StopWhen() if stop is None else stop
    with torch.no_grad(), full_precision():
        solver = method.solver(problem)
        return _iterate(problem, solver, _first_state(problem, solver, start), stop, callback)


def suitable_method(problem: VariationalProblem) -> Method:
    """``LBFGS()`` for smooth problems with three layers or more, and else ``PDHG()``.

    Lifted layers take their time to agree with one another, and where everything is smooth, nothing
    makes it necessary to lift them. With one or two the lift needs about as many iterations, and
    cheaper ones.
    """
    deep = len(problem.network.layers) > 2
    return LBFGS() if deep and problem.smooth else PDHG()


def _iterate(
    problem: VariationalProblem,
    solver: Solver[State],
    state: State,
    stop: StopWhen,
    callback: Callback | None,
) -> Solution:
    clock = Stopwatch()
    ledger = Ledger(problem, state, 0.0 if stop.gap is None else stop.gap)
    iteration = 0
    try:
        wanted = ledger.check(iteration, clock, state, stop, callback)
        while ledger.active.any() and wanted:
            if iteration == stop.max_iterations:
                ledger.end(Status.ITERATION_LIMIT)
            elif stop.seconds is not None and clock.seconds() >= stop.seconds:
                if iteration % stop.check_every:
                    ledger.check(iteration, clock, state, stop, callback)
                ledger.end(Status.TIME_LIMIT)
            else:
                count = _at_once(solver, stop, iteration, clock)
                following = solver.advance(state, count)
                state = following if ledger.active.all() else choose_images(
                    ledger.active, following, state
                )  # fmt: skip
                iteration += count
                ledger.iterations[ledger.active] = iteration
                if iteration % stop.check_every == 0 or iteration == stop.max_iterations:
                    wanted = ledger.check(iteration, clock, state, stop, callback)
                    state = solver.reconsider(state, ledger.take_evaluation())
        ledger.end(Status.STOPPED)
    except KeyboardInterrupt:
        if not ledger.history or ledger.history[-1].iteration != iteration:
            ledger.check(iteration, clock, state, stop, None)
        ledger.end(Status.INTERRUPTED)
    return ledger.solution(clock)


def _at_once(solver: Solver[State], stop: StopWhen, iteration: int, clock: Stopwatch) -> int:
    """How many iterations to do before anybody looks: no more than there is time for."""
    count = min(solver.block, stop.until_check(iteration))
    if stop.seconds is None or count == 1:
        return count
    if iteration == 0:
        return 1
    pace = clock.seconds() / iteration
    return max(1, int(min(count, (stop.seconds - clock.seconds()) / pace)))


class Ledger:
    """What is known of every image: best iterate, best bound, status, history.

    Numbers of images are kept on the host, wherever the images are: there are many small
    operations on them, each of which costs a GPU as much as a large one.
    """

    def __init__(self, problem: VariationalProblem, state: State, tolerance: float) -> None:
        size = problem.batch_size
        infinite = torch.full((size,), math.inf, dtype=torch.float64)
        self.problem, self.tolerance = problem, tolerance
        self.state = state  # the last one that was finite
        self.active = torch.ones(size, dtype=torch.bool)
        self.iterations = torch.zeros(size, dtype=torch.long)
        self.status = [Status.RUNNING] * size
        self.history = History()
        self._evaluation: Evaluation | None = None
        # The best image, and the best bound that holds everywhere.
        self.x, self.objective, self.lower_bound = state.x, infinite, -infinite
        self.witness: Blocks | None = None  # the dual variables of the best bound
        # The best image with a local bound, which belongs to that image.
        self.local_x, self.local_objective, self.local_gap = state.x, infinite, infinite

    def check(
        self,
        iteration: int,
        clock: Stopwatch,
        state: State,
        stop: StopWhen,
        callback: Callback | None,
    ) -> bool:
        """Evaluate, certify, record; False if the callback wants to stop."""
        evaluation, bounds = judge(self.problem, state.x, state.duals)
        self._evaluation = evaluation
        values = evaluation.objective, evaluation.data_term, evaluation.regularizer
        finite, objective, data_term, regularizer, everywhere, near = _on_the_host(
            torch.isfinite(state.x).flatten(1).all(1), *values, bounds.everywhere.gap,
            bounds.near.gap,
        )  # fmt: skip
        finite = (finite > 0) & ~objective.isnan()
        self.state = choose_images(finite, state, self.state)
        self._keep_best_image(state.x, objective, finite)
        self._keep_best_bounds(state.x, objective, finite, bounds, everywhere, near)
        _, lower, gap = self._numbers()
        record = Record(iteration, clock.seconds(), objective, data_term, regularizer, lower, gap)
        self.history.records.append(record)
        self.end(Status.NOT_FINITE, ~finite)
        if stop.gap is not None:
            self.end(Status.CONVERGED, gap <= stop.gap)
        if callback is None:
            return True
        with clock.paused():
            return callback(Progress(**vars(record), x=state.x)) is not True

    def take_evaluation(self) -> Evaluation:
        """That of the last check, once: it is large."""
        assert self._evaluation is not None
        evaluation, self._evaluation = self._evaluation, None
        return evaluation

    def end(self, status: Status, images: Tensor | None = None) -> None:
        """Give the active images (among ``images``) their final status."""
        ending = self.active if images is None else self.active & images
        for i in ending.nonzero().flatten().tolist():
            self.status[i] = status
        self.active = self.active & ~ending

    def solution(self, clock: Stopwatch) -> Solution:
        """The result, once everything has ended."""
        assert self.witness is not None
        use_local = self._prefer_local()
        x = choose_images(use_local, self.local_x, self.x)
        numbers = (number.to(x.device) for number in (*self._numbers(), self.iterations))
        objective, lower, gap, iterations = numbers
        guarantee = tuple(
            Guarantee.WITHIN_RADIUS if near else Guarantee.GLOBAL if everywhere else Guarantee.NONE
            for near, everywhere in zip(
                use_local.tolist(), torch.isfinite(self.lower_bound).tolist(), strict=True
            )
        )
        return Solution(
            x,
            objective,
            lower,
            gap,
            tuple(self.status),
            guarantee,
            iterations,
            clock.seconds(),
            self.history,
            self.state,
            feasible_duals(self.problem.network, self.problem.weight, x, self.witness),
        )

    def _keep_best_image(self, x: Tensor, objective: Tensor, finite: Tensor) -> None:
        better = finite & (objective < self.objective)
        self.x = choose_images(better, x, self.x)
        self.objective = torch.where(better, objective, self.objective)

    def _keep_best_bounds(
        self,
        x: Tensor,
        objective: Tensor,
        finite: Tensor,
        bounds: BestBounds,
        everywhere: Tensor,
        near: Tensor,
    ) -> None:
        """From the absolute gaps of the bound that holds everywhere, and of the local one."""
        usable = finite & torch.isfinite(objective)
        below = lower_bound(objective, everywhere, x.dtype)
        lower = torch.where(usable, below, -math.inf)
        raised = lower > self.lower_bound  # False for NaN
        self.lower_bound = torch.where(raised, lower, self.lower_bound)
        nearer = usable & (near < self.local_gap)
        if self.witness is None:
            self.witness = bounds.near.witness
        self.witness = choose_images(raised, bounds.everywhere.witness, self.witness)
        self.local_x = choose_images(nearer, x, self.local_x)
        self.local_objective = torch.where(nearer, objective, self.local_objective)
        self.local_gap = torch.where(nearer, near, self.local_gap)
        local = nearer & self._prefer_local()
        self.witness = choose_images(local, bounds.near.witness, self.witness)

    def _prefer_local(self) -> Tensor:
        everywhere = relative_gap(self.objective, self.lower_bound)
        near = relative_gap(self.local_objective, self._local_bound())
        return prefer_near(self.problem, everywhere, near, self.tolerance)

    def _local_bound(self) -> Tensor:
        return lower_bound(self.local_objective, self.local_gap, self.x.dtype)

    def _numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Objective, lower bound and relative gap: the bound for everyone, or the local."""
        use_local = self._prefer_local()
        objective = torch.where(use_local, self.local_objective, self.objective)
        lower = torch.where(use_local, self._local_bound(), self.lower_bound)
        require_consistent(objective, lower, self.problem.fidelity.y.dtype)
        lower = torch.minimum(lower, objective)  # they may differ by rounding
        return objective, lower, relative_gap(objective, lower)


def _on_the_host(*numbers: Tensor) -> tuple[Tensor, ...]:
    """Several (B,) tensors in double precision, in one transfer."""
    return torch.stack([number.to(torch.float64) for number in numbers]).cpu().unbind()


class Stopwatch:
    """Seconds since it was made, without the pauses."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """The time so far."""
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The clock stands still inside."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before


def _first_state(
    problem: VariationalProblem, solver: Solver[State], start: Tensor | State | None
) -> State:
    if start is None:
        return solver.start(problem.initial_image())
    y, shape = problem.fidelity.y, (problem.batch_size, *problem.image_shape)
    if not isinstance(start, Tensor):
        x = start.x
        alike = (tuple(x.shape), x.dtype, x.device) == (shape, y.dtype, y.device)
        resumed = solver.resume(start) if alike else None
        if resumed is not None:
            return resumed
        start = start.x  # another method's state: its images are a good start all the same
    if tuple(start.shape) != shape:
        raise ValueError(f"start must have shape {shape}, got {tuple(start.shape)}")
    if (place := first_non_finite(start)) is not None:
        raise ValueError(f"start is {float(start[place])} at index {place}")
    return solver.start(problem.bounds.project(start.to(y)))
