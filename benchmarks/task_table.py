"""PSNR of a task other than Gaussian noise: regularizers side by side, certified to a gap of 1e-3.

    python benchmarks/task_table.py FOLDER inpainting --names photo photo-any-size [--mask FILE]
    python benchmarks/task_table.py FOLDER salt-and-pepper --names photo
    python benchmarks/task_table.py FOLDER ct --names ct

FOLDER holds clean pictures; picture i has the seed i. Weights are those of the cards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import load_image, psnr
from convexlift.tasks import Inpainting, SaltAndPepper, SparseViewCT, Task
from convexlift.training import ImageSet

TASKS: dict[str, Task] = {
    "inpainting": Inpainting(missing=0.3, noise=0.03),
    "salt-and-pepper": SaltAndPepper(fraction=0.25),
    # The upper bound, which no pixel comes near, makes certificates small early.
    "ct": SparseViewCT(box=(0.0, 2.0)),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--names", nargs="+", required=True, help="models")
    parser.add_argument("--mask", type=Path, help="one mask for all pictures, white where seen")
    parser.add_argument("--weight", type=float, help="instead of the card's")
    parser.add_argument("--every", type=int, default=1, help="of every so many pictures, the first")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers of all pictures")
    given = parser.parse_args()
    task = TASKS[given.task]
    if given.mask is not None:
        task = Inpainting(mask=(load_image(given.mask) > 0.5).float()[0, 0])
    images = ImageSet.from_folder(given.folder)
    stop = cl.StopWhen(gap=1e-3, max_iterations=2000)
    numbers: dict[str, list[float]] = {}
    for name in given.names:
        network = cl.load(name).to(given.device)
        weight = given.weight or network.card.weights[given.task]
        gaps, counts, begin = [], [], time.perf_counter()
        for i in range(0, len(images), given.every):
            clean = images[i][None]
            measured = task.measure(clean, [torch.Generator().manual_seed(i)])
            problem = measured.to(device=given.device).problem(network, weight)
            solution = cl.solve(problem, stop=stop)
            found = solution.x.clamp(0, 1).cpu()
            numbers.setdefault(name, []).append(float(psnr(found, clean)))
            gaps.append(float(solution.gap))
            counts.append(int(solution.iterations))
            if given.output is not None:
                given.output.write_text(json.dumps(numbers))
        print(
            f"{given.task}  {name:20} {statistics.mean(numbers[name]):.3f} dB, "
            f"gap at most {max(gaps):.1e}, {statistics.mean(counts):.0f} iterations, "
            f"{(time.perf_counter() - begin) / len(gaps):.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
