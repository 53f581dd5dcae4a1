"""Activations of groups of channels: h(a)_g = phi(|a_g|), with |.| the Euclidean norm.

Everything reduces to the even profile phi along the direction a/|a|:

    derivative    a/|a| phi'(|a|)                 conjugate  phi*(|s|)
    prox          y/|y| prox_phi(|y|)             multiplier of phi at (|y|, z)
    scaled slope  y/|y| times the scaled slope of phi at |y|

    fenchel_young = [phi(|a|) + phi*(|s|) - |s| |a|] + |s| |a| (1 - cos(a, s)).

With phi = |.| the epigraph is the second-order cone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convexlift.networks.activations import Abs, Activation
from convexlift.tensors import Shape


@dataclass(frozen=True)
class GroupNorm(Activation, name="GroupNorm"):
    """h(a)_g = phi(|a_g|) for each group a_g of consecutive channels; for first layers.

    (B, size n, ...) becomes (B, n, ...): dimension 1 holds the channels, or the features of a
    dense layer. ``slopes`` are the slopes of phi; slopes of h are vectors of at most that length.

    Args:
        size: channels of a group, at least 1.
        profile: phi, even: ``Abs()``, ``Huber(delta)``, ``HalfSquare()`` or one of your own.
    """

    size: int
    profile: Activation = field(default_factory=Abs)

    def scaled(self, c: float) -> Activation | None:
        """Groups of the scaled profile."""
        profile = self.profile.scaled(c)
        return None if profile is None else replace(self, profile=profile)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"GroupNorm needs size >= 1, got size={self.size}")
        low, high = self.profile.slopes
        points = torch.tensor([0.01, 0.5, 1.0, 7.0], dtype=torch.float64, device="cpu")
        if (
            low != -high
            or self.profile.group != 1
            or not torch.allclose(self.profile.value(points), self.profile.value(-points))
        ):
            raise ValueError(
                "GroupNorm needs an even profile, phi(-r) = phi(r), such as Abs(), Huber(delta) "
                f"or HalfSquare(), got {self.profile}"
            )

    @property
    def group(self) -> int:
        """The channels of a group."""
        return self.size

    @property
    def roundings(self) -> int:  # type: ignore[override]
        """Lengths of vectors are rounded too."""
        return self.profile.roundings + 4 * (self.size - 1)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """Whether the profile is smooth."""
        return self.profile.smooth

    @property
    def slopes(self) -> tuple[float, float]:
        """The slopes of the profile; the largest is the radius of the ball of slopes."""
        return self.profile.slopes

    def value(self, a: Tensor) -> Tensor:
        """phi(|a_g|).

        Differentiable twice, at a_g = 0 too: h is its second-order expansion there, which for a
        profile with a kink is zero (one of the subgradients).
        """
        if not a.requires_grad:
            return self.profile.value(self.lengths(a))
        parts = self._parts(a)
        at_zero = self.lengths(a.detach()) <= _smallest(a)
        guarded = torch.where(at_zero.unsqueeze(2), 1.0, parts)
        away = self.profile.value(guarded.square().sum(2).sqrt())
        lowest = self.profile.value(a.new_zeros(()))
        near = lowest + 0.5 * self.profile.curvature_at_zero * parts.square().sum(2)
        return torch.where(at_zero, near, away)

    def derivative(self, a: Tensor) -> Tensor:
        """a/|a| phi'(|a|); 0 at 0."""
        r = self.lengths(a)
        return self._along(a, r, self.profile.derivative(r))

    def mean_slope(self, a: Tensor) -> Tensor:
        """The derivative; differentiable at a_g = 0 too, as the value is."""
        parts = self._parts(a)
        at_zero = self.lengths(a.detach()) <= _smallest(a)
        r = torch.where(at_zero.unsqueeze(2), 1.0, parts).square().sum(2).sqrt()
        factor = torch.where(
            at_zero, self.profile.curvature_at_zero, self.profile.mean_slope(r) / r
        )
        return (parts * factor.unsqueeze(2)).flatten(1, 2)

    def conjugate(self, s: Tensor) -> Tensor:
        """phi*(|s_g|)."""
        return self.profile.conjugate(self.lengths(s))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y/|y| prox_{eta phi}(|y|), with one eta for each group."""
        r = self.lengths(y)
        return self._along(y, r, self.profile.prox(r, eta))

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """y/|y| times the scaled slope of the profile at |y|."""
        r = self.lengths(y)
        return self._along(y, r, self.profile.scaled_slope(r, t, sigma))

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """The multiplier of the profile at |y|."""
        return self.profile.multiplier(self.lengths(y), z, sigma_a, sigma_z)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """The loss of the profile, plus |s| |a| (1 - cos), 1 - cos = |a/|a| - s/|s||^2 / 2."""
        r, length = self.lengths(a), self.lengths(s)
        one = torch.ones_like(r)
        apart = self._parts(self._along(a, r, one) - self._along(s, length, one))
        turned = 0.5 * r * length * apart.square().sum(2)
        return self.profile.fenchel_young(r, length.clamp_max(self.slopes[1])) + turned

    def extent(self, a: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """From 0 to the largest length."""
        low, high = super().extent(a, error)
        longest = self.join(torch.maximum(low.abs(), high.abs()))
        return torch.zeros_like(longest), longest

    def steepest(self, low: Tensor, high: Tensor) -> Tensor:
        """The steepest slope of the profile, at the largest length."""
        return self.profile.steepest(low, high)

    def height(self, low: Tensor, high: Tensor) -> Tensor:
        """The height of the profile."""
        return self.profile.height(low, high)

    def join(self, sizes: Tensor) -> Tensor:
        """The length of a vector with these entries."""
        return self.lengths(sizes)

    def output_shape(self, shape: Shape) -> Shape:
        """One channel for each group."""
        if shape[0] % self.size:
            raise ValueError(f"groups of {self.size} do not divide {shape[0]} channels")
        return (shape[0] // self.size, *shape[1:])

    def spread(self, t: Tensor) -> Tensor:
        """Each channel of t, ``size`` times."""
        return t.repeat_interleave(self.size, dim=1)

    def clip(self, s: Tensor) -> Tensor:
        """The nearest s with |s_g| <= hi."""
        r = self.lengths(s)
        return self._along(s, r, r.clamp_max(self.slopes[1]))

    def clip_to_slopes(self, p: Tensor, t: Tensor) -> Tensor:
        """The nearest p with |p_g| <= hi t_g."""
        r, high = self.lengths(p), self.slopes[1]
        longest = torch.minimum(r, high * t) if math.isfinite(high) else r
        return self._along(p, r, torch.where(t > 0, longest, 0.0))

    def lengths(self, a: Tensor) -> Tensor:
        """|a_g|, (B, size n, ...) -> (B, n, ...)."""
        return self._parts(a).square().sum(2).sqrt()  # vector_norm is slow along short axes

    def _parts(self, a: Tensor) -> Tensor:
        """(B, n, size, ...)."""
        return a.reshape(a.shape[0], a.shape[1] // self.size, self.size, *a.shape[2:])

    def _along(self, y: Tensor, r: Tensor, length: Tensor) -> Tensor:
        """Vectors in the directions y/|y| of these lengths, where r = |y|; 0 where y = 0."""
        usable = r > _smallest(r)
        factor = torch.where(usable, length / torch.where(usable, r, 1.0), 0.0)
        return (self._parts(y) * factor.unsqueeze(2)).flatten(1, 2)


def _smallest(like: Tensor) -> float:
    """Shorter vectors count as zero: the squares of their entries lose digits."""
    limits = torch.finfo(like.dtype)
    return math.sqrt(limits.tiny / limits.eps)
