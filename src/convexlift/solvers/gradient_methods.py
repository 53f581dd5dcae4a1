"""Methods that work on the images themselves, without a lift: subgradients and L-BFGS.

The first is the paper's; it leaves quasi-Newton methods out of its comparison. Each image of a
batch has its own line search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver, State
from convexlift.tensors import are_close, choose_images, expand_per_image, sum_per_image

MAX_HALVINGS = 40
"""The most trial steps of L-BFGS."""
ARMIJO = 1e-4
"""The fraction of the linear prediction by which L-BFGS wants the objective to fall."""
ROUNDING = 4.0
"""Changes of F below this many units in the last place are treated as rounding."""


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
    """The subgradient methods SM-C and SM-D (paper, Algorithms 2 and 3).

        x^{k+1} = P_box (x^k - eta_k g^k),    g^k a subgradient of the objective at x^k,

    with eta_k = eta_0 (SM-C) or eta_k = eta_0 / (k + 1) (SM-D). The paper prints
    eta_{k+1} = eta_k / k for the latter; its experiments use eta_0 / (k + 1).
    """

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
        eta = expand_per_image(torch.as_tensor(eta, dtype=g.dtype, device=g.device), g)
        return SubgradientState(self.problem.bounds.project(state.x - eta * g), state.k + 1)


@dataclass(frozen=True)
class LBFGS(Method):
    """Options of L-BFGS.

    Args:
        memory: number of pairs kept.
    """

    memory: int = 10

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"LBFGS needs memory >= 1, got {self.memory}")

    def solver(self, problem: VariationalProblem) -> LBFGSSolver:
        """Applies to every problem; converges for smooth ones."""
        return LBFGSSolver(problem, self)


@dataclass(frozen=True, eq=False)
class LBFGSState:
    """The images, objective and gradient there, and the pairs (s, y, 1/<s, y>), newest last."""

    x: Tensor
    objective: Tensor
    gradient: Tensor
    pairs: tuple[tuple[Tensor, Tensor, Tensor], ...]
    scale: Tensor  # <s, y> / <y, y> of the newest usable pair
    duals: None = None


class LBFGSSolver(Solver[LBFGSState]):
    """L-BFGS:  x^{k+1} = P_box (x^k - s H_k g^k).

    H_k comes from the last pairs (x^{k+1} - x^k, g^{k+1} - g^k) by the two-loop recursion (Nocedal
    and Wright, Numerical Optimization, Algorithm 7.4), s from a backtracking (Armijo) line search.
    With a box, pixels on a bound whose gradient points outwards are held fixed for the step. The
    method is meant for smooth problems: at kinks it stalls, which shows in the certificate.
    """

    def __init__(self, problem: VariationalProblem, method: LBFGS) -> None:
        self.problem, self.method = problem, method

    def start(self, x: Tensor) -> LBFGSState:
        """Start without pairs; the first step is about a tenth of the image range."""
        objective, gradient = self._evaluate(x)
        length = torch.sqrt(sum_per_image(gradient**2)).clamp_min(1e-30)
        scale = (0.1 * x[0].numel() ** 0.5 / length).clamp_max(1.0).to(x.dtype)
        # Unused pairs (of weight 0) keep the shape of the state fixed, as batches require.
        empty = (torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(scale))
        return LBFGSState(x, objective, gradient, (empty,) * self.method.memory, scale)

    def resume(self, state: State) -> LBFGSState | None:
        """Keep the pairs, unless they belong to another problem (another weight, for example)."""
        if not isinstance(state, LBFGSState) or len(state.pairs) != self.method.memory:
            return None
        objective, gradient = self._evaluate(state.x)
        same = are_close(objective, state.objective, 1e-6) and are_close(
            gradient, state.gradient, 1e-3
        )
        return state if same else None

    def step(self, state: LBFGSState) -> LBFGSState:
        """Direction, line search, new pair."""
        direction = self._direction(state)
        x, objective = self._search(state, direction)
        _, gradient = self._evaluate(x)
        s, y = x - state.x, gradient - state.gradient
        sy, yy = sum_per_image(s * y), sum_per_image(y * y)
        usable = sy > 1e-10 * torch.sqrt(sum_per_image(s * s) * yy)
        rho = torch.where(usable, 1 / sy, 0.0).to(x.dtype)
        scale = torch.where(usable, sy / yy, state.scale.to(sy.dtype)).to(x.dtype)
        return LBFGSState(x, objective, gradient, (*state.pairs[1:], (s, y, rho)), scale)

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        evaluation = self.problem.evaluate(x)
        return evaluation.objective, self.problem.subgradient(evaluation)

    def _direction(self, state: LBFGSState) -> Tensor:
        """-H g on the free pixels; -g where that is not a descent direction."""
        lower, upper = self.problem.bounds.rounded_inward(state.x.dtype)
        pushed_out = ((state.x <= lower) & (state.gradient > 0)) | (
            (state.x >= upper) & (state.gradient < 0)
        )
        g = torch.where(pushed_out, 0.0, state.gradient)
        q, alphas = g, []
        for s, y, rho in reversed(state.pairs):
            alpha = rho * sum_per_image(s * q).to(rho.dtype)
            q = q - expand_per_image(alpha, q) * y
            alphas.append(alpha)
        q = expand_per_image(state.scale, q) * q
        for (s, y, rho), alpha in zip(state.pairs, reversed(alphas), strict=True):
            beta = rho * sum_per_image(y * q).to(rho.dtype)
            q = q + expand_per_image(alpha - beta, q) * s
        direction = torch.where(pushed_out, 0.0, -q)
        descends = sum_per_image(direction * g) < 0
        steepest = -expand_per_image(state.scale, g) * g
        return torch.where(expand_per_image(descends, g), direction, steepest)

    def _search(self, state: LBFGSState, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Halve the step from 1 until F falls by a fraction of the linear prediction.

        Near the minimum F changes by less than its rounding error, and gradients are more reliable:
        there the decrease is computed from the mean of the gradients at both ends, which is exact
        for quadratic F (the approximate Wolfe condition of Hager and Zhang, SIAM J. Optim. 16,
        2005).
        """
        x, value = state.x, state.objective
        rounding = ROUNDING * torch.finfo(x.dtype).eps * value.abs()
        step = torch.ones_like(state.scale)
        searching = torch.ones_like(step, dtype=torch.bool)
        for _ in range(MAX_HALVINGS):
            trial = self.problem.bounds.project(state.x + expand_per_image(step, x) * direction)
            trial_value = self.problem.evaluate(trial).objective
            promised = sum_per_image(state.gradient * (trial - state.x))
            good = trial_value <= state.objective + ARMIJO * promised
            unclear = searching & ~good & (trial_value <= state.objective + rounding)
            if bool(unclear.any()):
                _, gradient = self._evaluate(trial)
                mean = 0.5 * sum_per_image((state.gradient + gradient) * (trial - state.x))
                good = good | (unclear & (mean <= ARMIJO * promised))
            good = searching & good
            x, value = choose_images(good, (trial, trial_value), (x, value))
            searching = searching & ~good
            if not bool(searching.any()):
                break
            step = torch.where(searching, 0.5 * step, step)
        return x, value
