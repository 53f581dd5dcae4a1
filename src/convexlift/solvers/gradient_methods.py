"""Methods that work on the images themselves, without a lift: subgradients, NMAPG and L-BFGS.

The first two are the paper's; it leaves quasi-Newton methods out of its comparison. Each image of a
batch has its own line search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.terms import BoxTerm, DiagonalFidelityTerm, PrimalTerm
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver, State
from convexlift.tensors import are_close, choose_images, expand_per_image, sum_per_image

MAX_BACKTRACKS = 60
"""The most trial steps of NMAPG."""
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
        eta = torch.as_tensor(eta, dtype=g.dtype, device=g.device).reshape(-1, 1, 1, 1)
        return SubgradientState(self.problem.bounds.project(state.x - eta * g), state.k + 1)


@dataclass(frozen=True)
class NMAPG(Method):
    """Options of NMAPG.

    Args:
        step: the first step size tried; the paper uses 0.1.
        shrink: rho in (0, 1), the backtracking factor.
        decrease: delta > 0, the sufficient decrease.
        memory: eta in [0, 1), the memory of the nonmonotone level c_k.
    """

    step: float = 0.1
    shrink: float = 0.5
    decrease: float = 1e-4
    memory: float = 0.8

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("step", self.step, 0, math.inf),
            ("shrink", self.shrink, 0, 1),
            ("decrease", self.decrease, 0, math.inf),
        ):
            if not low < value < high:
                raise ValueError(f"NMAPG needs {low} < {name} < {high}, got {value}")
        if not 0 <= self.memory < 1:
            raise ValueError(f"NMAPG needs 0 <= memory < 1, got {self.memory}")

    def solver(self, problem: VariationalProblem) -> NMAPGSolver:
        """Applies where the data term is smooth or has a prox."""
        return NMAPGSolver(problem, self)


@dataclass(frozen=True, eq=False)
class NMAPGState:
    """The iterates of the recursion, and (B,) numbers for each image."""

    x: Tensor
    x_previous: Tensor
    z: Tensor
    y_previous: Tensor
    gradient_previous: Tensor  # of f at y_previous
    t: Tensor
    t_previous: Tensor
    level: Tensor  # c_k
    q: Tensor
    step: Tensor
    duals: None = None


class NMAPGSolver(Solver[NMAPGState]):
    """The nonmonotone accelerated proximal gradient method with backtracking.

    Li and Lin, "Accelerated proximal gradient methods for nonconvex programming", NeurIPS 2015,
    Algorithm 4 of the supplement, for F = f + g:

        y_k     = x_k + (t_{k-1}/t_k) (z_k - x_k) + ((t_{k-1} - 1)/t_k) (x_k - x_{k-1})
        z_{k+1} = prox_{a g}(y_k - a grad f(y_k))
                  with F(z_{k+1}) <= max(F(y_k), c_k) - delta ||z_{k+1} - y_k||^2
        if F(z_{k+1}) > c_k - delta ||z_{k+1} - y_k||^2:
            v_{k+1} = prox_{b g}(x_k - b grad f(x_k))
                      with F(v_{k+1}) <= c_k - delta ||v_{k+1} - x_k||^2
            x_{k+1} = the better of z_{k+1}, v_{k+1}
        else x_{k+1} = z_{k+1}
        t_{k+1} = (sqrt(4 t_k^2 + 1) + 1)/2,  q_{k+1} = eta q_k + 1,
        c_{k+1} = (eta q_k c_k + F(x_{k+1}))/q_{k+1}

    Step sizes start from the Barzilai-Borwein quotient. Here f is weight R plus the data term, and
    g the box; an L1 data term behind a diagonal operator belongs to g. The method is meant for
    smooth networks: with kinks it is a heuristic, and the certificate shows how well it did.
    """

    def __init__(self, problem: VariationalProblem, method: NMAPG) -> None:
        self.problem, self.method = problem, method
        self.smooth_data = problem.fidelity.smooth
        self.g: PrimalTerm = BoxTerm(problem.bounds)
        if not self.smooth_data:
            diagonal = problem.operator.diagonal
            if diagonal is None:
                raise ValueError(
                    f"NMAPG needs a smooth fidelity behind {type(problem.operator).__name__}, "
                    f"and {type(problem.fidelity).__name__} is not; use cl.PDHG()"
                )
            y = problem.fidelity.y
            self.g = DiagonalFidelityTerm(problem.fidelity, diagonal.to(y), problem.bounds)

    def start(self, x: Tensor) -> NMAPGState:
        """x_0 = x_1 = z_1, t_0 = 0, t_1 = 1."""
        objective, gradient = self._evaluate(x)
        one = torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
        return NMAPGState(
            x, x, x, x, gradient,
            t=one, t_previous=0 * one, level=objective, q=one.to(objective.dtype),
            step=self.method.step * one,
        )  # fmt: skip

    def resume(self, state: State) -> NMAPGState | None:
        """Continue the recursion if it belongs to this problem: not after a change of weight.

        A level c_k below F(x), for example, would reject every step.
        """
        if not isinstance(state, NMAPGState):
            return None
        objective, _ = self._evaluate(state.x)
        _, gradient = self._evaluate(state.y_previous)
        reached = bool((objective <= state.level + 1e-6 * objective.abs()).all())
        return state if reached and are_close(gradient, state.gradient_previous, 1e-3) else None

    def step(self, state: NMAPGState) -> NMAPGState:
        """One iteration of Algorithm 4."""
        a = expand_per_image(state.t_previous / state.t, state.x)
        b = expand_per_image((state.t_previous - 1) / state.t, state.x)
        y = state.x + a * (state.z - state.x) + b * (state.x - state.x_previous)
        if not self.problem.bounds.is_everything:
            y = self.problem.bounds.project(y)  # the data term may be infinite outside the box

        f_y, gradient = self._evaluate(y)
        step = self._barzilai_borwein(
            y - state.y_previous, gradient - state.gradient_previous, state.step
        )
        z, f_z, step = self._search(y, gradient, step, torch.maximum(f_y, state.level))
        moved = sum_per_image((z - y) ** 2)
        accepted = f_z <= state.level - self.method.decrease * moved

        x, f_x = z, f_z
        if not bool(accepted.all()):
            _, gradient_x = self._evaluate(state.x)
            step_x = self._barzilai_borwein(
                state.x - state.y_previous, gradient_x - state.gradient_previous, step
            )
            v, f_v, _ = self._search(state.x, gradient_x, step_x, state.level)
            take_z = accepted | (f_z <= f_v)
            x, f_x = choose_images(take_z, (z, f_z), (v, f_v))

        q = self.method.memory * state.q + 1
        return NMAPGState(
            x, state.x, z, y, gradient,
            t=(torch.sqrt(4 * state.t**2 + 1) + 1) / 2,
            t_previous=state.t,
            level=(self.method.memory * state.q * state.level + f_x) / q,
            q=q,
            step=step,
        )  # fmt: skip

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """F and the gradient of its smooth part."""
        evaluation = self.problem.evaluate(x)
        gradient = self.problem.subgradient(evaluation, data_term=self.smooth_data)
        return evaluation.objective, gradient

    def _search(
        self, origin: Tensor, gradient: Tensor, step: Tensor, level: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shrink the step until F(point) <= level - delta ||point - origin||^2, per image."""
        point, value = origin, level
        searching = torch.ones_like(step, dtype=torch.bool)
        for _ in range(MAX_BACKTRACKS):
            tau = expand_per_image(step, origin)
            trial = self.g.prox(origin - tau * gradient, tau)
            trial_value = self.problem.evaluate(trial).objective
            limit = level - self.method.decrease * sum_per_image((trial - origin) ** 2)
            good = searching & (trial_value <= limit)
            point, value = choose_images(good, (trial, trial_value), (point, value))
            searching = searching & ~good
            if not bool(searching.any()):
                break
            step = torch.where(searching, self.method.shrink * step, step)
        return point, value, step

    @staticmethod
    def _barzilai_borwein(s: Tensor, r: Tensor, fallback: Tensor) -> Tensor:
        """<s, s> / <s, r> where it is positive and finite."""
        quotient = (sum_per_image(s * s) / sum_per_image(s * r)).to(fallback.dtype)
        return torch.where(torch.isfinite(quotient) & (quotient > 0), quotient, fallback)


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
