"""The constraint lower <= x <= upper."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
            -math.inf if lower is None else float(lower),
            math.inf if upper is None else float(upper),
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
