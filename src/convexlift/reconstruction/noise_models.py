"""Data of one kind, the problem they belong to, and how they are split to choose a weight.

A regularization weight is good if the image predicts data that it was not made from. Each kind of
noise lets one make such data out of those there are:

    Gaussian        y + sqrt(a) sigma n  and  y - sigma n / sqrt(a),  n standard normal, are
                    independent and have the mean of y (Oliveira, Lei and Tibshirani 2021,
                    "Unbiased risk estimation in the normal means problem via coupled bootstrap
                    techniques"); the squared distance to the second, less a constant, is
                    the error of the image of the first, on average.
    Poisson         a binomial part of each count and the rest are independent, and Poisson (Neufeld
                    et al. 2023, "Inference after latent variable estimation for single-cell RNA
                    sequencing data", Biostatistics).
    salt, pepper    pixels that are left out: whatever x is between 0 and 1, a pixel that is 0 or 1
                    with equal chances has the mean distance 1/2 from it, so the mean distance to
                    all of them is that to the clean pixels, times (1 - f), plus f / 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2, WeightedL2
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Mask
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.problems.variational import VariationalProblem
from convexlift.reconstruction.noise import unclipped
from convexlift.tasks import Bounds, Measurement

Score = Callable[[Tensor], float]
"""How badly images predict the data that were kept apart."""

EXTRA = 0.1
"""a: the noise of the first part is sqrt(1 + a) times that of the data."""

LEAST_COUNTED = 0.05
"""Of the pixels: with fewer unclipped ones, the clipped ones count as well."""

KEPT_APART = 0.1
"""Of the counts, or of the pixels."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Statement(ABC):
    """Data of several images, (B, ...), with the noise they have.

    Attributes:
        y: the data.
        box: bounds on the images.
    """

    y: Tensor
    box: Bounds | None = (0.0, 1.0)

    @abstractmethod
    def measurement(self) -> Measurement:
        """Data term, operator and box."""

    @abstractmethod
    def split(self, generator: torch.Generator) -> tuple[Statement, Score]:
        """Independent data to reconstruct from, and a score by the others."""

    @abstractmethod
    def discrepancy(self, x: Tensor) -> float:
        """The residual of x over what noise alone would leave: 1 says as large as the noise."""

    def problem(self, regularizer: InputConvexNetwork, weight: float) -> VariationalProblem:
        """min_x D(A x, y) + weight R(x) over the box."""
        return self.measurement().problem(regularizer, weight)

    def part(self, rows: slice) -> Self:
        """Some of the images."""
        size = len(self.y)
        chosen: dict[str, Any] = {
            each.name: value[rows]
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Tensor) and len(value) == size
        }
        return replace(self, **chosen)

    def to(self, device: torch.device) -> Self:
        """The same elsewhere; itself, with all that its operator has computed, if it is there."""
        if self.y.device == device:
            return self
        moved: dict[str, Any] = {
            each.name: value.to(device=device)
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Tensor | LinearOperator)
        }
        return replace(self, **moved)

    @staticmethod
    def joined(parts: Sequence[Statement]) -> Statement:
        """Several statements of one kind as one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        together: dict[str, Any] = {
            each.name: torch.cat([getattr(part, each.name) for part in parts])
            for each in fields(first)
            if isinstance(getattr(first, each.name), Tensor)
        }
        return replace(first, **together)


@dataclass(frozen=True, eq=False, kw_only=True)
class Gaussian(Statement):
    """y = m (x + sigma n): the data term is 1/2 ||m x - y||^2; ``mask`` is m, (B, 1, H, W)."""

    sigma: float
    mask: Tensor | None = None

    def measurement(self) -> Measurement:
        """See the class."""
        operator: LinearOperator = Identity() if self.mask is None else Mask(self.mask)
        return Measurement(SquaredL2(self.y), operator, self.box, self.y)

    def split(self, generator: torch.Generator) -> tuple[Statement, Score]:
        """See the module."""
        noise = _seen(self.sigma * _normal(self.y, generator), self.mask)
        other, counted = self.y - noise / math.sqrt(EXTRA), self._counted()

        def score(x: Tensor) -> float:
            return float((counted * (x - other)).double().square().sum())

        return replace(self, y=self.y + math.sqrt(EXTRA) * noise), score

    def discrepancy(self, x: Tensor) -> float:
        """||c (x - y)|| / (sigma sqrt(n)), where c picks n pixels, seen and not clipped."""
        counted = self._counted()
        residual = (counted * (x - self.y)).double()
        return float(residual.norm()) / (self.sigma * math.sqrt(max(1.0, float(counted.sum()))))

    def _counted(self) -> Tensor:
        """1 where noise is as the model says; if that is nearly nowhere, where a pixel was seen."""
        seen = torch.ones_like(self.y) if self.mask is None else self.mask
        whole = unclipped(self.y, seen, self.sigma)
        return whole if float(whole.sum()) > LEAST_COUNTED * float(seen.sum()) else seen


@dataclass(frozen=True, eq=False, kw_only=True)
class Impulses(Statement):
    """A fraction of the pixels is 0 or 1; the data term is ||m x - y||_1."""

    fraction: float
    mask: Tensor | None = None

    def measurement(self) -> Measurement:
        """See the class."""
        operator: LinearOperator = Identity() if self.mask is None else Mask(self.mask)
        return Measurement(L1(self.y), operator, self.box, self.y)

    def split(self, generator: torch.Generator) -> tuple[Statement, Score]:
        """See the module."""
        draw = torch.rand(self.y.shape, generator=generator, device=generator.device)
        apart = (draw < KEPT_APART).to(self.y)
        before = torch.ones_like(self.y) if self.mask is None else self.mask
        seen, held = before * (1 - apart), before * apart

        def score(x: Tensor) -> float:
            return float((held * (x.clamp(0, 1) - self.y)).abs().double().sum())

        return replace(self, y=self.y * seen, mask=seen), score

    def discrepancy(self, x: Tensor) -> float:
        """||m x - y||_1 / (f n / 2): a pixel that was hit is at the mean distance 1/2."""
        count = self.y.numel() if self.mask is None else float(self.mask.sum())
        residual = (_seen(x, self.mask) - self.y).abs().double().sum()
        return float(residual) / max(1e-12, self.fraction * count / 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Integrals(Statement):
    """y = A x + noise of variances 1/omega: 1/2 sum omega (A x - y)^2; ``omega`` as y."""

    operator: LinearOperator
    omega: Tensor
    box: Bounds | None = (0.0, None)

    def measurement(self) -> Measurement:
        """See the class."""
        return Measurement(WeightedL2(self.y, self.omega), self.operator, self.box, self.y)

    def split(self, generator: torch.Generator) -> tuple[Statement, Score]:
        """See the module."""
        deviation = torch.where(self.omega > 0, self.omega.clamp_min(1e-30).rsqrt(), 0.0)
        noise = deviation * _normal(self.y, generator)
        other = self.y - noise / math.sqrt(EXTRA)

        def score(x: Tensor) -> float:
            return float((self.omega * (self.operator(x) - other) ** 2).double().sum())

        return replace(self, y=self.y + math.sqrt(EXTRA) * noise), score

    def discrepancy(self, x: Tensor) -> float:
        """sqrt(mean of omega (A x - y)^2), over the rays that were measured."""
        terms = (self.omega * (self.operator(x) - self.y) ** 2).double().sum()
        return math.sqrt(float(terms) / max(1, int((self.omega > 0).sum())))


@dataclass(frozen=True, eq=False, kw_only=True)
class Photons(Statement):
    """y ~ Poisson(A x + r): the data term of Kullback and Leibler; ``background`` is r."""

    operator: LinearOperator
    background: float
    box: Bounds | None = (0.0, None)

    def measurement(self) -> Measurement:
        """See the class."""
        return Measurement(
            KullbackLeibler(self.y, self.background), self.operator, self.box, self.y
        )

    def split(self, generator: torch.Generator) -> tuple[Statement, Score]:
        """See the module."""
        chance = torch.full_like(self.y, KEPT_APART, device=generator.device)
        apart = torch.binomial(self.y.to(generator.device), chance, generator=generator).to(self.y)
        rest = 1 - KEPT_APART
        kept = replace(
            self,
            y=self.y - apart,
            operator=rest * self.operator,
            background=rest * self.background,
        )
        judge = KullbackLeibler(apart, KEPT_APART * self.background)

        def score(x: Tensor) -> float:
            return float(judge.value(KEPT_APART * self.operator(x)).sum())

        return kept, score

    def discrepancy(self, x: Tensor) -> float:
        """sqrt(2 D(A x, y) / n): twice the data term is about chi^2 with n degrees of freedom."""
        deviance = 2 * self.measurement().fidelity.value(self.operator(x)).sum()
        return math.sqrt(float(deviance) / self.y.numel())


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)


def _seen(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else mask * x
