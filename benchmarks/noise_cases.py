"""Estimated noise levels against true ones, for pictures as users have them.

    python benchmarks/noise_cases.py --data DIR

DIR holds PNG files named by numbers, as those of BSDS500. Of its files in the order of their
numbers, every 13th from index 6 on is used. Each gets Gaussian noise of every level and is treated
as the case says. All are rounded to 8 bits and clipped, unless the case says otherwise. Printed are
the median, the smallest and the largest ratio of the estimate to the true level.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from convexlift.images import gaussian_noise, load_image
from convexlift.reconstruction.noise import estimate_noise

HELD_OUT = slice(6, None, 13)
LEVELS = (2, 5, 10, 25, 50)
TEXT = "The quick brown fox jumps over the lazy dog. " * 3


def rounded(y: Tensor, white: int = 255) -> Tensor:
    """Clipped, and rounded to white + 1 levels."""
    return (white * y.clamp(0, 1)).round() / white


def noisy(x: Tensor, sigma: float) -> Tensor:
    """With noise of one seed, rounded to 8 bits."""
    return rounded(gaussian_noise(x, sigma, torch.Generator().manual_seed(1)))


def framed(y: Tensor, share: float, value: float) -> Tensor:
    """In a frame of one value that takes a share of the area."""
    growth = math.sqrt(1 / (1 - share)) - 1
    rows, columns = (int(side * growth / 2) for side in y.shape[-2:])
    return rounded(F.pad(y, (columns, columns, rows, rows), value=value))


def text(height: int, width: int, paper: int) -> Tensor:
    """A page of text."""
    picture = Image.new("L", (width, height), paper)
    draw = ImageDraw.Draw(picture)
    for row in range(8, height, 16):
        draw.text((8, row), TEXT, 30, font_size=12)
    return torch.from_numpy(np.asarray(picture) / np.float32(255))[None, None]


def with_text(y: Tensor) -> Tensor:
    """Above a clean text of the same size, as on a page of a web browser."""
    return torch.cat([y, text(*y.shape[-2:], paper=240)], 2)


def paper(x: Tensor, sigma: float, value: int) -> Tensor:
    """A noisy page of text, of the size of the picture."""
    return noisy(text(*x.shape[-2:], paper=value), sigma)


def resized(y: Tensor, factor: float) -> Tensor:
    """By bicubic interpolation, as programs do it."""
    picture = Image.fromarray((255 * y[0, 0]).round().byte().numpy())
    size = [int(side * factor) for side in picture.size]
    small = np.asarray(picture.resize(size, Image.Resampling.BICUBIC))
    return torch.from_numpy(small / np.float32(255))[None, None]


def decoded(y: Tensor, quality: int) -> Tensor:
    """Compressed as JPEG and saved as PNG, which forgets the quantization."""
    file = io.BytesIO()
    Image.fromarray((255 * y[0, 0]).round().byte().numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.asarray(Image.open(file)) / np.float32(255))[None, None]


CASES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "8 bits": noisy,
    "64 grey levels": lambda x, s: rounded(noisy(x, s), 63),
    "64 x 64 pixels": lambda x, s: noisy(x[..., 100:164, 100:164], s),
    "dark: x 0.3": lambda x, s: noisy(0.3 * x, s),
    "very dark: x 0.1": lambda x, s: noisy(0.1 * x, s),
    "bright: 0.8 + 0.2 x": lambda x, s: noisy(0.8 + 0.2 * x, s),
    "overexposed: x 1.6": lambda x, s: noisy((1.6 * x).clamp(0, 1), s),
    "black frame, 40 % of the area": lambda x, s: framed(noisy(x, s), 0.4, 0.0),
    "white frame, 60 %": lambda x, s: framed(noisy(x, s), 0.6, 1.0),
    "grey frame, 80 %": lambda x, s: framed(noisy(x, s), 0.8, 0.9),
    "above clean text": lambda x, s: with_text(noisy(x, s)),
    "text on paper of 225": partial(paper, value=225),
    "text on paper of 240": partial(paper, value=240),
    "scaled by 0.7": lambda x, s: resized(noisy(x, s), 0.7),
    "scaled by 1.5": lambda x, s: resized(noisy(x, s), 1.5),
    "PNG from JPEG, quality 90": lambda x, s: decoded(noisy(x, s), 90),
    "PNG from JPEG, quality 75": lambda x, s: decoded(noisy(x, s), 75),
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="of these pictures")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ordered = sorted(arguments.data.glob("*.png"), key=lambda path: int(path.stem))[HELD_OUT]
    pictures = [load_image(path) for path in ordered[:: arguments.every]]
    print(f"| {len(pictures)} pictures |", " | ".join(f"{level} / 255" for level in LEVELS), "|")
    for name, case in CASES.items():
        cells = (said([ratio(case, x, level / 255) for x in pictures]) for level in LEVELS)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def ratio(case: Callable[[Tensor, float], Tensor], x: Tensor, sigma: float) -> float | None:
    """The estimate over the true level, or None if it is taken for salt and pepper."""
    noise = estimate_noise(case(x, sigma))
    return noise.level / sigma if noise.kind == "gaussian" else None


def said(ratios: list[float | None]) -> str:
    """The median, the smallest and the largest ratio, and how often the model was wrong."""
    known = [each for each in ratios if each is not None]
    wrong = f", {len(ratios) - len(known)} wrong" * (len(known) < len(ratios))
    if not known:
        return wrong.removeprefix(", ")
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f}{wrong})"


if __name__ == "__main__":
    main()
