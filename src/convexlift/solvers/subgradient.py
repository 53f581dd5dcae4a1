"""The subgradient methods SM-C and SM-D (paper, Algorithms 2 and 3).

    x^{k+1} = P_box (x^k - eta_k g^k),    g^k a subgradient of the objective at x^k,

with eta_k = eta_0 (SM-C) or eta_k = eta_0 / (k + 1) (SM-D). The paper prints
eta_{k+1} = eta_k / k for the latter; its experiments use eta_0 / (k + 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver, State


@dataclass(frozen=True)
class Subgradient(Method):
    """SM-C, or SM-D with ``diminishing=True``.

    Args:
        step: eta_0 > 0.
        diminishing: divide it by k + 1 in iteration k = 0, 1, ...
    """

    step: float
    diminishing: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise ValueError(f"Subgradient needs step > 0, got {self.step}")

    @property
    def tuned(self) -> str:
        """The step, briefly."""
        return f"step {self.step:.3g}{' / (k + 1)' if self.diminishing else ''}"

    def solver(self, problem: VariationalProblem) -> SubgradientSolver:
        """Applies to every problem."""
        return SubgradientSolver(problem, self)


@dataclass(frozen=True, eq=False)
class SubgradientState:
    """The images and the number of steps taken, (B,)."""

    x: Tensor
    k: Tensor
    duals: None = None


class SubgradientSolver(Solver[SubgradientState]):
    """One evaluation and one backward pass per step."""

    def __init__(self, problem: VariationalProblem, method: Subgradient) -> None:
        self.problem, self.method = problem, method

    def start(self, x: Tensor) -> SubgradientState:
        """Start at the images, with no steps taken."""
        return SubgradientState(x, torch.zeros(x.shape[0], dtype=x.dtype, device=x.device))

    def resume(self, state: State) -> SubgradientState | None:
        """Continue with the number of steps taken; None for the state of another method."""
        return state if isinstance(state, SubgradientState) else None

    def step(self, state: SubgradientState) -> SubgradientState:
        """The paper's update."""
        g = self.problem.subgradient(self.problem.evaluate(state.x))
        eta = self.method.step / (state.k + 1) if self.method.diminishing else self.method.step
        eta = torch.as_tensor(eta, dtype=g.dtype, device=g.device).reshape(-1, 1, 1, 1)
        return SubgradientState(self.problem.bounds.project(state.x - eta * g), state.k + 1)
