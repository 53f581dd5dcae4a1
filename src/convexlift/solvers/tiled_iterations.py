"""PDHG iterations whose dual half is computed in strips of rows.

For problems with one layer and a convolution K, only v is large. One pass over it,

    v <- prox_{f*}(w + sigma K x_bar),    w <- a v + b w + e anchor,    c <- K* w,

on strips that stay in a processor's cache, reads and writes w once instead of a dozen times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import LastLayerTerm
from convexlift.problems.saddle import SaddlePointProblem
from convexlift.solvers.iterations import (
    Displacement,
    Iterations,
    RestartState,
    total_length,
)
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.restart_rules import Array
from convexlift.solvers.step_sizes import Coupling, quotients
from convexlift.tensors import Blocks, choose_images, expand_per_image

STRIP = 2**19
"""Numbers of v in a strip (2 MB)."""
WORTHWHILE = 2**17
"""Size of v below which strips are not worthwhile."""


class TiledIterations(Iterations):
    """Tiled iterations for one convolution of stride 1 on the CPU, image by image."""

    name = "tiled"
    advantage = "one large convolution on a CPU: strips of rows that fit its cache"
    block = 10

    def __init__(self, saddle: SaddlePointProblem, coupling: Coupling) -> None:
        if len(saddle.f) != 1 or len(saddle.K.shapes) != 1:
            raise DoesNotApply("more than one layer, or data behind an operator")
        if not coupling.scalar:
            raise DoesNotApply("steps by frequency")
        ((self.row,), term), *_ = saddle.f
        (only,) = saddle.K.rows[self.row].values()
        operator = only.convolution
        if operator is None or not isinstance(term, LastLayerTerm):
            raise DoesNotApply("the layer is not a convolution of stride 1")
        if operator.weight.device.type != "cpu":
            raise DoesNotApply("not on a CPU")
        size = torch.Size(operator.output_shape(saddle.K.shapes["x"])).numel()
        if size < WORTHWHILE:
            raise DoesNotApply(f"{size} dual variables are few enough for a cache")
        self.saddle, self.coupling, self.operator, self.term = saddle, coupling, operator, term

    def load(self, state: RestartState) -> None:
        """Copy w_v, which iterations overwrite, and compute c = K* w_v."""
        self.u, self.w_u, self.anchor_u = state.u, state.w_u, state.anchor_u
        self.anchor_v = state.anchor_v
        self.w = state.w_v[self.row].clone()
        self.c = self.operator.adjoint(self.w)

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """prox_g as in the plain step, then the pass over v; v is stored after the last one."""
        count = mix.shape[1]
        for k, (a, b, e) in enumerate(torch.from_numpy(mix).to(self.w).unbind(1), start=1):
            self.old_u = self.w_u
            self.u = self.saddle.prox_g(self.w_u - tau * Blocks({"x": self.c}), tau)
            self.v = torch.empty_like(self.w) if k == count else None
            x_bar = (2 * self.u - self.w_u)["x"]
            self._pass(x_bar, sigma[self.row], (a, b, e), measure and k == count)
            self.w_u = self.u * a + self.w_u * b + self.anchor_u * e

    def residual(self, tau: Blocks, sigma: Blocks) -> Tensor:
        """||P(w) - w||, with the dual part summed up during the last pass."""
        du = self.coupling.squared_lengths(self.u - self.old_u, tau)
        return total_length(du, quotients(Blocks({self.row: self.moved}), sigma))

    def displacements(self, state: RestartState) -> tuple[Displacement, Displacement]:
        """Norms on whole tensors, as in ``PlainIterations``."""
        way, u, v = self.coupling.way, self.u, self._v
        return (
            (way(u, state.origin_u), v.distances(state.origin_v)),
            (way(u, self.anchor_u), v.distances(self.anchor_v)),
        )

    def move_anchor(self, images: Tensor) -> None:
        """Choose between tensors image by image."""
        self.anchor_u = choose_images(images, self.u, self.anchor_u)
        self.anchor_v = choose_images(images, self._v, self.anchor_v)

    def store(self, state: RestartState) -> RestartState:
        """A state that takes over the copy of w_v."""
        return replace(
            state, u=self.u, v=self._v, w_u=self.w_u, w_v=Blocks({self.row: self.w}),
            anchor_u=self.anchor_u, anchor_v=self.anchor_v,
        )  # fmt: skip

    @property
    def _v(self) -> Blocks:
        assert self.v is not None, "iterate comes first"
        return Blocks({self.row: self.v})

    def _pass(
        self, x_bar: Tensor, sigma: Tensor, mix: tuple[Tensor, Tensor, Tensor], measure: bool
    ) -> None:
        """Update w and c, v if wanted, and with ``measure`` moved = ||v - w||^2 for the old w."""
        w, v, anchor = self.w, self.v, self.anchor_v[self.row]
        padded = self.operator.padded(x_bar)
        c = torch.zeros_like(padded)
        self.moved = w.new_zeros(w.shape[0], dtype=torch.float64)
        for i in range(w.shape[0]):
            one = slice(i, i + 1)
            a, b, e = (float(part[i]) for part in mix)
            for strip, halo in self._strips():
                here = w[one, :, strip]
                new = self._prox(padded[one, :, halo], here, sigma[one], strip)
                if v is not None:
                    v[one, :, strip] = new
                if measure:
                    self.moved[i] += (new - here).square().sum(dtype=torch.float64)
                # b == 0 occurs in restarts only, where a == 1.
                here.copy_(new) if b == 0 else here.mul_(b).add_(new, alpha=a)
                if e:
                    here.add_(anchor[one, :, strip], alpha=e)
                c[one, :, halo] += self.operator.adjoint_on_padded(here)
        self.c = self.operator.folded(c)

    def _strips(self) -> Iterator[tuple[slice, slice]]:
        """Rows of v, and the rows of the padded image they depend on."""
        _, channels, height, width = self.w.shape
        rows, margin = max(16, STRIP // (channels * width)), self.operator.margin[0]
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            yield slice(top, bottom), slice(top, bottom + 2 * margin)

    def _prox(self, x_bar: Tensor, w: Tensor, sigma: Tensor, strip: slice) -> Tensor:
        """prox_{f*}(w + sigma K x_bar) on one strip."""
        bias = None if self.term.bias is None else self.term.bias.flatten()
        y = F.conv2d(x_bar, self.operator.weight, bias).add_(w, alpha=1 / float(sigma))
        weights = self.term.weights
        if weights.shape[-2] != 1:
            weights = weights[..., strip, :]
        return self.term.activation.scaled_slope(y, weights, expand_per_image(sigma, y))
