"""The box, and the terms of the lifted problem with their proximal maps in u and v.

    min_u  sum_i f_i(K_i u) + g(u),        u = (x, z_1, ..., z_{L-1})

Steps have the shape (B, 1, ..., 1): one number for each image.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity, by_rows
from convexlift.networks.activations import Activation
from convexlift.tensors import TensorRecord, plain_number

Duals = tuple[Tensor, ...]
"""One dual block, or the pair (v_{i,1}, v_{i,2})."""
MAX_PASSES = 160
"""Enough for bisection alone over all magnitudes of a double; usually a few suffice."""
PLAIN_PASSES = 8
"""After so many Newton steps, every other one halves the bracket instead."""


@dataclass(frozen=True)
class Box:
    """{x: lower <= x <= upper}; either side may be infinite. ``Box(0)`` is x >= 0."""

    lower: float = -math.inf
    upper: float = math.inf

    def __post_init__(self) -> None:
        if not self.lower < self.upper or self.lower == math.inf or self.upper == -math.inf:
            raise ValueError(
                f"a box needs lower < upper, got lower={self.lower} and upper={self.upper}"
            )

    @classmethod
    def of(cls, bounds: Box | tuple[float | None, float | None] | None) -> Box:
        """A box from (lower, upper), None meaning no bound; None alone is no constraint."""
        if bounds is None:
            return cls()
        if isinstance(bounds, Box):
            return bounds
        try:
            lower, upper = bounds
        except (TypeError, ValueError):
            raise ValueError(
                f"box must be None or (lower, upper), for example (0, 1) or (0, None), got {bounds}"
            ) from None
        return cls(
            -math.inf if lower is None else plain_number(lower, "lower"),
            math.inf if upper is None else plain_number(upper, "upper"),
        )

    def rounded_inward(self, dtype: torch.dtype) -> tuple[float, float]:
        """The smallest and the largest number of this precision in the box.

        0.1 in single precision is larger than 0.1: an image clipped to it would leave the box.
        """
        return _rounded_inward(self.lower, self.upper, dtype)

    @property
    def is_everything(self) -> bool:
        """Whether there is no constraint at all."""
        return self.lower == -math.inf and self.upper == math.inf

    @property
    def is_bounded(self) -> bool:
        """Whether both sides are finite."""
        return math.isfinite(self.lower) and math.isfinite(self.upper)

    @property
    def is_one_sided(self) -> bool:
        """Whether one side is finite, and the other is not."""
        return math.isfinite(self.lower) != math.isfinite(self.upper)

    def contains(self, x: Tensor) -> Tensor:
        """Per image, whether every pixel lies in the box."""
        lower, upper = self.rounded_inward(x.dtype)
        return ((x >= lower) & (x <= upper)).flatten(1).all(1)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the box."""
        return x if self.is_everything else x.clamp(*self.rounded_inward(x.dtype))

    def pressure(self, x: Tensor, force: Tensor) -> Tensor:
        """The part of a force that pushes pixels of x against the bounds they are on."""
        lower, upper = self.rounded_inward(x.dtype)
        low, high = (x <= lower) & (force < 0), (x >= upper) & (force > 0)
        return torch.where(low | high, force, 0.0)


@functools.cache
def _rounded_inward(lower: float, upper: float, dtype: torch.dtype) -> tuple[float, float]:
    low, high = (torch.tensor(end, dtype=torch.float64).to(dtype) for end in (lower, upper))
    low = torch.nextafter(low, torch.full_like(low, math.inf)) if float(low) < lower else low
    high = torch.nextafter(high, torch.full_like(high, -math.inf)) if float(high) > upper else high
    if not low <= high or low == math.inf or high == -math.inf:
        raise ValueError(f"the box ({lower:g}, {upper:g}) holds no number of {dtype}")
    return float(low), float(high)


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
    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
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
    """g(z) = <cost, z>, of a residual last layer for z_{L-1}."""

    cost: Tensor

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """u - tau cost."""
        return u - tau * self.cost


