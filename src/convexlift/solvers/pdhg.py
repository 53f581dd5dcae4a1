"""The primal-dual hybrid gradient method on the lifted problem (paper section 4).

u^{k+1}   = prox_g^T (u^k - T K* v^k)
u_bar     = 2 u^{k+1} - u^k
v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar),    i = 0, ..., L
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convexlift.problems.lifting import lift, lifted_start, relifted
from convexlift.problems.saddle import SaddlePointProblem
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver, State
from convexlift.solvers.restarts import TEST_EVERY, rebalance, residual, should_restart
from convexlift.solvers.steps import AdaptiveSteps, Coupling, PaperSteps
from convexlift.tensors import Blocks


def pdhg_update(
    saddle: SaddlePointProblem, u: Blocks, v: Blocks, tau: Blocks, sigma: Blocks
) -> tuple[Blocks, Blocks]:
    """One step of the paper's iteration, with theta = 1."""
    # u^{k+1} = prox_g^T (u^k - T K* v^k)
    u_next = saddle.prox_g(u - tau * saddle.K.adjoint(v), tau)
    # u_bar = u^{k+1} + theta (u^{k+1} - u^k)
    u_bar = 2 * u_next - u
    # v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar)
    v_next = saddle.prox_f_conjugate(v + sigma * saddle.K(u_bar), sigma)
    return u_next, v_next


@dataclass(frozen=True)
class PDHG(Method):
    """PDHG with the paper's fixed steps, or with steps that need no tuning (the default).

    Args:
        steps: ``PaperSteps(c)`` or ``AdaptiveSteps()``.
        dualise_fidelity: see ``lift``.
    """

    steps: PaperSteps | AdaptiveSteps = field(default_factory=AdaptiveSteps)
    dualise_fidelity: bool | None = None

    def solver(self, problem: VariationalProblem) -> Solver[State]:
        """Lift the problem and compute the operator norms."""
        papers = isinstance(self.steps, PaperSteps)  # and its lift, at full resolution
        saddle = lift(problem, dualise_fidelity=self.dualise_fidelity, pooled=not papers)
        if isinstance(self.steps, PaperSteps):
            return FixedStepPDHG(problem, saddle, self.steps)
        return RestartedPDHG(problem, saddle)


@dataclass(frozen=True, eq=False)
class PDHGState:
    """u = (x, z_1, ...), v, and the step sizes of each block and image."""

    u: Blocks
    v: Blocks
    tau: Blocks
    sigma: Blocks

    @property
    def x(self) -> Tensor:
        """The images among the primal blocks."""
        return self.u["x"]

    @property
    def duals(self) -> Blocks:
        """All dual blocks."""
        return self.v


class FixedStepPDHG(Solver[State]):
    """The paper's algorithm, unchanged."""

    def __init__(
        self, problem: VariationalProblem, saddle: SaddlePointProblem, steps: PaperSteps
    ) -> None:
        self.problem, self.saddle, self.steps = problem, saddle, steps
        self.coupling = Coupling(saddle)

    def start(self, x: Tensor) -> PDHGState:
        """z by a forward pass, duals by a backward pass."""
        u, v = lifted_start(self.problem, self.saddle, x)
        sigma = self.steps.sigma(self.saddle, x)
        return PDHGState(u, v, self.coupling.tau(sigma), sigma)

    def resume(self, state: State) -> PDHGState | None:
        """Go on from u and v, with these steps."""
        if not isinstance(state, PDHGState):
            return None
        sigma = self.steps.sigma(self.saddle, state.x)
        if _fits(state, self.saddle):
            return PDHGState(state.u, state.v, self.coupling.tau(sigma), sigma)
        blocks = relifted(self.problem, self.saddle, state.x, state.v)
        return None if blocks is None else PDHGState(*blocks, self.coupling.tau(sigma), sigma)

    def step(self, state: State) -> PDHGState:
        """The paper's iteration."""
        assert isinstance(state, PDHGState)
        u, v = pdhg_update(self.saddle, state.u, state.v, state.tau, state.sigma)
        return replace(state, u=u, v=v)


