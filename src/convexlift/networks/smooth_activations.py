"""Smooth convex activations: the paper's smoothed ReLUs, half square, Huber.

Where prox and epigraph projection have no closed form they are roots of increasing functions of
one variable, found by Newton's method in a bracket: ``SmoothActivation`` has both.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convexlift.networks.activations import Activation, Ramp, require_slope
from convexlift.parts import require_positive

MAX_STEPS = 200
"""Of Newton's method and bisection together; usually a few suffice."""


class SmoothActivation(Activation):
    """A differentiable h, whose prox and projection are found with ``second_derivative``.

    Subclasses are nondecreasing, or even (``h(-a) = h(a)``).
    """

    smooth = True

    @abstractmethod
    def second_derivative(self, a: Tensor) -> Tensor:
        """h''(a) >= 0; at a jump, any value in between."""

    @property
    def curvature_at_zero(self) -> float:  # type: ignore[override]
        """h''(0)."""
        return float(self.second_derivative(torch.zeros((), dtype=torch.float64, device="cpu")))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """The root of a - y + eta h'(a), which lies between y and y - eta h'(y)."""
        eta = eta.expand_as(y)
        other = y - eta * self.derivative(y)

        def equation(a: Tensor) -> tuple[Tensor, Tensor]:
            return a - y + eta * self.derivative(a), 1 + eta * self.second_derivative(a)

        return increasing_root(equation, torch.minimum(y, other), torch.maximum(y, other))

    def descent(self, a: Tensor, eta: Tensor) -> Tensor:
        """h'(a)^2 / (1 + eta h''(a))."""
        return self.derivative(a).square() / (1 + eta * self.second_derivative(a))

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """From the root of a - y + r (h(a) - z) h'(a), r = sigma_z/sigma_a.

        The equation is increasing where h(a) >= z, and negative to the left of that; the root
        is at most y, and no further away than the pull at y.
        """
        if not self.nondecreasing:
            y = y.abs()
        ratio = sigma_z / sigma_a
        top = self.value(y)
        target = torch.minimum(z.expand_as(top), top)  # inside points project onto themselves

        def equation(a: Tensor) -> tuple[Tensor, Tensor]:
            height, slope = ratio * (self.value(a) - target), self.derivative(a)
            derivative = 1 + ratio * slope**2 + height * self.second_derivative(a)
            return a - y + height * slope, derivative

        low = y - ratio * (top - target) * self.derivative(y)
        a = increasing_root(equation, low if self.nondecreasing else low.clamp_min(0), y)
        return torch.where(top <= z, 0.0, sigma_z * (self.value(a) - target)).clamp_min(0)


