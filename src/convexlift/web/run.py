"""Computations in threads of their own: a state to watch, a stop that stops, and one run.

The solver calls back at every check. The callback publishes the latest picture, which a slow
watcher may miss, and ends the run if the visitor pressed Stop.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from convexlift.reconstruction import PreparedImage, Reconstruction
from convexlift.reconstruction.reconstructor import joint_psnr
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.solvers.solution import Progress, Status
from convexlift.web.job import PageJob
from convexlift.web.limits import PageError

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
    """The state of a run: the data, the latest image, and all checks so far."""

    prepared: PreparedImage | None = None
    x: Tensor | None = None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, eq=False)
class RunResult:
    """The end of a run."""

    job: PageJob
    prepared: PreparedImage
    reconstruction: Reconstruction
    points: tuple[Point, ...]

    @property
    def status(self) -> Status:
        """Why the run ended."""
        return Status[self.reconstruction.record["status"]]


class Run(Computation[Snapshot, RunResult]):
    """A job that is being solved.

    Args:
        job: to solve.
        seconds: the time limit.
        executor: where to compute.
        device: of the tensors.
    """

    def __init__(
        self, job: PageJob, seconds: float, executor: Executor, device: torch.device | None = None
    ) -> None:
        super().__init__(executor, device)
        self.job, self.seconds, self.state = job, seconds, Snapshot()
        self._solver: PiecewiseSolver | None = None

    def compute(self) -> RunResult:
        """The reconstruction with its proof, and the map of the gap."""
        options = self.job.reconstructor(self.device, self.seconds)
        self._solver = options.solver()
        prepared = self.job.prepared(options, self._solver)
        self.state = Snapshot(prepared)
        reconstruction = options.solve([prepared], self._solver, self._check)[0]
        return RunResult(self.job, prepared, reconstruction, self.state.points)

    def stop(self) -> None:
        """Also end the search for a weight, which has no checks."""
        super().stop()
        if self._solver is not None:
            self._solver.interruption.status = Status.STOPPED

    def _check(self, progress: Progress) -> bool:
        """Publish the progress; whether to end the run."""
        last, x = self.state, progress.x
        assert last.prepared is not None
        finite, truth = bool(torch.isfinite(x).all()), last.prepared.truth
        known = finite and truth is not None and truth.shape == x.shape
        point = Point(
            progress.iteration,
            progress.seconds,
            float(progress.objective.sum()),
            float(progress.lower_bound.sum()),
            float(progress.gap.max()),
            joint_psnr(x, truth) if known and truth is not None else None,
        )
        self.state = replace(last, x=x if finite else last.x, points=(*last.points, point))
        return self._stopped.is_set()
