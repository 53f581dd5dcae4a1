"""Step sizes after restarts, from the displacements of images and dual variables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.restart_rules import RestartRules
from convexlift.tensors import Blocks

WHOLE_WAY = (100, 400)
"""Iterations between which the balance shifts from the total to the recent displacement."""
LARGEST_CHANGE = 10.0
"""Largest factor by which a restart changes a step size."""


@dataclass(frozen=True)
class Restarts:
    """What restarts of a problem depend on, besides tensors.

    Attributes:
        rules: when to restart, and how far to extrapolate.
        coupling: how steps follow from displacements.
        recent: whether only recent displacements count.
    """

    rules: RestartRules
    coupling: Coupling
    recent: bool

    @cached_property
    def anchored_from(self) -> int:
        """The iteration of the first restart whose anchor is read; 0 if that of the start is.

        Halpern iterations read anchors, and so do recent displacements where they count. Anchors of
        earlier restarts are replaced before that.
        """
        due = sorted({0, *(t for t in self.rules.due if t <= self.rules.relaxed)})
        soon = [then + 1 for then in due[1:] if then < WHOLE_WAY[0]]
        return 0 if self.recent or not soon else soon[-1]

    @cached_property
    def kind_of(self) -> tuple[Any, ...]:
        """Everything that graphs of restarts depend on, besides numbers."""
        rows = tuple((v, *row) for v, row in self.coupling.weights.items())
        varies = isinstance(self.coupling.dual_weight, Tensor)
        times = tuple(self.rules.times.tolist())
        return type(self.coupling), self.rules.relaxed, times, self.recent, rows, varies


def only_recent(problem: VariationalProblem, coupling: Coupling, *, extrapolated: bool) -> bool:
    """Whether only recent displacements count in ``rebalance``.

    So it is where R has kinks and the fidelity is smooth, where iterations are extrapolated (both
    measured), and where the coupling asks for it.
    """
    kinks = problem.fidelity.smooth and not problem.smooth
    return extrapolated or coupling.recent or kinks


def lateness(total: Tensor, *, recent: bool) -> Tensor:
    """Share of the recent displacement in the step sizes, (B,): ``late`` in ``rebalance``."""
    if recent:
        return torch.ones_like(total, dtype=torch.float64)
    begin, end = WHOLE_WAY
    return (torch.log(total.clamp_min(1) / begin) / math.log(end / begin)).clamp(0, 1)


def rebalance(
    coupling: Coupling,
    sigma: Blocks,
    whole: tuple[Blocks, Blocks],
    recent: tuple[Blocks, Blocks],
    late: Tensor,
) -> Blocks:
    """log sigma halfway to the balanced one for the displacements du (``reach``) and dv.

    At first the total displacements count, later those since the last restart. The error bound
    contains the distance between start and solution, which the total displacement approaches.
    Displacements since the last restart, the rule of linear-programming codes, let sigma drift:
    when duals still move and images hardly do, sigma grows, and the duals, hence the certificate,
    lag behind. But where the first steps were far off (duals that went a long way to zero, for
    example), the total displacement is misleading in long runs.

    A dual block that did not move (a last layer whose units are all on) would give sigma = 0;
    one call changes sigma by a factor of ``LARGEST_CHANGE`` at most.

    ``whole`` holds upper bounds on the movement of rows of K, and ||dv||, since the start;
    ``recent`` the same since the last restart. ``late`` (B,) goes from 0 (only ``whole`` counts) to
    1 (only ``recent`` counts).
    """
    far, near = (coupling.balanced_sigma(reach, dv) for reach, dv in (whole, recent))
    updated = {}
    for name, old in sigma.items():
        # 0/0: nothing moved, nothing is known.
        ratios = [(target[name] / old).nan_to_num(1.0) for target in (far, near)]
        limited = [r.sqrt().clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE) for r in ratios]
        part = late.to(old.dtype)
        updated[name] = old * limited[0] ** (1 - part) * limited[1] ** part
    return Blocks(updated)
