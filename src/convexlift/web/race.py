"""Methods one after the other on the same problem, with the same clock.

The curves show (objective - L) / |L| with the best lower bound L proved by any method: an
upper bound on the distance from the optimum, also for methods that prove nothing themselves.
Methods that ignore the box are judged by their images clipped to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import torch

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.gradient_methods import Subgradient
from convexlift.solvers.method import Method
from convexlift.solvers.named_methods import METHODS, NamedMethod, describe_steps
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.primal_dual import PaperSteps
from convexlift.solvers.solution import Progress, StopWhen
from convexlift.solvers.solve import solve
from convexlift.web.limits import PageError
from convexlift.web.run import MOST_ITERATIONS, Computation, PageJob

NAMES = tuple(METHODS)
CT_FIRST, CT_LAST = 500.0, (100.0, 0.1)
"""The paper's step sizes c for CT: for the data, the first layer and the last layer."""
CT_STEPS = {
    "sm-c": (1e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
    "sm-d": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}
GUIDED_STEPS = {
    "paper": (10.0, 30.0, 100.0),
    "sm-c": (3e-3, 7e-3, 1.5e-2),
    "sm-d": (0.05, 0.15, 0.5),
}
"""Step sizes for one layer in units of the noise, as regularizers that read the data have; around
the best for photo-open and 120 iterations, grey, in colour, and with missing pixels."""
TRIAL_ITERATIONS = 8
"""Iterations with each step size, before the clock of a method starts."""


@dataclass
class Lap:
    """One method: (seconds, best objective so far) at each check, and its best lower bound."""

    name: str
    steps: str = ""
    note: str = ""
    iterations: int = 0
    checks: list[tuple[float, float]] = field(default_factory=list)
    lower_bound: float = -math.inf

    def add(self, seconds: float, iteration: int, objective: float, lower_bound: float) -> None:
        """Append one check."""
        best = self.checks[-1][1] if self.checks else math.inf
        self.checks.append((seconds, best if math.isnan(objective) else min(best, objective)))
        self.iterations = iteration
        if lower_bound > self.lower_bound:  # False for NaN, unlike `max`
            self.lower_bound = lower_bound


class Race(Computation[str, None]):
    """Methods on the problem of a job. The state is a line about the current method.

    Args:
        job: the problem.
        names: the methods.
        seconds: the time of each method, and at most as much again to choose its step sizes.
        executor, device: where to compute.
        known_bound: a lower bound from an earlier run of the same job.
    """

    def __init__(
        self,
        job: PageJob,
        names: Sequence[str],
        seconds: float,
        executor: Executor,
        device: torch.device | None = None,
        known_bound: float = -math.inf,
    ) -> None:
        super().__init__(executor, device)
        if job.picture.tiled:
            raise PageError(
                "The picture is too large for a race.", "Solve it scaled down, or its middle."
            )
        if not names or not set(names) <= set(NAMES):
            raise PageError("No method was chosen.", f"Choose among {', '.join(NAMES)}.")
        self.job, self.seconds, self.known_bound = job, seconds, known_bound
        self.laps = tuple(Lap(name) for name in NAMES if name in names)
        self.state = "waiting"

    @property
    def bound(self) -> float:
        """The best lower bound proved by any method."""
        return max(self.known_bound, *(lap.lower_bound for lap in self.laps))

    def distances(self, lap: Lap) -> list[tuple[float, float]]:
        """(seconds, (objective - L) / |L|) at each check of a lap; empty without a bound."""
        bound = self.bound
        if not math.isfinite(bound):
            return []
        return [(seconds, (f - bound) / (abs(bound) or 1.0)) for seconds, f in lap.checks]

    def compute(self) -> None:
        """Run the methods one after the other."""
        options = self.job.reconstructor(self.device)
        prepared = self.job.prepared(options, self.solver_of(options))
        problem = options.problem(prepared).to(device=self.device)
        for lap in self.laps:
            if self._stopped.is_set():
                lap.note = "not run"
            else:
                self.state = f"{lap.name}: choosing step sizes"
                self._run_lap(problem, METHODS[lap.name], lap)

    def _run_lap(self, problem: VariationalProblem, contender: NamedMethod, lap: Lap) -> None:
        own = problem if contender.bounded else replace(problem, box=None)
        try:
            method = self._tuned(problem, own, candidates(contender, problem))
        except ValueError as error:  # the method does not apply to such problems
            lap.note = str(error)
            return
        lap.steps = describe_steps(method)

        def check(progress: Progress) -> bool:
            objective, bound = progress.objective, progress.lower_bound
            if not contender.bounded:
                objective = problem.objective(problem.bounds.project(progress.x)).cpu()
                bound = torch.full_like(bound, -math.inf)  # that is for the problem without a box
            lap.add(
                progress.seconds, progress.iteration, float(objective.sum()), float(bound.sum())
            )
            self.state = f"{lap.name}: iteration {progress.iteration}"
            return self._stopped.is_set()

        # The plots use the solver's own clock, which does not count callbacks.
        stop = StopWhen(
            gap=1e-5,
            max_iterations=MOST_ITERATIONS,
            seconds=self.seconds,
            check_every=self.job.call()["check_every"],
        )
        solve(own, method=method, stop=stop, callback=check)

    def _tuned(
        self, problem: VariationalProblem, own: VariationalProblem, grid: Sequence[Method]
    ) -> Method:
        """The candidate that is best after a few iterations; the search takes one lap at most."""
        if len(grid) == 1:
            return grid[0]
        ending = time.monotonic() + self.seconds
        stop = StopWhen(gap=None, max_iterations=TRIAL_ITERATIONS, check_every=TRIAL_ITERATIONS)
        scores: list[tuple[float, int]] = []
        # From the middle of the grid outwards, since the time may not suffice for all.
        for i in sorted(range(len(grid)), key=lambda i: abs(i - len(grid) // 2)):
            x = solve(own, method=grid[i], stop=stop).x
            value = float(problem.objective(problem.bounds.project(x)).sum())
            scores.append((value if math.isfinite(value) else math.inf, i))
            if self._stopped.is_set() or time.monotonic() > ending:
                break
        return grid[min(scores)[1]]


def candidates(contender: NamedMethod, problem: VariationalProblem) -> Sequence[Method]:
    """Step sizes to choose from: those of the benchmarks, unless the problem is of another kind.

    For scanners, around the paper's; for problems in units of the noise, ``GUIDED_STEPS``.
    """
    name, layers = contender.name, len(problem.regularizer.layers)
    scanner, guided = problem.operator.diagonal is None, problem.noise is not None and layers == 1
    if name not in GUIDED_STEPS or not (scanner or guided):
        return contender.grid(problem, True)
    if name != "paper":
        steps = (CT_STEPS if scanner else GUIDED_STEPS)[name]
        return [Subgradient(step, name == "sm-d") for step in steps]
    if not scanner:
        return [PDHG(steps=PaperSteps((c,))) for c in GUIDED_STEPS[name]]
    first, last = CT_LAST
    inner = [first * (last / first) ** (i / max(layers - 1, 1)) for i in range(layers)]
    return [
        PDHG(steps=PaperSteps((a * CT_FIRST, *(b * c for c in inner))))
        for a in (0.1, 1.0, 10.0)
        for b in (0.3, 3.0)
    ]
