"""Roots of many increasing functions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_STEPS = 200


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
