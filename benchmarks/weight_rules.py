"""PSNR that the rule for the weight loses on photographs, against the best weight of each.

    python benchmarks/weight_rules.py --data DIR --output FILE.json

DIR holds PNG files named by numbers, as those of BSDS500. Of its files in the order of their
numbers, every 13th from index 6 on was never trained with; the first dozen of these served to
choose the rules, and are left out unless ``--choose`` takes them instead. Every picture gets
Gaussian noise of each level. The rule has the true level, and then estimates it; the best weight is
searched in steps of 2^(1/4) about the first one, the last of them by a parabola.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import gaussian_noise, load_image
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.reconstruction.weight import vertex

HELD_OUT = slice(6, None, 13)
CHOOSING = 12
STEP = 2**0.25
FARTHEST = 12


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--regularizer", default="photo-any-size")
    parser.add_argument("--rule", default="card", choices=["card", "auto"])
    parser.add_argument("--levels", type=float, nargs="*", default=[5, 15, 25, 50], help="of 255")
    parser.add_argument("--crop", type=int, help="a side of the middle, which is used alone")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ordered = sorted(arguments.data.glob("*.png"), key=lambda path: int(path.stem))[HELD_OUT]
    some = ordered[:CHOOSING] if arguments.choose else ordered[CHOOSING:]
    named = arguments.regularizer
    network = named if named == "tv" else cl.load(named)
    rows = []
    for path in some[: arguments.pictures]:
        clean = middle(load_image(path), arguments.crop)
        for level in arguments.levels:
            measured = losses(network, clean, level / 255, arguments.rule)
            rows.append({"picture": path.name, "level": level} | measured)
            print(json.dumps(rows[-1]), flush=True)
            arguments.output.write_text(json.dumps(rows, indent=2) + "\n")
    report(rows)


def middle(image: Tensor, side: int | None) -> Tensor:
    """The middle of an image, at most ``side`` pixels high and wide."""
    if side is None:
        return image
    top, left = (max(0, (length - side) // 2) for length in image.shape[-2:])
    return image[..., top : top + side, left : left + side]


def losses(
    network: str | InputConvexNetwork, clean: Tensor, sigma: float, rule: str
) -> dict[str, Any]:
    """Decibels below the best weight: of the rule that knows the noise, and that estimates it."""
    noisy = gaussian_noise(clean, sigma, torch.Generator().manual_seed(0))

    def reconstructed(**options: Any) -> dict[str, Any]:
        return cl.reconstruct(
            noisy, task="denoise", noise="gaussian", regularizer=network, range=(0.0, 1.0),
            truth=clean, **options,
        ).record  # fmt: skip

    known = reconstructed(sigma=sigma, weight=rule)
    start = known["weight"]["value"]
    curve = {0: known["psnr"]}

    def at(k: int) -> float:
        if k not in curve:
            curve[k] = reconstructed(sigma=sigma, weight=start * STEP**k)["psnr"]
        return curve[k]

    best, direction = 0, 1 if at(1) > at(0) else -1
    while abs(best) < FARTHEST and at(best + direction) > at(best):
        best += direction
    shift = vertex(*(-at(best + side) for side in (-1, 0, 1)))
    top = reconstructed(sigma=sigma, weight=start * STEP ** (best + shift))
    highest = max(*curve.values(), top["psnr"])
    blind = reconstructed(weight=rule)
    return {
        "psnr": highest,
        "weight": start * STEP ** (best + shift),
        "rule": start,
        "loss": highest - known["psnr"],
        "estimate": 255 * blind["noise"]["level"],
        "estimated_loss": highest - blind["psnr"],
        "curve": {str(start * STEP**k): curve[k] for k in sorted(curve)},
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Mean and largest losses, and errors of the estimated level."""
    print("level   known: mean, max dB   estimated: mean, max dB   error of the level: mean, max %")
    for level in dict.fromkeys(row["level"] for row in rows):
        group = [row for row in rows if row["level"] == level]
        columns = (
            [row["loss"] for row in group],
            [row["estimated_loss"] for row in group],
            [100 * abs(row["estimate"] / level - 1) for row in group],
        )
        cells = (f"{statistics.mean(column):8.2f} {max(column):8.2f}" for column in columns)
        print(f"{level:5g} {'     '.join(cells)}")


if __name__ == "__main__":
    main()
