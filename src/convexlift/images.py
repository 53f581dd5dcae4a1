"""Images: shipped examples, files, noise, PSNR and SSIM.

Images are tensors (B, C, H, W) with values in [0, 1].
"""

from __future__ import annotations

import math
import os
from importlib import resources
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.files.atomic import atomic_path as atomic_path
from convexlift.files.formats import pillow
from convexlift.files.pictures import read_plane, to_float
from convexlift.precision import as_double, near_double
from convexlift.tensors import first_non_finite

WEIGHT_CAPTION = "Bright: smoothed strongly; dark: detail kept"
"""The caption of pictures of weights that a regularizer read off the data."""
_GAUSSIAN = tuple(math.exp(-((k / 1.5) ** 2) / 2) for k in range(-5, 6))


def example_names() -> tuple[str, ...]:
    """The names of the shipped pictures."""
    folder = resources.files("convexlift") / "data"
    return tuple(sorted(Path(f.name).stem for f in folder.iterdir() if f.name.endswith(".png")))


def load_example(name: str) -> Tensor:
    """A shipped picture, (1, 1, 256, 256) in float32."""
    if name not in example_names():
        raise ValueError(
            f"there is no example {name!r}; choose one of {', '.join(example_names())}"
        )
    with resources.as_file(resources.files("convexlift") / "data" / f"{name}.png") as path:
        return load_image(path)


def load_image(path: str | os.PathLike[str]) -> Tensor:
    """A picture file as grey values, (1, 1, H, W) in float32.

    PNG, TIFF and JPEG become values between 0 and 1 (8 bits divided by 255, 16 bits by 65535).
    NPY files hold (H, W) or (1, H, W): integers are divided by the maximum of their type. Floats,
    in TIFF or NPY, are unchanged and must be finite.
    """
    plane = read_plane(Path(path))
    return torch.from_numpy(to_float(plane))[None, None]


def save_image(path: str | os.PathLike[str], image: Tensor) -> None:
    """Write one grey image, (H, W) or (1, 1, H, W), as an 8-bit PNG, clipped to [0, 1]."""
    if (place := first_non_finite(image)) is not None:
        raise ValueError(f"cannot write {path}: the image is {float(image[place])} at {place}")
    plane = image.detach().cpu().reshape(image.shape[-2:]).clamp(0, 1)
    pixels = (255 * plane).round().to(torch.uint8).numpy()
    with atomic_path(Path(path)) as part:
        pillow().fromarray(pixels).save(part, format="PNG")


def weight_picture(weights: Tensor) -> Tensor:
    """A map of weights (B, 1, H, W) in [0, 1] as one picture (1, 1, H, W), for ``WEIGHT_CAPTION``.

    It shows square roots, since many weights are small.
    """
    return weights.mean(0, keepdim=True).sqrt()


def psnr(x: Tensor, truth: Tensor, peak: float = 1.0) -> Tensor:
    """10 log10(peak^2 / mean (x - truth)^2) in dB, for each image.

    Args:
        x: images, (B, ...).
        truth: of the same shape; a batch of one is compared with all images.
        peak: the value of white.
    """
    _require_same_size(x, truth)
    error = near_double((x - truth) ** 2).flatten(1).mean(1, dtype=torch.float64)
    return 10 * torch.log10(torch.as_tensor(peak**2, dtype=torch.float64) / error)


def ssim(x: Tensor, truth: Tensor) -> Tensor:
    """The structural similarity of each image, in double precision (Wang et al. 2004).

    The mean over all pixels of (2 m n + c1) (2 cov + c2) / ((m^2 + n^2 + c1) (var x + var y + c2)),
    with means m and n, variances and covariances weighted by a Gaussian of 11 x 11 pixels and
    standard deviation 1.5. Images are reflected at their edges. The result is NaN for images
    smaller than the window.

    Args:
        x: images, (B, C, H, W), with values in [0, 1].
        truth: of the same shape; a batch of one is compared with all images.
    """
    _require_same_size(x, truth)
    if min(x.shape[-2:]) < len(_GAUSSIAN):
        return torch.full((len(x),), math.nan, dtype=torch.float64, device=near_double(x).device)
    # One image at a time, so that memory does not grow with the batch.
    size = (max(len(x), len(truth)), *x.shape[1:])
    pairs = zip(x.expand(size), truth.expand(size), strict=True)
    return torch.stack([_similarity_map(as_double(a), as_double(b)).mean() for a, b in pairs])


def _similarity_map(x: Tensor, y: Tensor) -> Tensor:
    """SSIM in the window around each pixel of (C, H, W)."""
    c1, c2 = 0.01**2, 0.03**2
    margin = 4 * (len(_GAUSSIAN) // 2,)
    x, y = F.pad(x, margin, mode="reflect"), F.pad(y, margin, mode="reflect")
    mean_x, mean_y = _local_mean(x), _local_mean(y)
    covariance = _local_mean(x * y) - mean_x * mean_y
    variances = (_local_mean(x * x) - mean_x**2).clamp_min_(0)
    variances += (_local_mean(y * y) - mean_y**2).clamp_min_(0)
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return above / ((mean_x**2 + mean_y**2 + c1) * (variances + c2))


def _local_mean(image: Tensor) -> Tensor:
    """Gaussian-weighted means: a separable filter, as a sum of shifted images."""
    for dim in (-2, -1):
        length = image.shape[dim] + 1 - len(_GAUSSIAN)
        shifted = (image.narrow(dim, k, length) for k in range(len(_GAUSSIAN)))
        total = torch.zeros_like(image.narrow(dim, 0, length))
        for part, weight in zip(shifted, _GAUSSIAN, strict=True):
            total.add_(part, alpha=weight / sum(_GAUSSIAN))
        image = total
    return image


def salt_and_pepper(x: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Replace a fraction of the pixels by 0 or 1, with equal chances."""
    _require_fraction(fraction)
    hit = _uniform(x, generator) < fraction
    salt = (_uniform(x, generator) < 0.5).to(x.dtype)
    return torch.where(hit, salt, x)


def gaussian_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + sigma n with standard normal n."""
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=generator.device)
    return x + sigma * noise.to(x.device)


def poisson_counts(mean: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson counts with the given mean at every pixel."""
    return torch.poisson(mean.to(generator.device), generator=generator).to(mean.device)


def random_mask(x: Tensor, missing: float, generator: torch.Generator) -> Tensor:
    """1 where a pixel is seen, 0 where it is missing; (1, 1, H, W), in the image's precision."""
    _require_fraction(missing)
    return (_uniform(x[:1, :1], generator) >= missing).to(x.dtype)


def _require_same_size(x: Tensor, truth: Tensor) -> None:
    batches = {*x.shape[:1], *truth.shape[:1]} - {1}
    if x.ndim < 2 or x.shape[1:] != truth.shape[1:] or len(batches) > 1:
        raise ValueError(
            f"x has the shape {tuple(x.shape)} and truth {tuple(truth.shape)}; compare images of "
            "one size, both (B, C, H, W)"
        )


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(x.shape, generator=generator, device=generator.device).to(x.device)


def _require_fraction(value: float) -> None:
    if not 0 <= value <= 1 or math.isnan(value):
        raise ValueError(f"a fraction must lie between 0 and 1, got {value}")
