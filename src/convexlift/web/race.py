"""Methods one after the other on one problem, on the same clock.

What is drawn is (objective - L) / |L|, where L is the best lower bound that anybody certified: an
upper bound on how far a method is from the optimum, whatever the method knows itself. Methods that
ignore the box are judged by their images, clipped to it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

import torch

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.named_methods import METHODS, NamedMethod, describe_steps
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.solution import Progress
from convexlift.solvers.solve import solve
from convexlift.solvers.step_sizes import PaperSteps
from convexlift.solvers.stopping import StopWhen
from convexlift.solvers.subgradient import Subgradient
from convexlift.web.jobs import Job
from convexlift.web.limits import PageError
from convexlift.web.plots import Line
from convexlift.web.running import MOST_ITERATIONS, Slots, log

NAMES = tuple(METHODS)
CT_FIRST, CT_LAST = 500.0, (100.0, 0.1)
"""The paper's c in tomography: of the data, and of the first and the last layer."""
CT_STEPS = {
    "sm-c": (1e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
    "sm-d": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}
TRIAL_ITERATIONS = 8
"""Of each step size, before a race."""


@dataclass
class Lap:
    """One method: seconds, best objective so far, and best bound so far, at each check."""

    name: str
    steps: str = ""
    note: str = ""
    iterations: int = 0
    seconds: list[float] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    lower_bound: float = -math.inf

    def add(self, seconds: float, iteration: int, objective: float, lower_bound: float) -> None:
        """One check."""
        best = self.objective[-1] if self.objective else math.inf
        self.seconds.append(seconds)
        self.objective.append(min(best, objective) if not math.isnan(objective) else best)
        self.iterations = iteration
        if lower_bound > self.lower_bound:
            self.lower_bound = lower_bound


class Race:
    """Methods on a job, in a thread of its own.

    Args:
        job: to solve.
        names: of the methods.
        seconds: for each, and as many at most to choose its step sizes.
        device: where to compute.
        known_bound: a lower bound from an earlier run of the same job.
        slots: shared with all that compute.
    """

    def __init__(
        self,
        job: Job,
        names: tuple[str, ...],
        seconds: float,
        device: torch.device | None = None,
        known_bound: float = -math.inf,
        slots: Slots | None = None,
    ) -> None:
        unknown = sorted(set(names) - set(NAMES))
        if unknown or not names:
            raise PageError("No method was chosen.", f"Choose among {', '.join(NAMES)}.")
        self.job, self.seconds, self.known_bound = job, seconds, known_bound
        self.device, self.slots = device or torch.device("cpu"), slots or Slots(1)
        self.laps = tuple(Lap(name) for name in NAMES if name in names)
        self._stop = threading.Event()
        self._news: SimpleQueue[str | BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="convexlift-race", daemon=True)

    def start(self) -> Race:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End at the next check."""
        self._stop.set()

    def news(self, pause: float = 0.25) -> Iterator[str]:
        """What is being done, whenever something changed."""
        try:
            while True:
                item = self._news.get()
                try:
                    while item is not None and not isinstance(item, BaseException):
                        item = self._news.get_nowait()
                except Empty:
                    pass
                if isinstance(item, PageError):
                    raise item
                if isinstance(item, BaseException):
                    raise PageError(f"The race failed ({type(item).__name__}).", "Try another.")
                if item is None:
                    return
                yield item
                self._thread.join(pause)
        finally:
            self.stop()

    @property
    def bound(self) -> float:
        """The best one of all."""
        return max(self.known_bound, *(lap.lower_bound for lap in self.laps))

    def lines(self) -> list[Line]:
        """Curves to draw."""
        bound = self.bound
        scale = abs(bound) or 1.0
        return [
            Line(lap.name, tuple(lap.seconds), tuple((f - bound) / scale for f in lap.objective))
            for lap in self.laps
        ]

    def _work(self) -> None:
        try:
            with self.slots.held(self._stop):
                self._laps()
            self._news.put("done")
            self._news.put(None)
        except Exception as error:
            if not isinstance(error, PageError):
                log.exception("a race failed")
            self._news.put(error)

    def _laps(self) -> None:
        problem = self.job.stated().problem.to(device=self.device)
        for lap in self.laps:
            if self._stop.is_set():
                lap.note = "not run"
                continue
            self._news.put(f"{lap.name}: choosing step sizes")
            self._lap(problem, METHODS[lap.name], lap)

    def _lap(self, problem: VariationalProblem, contender: NamedMethod, lap: Lap) -> None:
        own = problem if contender.bounded else replace(problem, box=None)
        try:
            method = self._tuned(problem, own, candidates(contender, problem))
        except ValueError as error:  # it does not apply to such problems
            lap.note = str(error)
            return
        lap.steps = describe_steps(method)

        def watch(progress: Progress) -> bool:
            objective, bound = progress.objective, progress.lower_bound
            if not contender.bounded:
                objective = problem.objective(problem.bounds.project(progress.x)).cpu()
                bound = torch.full_like(bound, -math.inf)  # of another problem
            lap.add(
                progress.seconds, progress.iteration, float(objective.sum()), float(bound.sum())
            )
            self._news.put(f"{lap.name}: iteration {progress.iteration}")
            return self._stop.is_set()

        # By the solver's own clock, which is the one that is drawn: callbacks do not count.
        stop = StopWhen(
            gap=1e-5,
            max_iterations=MOST_ITERATIONS,
            seconds=self.seconds,
            check_every=self.job.check_every,
        )
        solve(own, method=method, stop=stop, callback=watch)

    def _tuned(
        self, problem: VariationalProblem, own: VariationalProblem, grid: Sequence[Method]
    ) -> Method:
        """The best of a few iterations each, for no longer than a lap takes."""
        if len(grid) == 1:
            return grid[0]
        ending = time.monotonic() + self.seconds
        stop = StopWhen(gap=None, max_iterations=TRIAL_ITERATIONS, check_every=TRIAL_ITERATIONS)
        scores: list[tuple[float, int]] = []
        # From the middle of the grid outwards, in case there is no time for all.
        order = sorted(range(len(grid)), key=lambda i: abs(i - len(grid) // 2))
        for i in order:
            x = solve(own, method=grid[i], stop=stop).x
            value = float(problem.objective(problem.bounds.project(x)).sum())
            scores.append((value if math.isfinite(value) else math.inf, i))
            if self._stop.is_set() or time.monotonic() > ending:
                break
        return grid[min(scores)[1]]


def candidates(contender: NamedMethod, problem: VariationalProblem) -> Sequence[Method]:
    """Step sizes to choose from: those of benchmarks, and for scanners those around the paper's."""
    if problem.operator.diagonal is not None or contender.name not in ("paper", *CT_STEPS):
        return contender.grid(problem, True)
    if contender.name != "paper":
        return [Subgradient(s, contender.name == "sm-d") for s in CT_STEPS[contender.name]]
    layers = len(problem.regularizer.layers)
    first, last = CT_LAST
    inner = [first * (last / first) ** (i / max(layers - 1, 1)) for i in range(layers)]
    return [
        PDHG(steps=PaperSteps((a * CT_FIRST, *(b * c for c in inner))))
        for a in (0.1, 1.0, 10.0)
        for b in (0.3, 3.0)
    ]
