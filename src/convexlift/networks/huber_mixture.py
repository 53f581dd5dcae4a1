"""Mixtures of Huber functions: profiles that are learned for each channel.

    h(a) = sum_j c_j H_j(a),    H_j(a) = m (a - m/2) / t_j  with  m = clip(a, -t_j, t_j),

for widths t_1 < ... < t_J, shared by all channels, and shares c_j >= 0 with the sum 1, learned for
each: all even convex quadratic splines with knots t_j whose curvature decreases with |a| and whose
slope is 1 beyond the last knot. For a >= 0 the slope is a minimum of J + 1 lines,

    h'(a) = min_i A_i + k_i a,    A_i = sum_{j < i} c_j,    k_i = sum_{j >= i} c_j / t_j,

which makes slopes at proximal points minima of lines too, and h' easy to invert. At the point b
with h'(b) = s, conjugate and Fenchel-Young loss are sums over the Huber functions as well.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from convexlift.networks.smooth_activations import SmoothActivation
from convexlift.parts import require_increasing
from convexlift.tensors import TensorRecord


class Mixture(TensorRecord, SmoothActivation):
    """An activation with shares of several functions, nonnegative with the sum 1, in each channel.

    A layer holds the shares of its channels as a parameter; without a layer they are equal.

    Attributes:
        parts: J, the number of functions.
        shares: (channels, J), in proportion to c, or None for c_j = 1/J.
    """

    shares: Tensor | None = None

    @property
    @abstractmethod
    def parts(self) -> int:
        """The number of functions."""

    def with_shares(self, shares: Tensor) -> Self:
        """The mixture with these shares of its channels."""
        return self._with(shares=shares)

    def select(self, channels: slice) -> Self:
        """With the shares of these channels."""
        return self if self.shares is None else self._with(shares=self.shares[channels])

    def _with(self, **attributes: Any) -> Self:
        other = copy.copy(self)
        for name, value in attributes.items():
            object.__setattr__(other, name, value)
        return other


@dataclass(frozen=True)
class HuberMixture(Mixture, name="HuberMixture"):
    """h(a) = sum_j c_j H_j(a), with Huber functions H_j; for first layers.

    Args:
        widths: t_1 < ... < t_J, where the Huber functions turn from parabolas into |a|.

    Attributes:
        shares: (channels, J), in proportion to c, or None for c_j = 1/J.
    """

    widths: tuple[float, ...] = (0.01, 0.1, 1.0)
    shares: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    slopes = (-1.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        require_increasing(self, widths=self.widths)

    @property
    def roundings(self) -> int:  # type: ignore[override]
        """Slopes s are inverted up to 4 J + 10 roundings, and h* changes with s by up to t_J."""
        return 36 + math.ceil((4 * len(self.widths) + 10) * self.widths[-1] / self.widths[0])

    @property
    def parts(self) -> int:
        """The number of widths."""
        return len(self.widths)

    def scaled(self, c: float) -> Self:
        """With c t_j in place of t_j."""
        return self._with(widths=tuple(c * t for t in self.widths))

    def value(self, a: Tensor) -> Tensor:
        """sum_j c_j H_j(a)."""
        total = torch.zeros_like(a)
        for bend, t in self._bends(a):
            m = a.clamp(-t, t)
            total = total + bend * (m * (a - 0.5 * m))
        return total

    def derivative(self, a: Tensor) -> Tensor:
        """sum_j c_j clip(a / t_j, -1, 1)."""
        total = torch.zeros_like(a)
        for bend, t in self._bends(a):
            total = total + bend * a.clamp(-t, t)
        return total

    def second_derivative(self, a: Tensor) -> Tensor:
        """The sum of c_j / t_j over t_j > |a|."""
        total = torch.zeros_like(a)
        for bend, t in self._bends(a):
            total = total + bend * (a.abs() < t)
        return total

    def conjugate(self, s: Tensor) -> Tensor:
        """sum_j c_j clip(b, -t_j, t_j)^2 / (2 t_j), h'(b) = s, on [-1, 1]."""
        b, total = self._inverse_slope(s), torch.zeros_like(s)
        for bend, t in self._bends(s):
            total = total + (0.5 * bend) * b.clamp(-t, t).square()
        return self._outside(s, total)

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y - eta s, for the slope s there."""
        return y - self.scaled_slope(y, eta, torch.ones_like(eta))

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """t s with |s| = min(1, min_i (A_i + k_i |y|) / (1 + eta k_i)), eta = t / sigma."""
        r, eta, p = y.abs(), t / sigma, t
        for start, rise in self._lines(y):
            share = t / (1 + eta * rise)
            p = torch.minimum(p, (rise * share) * r + start * share)
        return torch.copysign(p, y)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """sum_j c_j / t_j d (d/2 + a - m) >= 0, d = m - clip(b, -t_j, t_j), h'(b) = s."""
        return self._value_and_loss(a, s)[1]

    def value_and_loss(self, a: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The value, and t times the Fenchel-Young loss for s = p / t."""
        value, loss = self._value_and_loss(a, p / t.clamp_min(torch.finfo(t.dtype).tiny))
        return value, loss * t

    def _value_and_loss(self, a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        b = self._inverse_slope(s)
        value, loss = torch.zeros_like(a), torch.zeros_like(a)
        for bend, t in self._bends(a):
            m = a.clamp(-t, t)
            d = m - b.clamp(-t, t)
            value += bend * (m * torch.sub(a, m, alpha=0.5))
            loss += bend * d.mul_(torch.add(a - m, d, alpha=0.5))
        return value, loss

    def _inverse_slope(self, s: Tensor) -> Tensor:
        """b with h'(b) = s: |b| = max_i (|s| - A_i) / k_i, at most t_J."""
        size, b = s.abs(), torch.zeros_like(s)
        for start, rise in self._lines(s):
            b = torch.maximum(b, (size - start) / rise.clamp_min(torch.finfo(s.dtype).tiny))
        return torch.copysign(b.clamp_max(self.widths[-1]), s)

    def _bends(self, like: Tensor) -> list[tuple[Tensor, float]]:
        """(c_j / t_j, t_j), with the first in a shape that broadcasts to ``like``."""
        return [(c / t, t) for c, t in zip(self._shares(like), self.widths, strict=True)]

    def _lines(self, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(A_i, k_i), i = 1, ..., J."""
        c = self._shares(like)
        t = c.new_tensor(self.widths).reshape(-1, *([1] * (c.ndim - 1)))
        starts, rises = c.cumsum(0) - c, (c / t).flip(0).cumsum(0).flip(0)
        return list(zip(starts, rises, strict=True))

    def _shares(self, like: Tensor) -> Tensor:
        """c, (J, channels, 1, ...), or (J,)."""
        if self.shares is None:
            return like.new_full((len(self.widths),), 1 / len(self.widths))
        c = (self.shares / self.shares.sum(1, keepdim=True)).T
        return c.reshape(*c.shape, *([1] * (like.ndim - 2)))