@dataclass(frozen=True)
class SmoothedLeakyReLU(SmoothActivation, name="SmoothedLeakyReLU"):
    """h(a) = kappa a + (1 - kappa) psi_nu(a), the paper's smoothed leaky ReLU (section 5.3).

    psi_nu(a) = 0 for a <= 0,  a^2 / (2 nu) for 0 < a < nu,  a - nu/2 for a >= nu.

    Args:
        slope: kappa, in [0, 1).
        smoothing: nu > 0.
    """

    slope: float = 0.2
    smoothing: float = 0.01

    def __post_init__(self) -> None:
        require_slope(self, self.slope)
        require_positive(self, smoothing=self.smoothing)

    @property
    def slopes(self) -> tuple[float, float]:
        """[kappa, 1]."""
        return (self.slope, 1.0)

    @property
    def ramp(self) -> Ramp:  # type: ignore[override]
        """From kappa at 0 to 1 at nu."""
        return Ramp(self.slope, 1.0, 0.0, self.smoothing)

    def scaled(self, c: float) -> Activation:
        """With c nu in place of nu."""
        return replace(self, smoothing=c * self.smoothing)

    def value(self, a: Tensor) -> Tensor:
        """kappa a + (1 - kappa) psi_nu(a)."""
        nu = self.smoothing
        psi = a.clamp(0, nu) ** 2 / (2 * nu) + (a - nu).clamp_min(0)
        return self.slope * a + (1 - self.slope) * psi

    def derivative(self, a: Tensor) -> Tensor:
        """kappa + (1 - kappa) clip(a / nu, 0, 1)."""
        return self.slope + (1 - self.slope) * (a / self.smoothing).clamp(0, 1)

    def second_derivative(self, a: Tensor) -> Tensor:
        """(1 - kappa) / nu between the two rays."""
        curved = (a > 0) & (a < self.smoothing)
        return torch.where(curved, a.new_full((), (1 - self.slope) / self.smoothing), 0.0)

    def conjugate(self, s: Tensor) -> Tensor:
        """nu (s - kappa)^2 / (2 (1 - kappa)) on [kappa, 1]."""
        return self._outside(s, self.smoothing * (s - self.slope) ** 2 / (2 * (1 - self.slope)))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """Linear on each of three pieces."""
        kappa, nu = self.slope, self.smoothing
        curved = (y - kappa * eta) / (1 + eta * (1 - kappa) / nu)
        return torch.where(
            y <= kappa * eta, y - kappa * eta, torch.where(y >= nu + eta, y - eta, curved)
        )

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """t clip((y + kappa r) / (r + eta), kappa, 1), eta = t/sigma and r = nu / (1 - kappa)."""
        kappa, r = self.slope, self.smoothing / (1 - self.slope)
        return (y + kappa * r).div_((t / sigma).add_(r)).clamp_(kappa, 1).mul_(t)

    def mean_at_prox(self, y: Tensor, eta: Tensor | None) -> tuple[Tensor, Tensor]:
        """With q = y - kappa eta, c = 1 + (1 - kappa) eta/nu and m = clip(q/c, 0, nu), the mean of

        h(a) = kappa (q - (c - 1) m) + (1 - kappa) (m^2/(2 nu) + (q - nu c)_+).
        """
        kappa, nu = self.slope, self.smoothing
        eta = y.new_zeros((*y.shape[:-1], 1)) if eta is None else eta
        c = 1 + (1 - kappa) / nu * eta
        beyond = (y - (kappa * eta + nu * c)).clamp_min_(0)
        m = ((y - kappa * eta) / c).clamp_(0, nu)
        eta, c = eta.squeeze(-1), c.squeeze(-1)
        m1, m2 = m.mean(-1), torch.linalg.vector_norm(m, dim=-1) ** 2 / m.shape[-1]
        psi = m2 / (2 * nu) + beyond.mean(-1)
        value = kappa * (y.mean(-1) - kappa * eta - (c - 1) * m1) + (1 - kappa) * psi
        # s^2 on the rays, s^2/c between them; ``sign_`` overwrites, as both are no longer needed
        right, left = beyond.sign_().mean(-1), 1 - m.sign_().mean(-1)
        rays = kappa**2 * left + right
        steepness = kappa**2 + (1 - kappa) / nu * (2 * kappa * m1 + (1 - kappa) / nu * m2)
        return value, rays + (steepness - rays).clamp_min(0) / c

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """On the rays in closed form; between them u^3 + p u = q for the slope u = h'(a), with

        r = sigma_z/sigma_a, b = (1 - kappa)/nu, p = 2/r - kappa^2 - 2 b z, q = 2 (b y + kappa)/r.
        """
        kappa, nu = self.slope, self.smoothing
        left = (kappa * y - z) / (kappa**2 / sigma_a + 1 / sigma_z)
        right = (y - (1 - kappa) * nu / 2 - z) / (1 / sigma_a + 1 / sigma_z)
        on_left = sigma_a * y <= kappa * left
        on_right = sigma_a * (y - nu) >= right
        bend, twice = (1 - kappa) / nu, 2 * sigma_a / sigma_z
        u = cubic_root(twice - kappa**2 - 2 * bend * z, (twice * (bend * y + kappa)).clamp_min(0))
        between = sigma_z * ((u * u - kappa**2) / (2 * bend) - z)
        t = torch.where(on_right, right, torch.where(on_left, left, between))
        return torch.where(self.value(y) <= z, 0.0, t).clamp_min(0)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(1 - kappa) ((m - nu u)^2 / (2 nu) + (1 - u) (a - nu)_+ + u a_-), all nonnegative.

        u is s mapped onto [0, 1], and m = clip(a, 0, nu).
        """
        kappa, nu = self.slope, self.smoothing
        u = (s - kappa) / (1 - kappa)
        curved = (a.clamp(0, nu) - nu * u).square() / (2 * nu)
        beyond = (1 - u) * (a - nu).clamp_min(0) - u * a.clamp_max(0)
        return (1 - kappa) * (curved + beyond)

    def value_and_loss(self, a: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Loss: t (1 - kappa) (m - nu u)^2/(2 nu) + (t - p) (a - nu)_+ + (p - kappa t) a_-."""
        kappa, nu = self.slope, self.smoothing
        m, left = a.clamp(0, nu), a.clamp_max(0)
        right, above = (a - nu).clamp_min_(0), p - kappa * t
        value = torch.addcmul(right, m, m, value=0.5 / nu).mul_(1 - kappa).add_(a, alpha=kappa)
        loss = (t - p).mul_(right).addcmul_(above, left, value=-1)
        m.sub_(above / t.clamp_min(_tiny(t)), alpha=nu / (1 - kappa))
        return value, loss.addcmul_(m.square_(), t, value=(1 - kappa) / (2 * nu))


