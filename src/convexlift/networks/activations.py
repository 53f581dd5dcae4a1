"""Convex activations: values, slopes, conjugates, proximal maps and epigraph projections.

For an activation h with slopes [lo, hi] (the closure of its derivative's range, which is the
domain of h*), the library needs

    value         h(a)
    derivative    an element of the subdifferential of h at a
    conjugate     h*(s) = sup_a  s a - h(a),  +inf outside [lo, hi]
    prox          argmin_a  eta h(a) + (a - y)^2 / 2
    multiplier    t >= 0 of the projection onto the epigraph {(a, z): h(a) <= z}
    mean_at_prox  means of h(a) and of its decrease in eta at proximal points, for pooled layers
    fenchel_young h(a) + h*(s) - s a >= 0, without cancellation
    value_and_loss  h(a), and t fenchel_young(a, s) for p = s t, in few passes

An activation is a frozen dataclass; trainable numbers are in its layer. After the first layer of a
network it must be nondecreasing (lo >= 0); in the first layer convexity is enough.

Most are functions of one variable. Those of ``group`` consecutive channels (``GroupNorm``) make one
channel of z = h(a) from each group of a: the multipliers t have the shape of z, the slopes s and
their products p = s t the shape of a.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from convexlift.parts import ProblemPart
from convexlift.tensors import Shape, channel_extent, is_own, unrepeated


@dataclass(frozen=True)
class Ramp:
    """h'(a) = low + (high - low) clip((a - left) / width, 0, 1): slopes that rise once.

    A width of zero is a kink. With u the rise at a, h(a) = low a + (high - low) (u (a - left) -
    u^2 width/2) + offset. Kernels need to know nothing else about such activations.
    """

    low: float
    high: float
    left: float = 0.0
    width: float = 0.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        """As floats: kernels take the bits as they are."""
        for name, number in vars(self).items():
            object.__setattr__(self, name, float(number))


class Activation(ProblemPart, ABC):
    """A convex function of one variable, applied to every entry (or of groups of channels).

    Attributes:
        smooth: whether the derivative is continuous.
        curvature_at_zero: h''(0); 0 at a kink.
        ramp: the derivative, where it is a ramp; else None.
        roundings: units of rounding error of h(a) and h*(s), relative to the sum of their terms
            and to h* at the ends of its domain; in double precision.
    """

    capabilities = ProblemPart.capabilities | {"ramp", "mean_at_prox", "value_and_loss", "scaled"}
    roundings: int = 36
    smooth: bool = False
    curvature_at_zero: float = 0.0
    ramp: Ramp | None = None

    @property
    def group(self) -> int:
        """How many channels of the preactivation make one channel of h(a)."""
        return 1

    def scaled(self, c: float) -> Activation | None:
        """The activation a -> c h(a / c), with the same slopes; None if it is not known."""
        return None

    def select(self, channels: slice) -> Activation:
        """The activation of some channels of h(a)."""
        return self

    @property
    @abstractmethod
    def slopes(self) -> tuple[float, float]:
        """(lo, hi), the smallest and the largest slope: the domain of the conjugate."""

    @property
    def nondecreasing(self) -> bool:
        """Whether it may follow another layer."""
        return self.slopes[0] >= 0

    @abstractmethod
    def value(self, a: Tensor) -> Tensor:
        """h(a)."""

    @abstractmethod
    def derivative(self, a: Tensor) -> Tensor:
        """h'(a); at a kink, one of the subgradients."""

    def mean_slope(self, a: Tensor) -> Tensor:
        """h'(a), and at a kink the mean of the slopes beside it, as in autograd.

        Differentiable in a, with the derivative h''(a): training differentiates gradients.
        """
        return self.derivative(a)

    @abstractmethod
    def conjugate(self, s: Tensor) -> Tensor:
        """h*(s) = sup_a s a - h(a); +inf outside the slopes."""

    @abstractmethod
    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """argmin_a eta h(a) + (a - y)^2 / 2, for eta >= 0."""

    @abstractmethod
    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """The multiplier t >= 0 of the projection of (y, z) onto the epigraph of h.

            min_{a, z'}  sigma_a/2 (a - y)^2 + sigma_z/2 (z' - z)^2   subject to  h(a) <= z'

        is solved by a = prox_{(t/sigma_a) h}(y) and z' = z + t/sigma_z; t = 0 inside. The dual
        step of the epigraph's indicator is then (``scaled_slope(y, t, sigma_a)``, -t), free of
        the cancellation in v - sigma * projection(v / sigma).
        """

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """p = t s with s a slope of h at prox_{(t/sigma) h}(y): the dual step of t h."""
        return t * self.derivative(self.prox(y, t / sigma))

    def mean_at_prox(self, y: Tensor, eta: Tensor | None) -> tuple[Tensor, Tensor]:
        """Means over the last dimension of h(a) and of -d h(a)/d eta, a = prox_{eta h}(y).

        Projections onto the epigraph of a mean of activations need them often. Without eta, which
        means eta = 0: the means of h(y) and of h'(y)^2.
        """
        if eta is None:
            return self.value(y).mean(-1), self.derivative(y).square().mean(-1)
        a = self.prox(y, eta)
        return self.value(a).mean(-1), self.descent(a, eta).mean(-1)

    def descent(self, a: Tensor, eta: Tensor) -> Tensor:
        """-d h(a)/d eta for a = prox_{eta h}(y) and fixed y: h'(a)^2 / (1 + eta h''(a)).

        An upper bound such as h'(a)^2 is enough; projections then take more passes.
        """
        return self.derivative(a).square()

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """h(a) + h*(s) - s a >= 0, and = 0 exactly where s is a slope of h at a."""
        return (self.value(a) + self.conjugate(s) - s * a).clamp_min(0)

    def value_and_loss(self, a: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """h(a) and t (h(a) + h*(s) - s a) >= 0 for p = s t, the loss of the slopes s at a.

        Certificates need it; overridden where fewer passes over a suffice.

        Args:
            a: preactivations.
            p: as ``clip_to_slopes`` makes them.
            t: multipliers >= 0, of the shape of h(a) or one that is expanded to it.
        """
        each = self.spread(t)
        used = each > 0
        s = torch.where(used, p / torch.where(used, each, 1.0), self.derivative(a))
        return self.value(a), t * self.fenchel_young(a, self.clip(s))

    def project_epigraph(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The point of {(a, z): h(a) <= z} nearest to (p, q)."""
        one = q.new_ones(())
        t = self.multiplier(p, q, one, one)
        return self.prox(p, t), q + t

    def extent(self, a: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest argument of each channel, if a is off by ``error``."""
        low, high = (end.reshape(*a.shape[:2], *([1] * (a.ndim - 2))) for end in channel_extent(a))
        error = error if error.ndim == 2 else error.amax(tuple(range(2, error.ndim)), keepdim=True)
        return low - error, high + error

    def steepest(self, low: Tensor, high: Tensor) -> Tensor:
        """The largest |h'(a)| for low <= a <= high: slopes never fall, so one of the two ends."""
        return torch.maximum(self.derivative(low).abs(), self.derivative(high).abs())

    def height(self, low: Tensor, high: Tensor) -> Tensor:
        """|h(low)| + |h(high)|; between them, |h(a)| exceeds it by at most slope times distance."""
        return self.value(low).abs() + self.value(high).abs()

    @property
    def plain(self) -> bool:
        """Whether h is the library's own, of one channel, without parameters but numbers."""
        numbers = all(isinstance(part, int | float) for part in vars(self).values())
        return numbers and self.group == 1 and is_own(self)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of z = h(a), without the batch, for a of ``shape``."""
        return shape

    def join(self, sizes: Tensor) -> Tensor:
        """Lengths of the groups of channels of a that make one of z, from bounds of each."""
        return sizes

    def spread(self, t: Tensor) -> Tensor:
        """t, which has the shape of z, repeated over the channels of a that z is made of."""
        return t

    def clip(self, s: Tensor) -> Tensor:
        """The slope nearest to s, in the domain of the conjugate."""
        return s.clamp(*self.slopes)

    def clip_to_slopes(self, p: Tensor, t: Tensor) -> Tensor:
        """The nearest p with p = s t for a slope s."""
        low, high = self.slopes
        t = unrepeated(t)
        bounded = math.isfinite(low) and math.isfinite(high)  # then p = 0 where t = 0
        if bounded and (p.is_cuda or t.shape == p.shape):  # on CPUs, no fast pass repeats t
            return torch.clamp(p, scaled(t, low), scaled(t, high))
        if math.isfinite(low):
            p = torch.maximum(p, scaled(t, low))
        if math.isfinite(high):
            p = torch.minimum(p, scaled(t, high))
        return p if bounded else torch.where(t > 0, p, 0.0)

    def _outside(self, s: Tensor, inside_value: Tensor) -> Tensor:
        """``inside_value`` where s is one of the slopes, +inf elsewhere."""
        low, high = self.slopes
        return torch.where((s >= low) & (s <= high), inside_value, math.inf)


@cache
def conjugate_at(h: Activation, s: float, dtype: torch.dtype) -> float:
    """h*(s) for a ``plain`` h, on the host: launches for one number take a GPU long."""
    return float(h.conjugate(torch.full((1,), s, dtype=dtype, device="cpu")))


class PiecewiseLinear(Activation):
    """h(a) = max(lo a, hi a): one kink, at zero. Everything is in closed form."""

    @property
    def ramp(self) -> Ramp:  # type: ignore[override]
        """A jump from lo to hi at 0."""
        return Ramp(*self.slopes)

    def scaled(self, c: float) -> Activation:
        """h itself: it is homogeneous."""
        return self

    def value(self, a: Tensor) -> Tensor:
        """max(lo a, hi a); for autograd h'(a) a, whose derivative is a single product."""
        if a.requires_grad:
            return self.mean_slope(a) * a
        low, high = self.slopes
        return torch.maximum(low * a, high * a)

    def derivative(self, a: Tensor) -> Tensor:
        """lo for a <= 0, hi for a > 0."""
        low, high = self.slopes
        # Of two Python numbers, torch.where makes a tensor in the default precision.
        return torch.where(a > 0, a.new_full((), high), low)

    def mean_slope(self, a: Tensor) -> Tensor:
        """lo, (lo + hi)/2 at zero, hi; a constant for autograd."""
        low, high = self.slopes
        side = a.detach().sign()
        if low == -1 == -high:  # |a|
            return side
        rise = side.add_(1).mul_((high - low) / 2)  # exactly zero on the left
        return rise if low == 0 else rise.add_(low)

    def conjugate(self, s: Tensor) -> Tensor:
        """0 on [lo, hi]."""
        return self._outside(s, torch.zeros_like(s))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y - clip(y, lo eta, hi eta)."""
        return y - self.scaled_slope(y, eta, torch.ones_like(eta))

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """clip(sigma y, lo t, hi t)."""
        (low, high), p = self.slopes, sigma * y
        if t.shape[-1:] != p.shape[-1:]:  # no fast pass of a CPU repeats numbers within a row
            return self.clip_to_slopes(p, t)
        return p.clamp_(scaled(t, low), scaled(t, high))

    def mean_at_prox(self, y: Tensor, eta: Tensor | None) -> tuple[Tensor, Tensor]:
        """With c_+ and c_- the parts of y beyond hi eta and lo eta: mean(hi c_+ + lo c_-).

        Entries with lo eta <= y <= hi eta are at the kink, and stay there.
        """
        low, high = self.slopes
        right = y.clamp_min(0) if eta is None else (y - high * eta).clamp_min_(0)
        # ``sign_`` overwrites the parts, so their means must be taken first.
        value, rate = high * right.mean(-1), high**2 * right.sign_().mean(-1)
        if low != 0:
            left = y.clamp_max(0) if eta is None else (y - low * eta).clamp_max_(0)
            value = value + low * left.mean(-1)
            rate = rate - low**2 * left.sign_().mean(-1)
        return value, rate

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """On the right ray, on the left ray, or at the kink."""
        low, high = self.slopes
        right = (high * y - z) / (high**2 / sigma_a + 1 / sigma_z)
        left = (low * y - z) / (low**2 / sigma_a + 1 / sigma_z)
        kink = -sigma_z * z
        t = torch.where(
            (right >= 0) & (sigma_a * y >= high * right),
            right,
            torch.where((left >= 0) & (sigma_a * y <= low * left), left, kink),
        )
        return torch.where(self.value(y) <= z, 0.0, t).clamp_min(0)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(hi - s) a_+ + (s - lo) a_-."""
        low, high = self.slopes
        return (high - s) * a.clamp_min(0) + (s - low) * (-a).clamp_min(0)

    def value_and_loss(self, a: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """hi a_+ - lo a_-, and (hi t - p) a_+ + (p - lo t) a_-."""
        low, high = self.slopes
        right, left = a.clamp_min(0), a.clamp_max(0)
        value = torch.add(scaled(right, high), left, alpha=low)
        loss = (scaled(t, high) - p).mul_(right)
        return value, loss.addcmul_(p - scaled(t, low), left, value=-1)


@dataclass(frozen=True)
class ReLU(PiecewiseLinear, name="ReLU"):
    """h(a) = max(0, a)."""

    slopes = (0.0, 1.0)


@dataclass(frozen=True)
class LeakyReLU(PiecewiseLinear, name="LeakyReLU"):
    """h(a) = max(slope a, a); the paper's first layer, with slope 0.2."""

    slope: float = 0.2

    def __post_init__(self) -> None:
        require_slope(self, self.slope)

    @property
    def slopes(self) -> tuple[float, float]:
        """[slope, 1]."""
        return (self.slope, 1.0)


@dataclass(frozen=True)
class Abs(PiecewiseLinear, name="Abs"):
    """h(a) = |a|; not monotone, for first layers."""

    slopes = (-1.0, 1.0)


@dataclass(frozen=True)
class Linear(PiecewiseLinear, name="Linear"):
    """h(a) = a; for last layers, whose sums and means of earlier ones need no activation."""

    slopes = (1.0, 1.0)


def scaled(t: Tensor, factor: float) -> Tensor:
    """factor t; t itself, uncopied, for the slope 1 that most activations have."""
    return t if factor == 1 else factor * t


def require_slope(owner: Activation, slope: float) -> None:
    """Raise ValueError unless 0 <= slope < 1."""
    if not 0 <= slope < 1:
        raise ValueError(f"{type(owner).__name__} needs 0 <= slope < 1, got slope={slope}")
