"""Run the code of docs/ct.md, print the numbers of that page, and draw its pictures.

    python benchmarks/ct_tutorial.py [--threads 1]

The page is the program: its Python blocks are executed one after the other, in a temporary folder,
and what they leave behind is measured and drawn. It needs convexlift[train,ct], and pydicom-data
for the slice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import LogNorm
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from convexlift.training.validation import ssim

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "ct.md"
WINDOW = cl.scans.WINDOWS["abdomen"]
PART = (slice(96, 396), slice(98, 430))
"""Rows and columns of the body; the rest is air, and the table."""
ERROR = 150.0
"""White in the pictures of errors is 0 HU; this and beyond, the strongest colours."""
LEAST = 1e-7
"""The smallest part of a gap that is told from others."""
SOURCE = "Slice: TCIA Pancreas-CT (Roth et al. 2016), CC BY 3.0; scan simulated"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        scope = run(python_blocks())
    print(table(scope))
    for name, draw in (("ct-reconstructions", draw_images), ("ct-gap", draw_gaps)):
        path = DOCS / "images" / f"{name}.png"
        save(draw(scope), path)
        print(path.name, path.stat().st_size, "bytes")


def python_blocks() -> list[str]:
    """Those of the page, in order."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def run(blocks: list[str]) -> dict[str, Any]:
    """What all blocks define, one after the other in one scope; each is timed."""
    scope: dict[str, Any] = {}
    for block in blocks:
        wall, processor = time.perf_counter(), time.process_time()
        exec(compile(block, PAGE.name, "exec"), scope)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        print(f"  ({wall:.1f} s, {processor:.1f} s of processor time)", flush=True)
    return scope


def pictures(scope: dict[str, Any]) -> dict[str, Tensor]:
    """The three reconstructions, by the names they have in figures."""
    return {
        "filtered back projection": scope["classical"],
        "total variation": scope["tv"].x,
        "ct-abdomen-chest": scope["solution"].x,
    }


def table(scope: dict[str, Any]) -> str:
    """PSNR (peak 1), SSIM and the root of the mean square error in HU; gap, iterations, seconds."""
    truth, lines = scope["truth"], []
    body = truth > float(cl.scans.hounsfield_to_unit(torch.tensor(-500.0)))
    solutions = {"total variation": scope["tv"], "ct-abdomen-chest": scope["solution"]}
    for name, x in pictures(scope).items():
        error = in_hounsfield(x) - in_hounsfield(truth)
        line = (
            f"{name}: {float(psnr(x, truth)):.2f} dB, SSIM {float(ssim(x, truth)):.3f}, "
            f"{error.square().mean().sqrt():.0f} HU ({error[body[0, 0]].square().mean().sqrt():.0f}"
            " in the body)"
        )
        if name in solutions:
            s = solutions[name]
            line += f", gap {float(s.gap):.1e}, {int(s.iterations)} iterations, {s.seconds:.0f} s"
        lines.append(line)
    return "\n".join(lines)


def in_hounsfield(x: Tensor) -> Tensor:
    """(H, W) in HU, for x in units of the regularizer."""
    return cl.scans.unit_to_hounsfield(x[0, 0])


def draw_images(scope: dict[str, Any]) -> Any:
    """Above, the slice and its reconstructions in one grey window; below, data and errors."""
    truth = scope["truth"]
    figure, axes = plt.subplots(2, 4, figsize=(12.4, 6.0), layout="constrained")
    grey = {"cmap": "gray", "vmin": WINDOW.low, "vmax": WINDOW.high}
    shown = show(axes[0, 0], in_hounsfield(truth), "truth", **grey)
    y = scope["y"][0, 0].cpu()
    axes[1, 0].imshow(y, cmap="gray", aspect="auto", interpolation="nearest")
    views, rays = y.shape
    axes[1, 0].set_title(f"data: {views} views of {rays} rays", fontsize=10)
    axes[1, 0].set_box_aspect(np.divide(*plane(in_hounsfield(truth)).shape))
    axes[1, 0].set_axis_off()
    for (above, below), (name, x) in zip(axes.T[1:], pictures(scope).items(), strict=True):
        show(above, in_hounsfield(x), f"{name}, {float(psnr(x, truth)):.2f} dB", **grey)
        error = in_hounsfield(x) - in_hounsfield(truth)
        root = error.square().mean().sqrt()
        title = f"error, root mean square {root:.0f} HU"
        colours = show(below, error, title, cmap="RdBu_r", vmin=-ERROR, vmax=ERROR)
    figure.colorbar(shown, ax=axes[0, :], label="HU", pad=0.01, aspect=15, extend="both")
    figure.colorbar(colours, ax=axes[1, 1:], label="HU", pad=0.013, aspect=15, extend="both")
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    return signed(figure)


def draw_gaps(scope: dict[str, Any]) -> Any:
    """The gap maps of the first image and of the last, and how gap and PSNR went."""
    figure, axes = plt.subplots(
        1, 3, figsize=(12.4, 3.6), layout="constrained", width_ratios=(1, 1, 0.82)
    )
    maps = {"image of total variation": scope["other"], "ct-abdomen-chest": scope["proof"]}
    for axis, (name, proof) in zip(axes, maps.items(), strict=False):
        title = f"{name}, gap {float(proof.gap):.1e}"
        values = proof.map[0, 0].clamp_min(LEAST)
        colours = show(axis, values, title, cmap="magma", norm=LogNorm(LEAST, 1.0))
    label = "objective - lower bound, per pixel"
    figure.colorbar(colours, ax=axes[:2], label=label, pad=0.01, aspect=16, extend="min")
    history, axis = scope["solution"].history, axes[2]
    axis.semilogy(history["iteration"], history["gap"][:, 0], color="#0072b2")
    axis.axhline(1e-3, color="0.4", linewidth=0.8, linestyle="--")
    axis.set_xlabel("iterations")
    axis.set_ylabel("certified relative gap", color="#0072b2")
    right = axis.twinx()
    right.plot(history["iteration"], torch.stack(scope["curve"])[:, 0], color="#d55e00")
    right.set_ylabel("PSNR (dB)", color="#d55e00")
    return signed(figure)


def signed(figure: Any) -> Any:
    """With the source of the slice in a corner."""
    figure.text(0.005, 0.012, SOURCE, fontsize=7, color="0.4")
    return figure


def save(figure: Any, path: Path) -> None:
    """With 256 colours, which makes pictures of noise a third as large."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110)
    picture = Image.open(buffer).convert("RGB")
    picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def show(axis: Any, values: Tensor, title: str, **style: Any) -> Any:
    """One picture, with the patient's front above."""
    image = axis.imshow(plane(values), interpolation="nearest", **style)
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
    return image


def plane(values: Tensor) -> NDArray[np.floating[Any]]:
    """The part with the body. Rows of this file go from back to front, so they are reversed."""
    rows, columns = PART
    return values.detach().cpu().double().numpy()[rows, columns][::-1]


if __name__ == "__main__":
    main()