@dataclass(frozen=True)
class SmoothedReLU(SmoothedLeakyReLU, name="SmoothedReLU"):
    """h = psi_nu, the paper's smoothed ReLU: the smoothed leaky ReLU with kappa = 0."""

    slope: float = 0.0
    smoothing: float = 0.01


@dataclass(frozen=True)
class HalfSquare(SmoothActivation, name="HalfSquare"):
    """h(a) = a^2 / 2; not monotone, for first layers."""

    slopes = (-math.inf, math.inf)

    def value(self, a: Tensor) -> Tensor:
        """a^2 / 2."""
        return a**2 / 2

    def derivative(self, a: Tensor) -> Tensor:
        """a."""
        return a

    def second_derivative(self, a: Tensor) -> Tensor:
        """One."""
        return torch.ones_like(a)

    def conjugate(self, s: Tensor) -> Tensor:
        """s^2 / 2."""
        return s**2 / 2

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y / (1 + eta)."""
        return y / (1 + eta)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(a - s)^2 / 2."""
        return (a - s) ** 2 / 2


@dataclass(frozen=True)
class Huber(SmoothActivation, name="Huber"):
    """h(a) = a^2 / (2 delta) for |a| <= delta,  |a| - delta/2 beyond; for first layers."""

    delta: float = 0.01
    slopes = (-1.0, 1.0)

    def __post_init__(self) -> None:
        require_positive(self, delta=self.delta)

    @property
    def ramp(self) -> Ramp:  # type: ignore[override]
        """From -1 at -delta to 1 at delta."""
        return Ramp(-1.0, 1.0, -self.delta, 2 * self.delta, -self.delta / 2)

    def scaled(self, c: float) -> Activation:
        """With c delta in place of delta."""
        return replace(self, delta=c * self.delta)

    def value(self, a: Tensor) -> Tensor:
        """Quadratic, then linear."""
        middle = a.clamp(-self.delta, self.delta)  # autograd's second derivative is right at 0
        return middle**2 / (2 * self.delta) + (a.abs() - self.delta).clamp_min(0)

    def derivative(self, a: Tensor) -> Tensor:
        """clip(a / delta, -1, 1)."""
        return (a / self.delta).clamp(-1, 1)

    def second_derivative(self, a: Tensor) -> Tensor:
        """1 / delta in the middle."""
        return torch.where(a.abs() < self.delta, a.new_full((), 1 / self.delta), 0.0)

    def conjugate(self, s: Tensor) -> Tensor:
        """delta s^2 / 2 on [-1, 1]."""
        return self._outside(s, self.delta * s**2 / 2)

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """Shrinks towards zero, by at most eta."""
        return torch.where(
            y.abs() <= self.delta + eta, y / (1 + eta / self.delta), y - eta * y.sign()
        )

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """t clip(y / (delta + t/sigma), -1, 1)."""
        return (y / (t / sigma + self.delta)).clamp_(-1, 1).mul_(t)

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """On the rays in closed form; between them a^3 + p a = q, with r = sigma_z/sigma_a,

        p = 2 (delta^2/r - delta z) and q = 2 delta^2 y/r.
        """
        delta, y = self.delta, y.abs()
        right = (y - delta / 2 - z) / (1 / sigma_a + 1 / sigma_z)
        on_ray = sigma_a * (y - delta) >= right
        stretch = 2 * delta**2 * sigma_a / sigma_z
        a = cubic_root(stretch - 2 * delta * z, stretch * y)
        t = torch.where(on_ray, right, sigma_z * (a * a / (2 * delta) - z))
        return torch.where(self.value(y) <= z, 0.0, t).clamp_min(0)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(m - delta s)^2 / (2 delta) + (1 - s) (a - m)_+ + (1 + s) (a - m)_-, all nonnegative.

        m = clip(a, -delta, delta).
        """
        delta = self.delta
        middle = (a.clamp(-delta, delta) - delta * s).square() / (2 * delta)
        beyond = (1 - s) * (a - delta).clamp_min(0) - (1 + s) * (a + delta).clamp_max(0)
        return middle + beyond

    def value_and_loss(self, a: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The loss is t ((m - delta s)^2 / (2 delta) + |a - m| (1 - s sign(a)))."""
        delta = self.delta
        m, s = a.clamp(-delta, delta), p / t.clamp_min(_tiny(t))
        excess = a - m
        beyond = excess.abs()
        value = torch.addcmul(beyond, m, m, value=0.5 / delta)
        beyond.mul_(excess.sign_().mul_(s).sub_(1))  # the negative of |a - m| (1 - s sign(a))
        m.sub_(s, alpha=delta)
        return value, beyond.addcmul_(m, m, value=-0.5 / delta).mul_(-t)


