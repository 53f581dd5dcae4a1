"""Dual variables p = s t in 16 bits each: slopes s between the ends of dom h*.

    code = round(STEPS (s - lo) / (hi - lo)) - 2^15

Both ends, where most slopes of a layer with kinks are, are exact. Rounding inside adds 1e-6 to 2e-4
to a certified gap (measured), the most where pixels are missing. Smaller gaps need p itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.strips import at_once, local
from convexlift.tensors import sum_per_image

CODES = torch.int16
STEPS, MIDDLE = 2**16 - 1, 2**15
CACHED = 2**19
"""Numbers that a CPU unpacks at once."""


def can_be_packed(h: Activation) -> bool:
    """Whether the slopes of h are single numbers of an interval."""
    return h.group == 1 and math.isfinite(h.slopes[1] - h.slopes[0])


def pack(h: Activation, p: Tensor, t: Tensor) -> Tensor:
    """The codes of p = s t."""
    low, high = h.slopes
    s = torch.where(t > 0, p / t, low)
    return s.sub_(low).mul_(STEPS / (high - low)).round_().clamp_(0, STEPS).sub_(MIDDLE).to(CODES)


def feasible(h: Activation, v: Tensor, t: Tensor, p: Tensor | None = None) -> Tensor:
    """The p nearest to v with slopes in dom h*; v may be packed, and is then written to ``p``."""
    if v.dtype is not CODES:
        return h.clip_to_slopes(v, t)
    low, high = h.slopes
    p = torch.empty_like(v, dtype=t.dtype) if p is None else p
    for strip in _strips(v):
        here, slope = local(t, *strip), v[strip].to(t.dtype).add_(MIDDLE)
        p[strip] = h.clip_to_slopes(slope.mul_((high - low) / STEPS).add_(low).mul_(here), here)
    return p


@dataclass(frozen=True, eq=False)
class PackedDual:
    """A dual variable p = s t by its codes, read piece by piece like a tensor of p."""

    h: Activation
    codes: Tensor
    t: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of p."""
        return self.codes.shape

    def __getitem__(self, place: tuple[slice, ...]) -> PackedDual:
        """Some images and channels, and perhaps only some rows; still packed."""
        images, channels, rows = (*place, slice(None))[:3]
        t = local(self.t, images, channels, rows)
        return PackedDual(self.h.select(channels), self.codes[place], t)

    def to(self, like: Tensor) -> Tensor:
        """p itself, rounded to the precision of t and then converted."""
        return feasible(self.h, self.codes, self.t).to(like)


Dual = Tensor | PackedDual
Duals = Mapping[str, Dual]
"""Dual variables by name; large ones may be packed."""


def all_packed(h: Activation, p: Tensor, t: Tensor) -> Tensor:
    """The codes of a large p, strip by strip."""
    codes = torch.empty_like(p, dtype=CODES)
    for strip in _strips(p):
        codes[strip] = pack(h, p[strip], local(t, *strip))
    return codes


def squares(h: Activation, codes: Tensor, t: Tensor) -> Tensor:
    """||p||^2 for each image, in double precision."""
    total = torch.zeros(len(codes), dtype=torch.float64, device=codes.device)
    for strip in _strips(codes):
        total += sum_per_image(feasible(h, codes[strip], local(t, *strip)).square_())
    return total


def distance(h: Activation, codes: Tensor, others: Tensor, t: Tensor) -> Tensor:
    """||p - q|| for each image, of two packed dual variables."""
    total = torch.zeros(len(codes), dtype=torch.float64, device=codes.device)
    for strip in _strips(codes):
        p, q = (feasible(h, each[strip], local(t, *strip)) for each in (codes, others))
        total += sum_per_image(p.sub_(q).square_())
    return total.sqrt().to(t)


def rounding_squares(h: Activation, codes: Tensor, t: Tensor) -> Tensor:
    """The expected sum of the squares of rounding errors: of slopes inside, for ends are exact."""
    (low, high), total = h.slopes, torch.zeros((), dtype=torch.float64, device=codes.device)
    for strip in _strips(codes):
        some, step = codes[strip], local(t, *strip) * ((high - low) / STEPS)
        inside = (some > -MIDDLE) & (some < STEPS - MIDDLE)
        total += (step.square() * inside).sum(dtype=torch.float64) / 12
    return total


def _strips(v: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """A few rows at a time, since intermediate results are large."""
    rows = max(1, at_once(CACHED, v.device) * v.shape[-2] // v.numel())
    for top in range(0, v.shape[-2], rows):
        yield slice(None), slice(None), slice(top, top + rows)
