"""Which noise an image has, and how much, from the image alone.

Gaussian noise: a second difference in both directions,

    d = [1 -2 1; -2 4 -2; 1 -2 1] * y / 6,

vanishes on what is linear along rows or columns, and has the deviation sigma on white noise
(Immerkaer 1996, "Fast noise variance estimation", Computer Vision and Image Understanding 64). The
median of |d| over that of a standard normal, 0.6745, ignores edges (Donoho and Johnstone 1994,
"Ideal spatial adaptation by wavelet shrinkage", Biometrika 81). Fine texture counts as noise:
estimates of very small levels are too large.

Salt and pepper: extreme values that their neighbours do not have. A pixel that is hit is noticed if
0 or 1 differs by more than ``STEP`` from the median of the neighbours that are no extremes; how
often that is so is computed from these medians, and divided by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.filling import median_of_neighbours

Kind = Literal["gaussian", "salt-and-pepper"]

STEP = 0.2
"""Extremes this far from their neighbours are noticed."""

LEAST_FRACTION = 0.004
"""Fewer noticed pixels than this (above what Gaussian noise explains) are no salt and pepper."""

LEAST_SIGMA = 0.002
"""Half a level of 8 bits: rounding alone is about as large."""

_NORMAL_MEDIAN = 0.6745
_LEAST_WINDOWS = 64
_KERNEL = torch.tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]]) / 6


@dataclass(frozen=True)
class Noise:
    """A model and its level.

    Attributes:
        kind: of the model.
        level: sigma, or the fraction of pixels that are hit; on the scale of images in [0, 1].
        estimated: whether the level comes from the image.
    """

    kind: Kind
    level: float
    estimated: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "salt-and-pepper"):
            raise ValueError(f"noise is gaussian or salt-and-pepper, got {self.kind!r}")
        if not 0 <= self.level < math.inf:
            raise ValueError(f"a noise level is finite and not negative, got {self.level}")
        if self.kind == "salt-and-pepper" and self.level > 1:
            raise ValueError(f"a fraction of pixels is at most 1, got {self.level}")

    def __str__(self) -> str:
        how = "estimated" if self.estimated else "given"
        if self.kind == "gaussian":
            return f"Gaussian noise, sigma {self.level:.3g} ({how})"
        return f"salt and pepper, {100 * self.level:.3g} % of the pixels ({how})"


def estimate_noise(images: Tensor, mask: Tensor | None = None, kind: Kind | None = None) -> Noise:
    """The noise of images (B, 1, H, W) with values in [0, 1]; the mean over them.

    Args:
        images: finite, also where the mask is 0.
        mask: 1 where a pixel was seen.
        kind: decided from the images unless given.
    """
    seen = torch.ones_like(images) if mask is None else mask.expand_as(images)
    if kind == "gaussian":
        return Noise("gaussian", gaussian_level(images, seen))
    noticed, fraction, explained = _impulses(images, seen)
    salt_and_pepper = noticed > LEAST_FRACTION + 2 * explained
    if kind == "salt-and-pepper" or salt_and_pepper:
        return Noise("salt-and-pepper", min(1.0, fraction))
    return Noise("gaussian", gaussian_level(images, seen))


def gaussian_level(images: Tensor, seen: Tensor | None = None) -> float:
    """sigma, at least ``LEAST_SIGMA``: see the module."""
    usable = torch.ones_like(images) if seen is None else seen.expand_as(images)
    level = second_difference_level(images, usable) or 0.0
    known = images[usable > 0]
    if bool(((known >= 0) & (known <= 1)).all()):
        # Clipped values have lost their noise. Places are chosen by the mean around them: chosen
        # by the values themselves, they would have less noise than others.
        around = F.avg_pool2d(images * usable, 7, 1, 3, divisor_override=1)
        around = around / F.avg_pool2d(usable, 7, 1, 3, divisor_override=1).clamp_min(1)
        for _ in range(2):  # the first level is too small if much was clipped
            inside = (around > 2 * level) & (around < 1 - 2 * level)
            level = second_difference_level(images, usable * inside) or level
    return max(LEAST_SIGMA, level)


def second_difference_level(images: Tensor, usable: Tensor) -> float | None:
    """The median rule over 3 x 3 windows of usable pixels; None if there are too few."""
    if min(images.shape[-2:]) < 3:
        return None
    kernel = _KERNEL.to(images)[None, None]
    detail = F.conv2d(images.reshape(-1, 1, *images.shape[-2:]), kernel).abs()
    whole = F.max_pool2d(1 - usable.reshape(-1, 1, *images.shape[-2:]), 3, 1) == 0
    chosen = detail[whole]
    if chosen.numel() < _LEAST_WINDOWS:
        return None
    return float(chosen.median()) / _NORMAL_MEDIAN


def photons_of(integrals: Tensor) -> float | None:
    """N in a ray that meets nothing, from line integrals p (B, 1, angles, bins); None if unknown.

    N exp(-p) photons arrive, and p has the variance exp(p) / N (see ``line_integrals``): second
    differences of p, times exp(-p / 2), have the deviation 1 / sqrt(N). The exponent is a mean over
    3 x 3 rays, whose noise is smaller.
    """
    smooth = F.avg_pool2d(integrals, 3, 1, 1, count_include_pad=False).clamp_min(0)
    kernel = _KERNEL.to(integrals)[None, None]
    if min(integrals.shape[-2:]) < 3:
        return None
    scaled = F.conv2d(integrals, kernel).abs() * torch.exp(-smooth[..., 1:-1, 1:-1] / 2)
    level = float(scaled.median()) / _NORMAL_MEDIAN
    return level**-2 if scaled.numel() >= _LEAST_WINDOWS and level > 0 else None


def _impulses(images: Tensor, seen: Tensor) -> tuple[float, float, float]:
    """Fractions: of noticed pixels, of hit ones, and of those that Gaussian noise explains."""
    extreme = (images <= 0) | (images >= 1)
    others = torch.where((seen > 0) & ~extreme, images, torch.nan)
    local = median_of_neighbours(others)
    known = ~local.isnan() & (seen > 0)
    # Surrounded by extremes: many hits, or a flat black or white region. Their mean tells.
    blurred = F.avg_pool2d(images, 5, 1, 2, count_include_pad=False)
    local = torch.where(local.isnan(), blurred, local).clamp(0, 1)
    total = float((seen > 0).sum())
    if total == 0 or not bool(known.any()):
        return 0.0, 0.0, 0.0
    noticed = float((extreme & (seen > 0) & ((images - local).abs() > STEP)).sum()) / total
    chance = ((local > STEP).double() + (1 - local > STEP).double()) / 2
    fraction = noticed / max(0.25, float(chance[seen > 0].mean()))
    sigma = second_difference_level(images, seen * ~extreme)
    if sigma is None:  # hardly a window without extremes: no Gaussian noise does that
        return noticed, fraction, 0.0
    tails = _beyond(local, sigma) + _beyond(1 - local, sigma)
    return noticed, fraction, float(tails[seen > 0].mean())


def _beyond(distance: Tensor, sigma: float) -> Tensor:
    """How likely noise reaches an extreme at this distance, where that would be noticed.

    Neighbours that are no extremes are farther from them than the truth, by up to sigma.
    """
    reach = (distance.double() - sigma).clamp_min(0) / max(sigma, 1e-6)
    chance = torch.special.erfc(reach / math.sqrt(2)) / 2
    return torch.where(distance > STEP, chance, 0.0)
