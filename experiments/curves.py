"""A method on a problem, looked at along the way: objective, PSNR, bound and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.images import psnr
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Progress, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen
from experiments.parts import Array, Part


@dataclass(frozen=True, eq=False)
class Curve:
    """What was seen of a run in iterations k = 0, every, 2 every, ...; B images, K looks.

    Attributes:
        iteration: (K,).
        seconds: of the solver with its checks, callbacks excluded, (K,).
        objective: of the current image, (K, B), like the next three.
        data_term: D.
        regularizer: R, without its weight.
        psnr: in dB.
        lower_bound: the best certified so far by this run itself, (K, B).
        gap: the relative gap of the best image and bound so far, (K, B).
        kept: iterations whose pictures are kept.
        pictures: of the first image then, (len(kept), H, W).
    """

    iteration: Array
    seconds: Array
    objective: Array
    data_term: Array
    regularizer: Array
    psnr: Array
    lower_bound: Array
    gap: Array
    kept: Array
    pictures: Array

    def part(self, **values: Any) -> Part:
        """To be kept, with further plain values."""
        return Part(values, {each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def of(cls, part: Part) -> Curve:
        """What ``part`` made."""
        return cls(**{each.name: part.arrays[each.name] for each in fields(cls)})

    def at(self, iteration: int) -> int:
        """The last look that is not after an iteration."""
        return int(np.searchsorted(self.iteration, iteration, side="right")) - 1

    def picture(self, iteration: int) -> Array:
        """That of the first image, (H, W)."""
        return np.asarray(self.pictures[self.kept.tolist().index(iteration)])

    def best_error(self, optimum: Array) -> Array:
        """(best objective so far - optimum) / |optimum|, (K, B)."""
        best = np.fmin.accumulate(self.objective, axis=0)
        return np.asarray((best - optimum) / np.abs(optimum))


@dataclass(frozen=True, eq=False)
class Start:
    """A problem with the truth, and where the method begins."""

    problem: VariationalProblem
    truth: Tensor
    x: Tensor | None


def trace(
    starts: Sequence[Start],
    method: Method,
    iterations: int,
    *,
    every: int = 1,
    keep: Sequence[int] = (),
    tell: Callable[[float], None] = lambda fraction: None,
) -> Curve:
    """Run a method on one batch after another, and look at it every so many iterations.

    Args:
        starts: batches of problems of the same kind; their images become columns of the curve.
        method: with its step sizes.
        iterations: all runs have so many, whatever they reach.
        every: look so often.
        keep: iterations whose pictures of the first image are kept; multiples of ``every``.
        tell: told the fraction that is done.
    """
    curves = []
    for i, start in enumerate(starts):

        def told(fraction: float, before: int = i) -> None:
            tell((before + fraction) / len(starts))

        curves.append(_trace(start, method, iterations, every, keep if i == 0 else (), told))
    return _joined(curves)


def _trace(
    start: Start,
    method: Method,
    iterations: int,
    every: int,
    keep: Sequence[int],
    tell: Callable[[float], None],
) -> Curve:
    quality: list[Array] = []
    kept: list[int] = []
    pictures: list[Array] = []

    def watch(progress: Progress) -> None:
        quality.append(psnr(progress.x, start.truth).cpu().numpy())
        if progress.iteration in keep:
            kept.append(progress.iteration)
            pictures.append(progress.x[0, 0].float().cpu().numpy())
        tell(progress.iteration / max(iterations, 1))

    stop = StopWhen(gap=None, max_iterations=iterations, check_every=every)
    solution = solve(start.problem, method=method, stop=stop, start=start.x, callback=watch)
    for missed in keep[len(kept) :]:  # it became infinite before
        kept.append(missed)
        pictures.append(solution.state.x[0, 0].float().cpu().numpy())
    if Status.INTERRUPTED in solution.status:
        raise KeyboardInterrupt  # half a curve is none
    history = solution.history
    columns = {
        name: history[name].cpu().numpy()
        for name in ("objective", "data_term", "regularizer", "lower_bound", "gap")
    }
    return Curve(
        iteration=history["iteration"].numpy(),
        seconds=history["seconds"].numpy(),
        psnr=np.stack(quality),
        kept=np.asarray(kept, dtype=np.int64),
        pictures=np.stack(pictures) if pictures else np.zeros((0, 1, 1), np.float32),
        **columns,
    )


def _joined(curves: Sequence[Curve]) -> Curve:
    """Curves of several batches side by side; one that became infinite is continued as it was."""
    longest = max(curves, key=lambda curve: len(curve.iteration))
    count = len(longest.iteration)

    def columns(name: str) -> Array:
        padded = [getattr(curve, name) for curve in curves]
        return np.concatenate(
            [np.pad(each, ((0, count - len(each)), (0, 0)), mode="edge") for each in padded], axis=1
        )

    names = ("objective", "data_term", "regularizer", "psnr", "lower_bound", "gap")
    return Curve(
        iteration=longest.iteration,
        seconds=longest.seconds,
        kept=curves[0].kept,
        pictures=curves[0].pictures,
        **{name: columns(name) for name in names},
    )


def batches(count: int, device: torch.device) -> list[range]:
    """All images at once on a GPU, one by one on a CPU, whose cache holds one."""
    size = count if device.type == "cuda" else 1
    return [range(i, min(i + size, count)) for i in range(0, count, size)]
