"""The noise of an image, its model and its level, estimated from the image alone.

Gaussian noise has the same variance in every direction of the space of patches, and an image
without texture has few directions. Among the 7 x 7 patches, those with as little gradient as noise
alone has are chosen (Liu, Tanaka and Okutomi 2013, "Single-image noise level estimation for blind
denoising", IEEE Transactions on Image Processing 22). Of the eigenvalues of their covariance, the
largest belong to the image: they are left out until the mean of the rest is no larger than the
median (Chen, Zhu and Heng 2015, "An efficient statistical method for image noise level
estimation", ICCV). sigma^2 is that mean. Patches are chosen three times, with the level found so
far.

The first level, and the level of images with few whole patches, comes from a second difference in
both directions,

    d = [1 -2 1; -2 4 -2; 1 -2 1] * y / 6,

which vanishes on images that are linear along rows or columns, and has the deviation sigma on white
noise (Immerkaer 1996, "Fast noise variance estimation", Computer Vision and Image Understanding
64). The median of |d| over that of a standard normal, 0.6745, ignores edges (Donoho and Johnstone
1994, "Ideal spatial adaptation by wavelet shrinkage", Biometrika 81), but fine texture counts as
noise.

Where so many pixels are missing that fewer than ``ENOUGH`` of these 3 x 3 windows are whole, three
neighbours in a row or a column take their place, and then two:

    d = [1 -2 1] * y / sqrt(6),    d = [1 -1] * y / sqrt(2).

Both have the deviation sigma too, but respond to more of the image: lines count curvature as noise,
and pairs every slope. On the examples of the package, lines overestimate sigma = 0.1 by up to 5 %,
pairs by up to 15 %; for 0.02, by up to 40 % and 60 %. With fewer than ``FEWEST`` pairs there is no
estimate.

Salt and pepper are extreme values far from all neighbours. A hit is noticed if all of its eight
neighbours, except other extremes, differ from it by more than ``STEP``. The count of noticed hits
is divided by the share of pixels, for black and for white, whose neighbours allow this. Hits are
independent: black ones have about as many white neighbours as black ones. Strokes of letters on
paper do not, and are not salt and pepper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.option_values import NoiseKind

Kind = NoiseKind

STEP = 0.2
"""The least distance of a noticed extreme from its neighbours."""
LEAST_CHANCE = 0.05
"""The least chance of noticing a hit that counts are divided by."""
LEAST_FRACTION = 0.004
"""With a smaller excess of noticed pixels over Gaussian noise, the noise is Gaussian."""
CLUSTERED = 1.0
"""Noticed pixels with this excess of neighbours of their own kind (mean, of eight) are strokes or
areas; salt and pepper of up to 70 % have 0, letters 3 to 5."""
LEAST_SIGMA = 0.002
"""Half a level of 8 bits: rounding alone is about as large."""
MOST_PIXELS, CROP = 2**23, 512
"""The most pixels used; of a large stack, evenly spread planes, or crops of them, suffice."""
ENOUGH, FEWEST = 256, 64
"""Differences needed for a median within about 10 %, and within a third. A rule with enough of them
is preferred to a better rule without."""
SIDE = 7
"""The side of a patch in pixels."""
FEWEST_PATCHES, FEWEST_WEAK = 20 * SIDE**2, 4 * SIDE**2
"""The fewest patches for a covariance, and the fewest weakly textured ones: with fewer, the
eigenvalues of noise spread so far that the smallest are mistaken for all."""
LEAST_WEAK = 0.05
"""The least share of patches used: a smaller one would select patches with little noise."""
MOST_PATCHES = 2**17
"""The most patches used; of more, evenly spread ones suffice."""
WEAK = 1.6
"""The mean squared gradient, over sigma^2, below which 97 % of patches of white noise lie."""

WIDE, CLIPPED, EQUAL = 15, 0.01, 0.25
"""The side of windows that tell clipped noise and frames, the least share of black and white pixels
where noise is clipped, and the most equal neighbours in noise of 8 bits."""

_NORMAL_MEDIAN = 0.6745
_LINE, _PAIR = torch.tensor([[1.0, -2.0, 1.0]]), torch.tensor([[1.0, -1.0]])
_WINDOW = _LINE.T @ _LINE / 6
_KERNELS = (
    (_WINDOW,),
    (_LINE / math.sqrt(6), _LINE.T / math.sqrt(6)),
    (_PAIR / math.sqrt(2), _PAIR.T / math.sqrt(2)),
)  # of the three rules, the best one first


class TooFewPixels(ValueError):
    """Noise cannot be estimated: hardly any seen pixel has seen neighbours."""

    def __init__(self) -> None:
        super().__init__("too few pixels and neighbours were seen to estimate the noise")


@dataclass(frozen=True)
class Noise:
    """A noise model and its level.

    Attributes:
        kind: the model.
        level: sigma, or the fraction of pixels that are hit; on the scale of images in [0, 1].
        estimated: whether the level comes from the image.
        before_jpeg: whether it is the level before JPEG compression, which smooths noise.
        jpeg_channels: whether it is the level in single channels of a JPEG in colour, which keeps
            the noise of luma and removes most of the noise in the colours.
    """

    kind: Kind
    level: float
    estimated: bool = True
    before_jpeg: bool = False
    jpeg_channels: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "salt-and-pepper"):
            raise ValueError(f"noise is gaussian or salt-and-pepper, got {self.kind!r}")
        if not 0 <= self.level < math.inf:
            raise ValueError(f"a noise level is finite and not negative, got {self.level}")
        if self.kind == "salt-and-pepper" and self.level > 1:
            raise ValueError(f"a fraction of pixels is at most 1, got {self.level}")

    def to_json(self) -> dict[str, Any]:
        """The facts for records."""
        facts = {"model": self.kind, "level": self.level, "estimated": self.estimated}
        flags = {"before_jpeg": self.before_jpeg, "jpeg_channels": self.jpeg_channels}
        return facts | {name: True for name, flag in flags.items() if flag}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Self:
        """The noise of a record."""
        flags = (name in facts for name in ("before_jpeg", "jpeg_channels"))
        return cls(facts["model"], facts["level"], facts["estimated"], *flags)

    def __str__(self) -> str:
        how = "estimated" if self.estimated else "given"
        how += ", before JPEG compression" * self.before_jpeg
        how += ", in single channels of the JPEG" * self.jpeg_channels
        if self.kind == "gaussian":
            return f"Gaussian noise, sigma {self.level:.3g} ({how})"
        return f"salt and pepper, {100 * self.level:.3g} % of the pixels ({how})"


def estimate_noise(images: Tensor, mask: Tensor | None = None, kind: Kind | None = None) -> Noise:
    """The noise of images (B, 1, H, W) with values in [0, 1]; the mean over them.

    Args:
        images: finite, also where the mask is 0.
        mask: 1 where a pixel was seen.
        kind: the model; decided from the images unless given.

    Raises:
        TooFewPixels: the images do not suffice for an estimate.
    """
    seen = torch.ones_like(images) if mask is None else mask.expand_as(images)
    if kind == "gaussian":
        return Noise("gaussian", gaussian_level(images, seen))
    found = _impulses(images, seen)
    if kind == "salt-and-pepper" and not found.known:
        raise TooFewPixels
    if kind == "salt-and-pepper" or (found.many and found.independent):
        return Noise("salt-and-pepper", min(1.0, found.fraction))
    return Noise("gaussian", gaussian_level(images, seen))


def spread(images: Tensor) -> slice:
    """The planes of a stack to estimate from: all, or evenly spread ones of a large stack."""
    return slice(None, None, -(-images.numel() // MOST_PIXELS))


def sampled(images: Tensor) -> Tensor:
    """Enough of a stack (B, C, H, W) to estimate from: spread planes, or crops of large ones."""
    height, width = images.shape[-2:]
    if images[0].numel() <= MOST_PIXELS:
        return images[spread(images)]
    few = images[:: -(-len(images) // 3)]
    high, wide = min(CROP, height), min(CROP, width)
    count = max(1, MOST_PIXELS * height * width // (few.numel() * high * wide))
    rows = max(1, min(count, round(math.sqrt(count * height / width))))
    tops, lefts = (
        [round((length - size) * (k + 0.5) / number) for k in range(number)]
        for length, size, number in ((height, high, rows), (width, wide, max(1, count // rows)))
    )
    return torch.cat([few[..., t : t + high, c : c + wide] for t in tops for c in lefts])


def is_line_art(images: Tensor, mask: Tensor | None = None) -> bool:
    """Whether most pixels are black or white, as in text, where no estimate is reliable."""
    seen = torch.ones_like(images) if mask is None else mask.expand_as(images)
    extreme = ((images <= 0) | (images >= 1)) & (seen > 0)
    if float(extreme.sum()) <= 0.5 * float((seen > 0).sum()):
        return False
    known = images[seen > 0]
    if bool(((known <= 0) | (known >= 1)).all()):
        return bool((known <= 0).any()) and bool((known >= 1).any())
    found = _impulses(images, seen)
    return found.many and not found.independent


def gaussian_level(images: Tensor, seen: Tensor | None = None) -> float:
    """sigma, at least ``LEAST_SIGMA``: see the module."""
    usable = torch.ones_like(images) if seen is None else seen.expand_as(images)
    noisy = usable * _varied(images)
    if float(noisy.sum()) > float(usable.sum()) / 2 or _is_framed(images, noisy):
        usable = noisy  # otherwise the image itself has no noise
    level = difference_level(images, usable)
    if level is None:
        raise TooFewPixels
    for _ in range(2):  # the first level is too small if much was clipped
        better = difference_level(images, unclipped(images, usable, level))
        level = level if better is None else better
    return max(LEAST_SIGMA, _patch_level(images, usable, level))


def unclipped(images: Tensor, seen: Tensor, sigma: float) -> Tensor:
    """1 where the noise is not clipped: seen, with a mean at least 2 sigma away from 0 and 1.

    Values that were clipped to [0, 1] have lost some of their noise. Pixels are chosen by the mean
    around them, since a choice by their own values would favour little noise. Where hardly any
    pixel is 0 or 1, nothing was clipped and sigma is too large: otherwise text would hide the noise
    of white paper. Images with values beyond [0, 1] were not clipped.
    """
    known = images[seen > 0]
    if not bool(((known >= 0) & (known <= 1)).all()):
        return seen
    around = _mean_around(images, seen, 7)
    extreme = ((images <= 0) | (images >= 1)).to(images)
    rare = _mean_around(extreme, seen, WIDE) < CLIPPED
    return seen * (((around > 2 * sigma) & (around < 1 - 2 * sigma)) | rare)


def _mean_around(values: Tensor, seen: Tensor, side: int) -> Tensor:
    """Means over the seen pixels of squares around each pixel."""
    total, count = (
        F.avg_pool2d(each, side, 1, side // 2, divisor_override=1) for each in (values * seen, seen)
    )
    return total / count.clamp_min(1)


def _varied(images: Tensor) -> Tensor:
    """0 in constant windows of 5 x 5 pixels, such as padding, which have no noise; else 1."""
    highest, lowest = F.max_pool2d(images, 5, 1, 2), -F.max_pool2d(-images, 5, 1, 2)
    return 1 - F.max_pool2d((highest == lowest).to(images), 5, 1, 2)


def _is_framed(images: Tensor, noisy: Tensor) -> bool:
    """Whether noise fills an area without constant windows, as of a picture in a wide frame.

    Drawings and text vary, too, but in narrow parts, or with many equal neighbours.
    """
    deep = -F.max_pool2d(-noisy, WIDE, 1, WIDE // 2)
    pairs = noisy[..., 1:] * noisy[..., :-1]
    equal = float((pairs * (images[..., 1:] == images[..., :-1])).sum())
    return float(deep.sum()) >= FEWEST_PATCHES and equal < EQUAL * float(pairs.sum())


def _patch_level(images: Tensor, usable: Tensor, level: float) -> float:
    """sigma from the eigenvalues of weakly textured patches; ``level`` if there are too few."""
    height, width = (side - SIDE + 1 for side in images.shape[-2:])
    count = len(images) * height * width
    if min(height, width) < 1 or count < FEWEST_PATCHES:
        return level
    step = math.ceil(math.sqrt(count / MOST_PATCHES))
    patches = F.unfold(images, SIDE, stride=step).transpose(0, 1).flatten(1)
    across = (images[..., 1:-1, 2:] - images[..., 1:-1, :-2]) / 2
    down = (images[..., 2:, 1:-1] - images[..., :-2, 1:-1]) / 2
    gradients = F.avg_pool2d(across**2 + down**2, SIDE - 2, 1)[..., ::step, ::step].flatten()
    for _ in range(3):
        whole = -F.max_pool2d(-unclipped(images, usable, level), SIDE, 1)[..., ::step, ::step]
        chosen = (whole.flatten() > 0) & (gradients > 0)
        if (number := int(chosen.sum())) < FEWEST_PATCHES:
            return level
        always = max(FEWEST_WEAK, int(LEAST_WEAK * number))
        least = float(gradients[chosen].kthvalue(always).values)
        weak = patches[:, chosen & (gradients <= max(WEAK * level**2, least))]
        level = _eigenvalue_level(torch.linalg.eigvalsh(weak.double().cov()))
    return level


def _eigenvalue_level(eigenvalues: Tensor) -> float:
    """The root of the largest mean of the first eigenvalues (ascending) within their median."""
    last = torch.arange(len(eigenvalues), device=eigenvalues.device)
    means = eigenvalues.cumsum(0) / (last + 1)
    medians = (eigenvalues[last // 2] + eigenvalues[(last + 1) // 2]) / 2
    return math.sqrt(max(0.0, float(means[means <= medians].max())))


def difference_level(images: Tensor, usable: Tensor) -> float | None:
    """sigma by the best rule with ``ENOUGH`` differences, or else with ``FEWEST``, or None."""
    found = []
    for kernels in _KERNELS:
        details = torch.cat([_differences(images, usable, kernel) for kernel in kernels])
        if len(details) >= ENOUGH:
            return float(details.median()) / _NORMAL_MEDIAN
        found += [details] if len(details) >= FEWEST else []
    return float(found[0].median()) / _NORMAL_MEDIAN if found else None


def _differences(images: Tensor, usable: Tensor, kernel: Tensor) -> Tensor:
    """|kernel * image| wherever all pixels under the kernel are usable, as one row of numbers."""
    size = tuple(kernel.shape)
    if any(side < least for side, least in zip(images.shape[-2:], size, strict=True)):
        return images.new_empty(0)
    planes = images.reshape(-1, 1, *images.shape[-2:])
    whole = F.max_pool2d(1 - usable.reshape(planes.shape), size, 1) == 0
    return F.conv2d(planes, kernel.to(images)[None, None]).abs()[whole]


def photons_of(integrals: Tensor) -> float | None:
    """N in a free ray, from line integrals p (B, 1, angles, bins); None if unknown.

    N exp(-p) photons arrive, and p has the variance exp(p) / N (see ``line_integrals``): second
    differences of p, times exp(-p / 2), have the deviation 1 / sqrt(N). The exponent is a mean over
    3 x 3 rays, whose noise is smaller.
    """
    smooth = F.avg_pool2d(integrals, 3, 1, 1, count_include_pad=False).clamp_min(0)
    kernel = _WINDOW.to(integrals)[None, None]
    if min(integrals.shape[-2:]) < 3:
        return None
    scaled = F.conv2d(integrals, kernel).abs() * torch.exp(-smooth[..., 1:-1, 1:-1] / 2)
    level = float(scaled.median()) / _NORMAL_MEDIAN
    rounding = torch.finfo(integrals.dtype).eps * float(integrals.abs().max())
    return level**-2 if scaled.numel() >= FEWEST and level > rounding else None


class _Impulses(NamedTuple):
    """Salt and pepper in images; ``known`` says whether there were pixels to count.

    ``many``: more pixels are noticed than Gaussian noise explains; ``independent``: they are
    independent, as hits are and strokes are not; ``fraction``: the share of pixels that are hit.
    """

    known: bool = False
    many: bool = False
    independent: bool = True
    fraction: float = 0.0


def _impulses(images: Tensor, seen: Tensor) -> _Impulses:
    extreme = (images <= 0) | (images >= 1)
    usable = (seen > 0) & ~extreme
    # Pixels without a usable neighbour get -1 and 2, beyond all values.
    highest = F.max_pool2d(torch.where(usable, images, -1.0), 3, 1, 1)
    lowest = -F.max_pool2d(torch.where(usable, -images, -2.0), 3, 1, 1)
    known = (seen > 0) & (highest >= 0)  # with a neighbour to compare with
    total = float(known.sum())
    if total < FEWEST:
        return _Impulses()
    # If hardly any window is free of extremes, impulses hide any Gaussian noise.
    details = _differences(images, seen * ~extreme, _WINDOW)
    sigma = float(details.median()) / _NORMAL_MEDIAN if len(details) >= FEWEST else 0.0
    # Fractions of noticed and of hit pixels, and of those that Gaussian noise explains; extremes of
    # the same and of the other kind among eight neighbours, and as expected of independent ones.
    noticed = fraction = explained = same = other = expected = 0.0
    black, white = (images <= 0) & (seen > 0), (images >= 1) & (seen > 0)
    around = {True: _around(black), False: _around(white)}
    for distance, hit in ((lowest, black), (1 - highest, white)):
        far = known & (distance > STEP)
        chosen = hit & far
        share = float(chosen.sum()) / total
        same += float(around[hit is black][chosen].sum()) / total
        other += float(around[hit is not black][chosen].sum()) / total
        expected += 8 * share * float(hit.sum()) / float((seen > 0).sum())
        noticed += share
        fraction += share / max(LEAST_CHANCE, float(far.sum()) / total)
        reach = distance[far].double() / max(sigma, 1e-6)
        explained += float((torch.special.erfc(reach / math.sqrt(2)) / 2).sum()) / total
    if noticed > 0:
        same, other, expected = same / noticed, other / noticed, expected / noticed
    # Salt alone, or pepper alone, has no neighbours of the other kind.
    alone = other < 0.1 * same and expected < 8 * 0.3
    independent = same - other <= CLUSTERED or (alone and same < 1.5 * expected + 0.3)
    return _Impulses(True, noticed > LEAST_FRACTION + 2 * explained, independent, fraction)


def _around(chosen: Tensor) -> Tensor:
    """The number of chosen pixels among the eight neighbours."""
    ones = chosen.float()
    return F.avg_pool2d(ones, 3, 1, 1, divisor_override=1) - ones
