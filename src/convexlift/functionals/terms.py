"""The terms of the lifted problem: proximal maps in u, conjugate proximal maps in v.

    min_u  sum_i f_i(K_i u) + g(u),        u = (x, z_1, ..., z_{L-1})

Steps have the shape (B, 1, ..., 1): one number for each image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from convexlift.functionals.box import Box
from convexlift.functionals.fidelity import Fidelity
from convexlift.networks.activations import Activation
from convexlift.tensors import TensorRecord


class PrimalTerm(TensorRecord, ABC):
    """The part of g that belongs to one primal block."""

    @abstractmethod
    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """argmin_{u'} tau g(u') + ||u' - u||^2 / 2."""


class DualTerm(TensorRecord, ABC):
    """One f_i, acting on one dual block or on a pair (v_{i,1}, v_{i,2}).

    Attributes:
        pooled: whether means over blocks are bounded rather than each unit.
    """

    pooled: ClassVar[bool] = False

    @abstractmethod
    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """argmin_{v'} f_i*(v') + sum_k ||v'_k - v_k||^2 / (2 sigma_k)."""


@dataclass(frozen=True, eq=False)
class BoxTerm(PrimalTerm):
    """g(x) = 0 in the box, +inf outside."""

    box: Box

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """The projection."""
        return self.box.project(u)


@dataclass(frozen=True, eq=False)
class LinearTerm(PrimalTerm):
    """g(z) = <cost, z>: what a residual last layer leaves on z_{L-1}."""

    cost: Tensor

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """u - tau cost."""
        return u - tau * self.cost


@dataclass(frozen=True, eq=False)
class DiagonalFidelityTerm(PrimalTerm):
    """g(x) = D(d x, y) in the box: the fidelity behind a diagonal operator A = diag(d).

    With w = d x the problem stays one of each pixel alone: prox_{tau f}(d x) with the step
    tau d^2, divided by d; pixels with d = 0 are not seen. A convex function of one variable is
    minimised over an interval by moving its minimiser into it.
    """

    fidelity: Fidelity
    diagonal: Tensor
    box: Box

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """Pixel by pixel."""
        d = self.diagonal
        seen = d != 0
        safe = torch.where(seen, d, 1.0)
        w = self.fidelity.prox(safe * u, tau * safe**2)
        return self.box.project(torch.where(seen, w / safe, u))


@dataclass(frozen=True, eq=False)
class CircularFidelityTerm(PrimalTerm):
    """g(x) = 1/2 ||k * x - y||^2 on the torus, without a box.

    One pair of Fourier transforms of the image, next to nothing beside a layer of many channels.
    In double precision: the gradient k* (k x - y) is a small difference of large numbers, and
    what it lacks, the certificate finds.

    Args:
        transfer: the Fourier transform of the kernel.
        data: that of the data y.
    """

    transfer: Tensor
    data: Tensor

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """u + (|k|^2 + 1/tau)^-1 k* (y - k u), frequency by frequency."""
        k = self.transfer
        missing = self.data - k * torch.fft.rfft2(u.double())
        change = k.conj() * missing / (k.abs().square() + 1 / tau.double())
        moved: Tensor = u + torch.fft.irfft2(change, s=u.shape[-2:])
        return moved.to(u.dtype)


@dataclass(frozen=True, eq=False)
class DualFidelityTerm(DualTerm):
    """f_0(w) = D(w, y), dualised: for operators A whose composition with D has no prox."""

    fidelity: Fidelity

    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The fidelity's own."""
        return (self.fidelity.conjugate_prox(v[0], sigma[0]),)


@dataclass(frozen=True, eq=False)
class DualBoxTerm(DualTerm):
    """f(x) = 0 in the box, +inf outside, dualised: for metrics in which pixels hang together."""

    box: Box

    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """v - sigma P(v / sigma), by Moreau."""
        return (v[0] - sigma[0] * self.box.project(v[0] / sigma[0]),)


@dataclass(frozen=True, eq=False)
class EpigraphTerm(DualTerm):
    """f_i(a, z) = 0 if h(a + b) <= z, +inf otherwise; its dual pair is (v_{i,1}, v_{i,2}).

    In the multiplier form: with y = v_1/sigma_1 + b and z = v_2/sigma_2, the projection onto
    the epigraph has a multiplier t >= 0, and the dual step is (p, -t), p = t h'(projection).
    """

    activation: Activation
    bias: Tensor | None

    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """(p, -t)."""
        y = v[0] / sigma[0]
        y = y if self.bias is None else y + self.bias
        z = v[1] / sigma[1]
        t = self.activation.multiplier(y, z, sigma[0], sigma[1])
        return self.activation.scaled_slope(y, t, sigma[0]), -t


@dataclass(frozen=True, eq=False)
class LastLayerTerm(DualTerm):
    """f_L(a) = <t, h(a + b)> with t = gamma w >= 0: the last layer, which is not lifted."""

    activation: Activation
    bias: Tensor | None
    weights: Tensor

    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """t times a slope of h at its proximal point."""
        y = v[0] / sigma[0]
        y = y if self.bias is None else y + self.bias
        return (self.activation.scaled_slope(y, self.weights, sigma[0]),)
