"""Measurements: reference optima, curves against iterations, and times.

Iterations are counted in runs that evaluate objective and certificate along the way, which are
not timed. Times are of runs with the number of iterations found there, in which nothing is
evaluated before the last; or, for certified gaps, of runs that check as often as ``cl.solve``
does by default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from experiments.catalogue import REFERENCE_GAP as REFERENCE_GAP
from experiments.runner.parts import Array, Part

PATIENCE, IMPROVEMENT = 200, 0.9
"""A search for a reference ends when the gap does not fall by this factor in 200 iterations."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The best objective known of one problem, and how near the optimum it is certified to be."""

    objective: float  # of the best image found
    gap: float  # its certified relative gap
    guarantee: cl.Guarantee  # the scope of the certificate
    precision: str  # in which it was found
    iterations: int  # that it took, in both precisions together
    x: Tensor  # the image, (1, C, H, W)

    @property
    def certified(self) -> bool:
        """Whether the gap is as small as references should have it."""
        return self.gap <= REFERENCE_GAP


def find_reference(
    problem: cl.VariationalProblem,
    stop: cl.StopWhen,
    *,
    start: Tensor | None = None,
    double: bool = True,
) -> Reference:
    """Solve one problem to a certified gap: as it is, then in double precision if need be."""
    assert stop.gap is not None
    double = double and problem.fidelity.y.dtype != torch.float64
    single = _to_gap(problem, stop, start)
    found = [(single, str(problem.fidelity.y.dtype).removeprefix("torch."))]
    if float(single.gap) > stop.gap and double:
        precise = problem.to(dtype=torch.float64)
        found.append((_to_gap(precise, stop, single.x.double()), "float64"))
    best, precision = min(found, key=lambda each: float(each[0].gap))
    return Reference(
        objective=float(best.objective),
        gap=float(best.gap),
        guarantee=best.guarantee[0],
        precision=precision,
        iterations=sum(int(solution.iterations) for solution, _ in found),
        x=best.x.to(problem.fidelity.y.dtype),
    )


