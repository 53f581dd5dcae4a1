"""A job in a thread of its own: pictures and bounds as they come, a stop that stops, an outcome.

The solver calls back at every check. There the latest picture is put where the page finds it (who
looks rarely misses some), and there a visitor's wish to stop, and the limit on time, are obeyed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from convexlift.images import psnr
from convexlift.problems.certificate import certify
from convexlift.solvers.solution import Progress, Solution, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen
from convexlift.web.jobs import Job, Stated
from convexlift.web.limits import PageError

MOST_ITERATIONS = 20_000
log = logging.getLogger(__name__)


class Ending(Enum):
    """Why a run ended; the value says it to people."""

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
    """What there is to see now."""

    stated: Stated | None
    x: Tensor | None
    points: tuple[Point, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The end of a run, with the place of the gap in the picture, (H, W)."""

    job: Job
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
        """A bound of that sum."""
        return float(self.solution.lower_bound.sum())

    @property
    def gap(self) -> float:
        """The largest certified gap of a plane."""
        return float(self.solution.gap.max())


class Slots:
    """Computations that may go on at the same time.

    Gradio counts those that somebody watches. Of visitors who left, the solver ends at its next
    check only, and until then the memory of the run is taken.

    Args:
        count: of computations.
        freed: called at the end of each.
    """

    def __init__(self, count: int, freed: Callable[[], None] = lambda: None) -> None:
        self._free, self._freed = threading.BoundedSemaphore(count), freed

    @contextlib.contextmanager
    def held(self, stop: threading.Event) -> Iterator[None]:
        """Wait for a slot, and have it for the block.

        Raises:
            PageError: ``stop`` was set meanwhile.
        """
        while not self._free.acquire(timeout=0.1):
            if stop.is_set():
                raise PageError("The run was stopped before it began.", "Press Start again.")
        try:
            yield
        finally:
            self._free.release()
            self._freed()


class Run:
    """A job that is being solved, or was."""

    def __init__(
        self,
        job: Job,
        seconds: float,
        device: torch.device | None = None,
        slots: Slots | None = None,
    ) -> None:
        self.job, self.seconds, self.slots = job, seconds, slots or Slots(1)
        self.device = device or torch.device("cpu")
        self.outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._snapshot = Snapshot(None, None, ())
        self._news = threading.Condition()
        self._version, self._done = 0, False
        self._stop = threading.Event()
        self._late = False
        self._thread = threading.Thread(target=self._work, name="convexlift-run", daemon=True)

    def start(self) -> Run:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the solver to end at its next check."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def snapshots(self, pause: float = 0.1) -> Iterator[Snapshot]:
        """The latest state whenever there is a new one, until the end.

        Whoever stops looking stops the solver: a page that was closed costs nothing.

        Args:
            pause: at least so many seconds between two of them.

        Raises:
            PageError: what was wrong with the job.
        """
        seen, done = 0, False
        try:
            while not done:
                with self._news:
                    self._news.wait_for(lambda: self._version > seen or self._done)  # noqa: B023
                    fresh, seen = self._version > seen, self._version
                    done, snapshot = self._done, self._snapshot
                if fresh:
                    yield snapshot
                if not done:
                    self._thread.join(pause)
        finally:
            self.stop()
        self._raise_error()

    def _raise_error(self) -> None:
        if isinstance(self._error, PageError):
            raise self._error
        if self._error is not None:
            raise PageError(
                f"The run failed ({type(self._error).__name__}).",
                "Try other settings; the log of the server says more.",
            )

    def _work(self) -> None:
        try:
            with self.slots.held(self._stop):
                self._deadline = time.monotonic() + self.seconds
                self.outcome = self._solve()
        except PageError as error:
            self._error = error
        except Exception as error:
            log.exception("a run failed")
            self._error = error
        finally:
            with self._news:
                self._done = True
                self._news.notify_all()

    def _solve(self) -> Outcome:
        stated = self.job.stated()
        self._post(Snapshot(stated, None, ()))
        problem = stated.problem.to(device=self.device)
        start = problem.initial_image()
        self._post(Snapshot(stated, start, ()))
        stop = StopWhen(
            gap=self.job.tolerance,
            max_iterations=MOST_ITERATIONS,
            check_every=self.job.check_every,
        )
        solution = solve(problem, stop=stop, start=start, callback=self._watch)
        gap_map = certify(problem, solution.x, solution.duals).map.sum((0, 1))
        return Outcome(
            self.job, stated, solution, self._ending(solution), self._snapshot.points, gap_map
        )

    def _watch(self, progress: Progress) -> bool:
        """The callback of the solver."""
        stated = self._snapshot.stated
        assert stated is not None
        finite = bool(torch.isfinite(progress.x).all())
        known = finite and stated.truth is not None
        point = Point(
            progress.iteration,
            progress.seconds,
            float(progress.objective.sum()),
            float(progress.lower_bound.sum()),
            float(progress.gap.max()),
            picture_psnr(progress.x, stated.truth) if known else None,
        )
        x = progress.x if finite else self._snapshot.x
        self._post(Snapshot(stated, x, (*self._snapshot.points, point)))
        self._late = self._late or time.monotonic() > self._deadline
        return self._stop.is_set() or self._late

    def _post(self, snapshot: Snapshot) -> None:
        with self._news:
            self._snapshot = snapshot
            self._version += 1
            self._news.notify_all()

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
    """Of all planes together, in dB."""
    if truth is None:
        return None
    return float(psnr(x.cpu().reshape(1, -1), truth.reshape(1, -1)))