@dataclass(frozen=True, eq=False)
class RestartState(PDHGState):
    """(u, v) = T(w), the iterate w behind it, and the memory of the restart rules."""

    w_u: Blocks
    w_v: Blocks
    anchor_u: Blocks
    anchor_v: Blocks
    inner: Tensor  # iterations since the last restart, (B,)
    total: Tensor  # iterations, (B,)
    residual_at_restart: Tensor
    residual_at_test: Tensor


class RestartedPDHG(Solver[State]):
    """Reflected Halpern PDHG with restarts and rebalanced steps; every image on its own.

    w <- (k+1)/(k+2) (2 T(w) - w) + 1/(k+2) anchor
    """

    def __init__(self, problem: VariationalProblem, saddle: SaddlePointProblem) -> None:
        self.problem, self.saddle = problem, saddle
        self.coupling = Coupling(saddle)

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
        if not isinstance(state, PDHGState):
            return None
        if _fits(state, self.saddle):
            return self._from(state.u, state.v, state.sigma)
        blocks = relifted(self.problem, self.saddle, state.x, state.v)
        return None if blocks is None else self._from(*blocks, self.start(state.x).sigma)

    def _from(self, u: Blocks, v: Blocks, sigma: Blocks) -> RestartState:
        count = torch.zeros(u["x"].shape[0], dtype=torch.long, device=u["x"].device)
        infinite = torch.full_like(count, float("inf"), dtype=torch.float64)
        return RestartState(
            u, v, self.coupling.tau(sigma), sigma,
            w_u=u, w_v=v, anchor_u=u, anchor_v=v, inner=count, total=count,
            residual_at_restart=infinite, residual_at_test=infinite,
        )  # fmt: skip

    def step(self, state: State) -> RestartState:
        """T, then the Halpern step, then perhaps a restart."""
        assert isinstance(state, RestartState)
        u, v = pdhg_update(self.saddle, state.w_u, state.w_v, state.tau, state.sigma)
        k = state.inner.to(u["x"].dtype)
        keep, pull = (k + 1) / (k + 2), 1 / (k + 2)
        following = replace(
            state,
            u=u,
            v=v,
            w_u=(2 * u - state.w_u) * keep + state.anchor_u * pull,
            w_v=(2 * v - state.w_v) * keep + state.anchor_v * pull,
            inner=state.inner + 1,
            total=state.total + 1,
        )
        first = state.inner == 0
        tested = first | (following.total % TEST_EVERY == 0)
        if not bool(tested.any()):
            return following
        return self._test(state, following, first, tested)

    def _test(
        self, before: RestartState, state: RestartState, first: Tensor, tested: Tensor
    ) -> RestartState:
        """Measure the residual of ``before``; restart the images that should."""
        r = residual(
            self.saddle, state.u - before.w_u, state.v - before.w_v, state.tau, state.sigma
        )
        restart = tested & ~first & should_restart(
            r, state.residual_at_test, state.residual_at_restart, state.inner, state.total
        )  # fmt: skip
        state = replace(
            state,
            residual_at_restart=torch.where(first, r, state.residual_at_restart),
            residual_at_test=torch.where(tested, r, state.residual_at_test),
        )
        if not bool(restart.any()):
            return state
        du, dv = state.u - state.anchor_u, state.v - state.anchor_v
        rebalanced = rebalance(self.coupling, state.sigma, du, dv)
        sigma = rebalanced.where(restart, state.sigma)
        return replace(
            state,
            w_u=state.u.where(restart, state.w_u),
            w_v=state.v.where(restart, state.w_v),
            anchor_u=state.u.where(restart, state.anchor_u),
            anchor_v=state.v.where(restart, state.anchor_v),
            inner=torch.where(restart, 0, state.inner),
            sigma=sigma,
            tau=self.coupling.tau(sigma),
        )


def _fits(state: State, saddle: SaddlePointProblem) -> bool:
    return (
        isinstance(state, PDHGState)
        and set(state.v) == set(saddle.K.rows)
        and {name: tuple(part.shape[1:]) for name, part in state.u.items()} == saddle.K.shapes
    )
