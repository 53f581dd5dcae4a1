"""PDHG that finds its own steps: rebalanced, relaxed or pulled back, and restarted.

The rules are those of the linear-programming codes PDLP and cuPDLPx, carried over; with an L1
fidelity and (leaky) ReLUs the problem *is* a linear program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convexlift.problems.lifting import lifted_start
from convexlift.problems.saddle import SaddlePointProblem, fitting_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Solver, State
from convexlift.solvers.primal_dual import PDHGState, fits, pdhg_update
from convexlift.solvers.restarts import (
    FIRST_MOVE,
    RELAXATION,
    lateness,
    rebalance,
    relaxed_iterations,
    residual,
    should_restart,
    time_to_rebalance,
    time_to_test,
)
from convexlift.solvers.steps import Coupling
from convexlift.solvers.strips import Sweep
from convexlift.tensors import Blocks, choose_images


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
    long. The second is faster on smooth ones, and on others with a smooth fidelity at first.
    """

    def __init__(self, problem: VariationalProblem, saddle: SaddlePointProblem) -> None:
        self.problem, self.saddle = problem, saddle
        self.coupling = Coupling(saddle)
        self.relaxed = relaxed_iterations(problem)
        self.sweep = Sweep.of(saddle)
        self.block = 1 if self.sweep is None else 10

    def start(self, x: Tensor, duals: Blocks | None = None) -> RestartState:
        """Steps balanced for duals of the size of the first ones and images that move a little."""
        u, v = lifted_start(self.problem, self.saddle, x, duals)
        moves = Blocks(
            {n: FIRST_MOVE * (s if n != "x" else torch.ones_like(s) * p[0].numel() ** 0.5)
             for (n, s), p in zip(u.norms().items(), u.values(), strict=True)}
        )  # fmt: skip
        target = self.coupling.balanced_sigma(moves, v.norms())
        sigma = {}
        for name, value in target.items():
            usable = torch.isfinite(value) & (value > 0)
            sigma[name] = torch.where(usable, value, 1.0)
        return self._from(u, v, Blocks(sigma))

    def resume(self, state: State) -> RestartState | None:
        """A restart at (u, v), with the steps found so far; or at the duals of another lift."""
        if isinstance(state, PDHGState) and fits(state, self.saddle):
            return self._from(state.u, state.v, state.sigma)
        duals = fitting_duals(self.problem.network, state.x, state.duals)
        return None if duals is None else self.start(state.x, duals)

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
        a, b, e = self._mix(state)
        following = replace(
            state,
            u=u,
            v=v,
            w_u=u * a + w_u * b + state.anchor_u * e,
            w_v=v * a + w_v * b + state.anchor_v * e,
        )
        r = None
        if bool(self._tested(state).any()):
            r = residual((u - w_u).squares(), (v - w_v).squares(), state.tau, state.sigma)
        return self._plan(following, r)

    def advance(self, state: RestartState, iterations: int) -> RestartState:
        """Several iterations; those of large problems with one layer in strips."""
        if self.sweep is None:
            return super().advance(state, iterations)
        name = self.sweep.name
        w = state.w_v[name].clone()
        c = self.sweep.adjoint(w)
        for k in range(iterations):
            w_u, tau, sigma = state.w_u, state.tau, state.sigma
            u = self.saddle.prox_g(w_u - tau * Blocks({"x": c}), tau)
            mix, tested = self._mix(state), bool(self._tested(state).any())
            wanted = k == iterations - 1 or bool(state.due.any())
            v = torch.empty_like(w) if wanted else None
            c, moved = self.sweep(
                (2 * u - w_u)["x"], w, sigma[name], mix, state.anchor_v[name], v, tested
            )
            a, b, e = mix
            following = replace(
                state,
                u=u,
                v=state.v if v is None else Blocks({name: v}),
                w_u=u * a + w_u * b + state.anchor_u * e,
            )
            r = None
            if tested:
                r = residual((u - w_u).squares(), Blocks({name: moved}), tau, sigma)
            state = self._plan(following, r)
        return replace(state, w_v=Blocks({name: w}))

    def _mix(self, state: RestartState) -> tuple[Tensor, Tensor, Tensor]:
        """(a, b, e) per image: the next w is a T(w) + b w + e anchor."""
        k = state.inner.to(state.x.dtype)
        keep, relaxed = (k + 1) / (k + 2), state.total < self.relaxed
        a = torch.where(relaxed, RELAXATION, 2 * keep)
        b = torch.where(relaxed, 1 - RELAXATION, -keep)
        e = torch.where(relaxed, 0, 1 - keep)
        due = state.due
        return torch.where(due, 1, a), torch.where(due, 0, b), torch.where(due, 0, e)

    def _tested(self, state: RestartState) -> Tensor:
        """Whether a restart may be decided after the next iteration, (B,)."""
        inner, total = state.inner + 1, state.total + 1
        relaxed = total <= self.relaxed
        return torch.where(relaxed, self._relaxed_tested(total), time_to_test(inner, total))

    def _relaxed_tested(self, total: Tensor) -> Tensor:
        """Relaxed iterations are restarted at fixed times, and when they give way to others."""
        return time_to_rebalance(total) | (total == self.relaxed)

    def _plan(self, state: RestartState, r: Tensor | None) -> RestartState:
        """Count the iteration, finish a restart, and decide whether the next one is one.

        Args:
            state: after the iteration, with the counters of before.
            r: the residual of the iteration, where some image is tested.
        """
        tested, restarted = self._tested(state), state.due
        state = replace(state, inner=state.inner + 1, total=state.total + 1)
        if bool(restarted.any()):
            state = self._restarted(state)
        if r is None:
            return state
        first = state.inner == 1
        due = ~first & should_restart(
            r, state.residual_at_test, state.residual_at_restart, state.inner, state.total
        )
        relaxed = state.total <= self.relaxed
        due = tested & torch.where(relaxed, self._relaxed_tested(state.total), due)
        return replace(
            state,
            due=due,
            residual_at_restart=torch.where(first, r, state.residual_at_restart),
            residual_at_test=torch.where(tested, r, state.residual_at_test),
        )

    def _restarted(self, state: RestartState) -> RestartState:
        """Images that went to T(w) get steps for the way they went."""
        u, v, images = state.u, state.v, state.due
        target = rebalance(
            self.coupling,
            state.sigma,
            (u.distances(state.origin_u), v.distances(state.origin_v)),
            (u.distances(state.anchor_u), v.distances(state.anchor_v)),
            lateness(self.problem, state.total),
        )
        sigma = target.where(images, state.sigma)
        return replace(
            state,
            anchor_u=u.where(images, state.anchor_u),
            anchor_v=choose_images(images, v, state.anchor_v),
            inner=torch.where(images, 0, state.inner),
            due=torch.zeros_like(images),
            sigma=sigma,
            tau=self.coupling.tau(sigma),
        )
