"""Jobs of visitors, with checked options, and their runs, which can be watched and stopped.

A job is a call of ``cl.reconstruct``. During its run, the solver calls back at every check. The
callback publishes the latest picture, which a slow watcher may miss, and ends the run if the
visitor pressed Stop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from convexlift.models.files import Sheet, shipped_sheets
from convexlift.reconstruction import InputError, PreparedImage, Reconstruction, reconstructor_for
from convexlift.reconstruction.options import OPTIONS
from convexlift.reconstruction.reconstructor import Reconstructor, joint_psnr
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.solvers.solution import Progress, Record, Status
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, SparseViewCT
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture

log = logging.getLogger(__name__)

TV = "tv"
"""Total variation, the regularizer that is not learned."""

TOLERANCES = (1e-2, 1e-3, 1e-4)
STRENGTHS = (0.1, 10.0)
TILE = 512
"""The side of the tiles of large pictures."""
CT_SIZES, CT_VIEWS = (128, 256, 512), (10, 400)
MOST_MISSING = 0.95
MOST_ITERATIONS = 20_000

BOX: dict[str, tuple[float, float]] = {
    "denoise": (0.0, 1.0), "inpaint": (0.0, 1.0), "ct": (0.0, 2.0),
}  # fmt: skip
"""Bounds on images; the upper one of CT is 4024 HU."""

BOUNDS: dict[str, tuple[str, float, float]] = {
    "tolerance": ("The tolerance", 1e-6, 0.5),
    "strength": ("The strength", *STRENGTHS),
    "seed": ("The seed", 0, 2**31 - 1),
    "sigma": ("The noise level", 0.0, 0.9),
    "missing": ("The missing fraction", 0.01, MOST_MISSING),
    "views": ("The number of views", *CT_VIEWS),
}
"""Names and bounds of options that are numbers."""

HINTS = {
    "denoise": 'Choose "Gaussian" or "Salt & pepper" instead of "Detect", and its level.',
    "inpaint": "Mark fewer pixels as missing, or use convexlift reconstruct with --sigma.",
    "ct": "Choose other settings.",
}
"""Advice in the words of the page, for pictures that ``cl.reconstruct`` refuses."""

FEW_PIXELS, MANY_PIXELS = 100_000, 500_000
"""An iteration takes less than 0.1 s below the first number, and about 1 s at the second."""


@dataclass(frozen=True, eq=False)
class PageJob:
    """``cl.reconstruct(picture.values, task, **options)``.

    Args:
        task: ``denoise``, ``inpaint`` or ``ct``.
        picture: clean if it is to be damaged first (``simulate``), else damaged.
        options: the visitor's choices. The regularizer is the name of one that fits, never a path;
            a mask is (H, W).
    """

    task: str
    picture: InputPicture
    options: dict[str, Any]

    def __post_init__(self) -> None:
        for name, (label, low, high) in BOUNDS.items():
            if self.options.get(name) is not None:
                _require_number(label, self.options[name], low, high)
        regularizer = self.options["regularizer"]
        if regularizer not in fitting(self._card_task(), self.picture.size):
            raise PageError(f"{regularizer} does not fit this picture and task.", "Choose another.")
        if self.simulated and self.task != "ct":
            if self.options.get("sigma") is None:
                raise PageError("There is no noise to simulate.", "Choose its kind and its level.")
            if not self.picture.clean:
                raise PageError("The picture may be damaged already.", "Restore it as it is.")
        if self.task == "inpaint":
            _check_mask(self.options.get("mask"), self.picture, self.simulated)

    @property
    def simulated(self) -> bool:
        """Whether the picture is first damaged, or scanned."""
        return bool(self.options.get("simulate"))

    @property
    def compared(self) -> bool:
        """Whether results are compared with the picture, which is then known to be clean."""
        return self.simulated and self.picture.clean

    def call(self) -> dict[str, Any]:
        """All options of the call, except the device and the time limit."""
        values = self.picture.values
        count = values.numel()  # iterations on large pictures are long: check, and stop, more often
        check_every = 5 if count <= FEW_PIXELS else 2 if count <= MANY_PIXELS else 1
        of_picture = {"range": (0.0, 1.0), "jpeg": None if self.simulated else self.picture.jpeg}
        scale: dict[str, Any] = {} if self.task == "ct" else of_picture
        scale |= {"tiles": TILE} if self.picture.tiled else {}
        return {
            **self.options, **scale, "box": BOX[self.task], "check_every": check_every,
            "max_iterations": MOST_ITERATIONS, "batch": values.shape[1],
        }  # fmt: skip

    def reconstructor(self, device: torch.device, seconds: float) -> Reconstructor:
        """The checked options, for a device and with a time limit."""
        mapped = not self.picture.tiled
        with_limits = {"device": device, "time_limit": seconds, "gap_map": mapped}
        with self._page_errors():
            return reconstructor_for(self.task, **self.call(), **with_limits)

    def prepared(self, options: Reconstructor, solver: PiecewiseSolver) -> PreparedImage:
        """The data, the noise, and the weight."""
        with self._page_errors():
            return options.prepare(self.picture.values, solver)

    @contextmanager
    def _page_errors(self) -> Iterator[None]:
        """The first half of a message, and advice in place of the second, which names options."""
        try:
            yield
        except InputError as error:
            sentence = str(error).partition(";")[0]
            sentence = f"{sentence[:1].upper()}{sentence[1:]}."
            raise PageError(sentence, HINTS[self.task]) from None

    def _card_task(self) -> str:
        """The name of the task on the cards of regularizers."""
        if self.task == "denoise":
            impulses = self.options.get("noise") == "salt-and-pepper"
            return SaltAndPepper.name if impulses else GaussianDenoising.name
        return {"inpaint": Inpainting.name, "ct": SparseViewCT.name}[self.task]


@cache
def shipped() -> dict[str, Sheet]:
    """The regularizers inside the package, without their weights."""
    return shipped_sheets()


def fitting(task: str, size: tuple[int, int]) -> tuple[str, ...]:
    """Regularizers for a task and a picture of this size, the recommended one first.

    Regularizers for colours are not listed: they replace their namesakes for pictures in colour.
    """
    recommended, names = {options.regularizer for options in OPTIONS.values()}, []
    for name, sheet in shipped().items():
        parts, card = sheet.architecture, sheet.card
        only = parts.get("image_size")
        fits = parts["in_channels"] == 1 and (only is None or tuple(only) == size)
        if card is not None and task in card.weights and fits:
            names.append((name not in recommended, only is not None, name))
    return (*(name for *_, name in sorted(names)), TV)


def _require_number(label: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PageError(f"{label} is not a number.", f"Give one from {low:g} to {high:g}.")
    if not low <= value <= high or (isinstance(low, int) and value != int(value)):
        raise PageError(f"{label} is {value:g}.", f"Give a number from {low:g} to {high:g}.")


def _check_mask(mask: Tensor | None, picture: InputPicture, simulated: bool) -> None:
    if mask is None:
        if simulated:
            return
        raise PageError(
            "It is not known which pixels are missing.",
            "Paint over them with the brush, or upload a mask.",
        )
    if tuple(mask.shape) != picture.size:
        (height, width), (rows, columns) = picture.size, mask.shape
        raise PageError(
            f"The mask has {columns} x {rows} pixels and the picture {width} x {height}.",
            "They must have the same size.",
        )
    missing = float((mask == 0).double().mean())
    if missing == 0:
        raise PageError("No pixel is missing.", "Paint over the pixels to fill in.")
    if missing > MOST_MISSING:
        raise PageError(
            f"{100 * missing:.0f} % of the pixels are missing.",
            f"At most {100 * MOST_MISSING:.0f} % may be.",
        )


@dataclass(frozen=True)
class Point:
    """One check: sums over the planes of a picture; bound and gap are the best so far."""

    iteration: int
    seconds: float
    objective: float
    lower_bound: float
    gap: float
    psnr: float | None
    tiles: int | None = None


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
        """The reason for the end of the run."""
        return Status[self.reconstruction.record["status"]]


class Run:
    """A job that is being solved in a thread of an executor, within a time limit.

    The executor limits the number of simultaneous runs. A run that is no longer watched ends at its
    next check, and keeps its thread and memory until then.

    Attributes:
        state: the latest intermediate result, replaced and never changed.
    """

    def __init__(
        self, job: PageJob, seconds: float, executor: Executor, device: torch.device | None = None
    ) -> None:
        self.job, self.seconds, self.state = job, seconds, Snapshot()
        self.device = device or torch.device("cpu")
        self._executor, self._stopped = executor, threading.Event()
        self._future: Future[RunResult] | None = None
        self._solver: PiecewiseSolver | None = None

    def start(self) -> Self:
        """Begin, once the executor has a free thread."""
        self._future = self._executor.submit(self._logged)
        if self.stopping:  # before there was anything to cancel
            self._future.cancel()
        return self

    def stop(self) -> None:
        """Ask the solver to end at its next check; a waiting run is cancelled.

        The search for a weight, which makes no checks, ends too.
        """
        self._stopped.set()
        if self._future is not None:
            self._future.cancel()
        if self._solver is not None:
            self._solver.interruption.status = Status.STOPPED

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopped.is_set()

    def result(self, timeout: float | None = None) -> RunResult:
        """Wait for the result.

        Raises:
            PageError: the reason, if there is none.
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

    def states(self, pause: float = 0.1) -> Iterator[Snapshot]:
        """The latest state, whenever it has changed, checked every ``pause`` seconds.

        Leaving the loop stops the run, so that a closed page costs nothing.

        Raises:
            PageError: the reason, if there is no result.
        """
        assert self._future is not None
        seen, done = None, False
        try:
            while not done:
                done = self._future.done()  # read before the state, so that the last one is seen
                state = self.state
                if state is not seen:
                    seen = state
                    yield state
                if not done:
                    wait([self._future], pause)
        finally:
            self.stop()
        self.result()

    def _logged(self) -> RunResult:
        try:
            return self._compute()
        except PageError:
            raise
        except Exception:
            log.exception("a run failed")
            raise

    def _compute(self) -> RunResult:
        """The reconstruction with its proof, and the map of the gap."""
        options = self.job.reconstructor(self.device, self.seconds)
        self._solver = solver = options.solver()
        if self.stopping:  # before there was a solver to end
            solver.interruption.status = Status.STOPPED
        prepared = self.job.prepared(options, solver)
        self.state = Snapshot(prepared)
        reconstruction = options.solve([prepared], solver, self._check)[0]
        points = self.state.points
        if points and (tiles := points[-1].tiles) is not None:  # a sweep is certified at its end
            points = tuple(_point(each, None, tiles) for each in reconstruction.solution.history)
        return RunResult(self.job, prepared, reconstruction, points)

    def _check(self, progress: Progress) -> bool:
        """Publish the progress; returns whether to end the run."""
        last, x = self.state, progress.x
        assert last.prepared is not None
        finite, truth = bool(torch.isfinite(x).all()), last.prepared.truth
        known = finite and self.job.compared and truth is not None and truth.numel() == x.numel()
        decibel = joint_psnr(x, truth) if known and truth is not None else None
        point = _point(progress, decibel, progress.tiles)
        self.state = replace(last, x=x if finite else last.x, points=(*last.points, point))
        return self._stopped.is_set()


def _point(record: Record, decibel: float | None, tiles: int | None) -> Point:
    objective, bound = float(record.objective.sum()), float(record.lower_bound.sum())
    gap = float(record.gap.max())
    return Point(record.iteration, record.seconds, objective, bound, gap, decibel, tiles)
