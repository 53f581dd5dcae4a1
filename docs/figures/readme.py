"""The picture of the README: a photograph with strong noise, restored in three ways.

python docs/figures/readme.py [--output docs/images/readme.jpg]

The cat is ``skimage.data.chelsea`` (Stefan van der Walt, CC0), which no regularizer in colour was
trained on. Needs the packages ``bm3d`` and ``scikit-image``.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import skimage.data
import torch
from gallery import block_matching, total_variation

import convexlift as cl
from convexlift.images import psnr

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt

NAME, LEVEL = "photo-open-colour", 50
PART = np.s_[:, 75:375]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    images = Path(__file__).parents[1] / "images"
    parser.add_argument("--output", type=Path, default=images / "readme.jpg")
    given = parser.parse_args()
    clean = torch.from_numpy(skimage.data.chelsea()).permute(2, 0, 1)[None] / 255
    sigma = LEVEL / 255
    y = clean + sigma * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    solution = cl.solve(
        cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=cl.load(NAME), weight=1.0, noise=sigma
        )
    )
    panels = {
        "noisy": y,
        "total variation": total_variation(y, clean, sigma),
        "BM3D": block_matching(y, sigma),
        "convexlift": solution.x,
    }
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.75))
    for axis, (title, image) in zip(axes, panels.items(), strict=True):
        shown = image.clamp(0, 1)
        axis.imshow(shown[0].permute(1, 2, 0).numpy()[PART])
        axis.set_title(f"{title}, {float(psnr(shown, clean)):.2f} dB", fontsize=11)
        axis.set_axis_off()
    figure.subplots_adjust(left=0.004, right=0.996, top=0.92, bottom=0.12, wspace=0.015)
    words = textwrap.fill(solution.in_words[0], 130)
    figure.text(0.5, 0.045, words, ha="center", va="center", fontsize=10)
    figure.savefig(given.output, dpi=110, pil_kwargs={"quality": 86})
    print(given.output, solution, solution.in_words[0], sep="\n")


if __name__ == "__main__":
    main()
