"""Pictures that are no photographs, and noise that is not white, for ``other_pictures.py``."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from convexlift.images import gaussian_noise, load_example, load_image, poisson_counts
from convexlift.phantoms import shepp_logan

SIDE = 192
WORDS = "The quick brown fox\njumps over 13 lazy dogs.\n0123456789 (a+b)=c\n"
Damage = Callable[[Tensor, float], Tensor]


def seeded() -> torch.Generator:
    """The source of all noise."""
    return torch.Generator().manual_seed(0)


def as_tensor(picture: Image.Image) -> Tensor:
    """(1, 1, H, W) in [0, 1]."""
    return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)[None, None]


def middle(image: Tensor, height: int = SIDE, width: int = SIDE) -> Tensor:
    """The middle of an image, at most so large."""
    top, left = (
        max(0, (n - k) // 2) for n, k in zip(image.shape[-2:], (height, width), strict=True)
    )
    return image[..., top : top + height, left : left + width]


def text() -> Tensor:
    """Black letters of three sizes on white."""
    page = Image.new("L", (SIDE, SIDE), 255)
    for top, size in ((2, 10), (50, 14), (110, 20)):
        ImageDraw.Draw(page).multiline_text((4, top), WORDS, 0, ImageFont.load_default(size))
    return as_tensor(page)


def line_art() -> Tensor:
    """Rays, circles and hatching, one pixel wide, smoothed by drawing four times larger."""
    page = Image.new("L", (4 * SIDE, 4 * SIDE), 255)
    pen, full, half = ImageDraw.Draw(page), 4 * SIDE, 2 * SIDE
    for k in range(24):
        turn = math.pi * k / 12
        pen.line((200, 200, 200 + 180 * math.cos(turn), 200 + 180 * math.sin(turn)), 0, 4)
        pen.line((half + 16 * k, half, full, full - 16 * k), 0, 4)
    for radius in range(16, 200, 24):
        pen.ellipse((560 - radius, 200 - radius, 560 + radius, 200 + radius), None, 0, 4)
        pen.rectangle((20 + radius // 2, 400 + radius, 380, 420 + radius), None, 0, 4)
    return as_tensor(page.reduce(4))


def cells() -> Tensor:
    """Bright blurred ellipses with small nuclei on a dark ground, as in fluorescence."""
    rng, page = np.random.default_rng(0), Image.new("L", (SIDE, SIDE), 20)
    pen = ImageDraw.Draw(page)
    for x, y, a, b, value in rng.uniform((0, 0, 6, 6, 70), (SIDE, SIDE, 16, 16, 170), (30, 5)):
        pen.ellipse((x - a, y - b, x + a, y + b), int(value))
        pen.ellipse((x - a / 3, y - b / 3, x + a / 3, y + b / 3), int(value + 80))
    return as_tensor(page.filter(ImageFilter.GaussianBlur(1.5)))


def checkerboard(side: int) -> Tensor:
    """Squares of 0.2 and 0.8."""
    squares = torch.arange(SIDE) // side
    return 0.2 + 0.6 * ((squares[:, None] + squares) % 2).float()[None, None]


def stripes(side: int) -> Tensor:
    """Columns of 0.2 and 0.8."""
    return (0.2 + 0.6 * (torch.arange(SIDE) // side % 2)).expand(1, 1, SIDE, SIDE).contiguous()


def dithered(x: Tensor) -> Tensor:
    """Black and white only, by Floyd and Steinberg's error diffusion, as in print."""
    page = Image.fromarray((255 * x[0, 0]).round().to(torch.uint8).numpy())
    return as_tensor(page.convert("1").convert("L"))


def pictures(data: Path | None) -> dict[str, list[Tensor]]:
    """Groups of pictures that are no photographs."""
    found = {
        "text": [text()], "line art": [line_art()], "Shepp-Logan phantom": [shepp_logan(SIDE)],
        "drawn cells": [cells()], "brick wall": [middle(load_example("brick"))],
        "flat grey": [torch.full((1, 1, SIDE, SIDE), 0.5)],
        "gradient": [torch.linspace(0, 1, SIDE).expand(1, 1, SIDE, SIDE).contiguous()],
        "checkerboard, 8 pixels": [checkerboard(8)], "checkerboard, 1 pixel": [checkerboard(1)],
        "stripes, 2 pixels": [stripes(2)], "stripes, 1 pixel": [stripes(1)],
        "dithered photograph": [dithered(middle(load_example("camera")))],
        "white noise as the picture": [torch.rand(1, 1, SIDE, SIDE, generator=seeded())],
    }  # fmt: skip
    if data is not None:
        slices = sorted((data / "ct/train").glob("*.png"))[::150]
        found["CT slices (3)"] = [middle(load_image(path)) for path in slices]
    return found


def jpeg(y: Tensor) -> Tensor:
    """After compression with quality 75."""
    file = io.BytesIO()
    pixels = (255 * y[0, 0].clamp(0, 1)).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).save(file, format="JPEG", quality=75)
    return as_tensor(Image.open(file))


def white(x: Tensor, sigma: float) -> Tensor:
    """Noise as in training."""
    return gaussian_noise(x, sigma, seeded())


def poisson(x: Tensor, sigma: float) -> Tensor:
    """Counts over their scale, with the variance sigma^2 on average."""
    scale = float(x.mean()) / sigma**2
    return poisson_counts(scale * x, seeded()) / scale


def correlated(x: Tensor, sigma: float) -> Tensor:
    """Noise that was smoothed by (1 2 1)/4 along both axes, with the deviation sigma."""
    row = torch.tensor([1.0, 2.0, 1.0])
    kernel = torch.outer(row, row)[None, None]
    noise = F.conv2d(white(torch.zeros_like(x), sigma), kernel / kernel.norm(), padding=1)
    return x + noise


DAMAGES: dict[str, tuple[Damage, float]] = {
    "white noise": (white, 1),
    "8 bits, clipped": (lambda x, s: (255 * white(x, s)).round().clamp(0, 255) / 255, 1),
    "JPEG after noise": (lambda x, s: jpeg(white(x, s)), 1),
    "Poisson": (poisson, 1),
    "correlated": (correlated, 1),
    "level stated 20 % too small": (white, 0.8),
    "level stated 20 % too large": (white, 1.2),
}
"""Noise of photographs, and the level that is stated in units of the true one."""
