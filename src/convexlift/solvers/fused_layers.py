"""The layers after the first in fused iterations: plain tensor operations inside the same graph."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from convexlift.functionals.terms import DualTerm, EpigraphTerm, LastLayerTerm
from convexlift.problems.lifting import BlockOperator, SaddlePointProblem
from convexlift.solvers.fused_kernels import Buffers
from convexlift.tensors import Blocks, expand_per_image

A, B, E = 3, 4, 5
"""Table columns of the mix (a, b, e), followed by the step sizes of ``RestOfProblem.steps``."""


@dataclass(frozen=True, eq=False)
class RestOfProblem:
    """The problem without the image and the first layer's dual variable.

    Attributes:
        saddle: the whole problem.
        K: the rows except the first layer's.
        terms: their dual terms; the term of ``mean_name`` belongs to the first layer.
        mean_name: the dual variable of the first layer's block means.
        primal_names: all primal blocks except x.
    """

    saddle: SaddlePointProblem
    K: BlockOperator
    terms: tuple[tuple[tuple[str, ...], DualTerm], ...]
    mean_name: str | None
    primal_names: tuple[str, ...]

    @staticmethod
    def of(saddle: SaddlePointProblem, layer: str, mean_name: str | None) -> RestOfProblem | None:
        """The rest of a problem, or None if the first layer is all there is."""
        rows = {name: row for name, row in saddle.K.rows.items() if name != layer}
        if not rows:
            return None
        used = {name for row in rows.values() for name in row}
        shapes = {name: shape for name, shape in saddle.K.shapes.items() if name in used}
        terms = tuple((names, term) for names, term in saddle.f if layer not in names)
        others = tuple(name for name in saddle.K.shapes if name != "x")
        return RestOfProblem(saddle, BlockOperator(rows, shapes), terms, mean_name, others)

    @property
    def stays_on_the_device(self) -> bool:
        """Whether no step needs the host, as root finding by iteration would."""
        return all(
            isinstance(term, LastLayerTerm | EpigraphTerm)
            and (ramp := term.activation.ramp) is not None
            and (isinstance(term, LastLayerTerm) or ramp.width == 0)
            for _, term in self.terms
        )

    def steps(self, tau: Blocks, sigma: Blocks) -> list[Tensor]:
        """The step sizes in the table after the columns ``FIXED`` of the kernels."""
        return [*(tau[name] for name in self.primal_names), *(sigma[name] for name in self.K.rows)]

    def primal(self, buffers: Buffers, *, observed: bool) -> None:
        """z <- prox(w_z - tau K* w_v), z_bar, and the contribution of these rows to grad_x."""
        row = buffers.table.index_select(0, buffers.clock[:1])[0]
        adjoint = self.K.adjoint(Blocks({name: buffers.w_v[name] for name in self.K.rows}))
        if "x" in adjoint:
            buffers.more.copy_(adjoint["x"])
        for column, name in enumerate(self.primal_names, start=E + 1):
            w = buffers.w_u[name]
            tau = expand_per_image(row[:, column], w)
            new = w - tau * adjoint[name]
            if name in self.saddle.g:
                new = self.saddle.g[name].prox(new, tau)
            buffers.u_bar[name].copy_(2 * new - w)
            _put(buffers, row, name, new, observed, primal=True)

    def mean(self, buffers: Buffers) -> None:
        """The bounds of the first layer's means: v_2/sigma after its step without prox."""
        if self.mean_name is None:
            return
        row = buffers.table.index_select(0, buffers.clock[1:])[0]
        (name,) = self.K.rows[self.mean_name]  # the identity
        w = buffers.w_v[self.mean_name]
        sigma = expand_per_image(row[:, self._column(self.mean_name)], w)
        buffers.mean.copy_(w / sigma + buffers.u_bar[name])

    def dual(self, buffers: Buffers, *, observed: bool) -> None:
        """v <- prox_{sigma f*}(w_v + sigma K u_bar) in all rows except the first layer's."""
        row = buffers.table.index_select(0, buffers.clock[1:])[0]
        for names, term in self.terms:
            parts, steps = [], []
            for name in names:
                w = buffers.w_v[name]
                sigma = expand_per_image(row[:, self._column(name)], w)
                product = sum(K(buffers.u_bar[u]) for u, K in self.K.rows[name].items())
                parts.append(w + sigma * product)
                steps.append(sigma)
            for name, new in zip(
                names, term.conjugate_prox(tuple(parts), tuple(steps)), strict=True
            ):
                _put(buffers, row, name, new, observed, primal=False)
        if self.mean_name is not None:
            _put(buffers, row, self.mean_name, -buffers.multipliers, observed, primal=False)

    def _column(self, name: str) -> int:
        return E + 1 + len(self.primal_names) + list(self.K.rows).index(name)


def _put(
    buffers: Buffers, row: Tensor, name: str, new: Tensor, observed: bool, *, primal: bool
) -> None:
    """w <- a new + b w + e anchor; if observed, also store new and its distance from w."""
    if primal:
        w, anchor, reached = buffers.w_u[name], buffers.anchor_u[name], buffers.u[name]
    else:
        w, anchor, reached = buffers.w_v[name], buffers.anchor_v[name], buffers.v[name]
    if observed:
        reached.copy_(new)
        buffers.moved[name].copy_((new - w).square().flatten(1).sum(1, keepdim=True))
    a, b, e = (expand_per_image(row[:, column], w) for column in (A, B, E))
    w.copy_(a * new + b * w + e * anchor)
