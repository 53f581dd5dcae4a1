"""The best images and the best lower bounds of a solve, in the precision of the problem.

A bound may hold everywhere, or for one image only (``data_bound``). So there are two records for
each image of a batch: the lowest objective and the highest global bound, whose difference is the
gap; and the image with the smallest local gap, for problems without tight global bounds.

Numbers of images are kept on the host: small operations would cost a GPU as much as large ones.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from convexlift.problems.certificate import lower_bound
from convexlift.problems.claims import prefer_near, relative_gap
from convexlift.problems.data_bound import Scopes, can_hold_everywhere
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, choose_images


class Best:
    """Images, bounds and the dual variables that prove them.

    Attributes:
        x: the images with the lowest objectives.
        objective: these, (B,).
        lower_bound: the best that hold everywhere, (B,).
        witness: the dual variables of the best bounds, or of the best local ones.
        local_x: the images with the smallest local gaps.
    """

    def __init__(self, problem: VariationalProblem, x: Tensor, tolerance: float) -> None:
        infinite = torch.full((len(x),), math.inf, dtype=torch.float64)
        self._problem, self._tolerance = problem, tolerance
        self.x, self.objective, self.lower_bound = x, infinite, -infinite
        self.witness: Blocks | None = None
        self.local_x, self._local_objective, self._local_gap = x, infinite, infinite

    @cached_property
    def everywhere(self) -> bool:
        """Whether bounds hold everywhere, so that there is no need for local ones."""
        return can_hold_everywhere(self._problem)

    def take(self, images: Tensor, x: Tensor, objective: Tensor) -> None:
        """Take over these images, a mask (B,)."""
        self.x = choose_images(images, x, self.x)
        self.objective = torch.where(images, objective, self.objective)

    def take_bounds(
        self,
        x: Tensor,
        objective: Tensor,
        usable: Tensor,
        flat: Tensor | None,
        witnesses: Scopes[Blocks],
        everywhere: Tensor,
        near: Tensor,
    ) -> None:
        """Update from the absolute gaps of the global and the local bound.

        Those of images that are not ``usable`` do not count; the local ones of images that end
        because they are ``flat`` always do.
        """
        usable = usable & (objective.abs() < math.inf)
        below = lower_bound(objective, everywhere, x.dtype)
        lower = torch.where(usable, below, -math.inf)
        raised = lower > self.lower_bound  # False for NaN
        self.lower_bound = torch.where(raised, lower, self.lower_bound)
        if self.witness is None:
            self.witness = witnesses.near
        self.witness = choose_images(raised, witnesses.everywhere, self.witness)
        if self.everywhere:
            return
        nearer = near < self._local_gap
        nearer = usable & (nearer if flat is None else nearer | flat)
        self.local_x = choose_images(nearer, x, self.local_x)
        self._local_objective = torch.where(nearer, objective, self._local_objective)
        self._local_gap = torch.where(nearer, near, self._local_gap)
        local = nearer & self._prefer_local()
        self.witness = choose_images(local, witnesses.near, self.witness)

    def images(self) -> Tensor:
        """The images to make claims about."""
        chosen: Tensor = choose_images(self._prefer_local(), self.local_x, self.x)
        return chosen

    def numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Objectives, lower bounds and relative gaps of the ``images``."""
        objective, lower = self.objective, self.lower_bound
        if not self.everywhere:
            local = self._prefer_local()
            objective = torch.where(local, self._local_objective, objective)
            lower = torch.where(local, self._local_bound(), lower)
        lower = torch.minimum(lower, objective)  # they may differ by rounding
        return objective, lower, relative_gap(objective, lower)

    def _prefer_local(self) -> Tensor:
        if self.everywhere:
            return torch.zeros(len(self.x), dtype=torch.bool)
        everywhere = relative_gap(self.objective, self.lower_bound)
        near = relative_gap(self._local_objective, self._local_bound())
        return prefer_near(self.everywhere, everywhere, near, self._tolerance)

    def _local_bound(self) -> Tensor:
        return lower_bound(self._local_objective, self._local_gap, self.x.dtype)
