"""Measurements: reference optima, curves against iterations, and times.

Iterations are counted in runs that evaluate objective and certificate in every iteration, which
are not timed. Times are those of runs with the number of iterations found there, in which nothing
is evaluated before the last; or, for certified gaps, of runs that check as ``solve`` does unless
told otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.images import psnr
from convexlift.problems.claims import Guarantee
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Progress, Solution, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen
from experiments.benchmark.options import REFERENCE_GAP

PATIENCE, IMPROVEMENT = 200, 0.9
"""A search for a reference ends when so many iterations make the gap no smaller by this factor."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The best objective known of one problem, and how near the optimum it is certified to be.

    Attributes:
        objective: of the best image found.
        gap: its certified relative gap.
        guarantee: for whom the certificate holds.
        precision: in which it was found.
        iterations: that it took, in both precisions together.
        x: the image, (1, C, H, W).
    """

    objective: float
    gap: float
    guarantee: Guarantee
    precision: str
    iterations: int
    x: Tensor

    @property
    def certified(self) -> bool:
        """Whether the gap is as small as is asked of references."""
        return self.gap <= REFERENCE_GAP


@dataclass(frozen=True)
class Limits:
    """When a run ends that has not reached what it should."""

    max_iterations: int
    seconds: float


@dataclass(frozen=True)
class Curve:
    """One image, evaluated in every iteration k = 0, 1, ...: all are the best so far, but PSNR.

    Attributes:
        error: (objective - reference) / |reference|.
        gap: the certified relative gap.
        psnr: of the current image, in dB.
    """

    error: tuple[float, ...]
    gap: tuple[float, ...]
    psnr: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.error)


@dataclass(frozen=True)
class Trace:
    """One timed run to a certified gap: (iteration, seconds, largest gap of the batch)."""

    checks: tuple[tuple[int, float, float], ...]

    def reached(self, tolerance: float) -> tuple[int, float] | None:
        """Iterations and seconds to a gap, or None."""
        return next(((k, s) for k, s, gap in self.checks if gap <= tolerance), None)


def first_below(values: Sequence[float], tolerance: float) -> int | None:
    """The first index k with values[k] <= tolerance, or None."""
    return next((k for k, value in enumerate(values) if value <= tolerance), None)


def find_reference(
    problem: VariationalProblem,
    max_iterations: int,
    *,
    gap: float = REFERENCE_GAP,
    start: Tensor | None = None,
    double: bool = True,
) -> Reference:
    """Solve one problem to a certified gap: as it is, then in double precision if need be."""
    double = double and problem.fidelity.y.dtype != torch.float64
    single = _to_gap(problem, gap, max_iterations, start)
    found = [(single, str(problem.fidelity.y.dtype).removeprefix("torch."))]
    if float(single.gap) > gap and double:
        precise = problem.to(dtype=torch.float64)
        found.append((_to_gap(precise, gap, max_iterations, single.x.double()), "float64"))
    best, precision = min(found, key=lambda each: float(each[0].gap))
    return Reference(
        objective=float(best.objective),
        gap=float(best.gap),
        guarantee=best.guarantee[0],
        precision=precision,
        iterations=sum(int(solution.iterations) for solution, _ in found),
        x=best.x.to(problem.fidelity.y.dtype),
    )


def record_curve(
    problem: VariationalProblem,
    truth: Tensor | None,
    method: Method,
    optimum: float,
    limits: Limits,
    *,
    error: float,
    gap: float | None = None,
    check_every: int = 1,
    start: Tensor | None = None,
) -> Curve:
    """Run one image until both the error and the gap are reached, or to the limits."""
    errors: list[float] = []
    gaps: list[float] = []
    quality: list[float] = []

    def watch(progress: Progress) -> bool:
        now = (float(progress.objective) - optimum) / abs(optimum)
        errors.append(min(errors[-1], now) if errors else now)  # keeps the old one from NaN
        gaps.append(float(progress.gap))
        quality.append(math.nan if truth is None else float(psnr(progress.x, truth)))
        return errors[-1] <= error and (gap is None or gaps[-1] <= gap)

    stop = StopWhen(
        gap=None,
        max_iterations=limits.max_iterations,
        seconds=limits.seconds,
        check_every=check_every,
    )
    _finished(solve(problem, method=method, stop=stop, start=start, callback=watch))
    return Curve(tuple(errors), tuple(gaps), tuple(quality))


def time_iterations(
    problem: VariationalProblem,
    method: Method,
    iterations: int,
    repeats: int,
    start: Tensor | None = None,
) -> list[float]:
    """Seconds of runs of so many iterations, set-up included, with one evaluation at the end."""
    stop = StopWhen(gap=None, max_iterations=iterations, check_every=max(iterations, 1))
    device = problem.fidelity.y.device
    seconds = []
    for _ in range(repeats):
        fresh = _fresh(problem)
        _synchronise(device)
        began = time.perf_counter()
        solution = solve(fresh, method=method, stop=stop, start=start)
        _synchronise(device)
        seconds.append(time.perf_counter() - began)
        _finished(solution)
    return seconds


def time_gap(
    problem: VariationalProblem, method: Method, gap: float, limits: Limits, repeats: int
) -> list[Trace]:
    """Runs to a certified gap, set-up and checks included."""
    stop = StopWhen(gap=gap, max_iterations=limits.max_iterations, seconds=limits.seconds)
    device = problem.fidelity.y.device
    traces = []
    for _ in range(repeats):
        fresh = _fresh(problem)
        checks: list[tuple[int, float, float]] = []
        _synchronise(device)
        start = time.perf_counter()

        def watch(
            progress: Progress,
            checks: list[tuple[int, float, float]] = checks,
            start: float = start,
        ) -> None:
            largest = float(progress.gap.max())  # waits for the device
            checks.append((progress.iteration, time.perf_counter() - start, largest))

        _finished(solve(fresh, method=method, stop=stop, callback=watch))
        traces.append(Trace(tuple(checks)))
    return traces


def warm_up(problem: VariationalProblem, method: Method) -> None:
    """A few iterations and a check, so that kernels are chosen and memory is there."""
    stop = StopWhen(gap=None, max_iterations=3, check_every=3)
    _finished(solve(problem, method=method, stop=stop))
    _synchronise(problem.fidelity.y.device)


def _to_gap(
    problem: VariationalProblem, gap: float, max_iterations: int, start: Tensor | None
) -> Solution:
    best, since = float("inf"), 0

    def stalled(progress: Progress) -> bool:
        nonlocal best, since
        now = float(progress.gap)
        if now <= IMPROVEMENT * best:
            best, since = now, progress.iteration
        return progress.iteration - since >= PATIENCE

    stop = StopWhen(gap=gap, max_iterations=max_iterations)
    return _finished(solve(problem, stop=stop, start=start, callback=stalled))


def _finished(solution: Solution) -> Solution:
    """Ctrl-C ends a solve with what it has; half a measurement is none."""
    if Status.INTERRUPTED in solution.status:
        raise KeyboardInterrupt
    return solution


def _fresh(problem: VariationalProblem) -> VariationalProblem:
    """The same problem with nothing computed yet."""
    return problem.to(device=problem.fidelity.y.device)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
