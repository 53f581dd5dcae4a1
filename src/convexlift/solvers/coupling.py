"""Step sizes from the norms of the blocks of K.

PDHG converges if T and S satisfy ||S^(1/2) K T^(1/2)|| < 1. Row i of K acts on several primal
blocks j. With n_i blocks in a row,

    ||S^(1/2) K u||^2 = sum_i sigma_i ||sum_j K_ij u_j||^2
                     <= sum_j (sum_i sigma_i n_i ||K_ij||^2) ||u_j||^2,

so that tau_j = safety / sum_i sigma_i n_i ||K_ij||^2 satisfies the condition for any sigma. In
the paper's networks every row has one block, and this is its rule (step-size).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from convexlift.functionals.terms import DiagonalFidelityTerm, LastLayerTerm
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.method import Choice
from convexlift.tensors import Blocks

SAFETY = 0.999
"""Upper bound on ||S^(1/2) K T^(1/2)||^2."""
ALIKE = 0.999
"""Least ratio of curvatures of data that hold pixels alike."""


class Coupling:
    """n_i ||K_ij||^2 for every block of K, from which step sizes follow.

    Attributes:
        recent: whether steps are balanced for the recent displacement from the start, rather than
            for the total one at first (measured).
        scalar: whether a step is one number for each block and image.
        relaxed: whether relaxed iterations are the faster ones also in long runs, where R has kinks
            and the fidelity is smooth (measured).
        growth: of the times at which relaxed iterations are rebalanced, if not the usual one.
        wary: whether rounding errors are to be expected, as with weights of very precise data.
    """

    recent = relaxed = False
    scalar = True
    growth: float | None = None
    wary = False
    _saddle: SaddlePointProblem | None = None
    choice = Choice("steps", "one for each block and image", "rebalanced at every restart")

    def __init__(self, saddle: SaddlePointProblem) -> None:
        squared = saddle.K.squared_norms()
        self.weights: dict[str, dict[str, float | Tensor]] = {
            v: {name: len(row) * value for name, value in row.items()} for v, row in squared.items()
        }
        self._saddle = saddle

    def about(self, saddle: SaddlePointProblem | None) -> Self:
        """The same norms with other data, or without any: then it holds no tensors of a problem."""
        other = copy(self)
        other._saddle = saddle
        vars(other).pop("dual_weight", None)
        return other

    @cached_property
    def dual_weight(self) -> float | Tensor:
        """How much more distances of dual variables count than those of images, a number or (B,).

        Images converge by themselves where the data hold all pixels in place.
        """
        if self._saddle is None:
            return 1.0
        (_, term), *others = self._saddle.f
        alone = isinstance(term, LastLayerTerm) and not others and term.activation.smooth
        return 1.0 + _evenness(self._saddle.g.get("x"), unseen=alone)

    def in_double(self) -> Coupling:
        """The same, for the problem in double precision; norms are not computed again."""
        return self

    def tau(self, sigma: Blocks) -> Blocks:
        """tau_j = SAFETY / sum_i sigma_i n_i ||K_ij||^2."""
        totals: dict[str, Tensor] = {}
        for v, row in self.weights.items():
            for name, weight in row.items():
                totals[name] = totals.get(name, torch.zeros_like(sigma[v])) + weight * sigma[v]
        return Blocks({name: SAFETY / total for name, total in totals.items()})

    def reach(self, u_sizes: Blocks) -> Blocks:
        """sqrt(sum_j n_i ||K_ij||^2 ||du_j||^2) for every row i, a bound on its movement."""
        return Blocks(
            {
                v: torch.stack([w * u_sizes[name] ** 2 for name, w in row.items()]).sum(0).sqrt()
                for v, row in self.weights.items()
            }
        )

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """The reach of u - other."""
        return self.reach(u.distances(other))

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """||du_j||^2 / tau_j for every block j."""
        return du.squares() / tau

    def dual_steps(self, sigma: Blocks) -> Blocks:
        """S, from one number for each block and image."""
        return sigma

    def dual_squares(self, dv: Blocks) -> Blocks:
        """sigma_i <dv_i, S_i^-1 dv_i> for every row i."""
        return dv.squares()

    def dual_distances(self, v: Blocks, other: Blocks) -> Blocks:
        """The roots of ``dual_squares`` of v - other."""
        return v.distances(other)

    def length(self, du: Blocks, dv: Blocks, tau: Blocks, sigma: Blocks) -> Tensor:
        """||(du, dv)|| in the metric of the steps, (B,)."""
        squares = {**self.squared_lengths(du, tau), **self.dual_squares(dv) / sigma}
        return Blocks(squares).total().sqrt()

    def whitened(self, du: Blocks, dv: Blocks, tau: Blocks, sigma: Blocks) -> Tensor:
        """A vector (B, N), linear in (du, dv), whose Euclidean norm is the ``length``."""
        steps = self.dual_steps(sigma)
        dual = [part / steps.step(name, part).sqrt() for name, part in dv.items()]
        parts = (*self.whitened_moves(du, tau), *dual)
        return torch.cat([part.flatten(1) for part in parts], 1)

    def whitened_moves(self, du: Blocks, tau: Blocks) -> Iterator[Tensor]:
        """T^(-1/2) du, or other vectors of that length."""
        return (part / tau.step(name, part).sqrt() for name, part in du.items())

    def balanced_sigma(self, reach: Blocks, v_sizes: Blocks) -> Blocks:
        """sigma_i = dual_weight ||dv_i|| / reach_i.

        It minimises sum_j ||du_j||^2 / tau_j + dual_weight^2 sum_i ||dv_i||^2 / sigma_i, the bound
        on the distance that PDHG has to travel. Zero or not finite where a size is.
        """
        weight = self.dual_weight
        if isinstance(weight, Tensor):
            weight = weight.to(next(iter(reach.values())))
        return weight * v_sizes / reach


def _evenness(term: object, *, unseen: bool) -> Tensor | float:
    """The root of the least curvature of quadratic data over the greatest, (B,).

    0 for other data terms, and if a pixel is unseen. Or, if pixels may be ``unseen`` and the others
    are held alike, the square of the share of seen pixels. With 1 + evenness as the weight of dual
    distances, denoising takes six tenths of the iterations, and inpainting with a smooth layer nine
    tenths (measured; several layers, data behind operators and data with kinks would take more).
    """
    if not isinstance(term, DiagonalFidelityTerm) or term.fidelity.curvature is None:
        return 0.0
    y = term.fidelity.y
    curvature = (term.fidelity.curvature * term.diagonal.square()).to(y).expand_as(y).flatten(1)
    least, greatest = curvature.amin(1), curvature.amax(1)
    evenness = (least / torch.where(greatest > 0, greatest, 1.0)).sqrt()
    if not unseen:
        return evenness
    seen = curvature > 0
    alike = (~seen | (curvature >= ALIKE * greatest[:, None])).all(1)
    return torch.where(alike, seen.to(y.dtype).mean(1).square(), evenness)
