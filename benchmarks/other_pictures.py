"""PSNR on pictures that are no photographs, and with noise that is not white and Gaussian.

    python benchmarks/other_pictures.py PART ... [--data DIR] [--sheet FILE.png] [--output FILE]

Parts: pictures, noise, sizes, tasks and colour, of which the last makes three channels of
some pictures: alike, then with nothing in common. Pictures are drawn or shipped. DIR may hold
ct/train and natural/train: three CT slices, and eight photographs (every 13th, never trained with
by ``photo``) for inpainting and for salt and pepper. Noise has the seed 0. Total variation gets the
weight that is best for each picture, out of seven; the others have the weight of their rule,
``cl.reconstruct(y, sigma=...)``. A solve that is not finite, or misses its gap of 1e-3, is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from drawn_pictures import DAMAGES, middle, pictures, seeded, white
from torch import Tensor

import convexlift as cl
from convexlift.images import (
    load_example,
    load_image,
    psnr,
    random_mask,
    salt_and_pepper,
    save_image,
)

LEARNED = ("photo-any-size", "photo", "photo-open")
TV_FACTORS = (0.1, 0.25, 0.4, 0.6, 0.8, 1.2, 2.8)
"""Weights of total variation, in units of sigma, or of the fraction of impulses."""
PHOTOGRAPHS = ("astronaut", "camera", "chelsea", "coffee", "rocket")
COLOURED = (
    "text", "line art", "Shepp-Logan phantom", "drawn cells", "brick wall",
    "checkerboard, 1 pixel", "stripes, 1 pixel", "dithered photograph",
)  # fmt: skip
SIZES = ((8, 8), (8, 2048), (16, 16), (33, 47), (1024, 1536))
"""From the smallest that there is."""

Case = tuple[str, Tensor, Tensor, dict[str, Any]]
"""Group, truth, data and options."""


def denoising(data: Path | None, sigmas: Sequence[float] = (15, 25, 50)) -> Iterator[Case]:
    """Pictures with white noise of several levels."""
    for name, images in pictures(data).items():
        for sigma in sigmas:
            for x in images:
                yield f"{name} | {sigma:g}", x, white(x, sigma / 255), {"sigma": sigma / 255}


def other_noise(data: Path | None, sigma: float = 25) -> Iterator[Case]:
    """Photographs with noise of another kind, or of another level than stated."""
    for name, (damage, factor) in DAMAGES.items():
        for picture in PHOTOGRAPHS[:3]:
            x = middle(load_example(picture))
            yield f"{name} | {sigma:g}", x, damage(x, sigma / 255), {"sigma": factor * sigma / 255}


def sizes(data: Path | None, sigma: float = 25) -> Iterator[Case]:
    """Parts of a mosaic of photographs."""
    rows = torch.cat([load_example(name) for name in (*PHOTOGRAPHS, "brick")], dim=-1)
    mosaic = rows.repeat(1, 1, 4, 1)  # (1024, 1536)
    for height, width in SIZES:
        x = middle(mosaic, height, width)
        yield f"{height} x {width} | {sigma:g}", x, white(x, sigma / 255), {"sigma": sigma / 255}


def other_tasks(data: Path | None) -> Iterator[Case]:
    """Photographs with missing pixels, and with salt and pepper."""
    files = [] if data is None else (data / "natural/train").glob("*.png")
    held_out = sorted(files, key=lambda path: int(path.stem))[6::13]
    photographs = [middle(load_image(path)) for path in held_out[:8]]
    for x in photographs:
        mask = random_mask(x, 0.3, seeded().manual_seed(1))
        options = {"task": "inpaint", "mask": mask, "sigma": 0.03}
        yield "30 % missing | 0.03", x, mask * white(x, 0.03), options
    for x in photographs:
        y = salt_and_pepper(x, 0.25, seeded())
        yield "salt and pepper | 25 %", x, y, {"noise": "salt-and-pepper", "sigma": 0.25}


def in_colour(data: Path | None, sigma: float = 25) -> Iterator[Case]:
    """Three channels, equal or turned, each with noise of its own."""
    for kind, turns in (("grey in RGB", ((), (), ())), ("unrelated channels", ((), (-1,), (-2,)))):
        for name in COLOURED:
            rgb = torch.cat([pictures(None)[name][0].flip(turn) for turn in turns], dim=1)
            y = white(rgb, sigma / 255)
            yield f"{kind}: {name} | {sigma:g}", rgb, y, {"sigma": sigma / 255}


PARTS: dict[str, Callable[[Path | None], Iterator[Case]]] = {
    "pictures": denoising, "noise": other_noise, "sizes": sizes, "tasks": other_tasks,
    "colour": in_colour,
}  # fmt: skip


def restored(y: Tensor, x: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Images, PSNR and iterations by the name of the regularizer."""
    options = {"noise": "gaussian", "range": (0.0, 1.0)} | options
    found: dict[str, Any] = {"noisy": (y, float(psnr(y.clamp(0, 1), x)), 0)}
    tries = [("tv", factor * options["sigma"]) for factor in TV_FACTORS]
    for name, weight in [*tries, *((name, "card") for name in LEARNED)]:
        result = cl.reconstruct(y, regularizer=name, weight=weight, **options)
        image, record = result.x.reshape(x.shape).to(x), result.record
        quality = float(psnr(image.clamp(0, 1), x))
        if not torch.isfinite(image).all() or record["status"] != "CONVERGED":
            print(f"  {name}, {weight}: {record['status']}, gap {record['gap']}", flush=True)
        if name not in found or quality > found[name][1]:
            found[name] = image, quality, record["iterations"]
    return found


def main() -> None:
    """Print one line for each group, and write JSON and a contact sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sheet", type=Path, help="noisy, total variation and the learned ones")
    parser.add_argument("--output", type=Path, help="a JSON file for all numbers")
    given = parser.parse_args()
    numbers: dict[str, list[dict[str, tuple[float, int]]]] = {}
    sheet: list[Tensor] = []
    for group, x, y, options in (case for part in given.parts for case in PARTS[part](given.data)):
        found = restored(y, x, options)
        row = numbers.setdefault(group, [])
        row.append({name: part[1:] for name, part in found.items()})
        means = [statistics.mean(part[name][0] for part in row) for name in found]
        most = max(part[name][1] for part in row for name in LEARNED)
        cells = " | ".join(f"{mean:.2f}" for mean in means)
        print(f"{len(row)} | {group} | {cells} | {most} |", flush=True)
        if given.sheet is not None and len(row) == 1 and x.shape[1:] == (1, 192, 192):
            sheet.append(torch.cat([part[0].clamp(0, 1) for part in found.values()], dim=-1))
            save_image(given.sheet, torch.cat(sheet, dim=-2))
        if given.output is not None:
            given.output.write_text(json.dumps(numbers))


if __name__ == "__main__":
    main()
