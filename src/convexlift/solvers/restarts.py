"""When to restart PDHG, and with which step sizes.

The measure of progress is the fixed-point residual ||w - T(w)|| of w = (u, v), where T is one
PDHG step and

    ||(du, dv)||^2 = sum_j ||du_j||^2 / tau_j + sum_i ||dv_i||^2 / sigma_i.

The metric of PDHG has the term -2 <dv, K du> besides; without it, no product with K is needed.
Everything here is per image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.steps import Coupling
from convexlift.tensors import Blocks

SUFFICIENT = 0.2
"""Restart once the residual fell below this fraction of that at the last restart (cuPDLPx)."""
NECESSARY = 0.8
"""Restart once it fell below this fraction and has started to rise again."""
LONG = 0.5
"""Restart once the inner iterations are this fraction of all (cuPDLPx: 0.36; measured here)."""
RELAXED_AT_FIRST = 160
"""So many iterations are relaxed where R has kinks and the fidelity has none."""
WHOLE_WAY = (100, 400)
"""Steps are balanced for the whole way up to so many iterations, then ever more for the recent."""
FIRST_MOVE = 0.05
"""How far pixels are expected to move from the first image, before anything is known."""
FIRST = 5
"""The first restart, which corrects the guessed step sizes, comes after so many iterations."""
LARGEST_CHANGE = 10.0
"""The largest change of a step size at one restart."""
TEST_EVERY = 5
"""Test for a restart every so many iterations."""
RELAXATION = 1.8
"""How far beyond T(w) relaxed iterations go: 1 is T itself, 2 the limit of convergence."""


def residual(du: Blocks, dv: Blocks, tau: Blocks, sigma: Blocks) -> Tensor:
    """||(du, dv)|| in the metric of the steps, from the squares of the blocks' norms; (B,)."""
    parts = [value / tau[name] for name, value in du.items()]
    parts += [value / sigma[name] for name, value in dv.items()]
    return torch.stack(parts).sum(0).sqrt()


def relaxed_iterations(problem: VariationalProblem) -> float:
    """How many iterations are relaxed, before the reflected Halpern iteration takes over."""
    if problem.smooth:
        return math.inf
    return RELAXED_AT_FIRST if problem.fidelity.smooth else 0


def time_to_test(inner: Tensor, total: Tensor) -> Tensor:
    """Per image: whether a restart of the Halpern iteration may be decided after this one."""
    return (inner == 1) | (total % TEST_EVERY == 0)


def should_restart(
    current: Tensor, previous: Tensor, at_restart: Tensor, inner: Tensor, total: Tensor
) -> Tensor:
    """Per image, from the residuals now, at the last test and at the last restart."""
    first = total == FIRST
    sufficient = (current <= SUFFICIENT * at_restart) & (at_restart > 0)  # 0: it is solved
    necessary = (current <= NECESSARY * at_restart) & (current > previous)
    long = (inner >= LONG * total) & (total > FIRST)
    return first | sufficient | necessary | long


def time_to_rebalance(total: Tensor) -> Tensor:
    """Per image: after 5, 10, 20, 40, ... iterations."""
    doublings = total // FIRST
    return (total > 0) & (total % FIRST == 0) & (doublings & (doublings - 1) == 0)


def lateness(problem: VariationalProblem, total: Tensor) -> Tensor:
    """How much the recent way counts for the steps, (B,): ``late`` of ``rebalance``.

    Only the recent way counts where R has kinks and the fidelity has none (measured).
    """
    if problem.fidelity.smooth and not problem.smooth:
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
    """log sigma halfway to the balanced one for displacements of the lengths (du, dv).

    First those of the whole way, later those since the last restart. The bound on the error
    holds for the distance between start and solution, which is what the whole way becomes.
    Displacements since the last restart, the rule of codes for linear programs, let sigma
    drift: when duals still move and images hardly do, sigma grows, and leaves the duals,
    hence the certificate, behind. But where the first steps were far off (duals that went a long
    way to zero, say) the whole way misleads, and long runs show it.

    A dual block that did not move (a last layer whose units are all on) would like sigma = 0;
    one step changes sigma by a factor of ``LARGEST_CHANGE`` at most.

    Args:
        coupling: of the problem.
        sigma: the steps so far.
        whole: (du, dv) since the start.
        recent: (du, dv) since the last restart.
        late: from 0, only the whole way counts, to 1, only the recent one; (B,).
    """
    far, near = (coupling.balanced_sigma(du, dv) for du, dv in (whole, recent))
    updated = {}
    for name, old in sigma.items():
        # 0/0: nothing moved, nothing learned.
        ratios = [(target[name] / old).nan_to_num(1.0) for target in (far, near)]
        limited = [r.sqrt().clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE) for r in ratios]
        part = late.to(old.dtype)
        updated[name] = old * limited[0] ** (1 - part) * limited[1] ** part
    return Blocks(updated)
