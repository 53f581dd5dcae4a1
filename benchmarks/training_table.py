"""Training scheme x solver, as the paper's Table 2: mean PSNR of inpainted test faces.

python benchmarks/training_table.py --data DIR --models DIR --output table.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import Inpainting
from convexlift.training import ImageSet, Validation

SCHEMES = ("faces-inpainting-adversarial", "faces-inpainting-bilevel")
SOLVERS = {
    "PDHG": cl.PDHG(),
    "SM-C": cl.Subgradient(0.15),  # with 1.5, as in the paper, nothing is below the start
    "SM-D": cl.Subgradient(50.0, diminishing=True),
    "NMAPG": cl.NMAPG(),
    "L-BFGS": cl.LBFGS(),
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--faces", type=int, default=20)
    parser.add_argument(
        "--gap", type=float, default=1e-3, help="stop there; methods that get there"
    )
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = ImageSet.from_folder(arguments.data / "faces/test")
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    stop = cl.StopWhen(gap=arguments.gap, max_iterations=arguments.iterations, check_every=20)
    rows = []
    for scheme in SCHEMES:
        place = scheme if arguments.models is None else arguments.models / scheme
        network = cl.load(place, device=device)
        for solver, method in SOLVERS.items():
            box = None if solver.startswith("SM") else (0.0, 1.0)
            task = Inpainting(mask=mask, box=box)
            # One by one: a processor's cache holds one image.
            scores = [
                Validation(
                    task,
                    ImageSet.from_tensors([images[i]]),
                    weight=network.card.weight,
                    method=method,
                    stop=stop,
                    seed=i,
                )(network)
                for i in range(min(arguments.faces, len(images)))
            ]
            means = {
                name: statistics.mean(float(getattr(score, name)) for score in scores)
                for name in ("psnr", "ssim", "gap", "iterations")
            }
            rows.append({"training": scheme, "solver": solver, **means})
            print(json.dumps(rows[-1]), flush=True)
    arguments.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
