"""PDHG that finds its own steps: rebalanced, relaxed or pulled back, and restarted.

The rules are those of the linear-programming codes PDLP and cuPDLPx, carried over; with an L1
fidelity and (leaky) ReLUs the problem *is* a linear program.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convexlift.kernels.availability import kernel_errors
from convexlift.problems.lifting import lifted_start
from convexlift.problems.saddle import BOX_DUAL, SaddlePointProblem, fitting_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.fused import FusedIterations
from convexlift.solvers.method import Solver, State
from convexlift.solvers.primal_dual import PDHGState, fits, pdhg_update
from convexlift.solvers.restart_rules import (
    FIRST_MOVE,
    Pace,
    RestartRules,
    lateness,
    rebalance,
    residual,
)
from convexlift.solvers.step_sizes import Coupling, quotients
from convexlift.solvers.tiled import Sweep
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
    pace: Pace


class RestartedPDHG(Solver[RestartState]):
    """PDHG with rebalanced steps, and one of two ways to go further than T; image by image.

    w <- a T(w) + b w + e anchor, with the coefficients of ``RestartRules``.
    """

    def __init__(
        self,
        problem: VariationalProblem,
        saddle: SaddlePointProblem,
        coupling: Coupling | None = None,
    ) -> None:
        self.problem, self.saddle = problem, saddle
        self.box = problem.bounds if BOX_DUAL in saddle.K.rows else None
        self.coupling = Coupling(saddle) if coupling is None else coupling
        self.rules = RestartRules(problem)
        self.sweep = Sweep.of(saddle) if coupling is None else None
        self.fused = FusedIterations.of(saddle) if coupling is None else None
        self.block = 1 if self.sweep is None and self.fused is None else 10

    def start(self, x: Tensor, duals: Blocks | None = None) -> RestartState:
        """Steps balanced for duals of the size of the first ones and images that move a little."""
        u, v = lifted_start(self.problem, self.saddle, x, duals)
        moves = Blocks(
            {n: FIRST_MOVE * (s if n != "x" else torch.ones_like(s) * p[0].numel() ** 0.5)
             for (n, s), p in zip(u.norms().items(), u.values(), strict=True)}
        )  # fmt: skip
        target = self.coupling.balanced_sigma(self.coupling.reach(moves), v.norms())
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
        return RestartState(
            u, v, self.coupling.tau(sigma), sigma,
            w_u=u, w_v=v, anchor_u=u, anchor_v=v, origin_u=u, origin_v=v,
            pace=Pace.at_start(len(u["x"])), box=self.box,
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
        if self.rules.tested(state.pace).any():
            r = residual(
                self.coupling.squared_lengths(u - w_u, state.tau),
                quotients((v - w_v).squares(), state.sigma),
            ).cpu()
        return self._counted(following, r)

    def advance(self, state: RestartState, iterations: int) -> RestartState:
        """Several iterations; those of large problems with one layer in strips or kernels."""
        if self.fused is not None:
            try:
                return self._advance_fused(self.fused, state, iterations)
            except kernel_errors() as error:
                warnings.warn(f"no GPU kernels, the plain path is taken: {error}", stacklevel=2)
                self.fused = None
        if self.sweep is not None:
            return self._advance_in_strips(self.sweep, state, iterations)
        return super().advance(state, iterations)

    def _advance_in_strips(
        self, sweep: Sweep, state: RestartState, iterations: int
    ) -> RestartState:
        name = sweep.name
        w = state.w_v[name].clone()
        c = sweep.adjoint(w)
        for k in range(iterations):
            w_u, tau, sigma = state.w_u, state.tau, state.sigma
            u = self.saddle.prox_g(w_u - tau * Blocks({"x": c}), tau)
            mix, tested = self._mix(state), bool(self.rules.tested(state.pace).any())
            wanted = k == iterations - 1 or bool(state.pace.due.any())
            v = torch.empty_like(w) if wanted else None
            c, moved = sweep(
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
                r = residual(
                    self.coupling.squared_lengths(u - w_u, tau),
                    quotients(Blocks({name: moved}), sigma),
                )
            state = self._counted(following, r)
        return replace(state, w_v=Blocks({name: w}))

    def _advance_fused(
        self, fused: FusedIterations, state: RestartState, iterations: int
    ) -> RestartState:
        """The rules are followed on the host, which looks at the device only to decide."""
        place, pace = state.x.device, state.pace
        tau, sigma = _moved(state.tau, "cpu"), _moved(state.sigma, "cpu")
        fused.begin(state)
        while iterations:
            count = self.rules.until_decision(pace, iterations)
            iterations -= count
            fused.iterate(tau, sigma, self.rules.mix(pace, count))
            r = None
            if self.rules.tested(pace, count)[-1].any():
                du, dv = fused.moved()
                r = residual(quotients(du, tau), quotients(dv, sigma))
            restarted, pace = pace.due, self.rules.counted(pace, r, count)
            if bool(restarted.any()):
                whole, recent = (
                    (self.coupling.reach(du), dv)
                    for du, dv in fused.ways(state.origin_u, state.origin_v)
                )
                late = lateness(self.problem, self.coupling, pace.total)
                target = rebalance(self.coupling, sigma, whole, recent, late)
                sigma = target.where(restarted, sigma)
                tau = self.coupling.tau(sigma)
                fused.move_anchor(restarted)
        state = replace(
            state, tau=_moved(tau, place), sigma=_moved(sigma, place), pace=pace, **fused.result()
        )
        fused.holds = state
        return state

    def _mix(self, state: RestartState) -> tuple[Tensor, Tensor, Tensor]:
        """(a, b, e) per image."""
        a, b, e = torch.from_numpy(self.rules.mix(state.pace)[:, 0]).to(state.x)
        return a, b, e

    def _counted(self, state: RestartState, r: Tensor | None) -> RestartState:
        """Count the iteration, finish a restart, and decide whether the next one is one."""
        restarted, pace = state.pace.due, self.rules.counted(state.pace, r)
        if bool(restarted.any()):
            state = self._restarted(state, restarted, pace)
        return replace(state, pace=pace)

    def _restarted(self, state: RestartState, images: Tensor, pace: Pace) -> RestartState:
        """Images that went to T(w) get steps for the way they went."""
        u, v = state.u, state.v
        images = images.to(state.x.device)
        target = rebalance(
            self.coupling,
            state.sigma,
            (self.coupling.way(u, state.origin_u), v.distances(state.origin_v)),
            (self.coupling.way(u, state.anchor_u), v.distances(state.anchor_v)),
            lateness(self.problem, self.coupling, pace.total).to(state.x.device),
        )
        sigma = target.where(images, state.sigma)
        return replace(
            state,
            anchor_u=u.where(images, state.anchor_u),
            anchor_v=choose_images(images, v, state.anchor_v),
            sigma=sigma,
            tau=self.coupling.tau(sigma),
        )


def _moved(parts: Blocks, device: torch.device | str) -> Blocks:
    """(B,) tensors on another device, in one transfer."""
    together = torch.stack(list(parts.values())).to(device)
    return Blocks(dict(zip(parts, together, strict=True)))
