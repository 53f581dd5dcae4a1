"""Roots of many functions of one variable at once."""

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
