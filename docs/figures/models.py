"""The pictures of docs/models.md: filters of the shipped regularizers, images before and after.

python docs/figures/models.py [NAME...] [--output docs/images]

Photographs are ``skimage.data.astronaut`` (NASA, public domain) and ``chelsea`` (CC0); the CT slice
is of TCIA Pancreas-CT (CC BY 3.0), from ``pydicom-data``. No regularizer was trained on them. Needs
``scikit-image``, ``pydicom`` and ``pydicom-data``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib
import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from pydicom.data import get_testdata_file
from torch import Tensor

import convexlift as cl
from convexlift.images import load_example, psnr
from convexlift.tasks import Inpainting, SaltAndPepper, SparseViewCT

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt

SIGMA = 25 / 255
CASES = {  # the task that a regularizer is shown with
    "photo-open": "noise", "photo": "noise", "photo-any-size": "noise",
    "photo-open-colour": "noise", "photo-colour": "noise",
    "faces-denoising": "salt-and-pepper",
    "faces-inpainting-adversarial": "inpainting", "faces-inpainting-bilevel": "inpainting",
    "ct": "ct", "ct-abdomen-chest": "ct", "ct-abdomen-chest-deep": "ct",
}  # fmt: skip


def filter_sheet(network: cl.InputConvexNetwork) -> NDArray[np.float64]:
    """All filters on the image, (rows, columns, 3): each scaled to its largest entry; grey is 0."""
    kernels = network.layers[0].skip.weight.detach().double().numpy()
    kernels = 0.5 + 0.5 * kernels / np.abs(kernels).max((1, 2, 3), keepdims=True)
    kernels = np.broadcast_to(kernels, (len(kernels), 3, *kernels.shape[2:]))
    columns, (_, _, height, width) = math.ceil(math.sqrt(len(kernels))), kernels.shape
    rows = math.ceil(len(kernels) / columns)
    sheet = np.ones((rows * (height + 1) + 1, columns * (width + 1) + 1, 3))
    for number, kernel in enumerate(kernels):
        top, left = 1 + number // columns * (height + 1), 1 + number % columns * (width + 1)
        sheet[top : top + height, left : left + width] = kernel.transpose(1, 2, 0)
    return sheet


def clean_image(case: str, channels: int) -> Tensor:
    """A cat in colour, an astronaut in grey, or a slice on the scale of the regularizers."""
    if case == "ct":
        volume = cl.scans.read_volume(get_testdata_file("explicit_VR-UN.dcm", download=False))
        return cl.scans.hounsfield_to_unit(volume.images)
    if channels == 3:
        cat = torch.from_numpy(skimage.data.chelsea()[:, 90:390])
        return cat.permute(2, 0, 1)[None] / 255
    return load_example("astronaut")


def draw(file: Path, name: str, case: str) -> str:
    """Three panels side by side; returns a line for the log."""
    network = cl.load(name)
    clean = clean_image(case, network.in_channels)
    generator = torch.Generator().manual_seed(0)
    weight = network.card.weights.get(case, network.card.weight)
    if case == "noise":
        adaptive = hasattr(network, "guide")  # the weight of the fixed one belongs to 0.1
        level = SIGMA if adaptive else 0.1
        before = clean + level * torch.randn(clean.shape, generator=generator)
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(before),
            regularizer=network,
            weight=weight,
            noise=level if adaptive else None,
        )
        title = f"Gaussian noise, sigma {255 * level:.0f}"
    else:
        task, title = {
            "ct": (SparseViewCT(box=(0.0, 2.0)), "filtered back projection"),
            "inpainting": (Inpainting(), "30 % missing"),
            "salt-and-pepper": (SaltAndPepper(), "25 % salt and pepper"),
        }[case]
        data = task.measure(clean, [generator])
        problem = data.problem(network, weight=weight)
        before = data.fidelity.y if case == "inpainting" else data.picture
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-2 if case == "ct" else 1e-3))
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.05))
    window = (0.35, 0.51) if case == "ct" else (0, 1)  # -150 to 250 HU
    axes[0].imshow(filter_sheet(network), vmin=0, vmax=1, interpolation="nearest")
    axes[0].set_title(f"{len(network.layers[0].skip.weight)} filters on the image", fontsize=9)
    for axis, text, image in ((axes[1], title, before), (axes[2], name, solution.x)):
        shown = ((image[0] - window[0]) / (window[1] - window[0])).clamp(0, 1)
        if case == "ct":  # the body, with the table below it
            shown = shown[:, 110:450, 90:430].rot90(2, (1, 2))
        axis.imshow(shown.permute(1, 2, 0).numpy(), cmap="gray", vmin=0, vmax=1)
        axis.set_title(f"{text}, {float(psnr(image, clean)):.2f} dB", fontsize=9)
    for axis in axes:
        axis.set_axis_off()
    figure.subplots_adjust(left=0.005, right=0.995, top=0.91, bottom=0.005, wspace=0.03)
    figure.savefig(file, dpi=100, pil_kwargs={"quality": 85})
    plt.close(figure)
    return f"{name}: {solution.in_words[0]}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "images")
    given = parser.parse_args()
    for name in given.names:
        print(draw(given.output / f"model-{name}.jpg", name, CASES[name]), flush=True)


if __name__ == "__main__":
    main()
