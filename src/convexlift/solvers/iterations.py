"""Iterations of PDHG on w = (u, v):  w <- a P(w) + b w + e anchor,  P the step of PDHG.

``RestartedPDHG`` chooses (a, b, e), step sizes and restarts; an implementation of ``Iterations``
holds the iterate and computes. Three implementations agree up to rounding: ``PlainIterations`` on
whole tensors (in this module), ``TiledIterations`` on strips that stay in a processor's cache, and
``FusedIterations`` in two GPU kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from convexlift.problems.saddle import SaddlePointProblem
from convexlift.solvers.primal_dual import PDHGState, pdhg_update
from convexlift.solvers.restart_rules import Array, RestartMemory
from convexlift.solvers.step_sizes import Coupling, quotients
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


class Iterations(ABC):
    """An iterate w with its anchor, advanced in place. The constructor may raise ``DoesNotApply``.

    Attributes:
        name: for ``explain``.
        block: the preferred number of iterations per call.
        on_host: whether step sizes must be on the CPU, wherever the images are.
    """

    name: ClassVar[str]
    block: ClassVar[int] = 1
    on_host: ClassVar[bool] = False

    @abstractmethod
    def load(self, state: RestartState) -> None:
        """Take over w and the anchor; the state itself is never modified."""

    @abstractmethod
    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """One iteration for each column of coefficients (a, b, e) in ``mix``, (3, count, B).

        ``measure``: whether ``residual`` will be called afterwards.
        """

    @abstractmethod
    def residual(self, tau: Blocks, sigma: Blocks) -> Tensor:
        """||P(w) - w|| of the last iteration in the metric of the steps, (B,), on the CPU."""

    @abstractmethod
    def displacements(self, state: RestartState) -> tuple[Displacement, Displacement]:
        """Distances to P(w) from the origin of the state, and from the anchor."""

    @abstractmethod
    def move_anchor(self, images: Tensor) -> None:
        """Move the anchors of these images (B,) to P(w)."""

    @abstractmethod
    def store(self, state: RestartState) -> RestartState:
        """The state with the current P(w), w and anchor."""


class PlainIterations(Iterations):
    """Whole tensors, any problem, any device."""

    name = "plain"

    def __init__(self, saddle: SaddlePointProblem, coupling: Coupling) -> None:
        self.saddle, self.coupling = saddle, coupling

    def load(self, state: RestartState) -> None:
        """Share the tensors of the state: iterations make new ones."""
        self.u, self.v, self.w_u, self.w_v = state.u, state.v, state.w_u, state.w_v
        self.anchor_u, self.anchor_v = state.anchor_u, state.anchor_v

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """P(w), then the mix with w and the anchor."""
        for a, b, e in torch.from_numpy(mix).to(self.w_u["x"]).unbind(1):
            self.old_u, self.old_v = self.w_u, self.w_v
            self.u, self.v = pdhg_update(self.saddle, self.w_u, self.w_v, tau, sigma)
            self.w_u = self.u * a + self.w_u * b + self.anchor_u * e
            self.w_v = self.v * a + self.w_v * b + self.anchor_v * e

    def residual(self, tau: Blocks, sigma: Blocks) -> Tensor:
        """||P(w) - w|| from the last two iterates."""
        du = self.coupling.squared_lengths(self.u - self.old_u, tau)
        return total_length(du, quotients((self.v - self.old_v).squares(), sigma)).cpu()

    def displacements(self, state: RestartState) -> tuple[Displacement, Displacement]:
        """Norms computed on the device of the images."""
        way, u, v = self.coupling.way, self.u, self.v
        return (
            (way(u, state.origin_u), v.distances(state.origin_v)),
            (way(u, self.anchor_u), v.distances(self.anchor_v)),
        )

    def move_anchor(self, images: Tensor) -> None:
        """Choose between tensors image by image."""
        self.anchor_u = choose_images(images, self.u, self.anchor_u)
        self.anchor_v = choose_images(images, self.v, self.anchor_v)

    def store(self, state: RestartState) -> RestartState:
        """Share the tensors with the new state."""
        self.old_u = self.old_v = Blocks({})  # free them
        return replace(
            state, u=self.u, v=self.v, w_u=self.w_u, w_v=self.w_v,
            anchor_u=self.anchor_u, anchor_v=self.anchor_v,
        )  # fmt: skip


def total_length(du: Blocks, dv: Blocks) -> Tensor:
    """||(du, dv)|| from the blocks' ||du_j||^2 / tau_j and ||dv_i||^2 / sigma_i; (B,)."""
    return torch.stack([*du.values(), *dv.values()]).sum(0).sqrt()
