"""The pictures of docs/gallery.md: parts of photographs, noisy and restored in several ways.

python docs/figures/gallery.py PICTURES [--output docs/images]

Grey photographs come with the package, in the public domain or CC0; those in colour, CC0, are in
the folder PICTURES that ``python -m experiments.open_pictures`` makes. BM3D needs the package
``bm3d``. No regularizer was trained on the pictures shown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bm3d
import matplotlib
import numpy as np
import torch
from PIL import Image
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt

CASES = {  # file: example, regularizer, sigma of 255, top, left
    "gallery-camera": ("camera", "photo-open", 25, 20, 60),
    "gallery-astronaut": ("astronaut", "photo-open", 50, 10, 60),
    "gallery-brick": ("brick", "photo-open", 25, 60, 60),
    "gallery-otters": ("budgie-backgrounds-oakland-zoo-otters", "photo-colour", 50, 60, 200),
    "gallery-osprey": ("budgie-backgrounds-perched-osprey-0", "photo-colour", 25, 60, 120),
}
SIDE = 160


def total_variation(y: Tensor, clean: Tensor, sigma: float) -> Tensor:
    """With the weight that is best for this picture, which only its truth can tell."""
    results = []
    for factor in (0.4, 0.55, 0.7, 0.85, 1.0):
        planes = cl.SquaredL2(y.reshape(-1, 1, *y.shape[2:]))
        problem = cl.VariationalProblem(
            fidelity=planes, regularizer=cl.TotalVariation(), weight=factor * sigma
        )
        results.append(cl.solve(problem).x.reshape(y.shape))
    return max(results, key=lambda x: float(psnr(x, clean)))


def block_matching(y: Tensor, sigma: float) -> Tensor:
    """BM3D, in grey or colour."""
    image = y[0].permute(1, 2, 0).double().numpy()
    restored = bm3d.bm3d_rgb(image, sigma) if len(y[0]) == 3 else bm3d.bm3d(image[..., 0], sigma)
    return torch.from_numpy(restored.reshape(image.shape)).permute(2, 0, 1)[None].float()


def draw(file: Path, photograph: Path, name: str, level: int, top: int, left: int) -> None:
    """Six panels side by side, with the PSNR of the whole picture above each."""
    network, sigma = cl.load(name), level / 255
    with Image.open(photograph) as picture:
        pixels = np.asarray(picture.convert("RGB" if network.in_channels == 3 else "L"))
    clean = torch.from_numpy(np.atleast_3d(pixels).copy()).permute(2, 0, 1)[None] / 255
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    y = clean + sigma * noise
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0, noise=sigma
    )
    solution = cl.solve(problem)
    panels = {
        "clean": clean,
        f"noisy, sigma {level}": y,
        "total variation": total_variation(y, clean, sigma),
        "BM3D": block_matching(y, sigma),
        name: solution.x,
    }
    figure, axes = plt.subplots(1, 6, figsize=(13.2, 2.55))
    part = np.s_[top : top + SIDE, left : left + SIDE]
    for axis, (title, image) in zip(axes, panels.items(), strict=False):
        shown = image[0].clamp(0, 1).permute(1, 2, 0).numpy()[part]
        axis.imshow(shown, cmap="gray", vmin=0, vmax=1)
        label = "" if title == "clean" else f"  {float(psnr(image.clamp(0, 1), clean)):.2f} dB"
        axis.set_title(title + label, fontsize=8.5)
    weights = solution.weight_map
    assert weights is not None
    axes[-1].imshow(weights[0, 0].sqrt().numpy()[part], cmap="gray", vmin=0, vmax=1)
    axes[-1].set_title("weights: bright is smoothed", fontsize=8.5)
    for axis in axes:
        axis.set_axis_off()
    figure.tight_layout(pad=0.4)
    figure.savefig(file, dpi=110, pil_kwargs={"quality": 88})
    print(file, f"gap {float(solution.gap):.1e}, {int(solution.iterations)} iterations")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "images")
    given = parser.parse_args()
    for name, (photograph, *case) in CASES.items():
        path = given.pictures / f"{photograph}.png"
        path = path if path.exists() else Path(cl.__file__).parent / "data" / f"{photograph}.png"
        draw(given.output / f"{name}.jpg", path, *case)


if __name__ == "__main__":
    main()
