"""Stopping criteria.

The result of a solve: images with certified gaps, statuses and history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from convexlift.descriptions import SHOWN, Described, Description, curve, is_picture, picture
from convexlift.problems.claims import Guarantee, in_words, worst_in_words
from convexlift.proofs import Proof
from convexlift.tensors import Blocks


@dataclass(frozen=True, kw_only=True)
class StopWhen:
    """Stop an image as soon as one of these criteria holds.

    On ``CONVERGED``, objective - lower_bound <= gap |objective|; on ``STATIONARY``, the gradient of
    the objective at the image returned is shorter than ``gradient``.

    Args:
        gap: relative certified gap; None to run to a limit.
        gradient: absolute norm of the gradient of the objective J, for smooth problems without a
            box; None for no such criterion. The start is not tested, since its gradient is short if
            x fits the data and weight R is small. The norm depends on the scale of J and does not
            bound the distance of J from its minimum. The paper's bilevel learning stops at 0.1.
        max_iterations: limit on iterations; 0 only evaluates the start.
        seconds: limit on the time, or None.
        check_every: iterations between evaluations of objective and certificate. Small values
            give a fine history, large ones cost less.
    """

    gap: float | None = 1e-3
    gradient: float | None = None
    max_iterations: int = 10_000
    seconds: float | None = None
    check_every: int = 10

    def __post_init__(self) -> None:
        if self.gap is not None and not self.gap >= 0:
            raise ValueError(f"gap must be nonnegative or None, got {self.gap}")
        if self.gradient is not None and not self.gradient > 0:
            raise ValueError(f"gradient must be positive or None, got {self.gradient}")
        if self.max_iterations < 0:
            raise ValueError(f"max_iterations must be at least 0, got {self.max_iterations}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be positive or None, got {self.seconds}")
        if self.check_every < 1:
            raise ValueError(f"check_every must be at least 1, got {self.check_every}")


class Status(Enum):
    """How a solve ended, for one image; the value is advice for the user."""

    CONVERGED = "The certified gap is below the tolerance."
    STATIONARY = "The norm of the gradient is below the tolerance; see gap for a certified bound."
    ITERATION_LIMIT = (
        "The iteration limit was reached. Raise StopWhen(max_iterations=...), or continue with "
        "solve(problem, start=solution.state)."
    )
    TIME_LIMIT = (
        "The time limit was reached. Raise StopWhen(seconds=...), or continue with "
        "solve(problem, start=solution.state)."
    )
    PRECISION_LIMIT = (
        "Rounding keeps the certified gap above the tolerance: the numbers of the problem are too "
        "far apart for this precision. Allow a larger gap, remove a large offset from the data, or "
        "solve single-precision problems in double, problem.to(dtype=torch.float64)."
    )
    NOT_FINITE = (
        "The iterates became infinite or NaN; x is the best finite one. Check the step sizes and "
        "the scale of the data."
    )
    STOPPED = "The callback asked to stop; x is the best iterate so far."
    INTERRUPTED = "Interrupted from the keyboard; x is the best iterate so far."
    RUNNING = "Still running."


@dataclass(frozen=True, eq=False)
class Record:
    """One checked iteration; tensors hold one float64 number for each image."""

    iteration: int
    seconds: float
    objective: Tensor
    data_term: Tensor
    regularizer: Tensor
    lower_bound: Tensor
    gap: Tensor


@dataclass(frozen=True, eq=False)
class Progress(Record):
    """A record with the current images, for callbacks, which must not modify them.

    ``tiles`` is the number of tiles of an image solved in tiles; ``iteration`` counts those done.
    """

    x: Tensor
    tiles: int | None = None


@dataclass
class History(Sequence[Record]):
    """The checked iterations, oldest first.

    ``objective``, ``data_term`` and ``regularizer`` belong to the current iterate; ``lower_bound``
    and ``gap`` are the best so far, in the precision of the problem, except that the last record
    has the certified values of the solution. ``history["gap"]`` is a column: a tensor of shape
    (records, B), or (records,) for ``iteration`` and ``seconds``.
    """

    records: list[Record] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            values = [getattr(record, key) for record in self.records]
            return torch.stack(values) if isinstance(values[0], Tensor) else torch.tensor(values)
        return self.records[key]


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Described):
    """Reconstructed images with a proof of how good they are.

    Attributes:
        x: the best image found, for each problem of the batch.
        objective: its objective, (B,).
        lower_bound: a certified lower bound on the optimal value, (B,).
        gap: (objective - lower_bound) / |objective|, (B,).
        status: how the solve ended, for each image.
        guarantee: the scope of the lower bound, for each image.
        iterations: number of iterations of each image.
        seconds: time in the solver, callbacks excluded.
        history: the checked iterations.
        state: pass it back as ``solve(problem, start=solution.state)`` to continue.
        duals: the feasible dual variables that prove the lower bound, whatever the method.
        proof: the same, ready to be saved: ``solution.proof.save(path)``, checked by ``cl.verify``.
        weight_map: how strongly R smooths at each pixel, (B, 1, H, W) in (0, 1], for a regularizer
            that reads the data, relative to the largest weights that its guide could give; else
            None.
    """

    x: Tensor
    objective: Tensor
    lower_bound: Tensor
    gap: Tensor
    status: tuple[Status, ...]
    guarantee: tuple[Guarantee, ...]
    iterations: Tensor
    seconds: float
    history: History
    state: Any
    duals: Blocks
    proof: Proof
    weight_map: Tensor | None

    @property
    def meaning(self) -> tuple[str, ...]:
        """The scope of each image's certificate, in words."""
        premise = self.proof.problem.regularizer.premise
        return tuple(premise + guarantee.value for guarantee in self.guarantee)

    @property
    def in_words(self) -> tuple[str, ...]:
        """The gap of each image in plain words: what it proves and what it does not."""
        premise = self.proof.problem.regularizer.premise
        found = zip(self.gap.tolist(), self.guarantee, strict=True)
        return tuple(": ".join(in_words(gap, scope, premise)) for gap, scope in found)

    def _line(self, i: int) -> str:
        return (
            f"{self.status[i].name.lower()} after {int(self.iterations[i])} iterations: "
            f"objective {float(self.objective[i]):.6g}, "
            f"lower bound {float(self.lower_bound[i]):.6g}, gap {float(self.gap[i]):.1e} "
            f"({self.guarantee[i].name.lower().replace('_', ' ')})"
        )

    def _description(self, *, figures: bool) -> Description:
        images = len(self.status)
        size = " x ".join(map(str, self.x.shape[1:]))
        several = f"{images} images" if images > 1 else "1 image"
        facts = {f"[{i}]": self._line(i) for i in range(min(images, 8))}
        if images > 8:
            facts["..."] = f"{images - 8} more; largest gap {float(self.gap.max()):.1e}"
        heading, claim = worst_in_words(zip(self.gap.tolist(), self.guarantee, strict=True),
                                        self.proof.problem.regularizer.premise)  # fmt: skip
        summary = (
            f"{heading}: {claim}" if images == 1 else f"Each image: {heading.lower()}: {claim}"
        )
        shown = []
        if figures:
            shown = [
                picture(
                    self.x[i],
                    f"x[{i}], {in_words(float(self.gap[i]), self.guarantee[i])[0].lower()}",
                )
                for i in range(min(images, SHOWN))
                if is_picture(self.x)
            ]
            if len(self.history) > 1:
                worst = self.history["gap"].amax(1).tolist()
                steps = self.history["iteration"].tolist()
                shown.append(curve(steps, worst, "certified gap over iterations"))
        title = f"Solution: {several} of {size}, {self.seconds:.2f} s"
        return Description(title, facts, shown, summary)