@dataclass(frozen=True, eq=False)
class DiagonalFidelityTerm(PrimalTerm):
    """g(x) = D(d x, y) in the box: the fidelity behind a diagonal operator A = diag(d).

    With w = d x the problem still separates over pixels: the prox of f at d x with the step
    tau d^2, divided by d. D does not depend on pixels with d = 0. A convex function of one variable
    is minimised over an interval by moving its minimiser into the interval.
    """

    fidelity: Fidelity
    diagonal: Tensor
    box: Box

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """Pixel by pixel."""
        (x,) = by_rows(self._prox, self.fidelity, u, self.diagonal, tau)
        return x

    def _prox(self, fidelity: Fidelity, u: Tensor, d: Tensor, tau: Tensor) -> tuple[Tensor]:
        seen = (d != 0).to(u)
        safe = d + (1 - seen)
        w = fidelity.prox(safe * u, tau * safe**2)
        # lerp gives one of the two exactly, and is ten times as fast as where on a CPU.
        return (self.box.project(torch.lerp(u, (w / safe).to(u), seen)),)


@dataclass(frozen=True, eq=False)
class CircularFidelityTerm(PrimalTerm):
    """g(x) = 1/2 ||k * x - y||^2 on the torus, without a box.

    It takes one pair of Fourier transforms of the image, which cost little beside a layer of many
    channels. In double precision: the gradient k* (k x - y) is a small difference of large
    numbers, and its rounding errors would show in the certificate.

    Args:
        transfer: the Fourier transform of the kernel.
        data: the Fourier transform of the data y.
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

    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
        """The conjugate prox of the fidelity."""
        return (self.fidelity.conjugate_prox(v[0], sigma[0]),)


@dataclass(frozen=True, eq=False)
class DualBoxTerm(DualTerm):
    """f(x) = 0 in the box, +inf outside, dualised: for metrics that couple pixels."""

    box: Box

    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
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

    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
        """(p, -t)."""
        y = _preactivation(v[0] / sigma[0], self.bias)
        z = v[1] / sigma[1]
        t = self.activation.multiplier(y, z, sigma[0], sigma[1])
        return self.activation.scaled_slope(y, t, sigma[0]), -t


@dataclass(frozen=True, eq=False)
class LastLayerTerm(DualTerm):
    """f_L(a) = <t, h(a + b)> with t = gamma w >= 0: the last layer, which is not lifted.

    t is constant on each ``block`` of pixels with that side.
    """

    activation: Activation
    bias: Tensor | None
    weights: Tensor
    block: int = 1

    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
        """t times a slope of h at its proximal point."""
        y = _preactivation(v[0] / sigma[0], self.bias)
        return (self.activation.scaled_slope(y, self.weights, sigma[0]),)


@dataclass(frozen=True, eq=False)
class PooledEpigraphTerm(DualTerm):
    """f(a, p) = 0 if (1/N) sum_{k in block} h(a_k + b) <= p for every block, +inf otherwise.

    Of the dual pair (v_1, v_2), v_1 has the resolution of a and v_2 one entry for each
    block of N = ``size``^2 pixels. With y = v_1/sigma_1 + b and p_0 = v_2/sigma_2, the projection
    of a block has one multiplier mu >= 0. It is zero if mean h(y) <= p_0, and else the root of the
    decreasing function

        phi(mu) = mean_k h(prox_{eta h}(y_k)) - p_0 - mu/sigma_2,      eta = mu/(N sigma_1),
        -phi'(mu) = mean_k h'(a_k)^2 / (1 + eta h''(a_k)) / (N sigma_1) + 1/sigma_2,

    where a_k = prox_{eta h}(y_k). The dual step is v_2 = -mu and v_{1,k} = (mu/N) h'(a_k).
    """

    activation: Activation
    bias: Tensor | None
    size: int
    pooled = True

    def conjugate_prox(self, v: Duals, sigma: Duals) -> Duals:
        """((mu/N) h'(projection), -mu)."""
        y = _preactivation(v[0] / sigma[0], self.bias)
        blocks = split_blocks(y, self.size)
        sigma_a = sigma[0].unsqueeze(-1)
        mu = mean_multiplier(self.activation, blocks, v[1] / sigma[1], sigma[0], sigma[1])
        t = (mu / self.size**2).unsqueeze(-1)
        return join_blocks(self.activation.scaled_slope(blocks, t, sigma_a), self.size), -mu

    def block_means(self, z: Tensor) -> Tensor:
        """From the resolution of a to the resolution of p."""
        return F.avg_pool2d(z, self.size)


def _preactivation(a: Tensor, bias: Tensor | None) -> Tensor:
    return a if bias is None else a + bias


def split_blocks(y: Tensor, size: int) -> Tensor:
    """(B, C, H, W) -> (B, C, H/size, W/size, size^2), the pixels of a block side by side."""
    batch, channels, height, width = y.shape
    grid = y.reshape(batch, channels, height // size, size, width // size, size)
    return grid.transpose(3, 4).flatten(-2)


def join_blocks(blocks: Tensor, size: int) -> Tensor:
    """The inverse of ``split_blocks``."""
    batch, channels, rows, columns, _ = blocks.shape
    grid = blocks.reshape(batch, channels, rows, columns, size, size).transpose(3, 4)
    return grid.reshape(batch, channels, rows * size, columns * size)


def mean_multiplier(
    h: Activation, y: Tensor, p: Tensor, sigma_a: Tensor, sigma_p: Tensor
) -> Tensor:
    """The multipliers mu of the projections onto {(a, p): mean_k h(a_k) <= p}, one a block.

        min_{a, p'}  sigma_a/2 sum_k (a_k - y_k)^2 + sigma_p/2 (p' - p)^2   s. t.  mean h(a) <= p'

    Newton's method in a bracket. Since |h'(a_k)| <= |h'(y_k)|, its first step, without h'',
    does not go past the root, and is the start. Duals that have converged are left out.

    Args:
        h: the activation, of one variable.
        y: (..., N), a block in the last dimension.
        p: (...).
        sigma_a: the weight of a, broadcast to p.
        sigma_p: the weight of p, broadcast to p.
    """
    count, eps = y.shape[-1], torch.finfo(y.dtype).eps
    rows, target = y.reshape(-1, count), p.reshape(-1)
    per_a = (1 / (count * sigma_a)).expand_as(p).reshape(-1)  # eta = mu per_a
    per_p = (1 / sigma_p).expand_as(p).reshape(-1)

    top, steepness = h.mean_at_prox(rows, None)
    excess, steepest = top - target, per_p + per_a * steepness
    # Rounding errors of phi are eps times these: mean |h(a)| <= mean |h(y)| + eta mean h'(y)^2.
    sizes = torch.linalg.vector_norm(rows, dim=-1) * (steepness / count).sqrt()
    scale = top.abs() + target.abs() + sizes
    outside = excess > 0
    found = torch.where(outside, excess / steepest, 0.0)
    largest = (excess / per_p).clamp_max(torch.finfo(y.dtype).max / 4)
    numbers = (target, per_a, per_p, steepest, scale, found, torch.zeros_like(found), largest)
    state = torch.stack(numbers)

    index = torch.arange(len(found), device=found.device)
    kept = outside.nonzero().squeeze(1)
    for number in range(MAX_PASSES):
        if len(kept) < len(index):  # leave out the blocks that have converged
            index, rows, state = index[kept], rows[kept], state[:, kept]
        if not len(kept):
            break
        target, per_a, per_p, steepest, scale, mu, low, high = state
        value, rate = h.mean_at_prox(rows, (mu * per_a).unsqueeze(-1))
        phi = value - target - mu * per_p
        before = phi >= 0
        low, high = torch.where(before, mu, low), torch.where(before, high, mu)
        newton = mu + phi / (per_p + per_a * rate)
        done = (phi.abs() <= 8 * eps * (scale + mu * steepest)) | (high - low <= 2 * eps * high)
        usable = (newton >= low) & (newton <= high)
        if number >= PLAIN_PASSES and number % 2:
            usable = usable & done
        if not bool(usable.all()):
            newton = torch.where(usable, newton, _middle(low, high))
        found[index] = newton
        state[-3:] = torch.stack((newton, low, high))
        kept = (~done).nonzero().squeeze(1)
    return found.reshape(p.shape)


def _middle(low: Tensor, high: Tensor) -> Tensor:
    """The geometric mean, or the arithmetic one if low is 0."""
    middle = torch.where(low > 0, low.sqrt() * high.sqrt(), 0.5 * high)
    return torch.minimum(torch.maximum(middle, low), high)
