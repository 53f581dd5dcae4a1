"""The noise of photographs saved as JPEG: its estimated level, and the PSNR of the results.

    python benchmarks/jpeg_noise.py --data DIR

DIR holds photographs in colour. Every 24th, from index 11 on, gets Gaussian noise that is
independent in red, green and blue, and is saved by Pillow with its default subsampling of colours.
Levels are estimated from the whole file: from the decoded pixels alone, and with the quantization
table of the file. With either, ``photo-open-colour`` denoises 128 x 128 pixels from the middle to
a gap of 1e-2.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from convexlift.reconstruction.contents import open_contents
from convexlift.reconstruction.jpeg_noise import before_compression
from convexlift.reconstruction.noise import estimate_noise

CHOSEN, SIDE = slice(11, None, 24), 128
LEVELS, QUALITIES = (5, 10, 25, 50), (50, 75, 92)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    files = sorted(parser.parse_args().data.iterdir())[CHOSEN]
    print("quality  noise | pixels alone: median, largest | with the table | PSNR | with the table")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for quality in QUALITIES:
            for level in LEVELS:
                rows = [measured(file, level, quality, Path(folder)) for file in files]
                alone, table, *quality_of = zip(*rows, strict=True)
                said = (f"{statistics.median(v):5.1f} {max(v):5.1f}" for v in (alone, table))
                means = (f"{statistics.mean(values):6.2f}" for values in quality_of)
                print(f"{quality:7} {level:6} |", " | ".join([*said, *means]), flush=True)


def measured(file: Path, level: float, quality: int, folder: Path) -> tuple[float, ...]:
    """Both estimates on the scale of 255, and the PSNR of the results with them."""
    with Image.open(file) as image:
        clean = np.array(image.convert("RGB"))
    noise = level * np.random.default_rng(0).standard_normal(clean.shape)
    noisy = np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)
    path = folder / "noisy.jpg"
    Image.fromarray(noisy).save(path, quality=quality)
    contents = open_contents(path)
    alone = estimate_noise(contents.images, None, "gaussian")
    table = before_compression(alone, contents, None, together=True)
    truth, given = middle(torch.from_numpy(clean.transpose(2, 0, 1)) / 255), contents.images[:, 0]
    found = [
        cl.reconstruct(middle(given), noise="gaussian", sigma=each.level, tolerance=1e-2)
        for each in (alone, table)
    ]
    after = (float(psnr(each.x.reshape(truth.shape), truth)) for each in found)
    return 255 * alone.level, 255 * table.level, *after


def middle(picture: Tensor) -> Tensor:
    """(1, 3, SIDE, SIDE) of (3, H, W)."""
    top, left = ((side - SIDE) // 2 for side in picture.shape[-2:])
    return picture[None, :, top : top + SIDE, left : left + SIDE].float()


if __name__ == "__main__":
    main()