@dataclass(frozen=True, eq=False)
class Curve:
    """Checks of a run in iterations k = 0, every, 2 every, ...; B images, K checks."""

    iteration: Array  # (K,)
    seconds: Array  # of the solver with its checks, callbacks excluded, (K,)
    objective: Array  # of the current image, (K, B), like the next three
    data_term: Array  # D
    regularizer: Array  # R, without its weight
    psnr: Array  # in dB; NaN without a truth
    lower_bound: Array  # the best certified so far by this run itself, (K, B)
    gap: Array  # the relative gap of the best image and bound so far, (K, B)
    kept: Array  # iterations whose pictures are kept
    pictures: Array  # of the first image then, (len(kept), H, W)

    def part(self, **values: Any) -> Part:
        """The curve as a part, with further plain values."""
        return Part(values, {each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def of(cls, part: Part) -> Curve:
        """The inverse of ``part``."""
        return cls(**{each.name: part.arrays[each.name] for each in fields(cls)})

    def __len__(self) -> int:
        return len(self.iteration)

    def at(self, iteration: int) -> int:
        """The last check that is not after an iteration."""
        return int(np.searchsorted(self.iteration, iteration, side="right")) - 1

    def picture(self, iteration: int) -> Array:
        """The first image after an iteration, (H, W)."""
        return np.asarray(self.pictures[self.kept.tolist().index(iteration)])

    def error(self, optimum: Any) -> Array:
        """(objective - optimum) / |optimum| of current images, (K, B)."""
        return np.asarray((self.objective - optimum) / np.abs(optimum))

    def best_error(self, optimum: Any) -> Array:
        """The least error so far, (K, B)."""
        return np.asarray(np.fmin.accumulate(self.error(optimum), axis=0))


@dataclass(frozen=True, eq=False)
class Start:
    """A problem with the truth, if it is known, and the start of a method, if it is given one."""

    problem: cl.VariationalProblem
    truth: Tensor | None = None
    x: Tensor | None = None


def record(
    start: Start,
    method: cl.Method,
    stop: cl.StopWhen,
    *,
    keep: Sequence[int] = (),
    until: Callable[[cl.Progress], bool] = lambda progress: False,
) -> Curve:
    """Run a method on a batch of images, with a check every ``stop.check_every`` iterations.

    Args:
        start: the problem.
        method: with its step sizes.
        stop: its limits; without a gap all runs have as many iterations.
        keep: iterations whose pictures of the first image are kept; multiples of ``check_every``.
        until: called at each check; ends the run when it returns true.
    """
    quality: list[Array] = []
    kept: list[int] = []
    pictures: list[Array] = []

    def watch(progress: cl.Progress) -> bool:
        if start.truth is None:
            quality.append(np.full(len(progress.x), np.nan))
        else:
            quality.append(psnr(progress.x, start.truth).cpu().numpy())
        if progress.iteration in keep:
            kept.append(progress.iteration)
            pictures.append(progress.x[0, 0].float().cpu().numpy())
        return until(progress)

    solution = finished(
        cl.solve(start.problem, method=method, stop=stop, start=start.x, callback=watch)
    )
    for missed in keep[len(kept) :]:  # the iterates became infinite before
        kept.append(missed)
        pictures.append(solution.state.x[0, 0].float().cpu().numpy())
    columns = ("objective", "data_term", "regularizer", "lower_bound", "gap")
    history = solution.history
    return Curve(
        iteration=history["iteration"].numpy(),
        seconds=history["seconds"].numpy(),
        psnr=np.stack(quality),
        kept=np.asarray(kept, dtype=np.int64),
        pictures=np.stack(pictures) if pictures else np.zeros((0, 1, 1), np.float32),
        **{name: history[name].cpu().numpy() for name in columns},
    )


def record_until(
    start: Start,
    method: cl.Method,
    stop: cl.StopWhen,
    optimum: float,
    error: float,
    gap: float | None = None,
) -> Curve:
    """One image, until its objective error and its certified gap were as small as asked."""
    least = math.inf

    def until(progress: cl.Progress) -> bool:
        nonlocal least
        least = min(least, (float(progress.objective) - optimum) / abs(optimum))
        return least <= error and (gap is None or float(progress.gap) <= gap)

    return record(start, method, stop, until=until)


def record_batches(
    starts: Sequence[Start],
    method: cl.Method,
    iterations: int,
    *,
    every: int = 1,
    keep: Sequence[int] = (),
    tell: Callable[[float], None] = lambda fraction: None,
) -> Curve:
    """Run a method on one batch after another, for a fixed number of iterations.

    Args:
        starts: batches of problems of the same kind; their images become columns of the curve.
        method: with its step sizes.
        iterations: of every run.
        every: iterations between checks.
        keep: see ``record``.
        tell: called with the fraction that is done.
    """
    stop = cl.StopWhen(gap=None, max_iterations=iterations, check_every=every)
    curves = []
    for i, start in enumerate(starts):

        def until(progress: cl.Progress, before: int = i) -> bool:
            tell((before + progress.iteration / max(iterations, 1)) / len(starts))
            return False

        curves.append(record(start, method, stop, keep=keep if i == 0 else (), until=until))
    longest = max(curves, key=len)

    def columns(name: str) -> Array:
        """Side by side; a curve that became infinite is continued as it was."""
        each = [getattr(curve, name) for curve in curves]
        padding = [((0, len(longest) - len(curve)), (0, 0)) for curve in curves]
        return np.concatenate(
            [np.pad(values, pad, mode="edge") for values, pad in zip(each, padding, strict=True)],
            axis=1,
        )

    names = ("objective", "data_term", "regularizer", "psnr", "lower_bound", "gap")
    return Curve(
        iteration=longest.iteration, seconds=longest.seconds, kept=curves[0].kept,
        pictures=curves[0].pictures, **{name: columns(name) for name in names},
    )  # fmt: skip


def first_below(values: Sequence[float] | Array, tolerance: float) -> int | None:
    """The first index k with values[k] <= tolerance, or None."""
    return next((k for k, value in enumerate(values) if value <= tolerance), None)


def time_iterations(
    problem: cl.VariationalProblem,
    method: cl.Method,
    iterations: int,
    repeats: int,
    start: Tensor | None = None,
) -> list[float]:
    """Seconds of runs of some iterations, set-up included, with one evaluation at the end."""
    stop = cl.StopWhen(gap=None, max_iterations=iterations, check_every=max(iterations, 1))
    device = problem.fidelity.y.device
    seconds = []
    for _ in range(repeats):
        fresh = problem.to(device=device)  # the same problem with nothing computed yet
        _synchronise(device)
        began = time.perf_counter()
        solution = cl.solve(fresh, method=method, stop=stop, start=start)
        _synchronise(device)
        seconds.append(time.perf_counter() - began)
        finished(solution)
    return seconds


@dataclass(frozen=True)
class Trace:
    """One timed run to a certified gap: (iteration, seconds, largest gap of the batch)."""

    checks: tuple[tuple[int, float, float], ...]

    def reached(self, tolerance: float) -> tuple[int, float] | None:
        """Iterations and seconds to a gap, or None."""
        return next(((k, s) for k, s, gap in self.checks if gap <= tolerance), None)


def time_gap(
    problem: cl.VariationalProblem, method: cl.Method, stop: cl.StopWhen, repeats: int
) -> list[Trace]:
    """Runs to the certified gap of ``stop``, set-up and checks included."""
    device = problem.fidelity.y.device
    traces = []
    for _ in range(repeats):
        fresh = problem.to(device=device)
        checks: list[tuple[int, float, float]] = []
        _synchronise(device)
        start = time.perf_counter()

        def watch(
            progress: cl.Progress,
            checks: list[tuple[int, float, float]] = checks,
            start: float = start,
        ) -> None:
            largest = float(progress.gap.max())  # waits for the device
            checks.append((progress.iteration, time.perf_counter() - start, largest))

        finished(cl.solve(fresh, method=method, stop=stop, callback=watch))
        traces.append(Trace(tuple(checks)))
    return traces


def warm_up(problem: cl.VariationalProblem, method: cl.Method) -> None:
    """A few iterations and a check, so that kernels are chosen and memory is allocated."""
    stop = cl.StopWhen(gap=None, max_iterations=3, check_every=3)
    finished(cl.solve(problem, method=method, stop=stop))
    _synchronise(problem.fidelity.y.device)


def finished(solution: cl.Solution) -> cl.Solution:
    """The solution, unless Ctrl-C ended it early: half a measurement is none."""
    if cl.Status.INTERRUPTED in solution.status:
        raise KeyboardInterrupt
    return solution


def _to_gap(problem: cl.VariationalProblem, stop: cl.StopWhen, start: Tensor | None) -> cl.Solution:
    best, since = float("inf"), 0

    def stalled(progress: cl.Progress) -> bool:
        nonlocal best, since
        now = float(progress.gap)
        if now <= IMPROVEMENT * best:
            best, since = now, progress.iteration
        return progress.iteration - since >= PATIENCE

    return finished(cl.solve(problem, stop=stop, start=start, callback=stalled))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
