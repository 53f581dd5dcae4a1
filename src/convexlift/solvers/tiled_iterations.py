"""PDHG iterations with one large convolution, in strips of rows that fit a processor's cache."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from convexlift.functionals.terms import DiagonalFidelityTerm, LastLayerTerm
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.packed_slopes import (
    CODES,
    all_packed,
    can_be_packed,
    distance,
    feasible,
    pack,
    rounding_squares,
)
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.iterations import Displacement, Iterations, RestartState
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.packed_pass import PackedPass
from convexlift.solvers.restart_rules import Array
from convexlift.strips import at_once, give_back, local
from convexlift.tensors import Blocks, choose_images, expand_per_image

STRIP = 2**19
"""Numbers of v in a strip on a CPU (2 MB)."""
WORTHWHILE = 2**17
"""Size of v below which strips are not worthwhile."""
LARGE = 2**24
"""Size of v from which v and the anchor of a single image are packed in 16 bits on a CPU."""
LARGE_ON_A_GPU = 2**28
"""And on a GPU, where smaller ones are left to ``FusedIterations``, which are faster."""
SAMPLED = 8
"""Displacements of a packed v, and its rounding errors, are measured on rows this far apart."""
ROUNDING = 0.1
"""Part of a step from which rounding to 16 bits is too much (measured)."""


def least_packed(device: torch.device) -> int:
    """The least size of v from which v and the anchor of a single image are packed."""
    return LARGE if device.type == "cpu" else LARGE_ON_A_GPU


class TiledIterations(Iterations):
    """Iterations whose dual half is computed in strips of rows, image by image.

    For problems with one layer and a convolution K of stride 1, only v is large. One pass over it,

        v <- prox_{f*}(w + sigma K x_bar),    w <- a v + b w + e anchor,    c <- K* w,

    on strips that stay in a processor's cache, reads and writes w once instead of a dozen times.
    Large strips on a GPU need less memory than all of v at once.

    It works in place on the w of the last state, of which earlier states of the same solver have
    no copy. A large v is packed (``packed_slopes``), and so is the anchor, which moves in place as
    well. So w suffices, and in 16 bits each v, the v of the best bound, and the anchor; of an
    anchor that only measures displacements, a few rows. Only attempts at a proof read a packed v;
    for gaps that 16 bits are too few for, v is unpacked. On a GPU, the pass over a packed v is a
    kernel where there is one (``PackedPass``), also once v is unpacked.
    """

    name = "tiled"
    advantage = "one large convolution: strips of rows that fit the cache, or save memory"
    block = 10
    skips = True

    def __init__(self, saddle: SaddlePointProblem, coupling: Coupling) -> None:
        super().__init__(saddle, coupling)
        if len(saddle.f) != 1 or len(saddle.K.shapes) != 1:
            raise DoesNotApply("more than one layer, or data behind an operator")
        if not coupling.scalar:
            raise DoesNotApply("steps by frequency or channel")
        ((self.row,), term), *_ = saddle.f
        (only,) = saddle.K.rows[self.row].values()
        operator = only.convolution
        if operator is None or not isinstance(term, LastLayerTerm):
            raise DoesNotApply("the layer is not a convolution of stride 1")
        size = torch.Size(operator.output_shape(saddle.K.shapes["x"])).numel()
        self.operator, self.term, self.size = operator, term, size
        device = operator.weight.device
        self._large = least_packed(device)
        if device.type != "cpu":
            data = saddle.g.get("x")
            single = isinstance(data, DiagonalFidelityTerm) and self.packs(data.fidelity.y)
            if device.type != "cuda" or not single:
                raise DoesNotApply("not on a CPU, nor a single image that is very large")
        if size < WORTHWHILE:
            raise DoesNotApply(f"{size} dual variables are few enough for a cache")
        self._stored: RestartState | None = None
        self.has_codes = False  # packed anchors, and v unless it has been unpacked

    @cached_property
    def _kernels(self) -> PackedPass | None:
        """The pass over a packed v; None on a CPU."""
        return PackedPass.of(self.saddle)

    def packs(self, x: Tensor) -> bool:
        """Whether v is large, of a single image, and can be packed."""
        large = self.size >= self._large and len(x) == 1 and x.dtype is torch.float32
        return large and can_be_packed(self.term.activation)

    def packed(self, v: Blocks) -> Blocks:
        """The codes of v, unless it is packed already."""
        if v[self.row].dtype is CODES:
            return v
        codes = all_packed(self.term.activation, v[self.row], self.term.weights)
        return Blocks({self.row: codes})

    def continues(self, state: RestartState) -> bool:
        """Not if iterations continued from another state with the same w."""
        return state is self._stored or state.w_v[self.row] is not vars(self).get("w")

    def load(self, state: RestartState, active: Tensor) -> None:
        """Take w over from the last state; copy it from other states, and compute c = K* w_v."""
        super().load(state, active)
        self.origin_v = state.origin_v
        self._own_v: Tensor | None = None  # v, if no state has it
        if state is self._stored:
            return
        self._stored, self._owns_anchor = None, False
        if not self.has_codes:
            self.has_codes = self.packs_v = state.anchor_v[self.row].dtype is CODES
        w, own = state.w_v[self.row], vars(self).get("w") if self.has_codes else None
        if w.dtype is CODES:  # of a start, or after an attempt, which takes the place of the last w
            self.w = feasible(self.term.activation, w, self.term.weights, own)
        else:
            self.w = w.clone() if own is None else own.copy_(w)
        if self.has_codes:
            self.origin_v = self._few_rows(state.origin_v)
            self.anchor_v = self.packed(state.anchor_v)
        self.w_v = Blocks({self.row: self.w})
        self.c = self._pulled()

    def store(self, state: RestartState, tau: Blocks, sigma: Blocks) -> RestartState:
        """The state with the current w, which the next call continues in place."""
        self._stored = replace(super().store(state, tau, sigma), origin_v=self.origin_v)
        return self._stored

    def displacement(self, state: RestartState, *, whole: bool) -> Displacement:
        """As in ``Iterations``; on a sample of rows if v is packed."""
        if not self.has_codes:
            return super().displacement(state, whole=whole)
        other_u = state.origin_u if whole else self.anchor_u
        other_v = self.origin_v if whole else self.anchor_v
        v, other = (self._few_rows(each)[self.row] for each in (self.v, other_v))
        t = self._weights_of_few_rows()
        scale = (self.w.shape[-2] / v.shape[-2]) ** 0.5
        far = scale * distance(self.term.activation, v, other, t)
        return self.coupling.way(self.u, other_u), Blocks({self.row: far})

    def move_anchor(self, images: Tensor) -> None:
        """As in ``Iterations``; a packed anchor moves in place once it is not another's tensor."""
        if not self.has_codes:
            super().move_anchor(images)
        elif not self.anchored:
            self.anchor_u, self.anchor_v = self.u, self._few_rows(self.v)
        else:  # of the single image, which moves
            codes, own = self.packed(self.v)[self.row], self.anchor_v[self.row]
            if self.packs_v:  # states have the codes of v
                codes = own.copy_(codes) if self._owns_anchor else codes.clone()
            self.anchor_u, self.anchor_v = self.u, Blocks({self.row: codes})
            self._owns_anchor = True

    def _few_rows(self, v: Blocks) -> Blocks:
        """A copy of some rows, without the others; or v itself, if it has no others."""
        if v[self.row].shape[-2] < self.w.shape[-2]:
            return v
        return Blocks({self.row: v[self.row][:, :, ::SAMPLED].clone()})

    def _pulled(self) -> Tensor:
        """K* w, strip by strip."""
        if self.has_codes and self._kernels is not None:
            return self._kernels.pulled(self.w)
        padded = self.operator.padding(torch.zeros_like(self.w_u["x"]))
        for strip, halo in self.operator.strips(self._rows):
            padded[:, :, halo] += self.operator.adjoint_on_padded(self.w[:, :, strip])
        return self.operator.padding.adjoint(padded)

    @property
    def _rows(self) -> int:
        """Rows of a strip: whole blocks of weights."""
        rows = max(16, at_once(STRIP, self.w.device) // (self.w.shape[1] * self.w.shape[3]))
        return max(rows - rows % self.term.block, self.term.block)

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """prox_g as in the plain step, then the pass over v; v is stored after the last one."""
        # Images are large as well: as few intermediate ones as possible.
        count, active = mix.shape[1], self.active
        kept = self.v[self.row][ended := (~active).nonzero().flatten().tolist()]
        spare = None if self._own_v is self.anchor_v[self.row] else self._own_v
        self.v, self._own_v = Blocks({}), None  # free the old v, or write to it
        for k, (a, b, e) in enumerate(torch.from_numpy(mix).to(self.w).unbind(1), start=1):
            self.old_u, w = self.w_u, self.w_u["x"]
            # prox_g(w - tau c)
            u = self.saddle.prox_g(Blocks({"x": self.c.mul_(-tau.step("x", w)).add_(w)}), tau)
            self.u = choose_images(active, u, self.u)
            x = self.u["x"]
            if self.has_codes and k in (1, count):
                give_back()  # holes among large images, before v is made
            v = spare if k == count else None
            if k == count and v is None:
                v = torch.empty_like(self.w, dtype=CODES if self.packs_v else None)
            self._pass((2 * x).sub_(w), sigma[self.row], (a, b, e), v, measure and k == count)
            if v is not None:
                if ended:  # of a batch, which is not packed
                    v[ended] = kept
                self.v, self._own_v = Blocks({self.row: v}), v
            a, b, e = (expand_per_image(part, w) for part in (a, b, e))
            new = (x * a).add_(w * b).add_(self.anchor_u["x"] * e)
            self.w_u = Blocks({"x": choose_images(active, new, w)})
        if self.has_codes:
            give_back()

    def unpack(self) -> bool:
        """Store v itself from now on; anchors remain packed."""
        if self.packs_v and not self._rounding() <= ROUNDING**2 * self._step:
            self.packs_v = False
            return True
        return False

    def _rounding(self) -> Tensor:
        """Squares of the rounding errors of v on a sample of rows, if they are uniform."""
        codes = self._few_rows(self.v)[self.row]
        return rounding_squares(self.term.activation, codes, self._weights_of_few_rows())

    def _weights_of_few_rows(self) -> Tensor:
        return local(self.term.weights, slice(None), slice(None), slice(None, None, SAMPLED))

    def _dual_squares(self) -> Blocks:
        return Blocks({self.row: self.moved})

    def _pass(
        self,
        x_bar: Tensor,
        sigma: Tensor,
        mix: tuple[Tensor, Tensor, Tensor],
        v: Tensor | None,
        measure: bool,
    ) -> None:
        """Update w and c, v if given, and with ``measure`` moved = ||v - w||^2 for the old w."""
        w, h, padded = self.w, self.term.activation, self.operator.padding(x_bar)
        del x_bar
        if self.has_codes and self._kernels is not None:
            past = self.anchor_v[self.row]
            self.c, self.moved = self._kernels(padded, w, past, v, sigma, mix)
            self._step = self.moved.sum() / SAMPLED
            return
        c = self.c = torch.zeros_like(padded)
        self.moved = w.new_zeros(w.shape[0], dtype=torch.float64)
        self._step = self.moved.new_zeros(())  # on a sample of rows
        for i in self.active.nonzero().flatten().tolist():
            one = slice(i, i + 1)
            a, e = float(mix[0][i]), float(mix[2][i])
            for strip, halo in self.operator.strips(self._rows):
                here = w[one, :, strip]
                new = self._prox(padded[one, :, halo], here, sigma[one], one, strip)
                t = local(self.term.weights, one, slice(None), strip)
                if v is not None:
                    v[one, :, strip] = pack(h, new, t) if self.packs_v else new
                    if self.packs_v:
                        few = slice(-strip.start % SAMPLED, None, SAMPLED)
                        step = new[:, :, few] - here[:, :, few]
                        self._step += step.square_().sum(dtype=torch.float64)
                if measure:
                    self.moved[i] += (new - here).square().sum(dtype=torch.float64)
                # a new + b here + e past, since a + b + e = 1; b = 0 in restarts only
                here.copy_(new) if a + e == 1 else here.lerp_(new, a / (1 - e))
                if e:
                    past = self.anchor_v[self.row][one, :, strip]
                    here.lerp_(feasible(h, past, t) if self.has_codes else past, e)
                c[one, :, halo] += self.operator.adjoint_on_padded(here)
        del padded
        self.c = self.operator.padding.adjoint(c)

    def _prox(self, x_bar: Tensor, w: Tensor, sigma: Tensor, image: slice, strip: slice) -> Tensor:
        """prox_{f*}(w + sigma K x_bar) on one strip."""
        place, b = (image, slice(None), strip), self.term.bias
        a = self.operator.on_padded(x_bar, None if b is None else local(b, *place))
        y, weights = a.add_(w, alpha=1 / float(sigma)), local(self.term.weights, *place)
        block, h = self.term.block, self.term.activation
        if block > 1 and y.shape[-2] % block == 0:  # a row of weights serves all rows of its block
            rows = y.reshape(*y.shape[:2], -1, block, y.shape[-1])
            weights = weights[..., ::block, None, :]
            return h.scaled_slope(rows, weights, expand_per_image(sigma, rows)).flatten(-3, -2)
        return h.scaled_slope(y, weights, expand_per_image(sigma, y))
