"""Attempts at a proof: better dual variables for images that stay as they are.

Where data leave pixels free (missing ones, or those that an L1 term gives up), and where layers
follow one another, images converge long before dual variables do. The gap is then nearly all
violation of equations that these have to satisfy, such as V* p = -D'(x). An attempt is a round of
Halpern iterations from (u, v) with dual steps that are many times shorter,

    u <- prox_{s tau g}(u - s tau K* v),    v <- prox_{sigma/s f*}(v + sigma/s K u_bar),    s >> 1.

Since the product of the steps stays the same, v reacts to a violation as before, and hardly to
anything else: this is a method for least squares. It leaves about an eighth of the gap, where an
ordinary round leaves half. Its u goes to and fro and is of no use, so that the next round continues
from the state before the attempt. ``forecast`` decides when to try.
"""

from __future__ import annotations

from torch import Tensor

from convexlift.functionals.terms import DiagonalFidelityTerm
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.iterations import Iterations, RestartState
from convexlift.solvers.method import Choice
from convexlift.tensors import Blocks

SHORTER = 3.0
"""s, divided by the dual variables of a pixel.

The more there are, the less each has to move to change V* p (measured: s of 3 to 10 is best for
total variation, 30 to 300 for 24 to 48 filters).
"""
ATTEMPTS = Choice(
    "proof",
    "rounds in which only dual variables move, when the gap lags behind the image",
    "data leave some pixels free, or layers follow one another",
)
HELD = 0.01
"""Data hold all pixels if the least curvature is at least this part of the greatest."""


def candidates(saddle: SaddlePointProblem, batch: int) -> list[bool]:
    """The images for which attempts are of use."""
    useful = usefulness(saddle)
    return useful.tolist() if isinstance(useful, Tensor) else [useful] * batch


def usefulness(saddle: SaddlePointProblem) -> bool | Tensor:
    """Whether attempts are of use, (B,): with free pixels, or with several layers.

    Not behind an operator that is not diagonal, where ``repairs.tightened`` does as much.
    """
    term = saddle.g.get("x")
    if not isinstance(term, DiagonalFidelityTerm):
        return False
    y, k = term.fidelity.y, term.fidelity.curvature
    if k is None or len(saddle.f) > 1:
        return True
    least, greatest = (k * term.diagonal.square()).to(y).expand_as(y).flatten(1).aminmax(dim=1)
    return least < HELD * greatest


def attempted(running: Iterations, state: RestartState, iterations: int, images: Tensor) -> Blocks:
    """The dual variables after an attempt for these images."""
    duals, pixels = sum(part[0].numel() for part in state.v.values()), state.u["x"][0].numel()
    return running.attempt(state, iterations, images, SHORTER * duals / pixels)
