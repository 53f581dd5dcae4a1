"""NMAPG: the nonmonotone accelerated proximal gradient method, with our options or the paper's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.terms import BoxTerm, DiagonalFidelityTerm, PrimalTerm
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver, State
from convexlift.tensors import are_close, choose_images, expand_per_image, sum_per_image

MAX_BACKTRACKS, SHORTEST = 150, 2.0**-60
"""The most trial steps of a line search, and the smallest factor by which they shrink the step."""


@dataclass(frozen=True)
class NMAPG(Method):
    """Options of NMAPG; ``NMAPG.as_released()`` has the authors' options.

    Args:
        step: the first step size tried; the paper uses 0.1.
        shrink: rho in (0, 1), the backtracking factor.
        decrease: delta > 0, the sufficient decrease.
        memory: eta in [0, 1), the memory of the nonmonotone level c_k.
        short_steps: start line searches from the short Barzilai-Borwein quotient <s, r> / <r, r>
            instead of the long one, <s, s> / <s, r>.
        longest_step: upper limit on the quotient.
        slack: share of c_k by which the second search may miss its level.
    """

    step: float = 0.1
    shrink: float = 0.5
    decrease: float = 1e-4
    memory: float = 0.8
    short_steps: bool = False
    longest_step: float = math.inf
    slack: float = 0.0

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
        if not self.longest_step > 0:
            raise ValueError(f"NMAPG needs longest_step > 0, got {self.longest_step}")
        if not 0 <= self.slack < math.inf:
            raise ValueError(f"NMAPG needs slack >= 0, got {self.slack}")

    @classmethod
    def as_released(cls, step: float = 0.1) -> NMAPG:
        """The options of the authors' ``nmAPG.py`` (github.com/hsw43/icnn_primal_dual).

        Steps are short, at most 1, and shrink slowly; ours are longer and require less decrease.
        """
        return cls(
            step, shrink=0.9, decrease=0.1, memory=0.8, short_steps=True, longest_step=1.0,
            slack=1e-4,
        )  # fmt: skip

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
    gradient_previous: Tensor  # the gradient of f at y_previous
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

    Step sizes start from a Barzilai-Borwein quotient of s = y_k - y_{k-1} (x_k - y_{k-1} for v) and
    r, the difference of the gradients there. Here f is weight R plus the data term, and
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
            v, f_v, _ = self._search(state.x, gradient_x, step_x, state.level, self.method.slack)
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
        self, origin: Tensor, gradient: Tensor, step: Tensor, level: Tensor, slack: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shrink the step until F(point) <= level - delta ||point - origin||^2, per image.

        With ``slack``, until F(point) exceeds this limit by at most that share of it.
        """
        point, value = origin, level
        searching = torch.ones_like(step, dtype=torch.bool)
        trials = min(MAX_BACKTRACKS, math.ceil(math.log(SHORTEST, self.method.shrink)))
        for _ in range(trials):
            tau = expand_per_image(step, origin)
            trial = self.g.prox(origin - tau * gradient, tau)
            trial_value = self.problem.evaluate(trial).objective
            limit = level - self.method.decrease * sum_per_image((trial - origin) ** 2)
            good = searching & (trial_value <= limit + slack * limit.abs())
            point, value = choose_images(good, (trial, trial_value), (point, value))
            searching = searching & ~good
            if not bool(searching.any()):
                break
            step = torch.where(searching, self.method.shrink * step, step)
        return point, value, step

    def _barzilai_borwein(self, s: Tensor, r: Tensor, fallback: Tensor) -> Tensor:
        """<s, s> / <s, r> or <s, r> / <r, r> where it is positive and finite."""
        sr = sum_per_image(s * r)
        ratio = sr / sum_per_image(r * r) if self.method.short_steps else sum_per_image(s * s) / sr
        usable = torch.isfinite(ratio) & (ratio > 0)
        limited = ratio.clamp_max(self.method.longest_step).to(fallback.dtype)
        return torch.where(usable, limited, fallback)
