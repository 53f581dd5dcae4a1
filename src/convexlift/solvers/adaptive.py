"""PDHG that finds its own steps: rebalanced, relaxed or pulled back, and restarted.

The rules are those of the linear-programming codes PDLP and cuPDLPx, carried over; with an L1
fidelity and (leaky) ReLUs the problem *is* a linear program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convexlift.problems.lifting import lifted_start
from convexlift.problems.saddle import SaddlePointProblem
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Solver, State
from convexlift.solvers.primal_dual import PDHGState, fits, pdhg_update
from convexlift.solvers.restarts import (
    RELAXATION,
    rebalance,
    residual,
    should_restart,
    time_to_rebalance,
    time_to_test,
)
from convexlift.solvers.steps import Coupling
from convexlift.tensors import Blocks


@dataclass(frozen=True, eq=False)
class RestartState(PDHGState):
    """(u, v) = T(w), the iterate w behind it, and the memory of the restart rules."""

    w_u: Blocks
    w_v: Blocks
    anchor_u: Blocks  # the last restart
    anchor_v: Blocks
    origin_u: Blocks  # where everything began
    origin_v: Blocks
    inner: Tensor  # iterations since the last restart, (B,)
    total: Tensor  # iterations, (B,)
    due: Tensor  # whether the next iteration is a restart, (B,)
    residual_at_restart: Tensor
    residual_at_test: Tensor


class RestartedPDHG(Solver[RestartState]):
    """PDHG with rebalanced steps, and one of two ways to go further than T; image by image.

    reflected Halpern:  w <- (k+1)/(k+2) (2 T(w) - w) + 1/(k+2) anchor
    relaxation:         w <- w + 1.8 (T(w) - w)
    restart:            w <- T(w), with new steps

    The first is made for problems like linear programs, where T turns around a solution for
    long: those with kinks. The second is faster on smooth ones.
    """

    def __init__(self, problem: VariationalProblem, saddle: SaddlePointProblem) -> None:
        self.problem, self.saddle = problem, saddle
        self.coupling = Coupling(saddle)
        self.relaxed = problem.smooth

    def start(self, x: Tensor) -> RestartState:
        """Steps balanced for duals of the size of the first ones and images that move by 0.3."""
        u, v = lifted_start(self.problem, self.saddle, x)
        moves = Blocks(
            {n: 0.3 * (s if n != "x" else torch.ones_like(s) * p[0].numel() ** 0.5)
             for (n, s), p in zip(u.norms().items(), u.values(), strict=True)}
        )  # fmt: skip
        target = self.coupling.balanced_sigma(moves, v.norms())
        sigma = {}
        for name, value in target.items():
            usable = torch.isfinite(value) & (value > 0)
            sigma[name] = torch.where(usable, value, 1.0)
        return self._from(u, v, Blocks(sigma))

    def resume(self, state: State) -> RestartState | None:
        """A restart at (u, v), with the steps found so far."""
        if not fits(state, self.saddle):
            return None
        assert isinstance(state, PDHGState)
        return self._from(state.u, state.v, state.sigma)

    def _from(self, u: Blocks, v: Blocks, sigma: Blocks) -> RestartState:
        count = torch.zeros(u["x"].shape[0], dtype=torch.long, device=u["x"].device)
        infinite = torch.full_like(count, float("inf"), dtype=torch.float64)
        return RestartState(
            u, v, self.coupling.tau(sigma), sigma,
            w_u=u, w_v=v, anchor_u=u, anchor_v=v, origin_u=u, origin_v=v,
            inner=count, total=count, due=count > 0,
            residual_at_restart=infinite, residual_at_test=infinite,
        )  # fmt: skip

    def step(self, state: RestartState) -> RestartState:
        """T, then the way further or a restart."""
        w_u, w_v = state.w_u, state.w_v
        u, v = pdhg_update(self.saddle, w_u, w_v, state.tau, state.sigma)
        if self.relaxed:
            next_u, next_v = w_u + RELAXATION * (u - w_u), w_v + RELAXATION * (v - w_v)
        else:
            k = state.inner.to(u["x"].dtype)
            keep, pull = (k + 1) / (k + 2), 1 / (k + 2)
            next_u = (2 * u - w_u) * keep + state.anchor_u * pull
            next_v = (2 * v - w_v) * keep + state.anchor_v * pull
        following = replace(
            state, u=u, v=v, w_u=next_u, w_v=next_v, inner=state.inner + 1, total=state.total + 1
        )
        if bool(state.due.any()):
            following = self._restart(following)
        tested = time_to_test(following.inner, following.total, self.relaxed)
        if not bool(tested.any()):
            return following
        r = residual(u - w_u, v - w_v, state.tau, state.sigma)
        return self._plan(following, r, tested)

    def _plan(self, state: RestartState, r: Tensor, tested: Tensor) -> RestartState:
        """Decide, from the residual of the last iteration, whether the next is a restart."""
        due = should_restart(
            r, state.residual_at_test, state.residual_at_restart, state.inner, state.total
        )
        first = state.inner == 1
        return replace(
            state,
            due=tested & (time_to_rebalance(state.total) if self.relaxed else due & ~first),
            residual_at_restart=torch.where(first, r, state.residual_at_restart),
            residual_at_test=torch.where(tested, r, state.residual_at_test),
        )

    def _restart(self, state: RestartState) -> RestartState:
        """Images that are due go on from T(w), with steps for the way since the beginning."""
        u, v, images = state.u, state.v, state.due
        target = rebalance(self.coupling, state.sigma, u - state.origin_u, v - state.origin_v)
        sigma = target.where(images, state.sigma)
        return replace(
            state,
            w_u=u.where(images, state.w_u),
            w_v=v.where(images, state.w_v),
            anchor_u=u.where(images, state.anchor_u),
            anchor_v=v.where(images, state.anchor_v),
            inner=torch.where(images, 0, state.inner),
            due=torch.zeros_like(images),
            sigma=sigma,
            tau=self.coupling.tau(sigma),
        )
