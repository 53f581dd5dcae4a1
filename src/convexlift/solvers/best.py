"""The best images and the best lower bounds of a solve, in the precision of the problem.

A bound may hold everywhere, or for one image only (``data_bound``). So there are two records for
each image of a batch: the lowest objective and the highest global bound, whose difference is the
gap; and the image with the smallest local gap, for problems without tight global bounds.

Numbers of images are lists on the host: an operation on a small tensor takes as long as one on a
large one, on a GPU or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from convexlift.problems.certificate import ROUNDING
from convexlift.problems.data_bound import Scopes, can_hold_everywhere
from convexlift.problems.minorant import image_of_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, choose_images

Numbers = list[float]
"""One for each image."""
Mask = Sequence[bool]
T = TypeVar("T")


class Best:
    """Images, bounds and the dual variables that prove them.

    Attributes:
        x: the images with the lowest objectives.
        objective: these.
        lower_bound: the best that hold everywhere.
        witness: the dual variables of the best bounds, or of the best local ones.
        local_x: the images with the smallest local gaps.
    """

    def __init__(self, problem: VariationalProblem, x: Tensor, tolerance: float) -> None:
        infinite = [math.inf] * len(x)
        self._problem, self._tolerance = problem, tolerance
        # Gaps are rounded up: far from the optimum, an objective and its gap nearly cancel. If an
        # image diverges, with 1e20 for both, their difference may be rounding error and no bound.
        self._upwards = 1 + ROUNDING * torch.finfo(x.dtype).eps
        self.x, self.objective, self.lower_bound = x, infinite, [-math.inf] * len(x)
        self.witness: Blocks | None = None
        self.local_x, self._local_objective, self._local_gap = x, infinite, infinite

    @cached_property
    def everywhere(self) -> bool:
        """Whether bounds hold everywhere, so that there is no need for local ones."""
        return can_hold_everywhere(self._problem)

    def take(self, images: Mask, x: Tensor, objective: Numbers) -> None:
        """Take over these images."""
        self.x = chosen(images, x, self.x)
        self.objective = _where(images, objective, self.objective)

    def take_bounds(
        self,
        x: Tensor,
        objective: Numbers,
        usable: Mask,
        flat: Mask | None,
        witnesses: Scopes[Blocks],
        everywhere: Numbers,
        near: Numbers,
    ) -> None:
        """Update from the absolute gaps of the global and the local bound.

        Those of images that are not ``usable`` do not count; the local ones of images that end
        because they are ``flat`` always do.
        """
        usable = [ok and abs(J) < math.inf for ok, J in zip(usable, objective, strict=True)]
        lower = [J - self._upwards * gap for J, gap in zip(objective, everywhere, strict=True)]
        numbers = zip(usable, lower, self.lower_bound, strict=True)
        raised = [ok and new > old for ok, new, old in numbers]  # False for NaN
        self.lower_bound = _where(raised, lower, self.lower_bound)
        if self.witness is None:
            self.witness = witnesses.near
        self.witness = chosen(raised, witnesses.everywhere, self.witness)
        if self.everywhere:
            return
        always = [False] * len(x) if flat is None else flat
        gaps = zip(usable, near, self._local_gap, always, strict=True)
        nearer = [ok and (gap < old or ends) for ok, gap, old, ends in gaps]
        self.local_x = chosen(nearer, x, self.local_x)
        self._local_objective = _where(nearer, objective, self._local_objective)
        self._local_gap = _where(nearer, near, self._local_gap)
        local = [new and wanted for new, wanted in zip(nearer, self._prefer_local(), strict=True)]
        self.witness = chosen(local, witnesses.near, self.witness)

    def improve(self, images: Sequence[int]) -> None:
        """Take the images that go with dual variables, where they are better, as claims do."""
        assert self.witness is not None
        if (found := image_of_duals(self._problem, self.x, self.witness)) is None:
            return
        x, objective, before = found
        better = (objective < before).tolist()  # False for NaN
        self.take([i in images and better[i] for i in range(len(x))], x, objective.tolist())

    def images(self) -> Tensor:
        """The images to make claims about."""
        return chosen(self._prefer_local(), self.local_x, self.x)

    def numbers(self) -> tuple[Numbers, Numbers, Numbers]:
        """Objectives, lower bounds and relative gaps of the ``images``."""
        objective, lower = self.objective, self.lower_bound
        if not self.everywhere:
            local = self._prefer_local()
            objective = _where(local, self._local_objective, objective)
            lower = _where(local, self._local_bound(), lower)
        lower = list(map(min, lower, objective))  # they may differ by rounding
        return objective, lower, list(map(relative_gap, objective, lower))

    def _prefer_local(self) -> Mask:
        """As ``claims.prefer_near``."""
        if self.everywhere:
            return [False] * len(self.x)
        everywhere = map(relative_gap, self.objective, self.lower_bound)
        near = map(relative_gap, self._local_objective, self._local_bound())
        pairs = zip(everywhere, near, strict=True)
        return [gap > self._tolerance and close < gap for gap, close in pairs]

    def _local_bound(self) -> Numbers:
        pairs = zip(self._local_objective, self._local_gap, strict=True)
        return [J - self._upwards * gap for J, gap in pairs]


def relative_gap(objective: float, lower_bound: float) -> float:
    """As ``claims.relative_gap``, of two numbers."""
    absolute, size = objective - lower_bound, abs(objective)
    if not size < math.inf:
        return math.inf
    if absolute <= 0:
        return 0.0
    return absolute / size if size else math.inf


def chosen(images: Mask, new: T, old: T) -> T:
    """``choose_images``; without a tensor if all images choose the same."""
    if all(images):
        return new
    if not any(images):
        return old
    found: T = choose_images(torch.tensor(images), new, old)
    return found


def _where(images: Mask, new: Numbers, old: Numbers) -> Numbers:
    return [a if here else b for here, a, b in zip(images, new, old, strict=True)]
