"""What a claim needs of the first layer: sums over all of its entries, in double precision.

``rigorous_layer`` says which, and bounds their rounding errors; ``rigorous_kernels`` computes them
on a GPU, ``rigorous_strips`` on a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from convexlift.networks.activations import Ramp
from convexlift.networks.bound_network import BoundLayer
from convexlift.operators.convolution import ConvolutionOperator
from convexlift.problems.packed_slopes import Dual


@dataclass(frozen=True)
class Bend:
    """An activation with h(0) = 0 whose slope rises on an interval around 0, or at 0.

        h(a)  = m (middle + bend m) + (a - m) (hi if a > m else lo),   m = clip(a, left, right),
        h*(s) = conjugate (s - middle)^2   on [lo, hi].

    Nothing cancels: errors of h(a) are relative to |a|.
    """

    low: float
    high: float
    left: float
    right: float
    middle: float
    bend: float
    conjugate: float

    @staticmethod
    @cache
    def of(ramp: Ramp) -> Bend | None:
        """The same function, if it is of this kind; numbers are rounded once."""
        low, high, left, width, offset = map(Fraction, astuple(ramp))
        rise, right = high - low, left + width
        if not rise or not left <= 0 <= right:
            return None
        share = -left / width if width else Fraction(0)
        if rise * (-share * left - share**2 * width / 2) + offset != 0:  # h(0)
            return None
        bend = rise / (2 * width) if width else 0
        numbers = low, high, left, right, low + rise * share, bend, width / (2 * rise)
        return Bend(*map(float, numbers))

    def between(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on |slope| and on the sum of |terms| of h(a) for low <= a <= high, around 0.

        Both grow with |a| on either side of 0; |h(a)| is at most the sum of its |terms|.
        """
        slopes, sizes = [], []
        for a, end, beyond in ((high, self.right, self.high), (-low, -self.left, self.low)):
            inside, middle = a.clamp_max(end), abs(self.middle)
            further = torch.full_like(a, abs(beyond))
            slopes.append(torch.where(a > end, further, middle + 2 * self.bend * inside))
            sizes.append(inside * (middle + self.bend * inside) + further * (a - inside))
        return torch.maximum(*slopes), torch.maximum(*sizes)

    def conjugate_between(self, low: Tensor, high: Tensor) -> Tensor:
        """What errors of h*(s) are relative to, for slopes low <= s <= high.

        The rounding of ``middle`` counts, too.
        """
        way = torch.maximum((low - self.middle).abs(), (high - self.middle).abs())
        way = way.clamp_max(self.high - self.low)
        return self.conjugate * way * (way + 2 * abs(self.middle))


Extent = tuple[Tensor, Tensor]
"""The smallest and the largest number of each channel, or of all of them, (B, C) or (B, 1)."""


@dataclass(frozen=True, eq=False)
class LayerSums(ABC):
    """Sums over a convolution V of images and an activation h, without an array of their size.

    Attributes:
        layer: the layer of the network.
        V: its operator.
        h: its activation.
        pool: the side of the pooling blocks that follow; 0 if there are none.
    """

    layer: BoundLayer
    V: ConvolutionOperator
    h: Bend
    pool: int

    def reads(self, dual: Dual) -> bool:
        """Whether the dual variable is of a type that ``minorants`` takes."""
        return True

    @property
    @abstractmethod
    def additions(self) -> int:
        """The most additions that a term passes through in a sum over everything."""

    @property
    @abstractmethod
    def additions_of_means(self) -> int:
        """The same in the mean of a block."""

    @abstractmethod
    def values(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Extent | None]:
        """Parts of <W, h(V x + b)>, (B, parts). There is one W for each channel, or each entry."""

    @abstractmethod
    def means(self, x: Tensor) -> tuple[Tensor, Extent | None]:
        """The means of h(V x + b) over pooling blocks, (B, C, H/pool, W/pool)."""

    @abstractmethod
    def minorants(self, t: Tensor, v: Dual) -> tuple[Tensor, Extent, Tensor]:
        """Parts of <p, b> - <t, h*(s)>, (B, parts); the extent of s; and V* p.

        Here p = s t, with the slopes s in dom h* that are nearest to v / t. There is one t for each
        channel, for each entry, or for each pooling block, whose pixels share it.
        """
