"""Computations in threads of their own: a state to watch, a stop that stops, and one run.

The solver calls back at every check. The callback publishes the latest picture, which a slow
watcher may miss, and ends the run if the visitor pressed Stop or the time limit is reached.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from convexlift.images import psnr
from convexlift.problems.certificate import certify
from convexlift.solvers.solution import Progress, Solution, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen
from convexlift.web.job import PageJob, Stated
from convexlift.web.limits import PageError

MOST_ITERATIONS = 20_000
log = logging.getLogger(__name__)
State = TypeVar("State")
Result = TypeVar("Result")


class Computation(ABC, Generic[State, Result]):
    """Work in a thread of an executor, which bounds how many compute at the same time.

    A computation that nobody watches any more ends at its next check, and keeps its thread, and
    its memory, until then.

    Attributes:
        state: the latest intermediate result, replaced and never changed.
    """

    state: State

    def __init__(self, executor: Executor, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self._executor, self._stopped = executor, threading.Event()
        self._future: Future[Result] | None = None

    @abstractmethod
    def compute(self) -> Result:
        """Do the work; called in the thread."""

    def start(self) -> Self:
        """Begin, once the executor has a free thread."""
        self._future = self._executor.submit(self._logged)
        return self

    def stop(self) -> None:
        """Ask the solver to end at its next check; a computation that waits never begins."""
        self._stopped.set()
        if self._future is not None:
            self._future.cancel()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            PageError: why there is none.
        """
        assert self._future is not None
        try:
            return self._future.result(timeout)
        except CancelledError:
            raise PageError("The run was stopped before it began.", "Press Start again.") from None
        except (PageError, TimeoutError):
            raise
        except Exception as error:
            raise PageError(
                f"The run failed ({type(error).__name__}).",
                "Try other settings; the log of the server has the details.",
            ) from None

    def states(self, pause: float = 0.1) -> Iterator[State]:
        """The latest state, whenever it has changed, until the end.

        Leaving the loop stops the computation, so a page that was closed costs nothing.

        Args:
            pause: seconds between two looks.

        Raises:
            PageError: why there is no result.
        """
        assert self._future is not None
        seen, done = None, False
        try:
            while not done:
                done = self._future.done()  # before the state is read: none is missed
                state = self.state
                if state is not seen:
                    seen = state
                    yield state
                if not done:
                    wait([self._future], pause)
        finally:
            self.stop()
        self.result()

    def _logged(self) -> Result:
        try:
            return self.compute()
        except PageError:
            raise
        except Exception:
            log.exception("a run failed")
            raise


class Ending(Enum):
    """Why a run ended; the value is shown on the page."""

    CERTIFIED = "Certified"
    STOPPED = "Stopped by you"
    TIME = "Stopped at the time limit"
    LIMIT = "Stopped at the iteration limit"
    FAILED = "Stopped: the iterates were not finite"


@dataclass(frozen=True)
class Point:
    """One check: sums over the planes of a picture; the bound and the gap are the best so far."""

    iteration: int
    seconds: float
    objective: float
    lower_bound: float
    gap: float
    psnr: float | None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a run: the problem, the latest image, and all checks so far."""

    stated: Stated | None = None
    x: Tensor | None = None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, eq=False)
class RunResult:
    """The end of a run, with a map of the gap over the picture, (H, W)."""

    job: PageJob
    stated: Stated
    solution: Solution
    ending: Ending
    points: tuple[Point, ...]
    gap_map: Tensor

    @property
    def iterations(self) -> int:
        """The most of any plane."""
        return int(self.solution.iterations.max())

    @property
    def objective(self) -> float:
        """The sum over the planes."""
        return float(self.solution.objective.sum())

    @property
    def lower_bound(self) -> float:
        """The sum over the planes, a lower bound on the sum of the objectives."""
        return float(self.solution.lower_bound.sum())

    @property
    def gap(self) -> float:
        """The largest certified gap of a plane."""
        return float(self.solution.gap.max())


class Run(Computation[Snapshot, RunResult]):
    """A job that is being solved.

    Args:
        job: to solve.
        seconds: the time limit, counted from the beginning of the computation.
        executor: where to compute.
        device: of the tensors.
    """

    def __init__(
        self, job: PageJob, seconds: float, executor: Executor, device: torch.device | None = None
    ) -> None:
        super().__init__(executor, device)
        self.job, self.seconds, self.state = job, seconds, Snapshot()
        self._late = False

    def compute(self) -> RunResult:
        """The solution with its proof, and the map of the gap."""
        self._deadline = time.monotonic() + self.seconds
        stated = self.job.stated()
        self.state = Snapshot(stated)
        problem = stated.problem.to(device=self.device)
        start = problem.initial_image()
        self.state = Snapshot(stated, start)
        stop = StopWhen(
            gap=self.job.tolerance,
            max_iterations=MOST_ITERATIONS,
            check_every=self.job.check_every,
        )
        solution = solve(problem, stop=stop, start=start, callback=self._check)
        gap_map = certify(problem, solution.x, solution.duals).map.sum((0, 1))
        ending = self._ending(solution)
        return RunResult(self.job, stated, solution, ending, self.state.points, gap_map)

    def _check(self, progress: Progress) -> bool:
        """Publish the progress; whether to end the run."""
        stated = self.state.stated
        assert stated is not None
        finite = bool(torch.isfinite(progress.x).all())
        point = Point(
            progress.iteration,
            progress.seconds,
            float(progress.objective.sum()),
            float(progress.lower_bound.sum()),
            float(progress.gap.max()),
            picture_psnr(progress.x, stated.truth) if finite else None,
        )
        x = progress.x if finite else self.state.x
        self.state = Snapshot(stated, x, (*self.state.points, point))
        self._late = self._late or time.monotonic() > self._deadline
        return self._stopped.is_set() or self._late

    def _ending(self, solution: Solution) -> Ending:
        statuses = set(solution.status)
        if statuses == {Status.CONVERGED}:
            return Ending.CERTIFIED
        if Status.NOT_FINITE in statuses:
            return Ending.FAILED
        if Status.STOPPED in statuses:
            return Ending.TIME if self._late else Ending.STOPPED
        return Ending.LIMIT


def picture_psnr(x: Tensor, truth: Tensor | None) -> float | None:
    """PSNR of all planes together, in dB; None where the truth is not known."""
    if truth is None:
        return None
    return float(psnr(x.cpu().reshape(1, -1), truth.reshape(1, -1)))
