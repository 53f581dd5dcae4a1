"""When to restart PDHG, and with which step sizes.

The measure of progress is the fixed-point residual r = ||w - T(w)||_M of w = (u, v), where T is
one PDHG step and

    ||(du, dv)||_M^2 = sum_j ||du_j||^2 / tau_j + sum_i ||dv_i||^2 / sigma_i - 2 <dv, K du>.

Everything here is per image.
"""

from __future__ import annotations

from torch import Tensor

from convexlift.problems.saddle import SaddlePointProblem
from convexlift.solvers.steps import Coupling
from convexlift.tensors import Blocks

SUFFICIENT = 0.2
"""Restart once the residual fell below this fraction of that at the last restart (cuPDLPx)."""
NECESSARY = 0.8
"""Restart once it fell below this fraction and has started to rise again."""
LONG = 0.25
"""Restart once the inner iterations are this fraction of all (cuPDLPx: 0.36; measured here)."""
FIRST = 5
"""The first restart, which corrects the guessed step sizes, comes after so many iterations."""
LARGEST_CHANGE = 10.0
"""The largest change of a step size at one restart."""
TEST_EVERY = 5
"""Test for a restart every so many iterations."""


def residual(
    saddle: SaddlePointProblem, du: Blocks, dv: Blocks, tau: Blocks, sigma: Blocks
) -> Tensor:
    """||(du, dv)||_M, (B,)."""
    primal = sum(value / tau[name] for name, value in du.dot(du).items())
    dual = sum(value / sigma[name] for name, value in dv.dot(dv).items())
    cross = dv.dot(saddle.K(du)).total()
    return (primal + dual - 2 * cross).clamp_min(0).sqrt()


def should_restart(
    current: Tensor, previous: Tensor, at_restart: Tensor, inner: Tensor, total: Tensor
) -> Tensor:
    """Per image, from the residuals now, at the last test and at the last restart."""
    first = total == FIRST
    sufficient = current <= SUFFICIENT * at_restart
    necessary = (current <= NECESSARY * at_restart) & (current > previous)
    long = (inner >= LONG * total) & (total > FIRST)
    return first | sufficient | necessary | long


def rebalance(coupling: Coupling, sigma: Blocks, du: Blocks, dv: Blocks) -> Blocks:
    """log sigma halfway to the balanced one for the displacements since the last restart.

    A dual block that did not move (a last layer whose units are all on) would like sigma = 0;
    one step changes sigma by a factor of ``LARGEST_CHANGE`` at most.
    """
    target = coupling.balanced_sigma(du.norms(), dv.norms())
    updated = {}
    for name, old in sigma.items():
        ratio = (target[name] / old).nan_to_num(1.0)  # 0/0: nothing moved, nothing learned
        updated[name] = old * ratio.sqrt().clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE)
    return Blocks(updated)
