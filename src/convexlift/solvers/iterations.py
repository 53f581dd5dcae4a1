"""Iterations of PDHG on w = (u, v):  w <- a P(w) + b w + e anchor,  P the step of PDHG.

``RestartedPDHG`` chooses (a, b, e), step sizes and restarts; ``Iterations`` holds the iterate and
computes. Three implementations agree up to rounding: ``Iterations`` itself, on whole tensors,
``TiledIterations`` on strips of rows, and ``FusedIterations`` in two GPU kernels.
``ExtrapolatedIterations`` are fewer, for problems of moderate size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.anderson import Past
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.primal_dual import PDHGState, halpern, pdhg_update
from convexlift.solvers.rebalancing import Restarts
from convexlift.solvers.recordings import Mirrors
from convexlift.solvers.restart_rules import Array, RestartMemory
from convexlift.tensors import Blocks, choose_images

Displacement = tuple[Blocks, Blocks]
"""Upper bounds on the movement of each row of K (``Coupling.reach``), and ||dv||; each (B,)."""


@dataclass(frozen=True, eq=False)
class RestartState(PDHGState):
    """(u, v) = P(w), the iterate w it was computed from, and the state of the restart rules."""

    w_u: Blocks
    w_v: Blocks
    anchor_u: Blocks  # the last restart
    anchor_v: Blocks
    origin_u: Blocks  # the start of the run
    origin_v: Blocks
    memory: RestartMemory
    past: Past | None = None  # for extrapolations

    def moved(self) -> RestartState:
        """As ``restarted``, from where ``resume`` starts: nothing but (u, v) is held."""
        return replace(self.restarted(), origin_u=self.u, origin_v=self.v, past=None)

    def restarted(self) -> RestartState:
        """A restart at (u, v): where w and the anchors are lost, or not needed any more."""
        u, v, total = self.u, self.v, self.memory.total
        memory = replace(RestartMemory.at_start(len(total)), total=total)
        return replace(self, w_u=u, w_v=v, anchor_u=u, anchor_v=v, memory=memory)


class Iterations:
    """An iterate w with its anchor, on whole tensors: for any problem, on any device.

    The constructor of a subclass raises ``DoesNotApply`` for problems that it is not made for.

    Attributes:
        name: for ``explain``.
        advantage: the reason to prefer a subclass, for ``explain``.
        block: the preferred number of iterations per call.
        skips: whether images that are not active are skipped; else they iterate in vain.
        anchored: whether e may be other than 0; else anchors only measure displacements.
        packs_v: whether the next v is packed.
    """

    name, advantage = "plain", ""
    block: ClassVar[int] = 1
    skips: bool = False
    anchored: bool = True
    packs_v: bool = False

    def __init__(self, saddle: SaddlePointProblem, coupling: Coupling) -> None:
        self.saddle, self.coupling = saddle, coupling

    def packs(self, x: Tensor) -> bool:
        """Whether states with such images have v, and w at the start, packed."""
        return False

    def packed(self, v: Blocks) -> Blocks:
        """The dual variables of a start as states have them if ``packs``."""
        return v

    def unpack(self) -> bool:
        """Pack v no more, if the rounding is a large part of the last step; whether that is so."""
        return False

    def continues(self, state: RestartState) -> bool:
        """Whether w and the anchors of a state are still there: later ones may take their place."""
        return True

    def spares(self, state: RestartState) -> bool:
        """Whether there is room for a w that is set aside during an attempt at a proof."""
        return not self.packs(state.u["x"])

    def set_aside(self, state: RestartState) -> RestartState:
        """The state with a w and anchors that an attempt leaves alone, if there is room."""
        return state

    def only_launches(self, state: RestartState, relaxed: float) -> bool:
        """Whether iterations are not waited for; those before ``relaxed`` have no decisions."""
        return False

    @property
    def mirrors(self) -> Mirrors:
        """As of a ``Solver``."""
        return ()

    def restarted(
        self, state: RestartState, iterations: int, active: Tensor, restarts: Restarts
    ) -> RestartState | None:
        """The state after iterations with their restarts, or None if others must decide those."""
        return None

    def steps(self, state: RestartState) -> tuple[Blocks, Blocks]:
        """Tau and sigma, on the device where ``iterate`` wants them."""
        return state.tau, state.sigma

    def load(self, state: RestartState, active: Tensor) -> None:
        """Take over w and the anchor; the tensors of the state are never modified."""
        self.active = active
        self.u, self.v, self.w_u, self.w_v = state.u, state.v, state.w_u, state.w_v
        self.anchor_u, self.anchor_v = state.anchor_u, state.anchor_v

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """One iteration for each column of coefficients (a, b, e) in ``mix``, (3, count, B).

        ``measure``: whether ``residual`` will be called afterwards.
        """
        steps, anchored = self.coupling.dual_steps(sigma), bool(mix[2].any())
        for a, b, e in torch.from_numpy(mix).to(self.w_u["x"]).unbind(1):
            self.old_u, self.old_v = self.w_u, self.w_v
            self.u, self.v = pdhg_update(self.saddle, self.w_u, self.w_v, tau, steps)
            self.w_u, self.w_v = self.u * a + self.w_u * b, self.v * a + self.w_v * b
            if anchored:
                self.w_u, self.w_v = self.w_u + self.anchor_u * e, self.w_v + self.anchor_v * e

    def residual(self, tau: Blocks, sigma: Blocks) -> Tensor:
        """||P(w) - w|| of the last iteration in the metric of the steps, (B,), on the CPU."""
        du = self.coupling.squared_lengths(self.u - self.old_u, tau)
        return Blocks({**du, **self._dual_squares() / sigma}).total().sqrt().cpu()

    def _dual_squares(self) -> Blocks:
        return self.coupling.dual_squares(self.v - self.old_v)

    def displacement(self, state: RestartState, *, whole: bool) -> Displacement:
        """The distance to P(w) from the origin of the state if ``whole``, else from the anchor."""
        u, v = (state.origin_u, state.origin_v) if whole else (self.anchor_u, self.anchor_v)
        return self.coupling.way(self.u, u), self.coupling.dual_distances(self.v, v)

    def move_anchor(self, images: Tensor) -> None:
        """Move the anchors of these images (B,) to P(w)."""
        self.anchor_u = choose_images(images, self.u, self.anchor_u)
        self.anchor_v = choose_images(images, self.v, self.anchor_v)

    def attempt(
        self, state: RestartState, iterations: int, images: Tensor, shorter: float
    ) -> Blocks:
        """v after Halpern iterations from (u, v), whose dual steps are that many times shorter."""
        sigma = state.sigma * (1 / shorter)
        k = np.arange(iterations, dtype=float)[:, None].repeat(len(images), 1)
        self.load(state.moved(), images)
        self.iterate(self.coupling.tau(sigma), sigma, np.stack(halpern(k)), measure=False)
        return self.duals()

    def duals(self) -> Blocks:
        """The v of the last iteration, which later ones leave alone."""
        return self.v

    def store(self, state: RestartState, tau: Blocks, sigma: Blocks) -> RestartState:
        """The state with the current P(w), w and anchor, and its steps as ``iterate`` got them."""
        self.old_u = self.old_v = Blocks({})  # free them
        return replace(
            state, u=self.u, v=self.v, w_u=self.w_u, w_v=self.w_v,
            anchor_u=self.anchor_u, anchor_v=self.anchor_v,
        )  # fmt: skip
