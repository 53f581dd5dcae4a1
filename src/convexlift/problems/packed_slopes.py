"""Dual variables p = s t in 16 bits each: slopes s between the ends of dom h*.

    code = round(STEPS (s - lo) / (hi - lo)) - 2^15

Both ends, where most slopes of a layer with kinks are, are exact. Rounding inside adds some 1e-6 to
a certified gap (measured), far below usual tolerances.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.tensors import local

CODES = torch.int16
STEPS, MIDDLE = 2**16 - 1, 2**15
CACHED = 2**19
"""Numbers that are unpacked at once."""


def can_be_packed(h: Activation) -> bool:
    """Whether the slopes of h are single numbers of an interval."""
    return h.group == 1 and math.isfinite(h.slopes[1] - h.slopes[0])


def pack(h: Activation, p: Tensor, t: Tensor) -> Tensor:
    """The codes of p = s t."""
    low, high = h.slopes
    s = torch.where(t > 0, p / t, low)
    return s.sub_(low).mul_(STEPS / (high - low)).round_().clamp_(0, STEPS).sub_(MIDDLE).to(CODES)


def feasible(h: Activation, v: Tensor, t: Tensor) -> Tensor:
    """The p nearest to v with slopes in dom h*; v may be packed."""
    if v.dtype is not CODES:
        return h.clip_to_slopes(v, t)
    low, high = h.slopes
    p = torch.empty_like(v, dtype=t.dtype)
    rows = max(1, CACHED * v.shape[-2] // v.numel())
    for top in range(0, v.shape[-2], rows):  # a few at a time: intermediate results are large
        strip = (slice(None), slice(None), slice(top, top + rows))
        here, slope = local(t, *strip), v[strip].to(t.dtype).add_(MIDDLE)
        p[strip] = h.clip_to_slopes(slope.mul_((high - low) / STEPS).add_(low).mul_(here), here)
    return p
