"""Convex quadratic splines: the potentials of published ridge regularizers, one for each channel.

    h(a) = U(|a|)  (even)   or   U(max(a, 0)),      U(0) = U'(0) = 0,
    U'(r) = sum_j c_j clip((r - t_{j-1}) / (t_j - t_{j-1}), 0, 1) + tail (r - t_J)_+,

with knots 0 = t_0 < t_1 < ... < t_J, shared by all channels, and shares c_j >= 0 with the sum 1,
held for each: every convex quadratic spline with these knots whose slope is 1 at the last one. On
piece j, between t_j and t_{j+1} or beyond t_J, with A_j = U'(t_j), k_j = U'' and d = r - t_j,

    U = U_j + A_j d + k_j d^2 / 2,     U*(s) = S_j + (s - A_j) t_j + (s - A_j)^2 / (2 k_j),

where U_j = U(t_j) and S_j = U*(A_j) are sums of nonnegative terms. The piece of r, of a slope s or
of a proximal point is found by bisection in t_j, A_j or t_j + eta A_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from convexlift.networks.huber_mixture import Mixture
from convexlift.parts import require_increasing


class Pieces(NamedTuple):
    """Numbers of the J + 1 pieces: (J + 1,), or (channels, J + 1) where shares differ."""

    knots: Tensor
    slopes: Tensor
    values: Tensor
    bends: Tensor
    conjugates: Tensor


class At(NamedTuple):
    """The numbers of a piece, entry by entry."""

    knot: Tensor
    slope: Tensor
    value: Tensor
    bend: Tensor
    conjugate: Tensor


@dataclass(frozen=True)
class QuadraticSpline(Mixture, name="QuadraticSpline"):
    """h(a) = U(|a|) or U(max(a, 0)), with U' a nondecreasing linear spline from 0 to 1.

    Even, for first layers; else nondecreasing.

    Args:
        knots: t_1 < ... < t_J, beyond t_0 = 0.
        even: whether h(-a) = h(a); else h(a) = 0 for a <= 0.
        tail: h'' beyond the last knot.

    Attributes:
        shares: (channels, J), in proportion to c, or None for c_j = 1/J.
    """

    knots: tuple[float, ...] = (0.01, 0.1, 1.0)
    even: bool = True
    tail: float = 0.0
    shares: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", tuple(self.knots))
        require_increasing(self, knots=self.knots)
        if not 0 <= self.tail < math.inf:
            raise ValueError(f"QuadraticSpline needs tail >= 0, got tail={self.tail}")

    @property
    def parts(self) -> int:
        """The number of knots."""
        return len(self.knots)

    @property
    def slopes(self) -> tuple[float, float]:
        """[-1, 1] or [0, 1]; unbounded with a tail."""
        high = math.inf if self.tail else 1.0
        return (-high if self.even else 0.0, high)

    @property
    def roundings(self) -> int:  # type: ignore[override]
        """A_j has up to 2 J + 5 roundings, each of which changes U* by up to t_J; U* >= A t_1/2."""
        return 36 + math.ceil((4 * self.parts + 10) * self.knots[-1] / self.knots[0])

    def scaled(self, c: float) -> Self:
        """With c t_j in place of t_j, and the tail divided by c."""
        return self._with(knots=tuple(c * t for t in self.knots), tail=self.tail / c)

    def value(self, a: Tensor) -> Tensor:
        """U_j + A_j d + k_j d^2 / 2."""
        r, _ = self._argument(a)
        at = self._at_knots(r)
        d = r - at.knot
        return at.value + d * (at.slope + 0.5 * at.bend * d)

    def derivative(self, a: Tensor) -> Tensor:
        """A_j + k_j d, with the sign of a."""
        r, side = self._argument(a)
        at = self._at_knots(r)
        return side * (at.slope + at.bend * (r - at.knot))

    def second_derivative(self, a: Tensor) -> Tensor:
        """k_j."""
        bend = self._at_knots(self._argument(a)[0]).bend
        return bend if self.even else bend * (a >= 0)

    def conjugate(self, s: Tensor) -> Tensor:
        """S_j + q t_j + q^2 / (2 k_j), q = |s| - A_j."""
        size = s.abs() if self.even else s
        at = self._at_slopes(size)
        q = (size - at.slope).clamp_min(0)
        return self._outside(s, at.conjugate + q * (at.knot + 0.5 * _quotient(q, at.bend)))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y - eta s, for the slope s there."""
        return y - self.scaled_slope(y, eta, torch.ones_like(eta))

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """t s with s = A_j + k_j (r - t_j - eta A_j) / (1 + eta k_j), eta = t / sigma."""
        r, side = self._argument(y)
        eta = t / sigma
        at = self._at_proximal_points(r, eta)
        moved = (r - at.knot - eta * at.slope) / (1 + eta * at.bend)
        return side * t * (at.slope + at.bend * moved)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(h'(a) - s)^2 / (2 k_j) where a and s are of one piece; else h(a) + h*(s) - s a.

        The part of h(a) - s a beyond the last knot by d is (1 - s) d + tail d^2 / 2 >= 0.
        """
        r, side = self._argument(a)
        size = side * s
        at, of_slope = self._at_knots(r), self._at_slopes(size)
        apart = at.slope + at.bend * (r - at.knot) - size
        same = (at.knot == of_slope.knot) & (at.bend > 0) & (size >= 0) & (side * a >= 0)
        beyond = (r - self.knots[-1]).clamp_min(0)
        rest = beyond * (1 - size + 0.5 * self.tail * beyond)
        plain = super().fenchel_young(a - side * beyond, s) + rest
        return torch.where(same, 0.5 * _quotient(apart, at.bend) * apart, plain)

    def _argument(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """r, and the sign of h'. (|a| would have the wrong second derivative at 0.)"""
        if not self.even:
            return a.clamp_min(0), torch.ones_like(a)
        side = torch.where(a < 0, -torch.ones_like(a), 1.0)
        return side * a, side

    def _pieces(self, like: Tensor) -> Pieces:
        t = like.new_tensor((0.0, *self.knots))
        c = self.shares
        c = like.new_full((1, self.parts), 1 / self.parts) if c is None else c / c.sum(1, True)
        first, widths = c.new_zeros((len(c), 1)), t.diff()
        slopes = torch.cat((first, c.cumsum(1)), 1)
        areas = 0.5 * widths * (slopes[:, 1:] + slopes[:, :-1])
        steps = 0.5 * c * (t[1:] + t[:-1])
        return Pieces(
            t, slopes, torch.cat((first, areas.cumsum(1)), 1),
            torch.cat((c / widths, torch.full_like(first, self.tail)), 1),
            torch.cat((first, steps.cumsum(1)), 1),
        )  # fmt: skip

    def _at_knots(self, r: Tensor) -> At:
        pieces = self._pieces(r)
        return _numbers(pieces, torch.bucketize(r.detach(), pieces.knots[1:], right=True))

    def _at_slopes(self, s: Tensor) -> At:
        pieces = self._pieces(s)
        return _numbers(pieces, _bisect(pieces.slopes[None, :, 1:], s))

    def _at_proximal_points(self, r: Tensor, eta: Tensor) -> At:
        pieces = self._pieces(r)
        if eta.numel() == 1:
            ends = (pieces.knots + eta.reshape(()) * pieces.slopes)[None]
            return _numbers(pieces, _bisect(ends[..., 1:], r))
        alike = all(
            n == 1 or not step for n, step in zip(eta.shape[2:], eta.stride()[2:], strict=True)
        )
        if eta.ndim == r.ndim > 1 and alike:  # one for each channel
            eta = eta.reshape(*eta.shape[:2], -1)[..., :1]
            ends = pieces.knots + eta * pieces.slopes
            return _numbers(pieces, _bisect(ends[..., 1:], r))
        found = torch.zeros_like(r, dtype=torch.int64)
        step = 1 << self.parts.bit_length()
        while step := step // 2:
            tried = (found + step).clamp_max(self.parts)
            at = _numbers(pieces, tried)
            found = torch.where(at.knot + eta * at.slope <= r, tried, found)
        return _numbers(pieces, found)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b = 0."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def _bisect(ends: Tensor, values: Tensor) -> Tensor:
    """How many of the ends (B or 1, C or 1, J), which increase, are <= each value (B, C, ...)."""
    if ends.shape[:2] == (1, 1):
        return torch.searchsorted(ends[0, 0].detach(), values.detach().contiguous(), right=True)
    channels = max(ends.shape[1], values.shape[1])
    values = values.detach().expand(-1, channels, *values.shape[2:])
    flat = values.reshape(*values.shape[:2], -1).contiguous()
    ends = ends.detach().expand(*flat.shape[:2], -1).contiguous()
    return torch.searchsorted(ends, flat, right=True).reshape(values.shape)


def _numbers(pieces: Pieces, index: Tensor) -> At:
    """The numbers of the pieces with these indices, (B, C, ...)."""
    knots, *others = pieces
    channels = len(pieces.slopes)
    if channels > 1:
        rows = torch.arange(channels, device=index.device).mul_(len(knots))
        index = index.expand(-1, channels, *index.shape[2:])
        place = index + rows.reshape(-1, *([1] * (index.ndim - 2)))
    else:
        place = index
    return At(knots[index], *(table.reshape(-1)[place] for table in others))
