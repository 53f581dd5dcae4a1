"""Dual step sizes that differ inside a row of K by given factors,  S_i = sigma_i D_i.

They choose the units of dual variables: PDHG with S_i for v_i and K_i is PDHG with the single step
sigma_i for D_i^(-1/2) v_i and D_i^(1/2) K_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from torch import Tensor

from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.coupling import Coupling
from convexlift.tensors import Blocks


class ScaledSteps(Blocks):
    """S: one number for each image (B,), times the factors of rows that have some."""

    __slots__ = ("factors",)

    def __init__(self, parts: Blocks, factors: Mapping[str, Tensor]) -> None:
        super().__init__(parts)
        self.factors = factors

    def step(self, name: str, like: Tensor) -> Tensor:
        """sigma_i D_i, of a shape that fits the dual block."""
        step = super().step(name, like)
        return step * self.factors[name] if name in self.factors else step

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """S v."""
        assert isinstance(other, Blocks)
        return Blocks({name: self.step(name, part) * part for name, part in other.items()})


class ScaledCoupling(Coupling):
    """Sizes of dual variables in these units; subclasses know the norms of D_i^(1/2) K_i.

    Args:
        saddle: the lifted problem.
        factors: the diagonals of D_i > 0 for some rows i, of shapes that fit their dual blocks.
    """

    scalar = False

    def __init__(self, saddle: SaddlePointProblem, factors: Mapping[str, Tensor]) -> None:
        super().__init__(saddle)
        self.factors = factors

    def in_double(self) -> ScaledCoupling:
        """With factors in double precision."""
        made = copy(self)
        made.factors = {name: factor.double() for name, factor in self.factors.items()}
        return made

    def dual_steps(self, sigma: Blocks) -> Blocks:
        """sigma with the factors."""
        return ScaledSteps(sigma, self.factors)

    def dual_squares(self, dv: Blocks) -> Blocks:
        """<dv_i, D_i^-1 dv_i> for every row i."""
        scaled = {n: p / self.factors[n].sqrt() if n in self.factors else p for n, p in dv.items()}
        return Blocks(scaled).squares()

    def dual_distances(self, v: Blocks, other: Blocks) -> Blocks:
        """The root of ``dual_squares`` of v - other."""
        squares = self.dual_squares(v - other)
        return Blocks({name: part.sqrt().to(v[name].dtype) for name, part in squares.items()})