def _tiny(like: Tensor) -> float:
    """The smallest normal number: 0 divided by it is 0."""
    return torch.finfo(like.dtype).tiny


def increasing_root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor
) -> Tensor:
    """The root of an increasing function in [low, high], elementwise.

    Newton's method inside a shrinking bracket. Where a Newton step leaves the bracket, or is not
    at most half of the step before it (far out on an exponential, say), the bracket is halved.

    Args:
        function: gives value and derivative; value(low) <= 0 <= value(high).
        low: left ends; overflowed ones are pulled back to the largest finite number.
        high: right ends, where the search starts.
    """
    limits = torch.finfo(low.dtype)
    low, high = low.clamp_min(limits.min / 4), high.clamp_max(limits.max / 4)
    a, size, moved = high, high.abs(), high - low
    for _ in range(MAX_STEPS):
        value, derivative = function(a)
        low = torch.where(value <= 0, a, low)
        high = torch.where(value >= 0, a, high)
        newton = a - value / derivative
        step, tolerance = (newton - a).abs(), 4 * limits.eps * (a.abs() + size)
        usable = (newton >= low) & (newton <= high) & (step <= 0.5 * moved)
        following = torch.where(
            usable | (step <= tolerance), newton, low + 0.5 * (high - low)
        ).clamp(low, high)
        moved = (following - a).abs()
        a = following
        if bool((moved <= tolerance).all()):
            break
    return a


def cubic_root(p: Tensor, q: Tensor) -> Tensor:
    """The largest root of u^3 + p u = q for q >= 0, elementwise.

    Newton's method decreases to it from upper bounds: min(q/p, q^1/3) for p > 0, and else
    s + min(q/(2 s^2), q^1/3) with s = sqrt(-p). The bounds are too large by less than half (the
    worst are 1 for 0.68 in u^3 + u = 1, and 2.41 for 1.65 in u^3 - u = sqrt(8)): after five steps
    errors are below 1e-13, and after six there are rounding errors only.
    """
    tiny = torch.finfo(q.dtype).tiny
    s = (-p).clamp_min(0).sqrt()
    slope = torch.where(p > 0, p, -2 * p).clamp_min(tiny)
    u = s + torch.minimum(q / slope, q ** (1 / 3))
    for _ in range(6):
        square = u * u
        u = (2 * u * square + q) / (3 * square + p).clamp_min(tiny)
    return u
