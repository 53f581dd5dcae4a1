"""Do filters of three dimensions help on CT? A small trial: denoising and sparse views.

    OMP_NUM_THREADS=1 python benchmarks/ct_volume_trial.py DATA/ct --seconds 180

Ridge regularizers with 3 x 3 x 3 and with 5 x 5 filters (27 and 25 numbers each, as many filters)
learn to remove noise from the same slices, halved in size, for about the same processor time; total
variation learns nothing. Weights are chosen on one patient and reported for another; neither is
used for training, and the test slices are not touched. DATA/ct holds ``slices.json`` and ``train``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.images import load_image, psnr
from convexlift.tasks import GaussianDenoising
from convexlift.training import BatchSampler, Bilevel, ImageSet, TrainingOptions, VolumeSet, train

SIGMA, DEPTH, SIDE = 0.05, 8, 128
CHOSEN_ON, REPORTED_ON = "ACRIN-NSCLC-042", "LIDC-IDRI-0314"
TASKS = ("denoising", "60 views")
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="of processor time, for each; 0: none learns"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    volumes = patients(options.data)
    learn = [v for name, v in volumes.items() if name not in (CHOSEN_ON, REPORTED_ON)]
    held = {name: volumes[name][10 : 10 + DEPTH] for name in (CHOSEN_ON, REPORTED_ON)}
    networks: dict[str, Any] = {
        "total variation, 2D": cl.TotalVariation(),
        "total variation, 3D": cl.TotalVariation(dimensions=3),
    }
    if options.seconds:
        networks["12 filters of 5 x 5"] = trained(learn, 2, options.seconds)
        networks["12 filters of 3 x 3 x 3"] = trained(learn, 3, options.seconds)
    for task in options.tasks:
        for name, network in networks.items():
            found = [
                (score(network.float(), held[CHOSEN_ON], task, w), w) for w in start(task, name)
            ]
            best, weight = max(found)
            result = score(network.float(), held[REPORTED_ON], task, weight)
            chosen = f"weight {weight:.3g}, {best:.2f} dB where it was chosen"
            print(f"{task:10} {name:26} {result:.2f} dB ({chosen})", flush=True)


def patients(data: Path) -> dict[str, Tensor]:
    """The slices of each patient, (D, 128, 128), in order: the middle half, halved in size."""
    found: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for entry in json.loads((data / "slices.json").read_text()):
        if entry["file"].startswith("train/"):
            found[entry["patient"]].append((entry["slice"], data / entry["file"]))
    return {
        name: torch.cat([F.avg_pool2d(load_image(path)[..., 128:384, 128:384], 2)[0]
                         for _, path in sorted(files)[:32]])
        for name, files in found.items()
    }  # fmt: skip


def trained(volumes: list[Tensor], dimensions: int, seconds: float) -> Any:
    """A ridge regularizer for Gaussian noise."""
    torch.manual_seed(0)
    kernel = 5 if dimensions == 2 else 3
    network = cl.networks.ridge(channels=12, kernel=kernel, smoothing=0.01, dimensions=dimensions)
    if dimensions == 2:
        images = ImageSet.from_tensors([each for volume in volumes for each in volume])
        batches = BatchSampler(images, 16, crop=32, flips=True)
    else:
        batches = BatchSampler(
            VolumeSet.from_tensors([v[k : k + DEPTH] for v in volumes for k in range(0, 24, 8)]),
            2, crop=32, flips=True,
        )  # fmt: skip
    objective = Bilevel(
        [(GaussianDenoising(SIGMA, box=None), 0.1)], stop=cl.StopWhen(gap=1e-3, max_iterations=400)
    )

    def steps(count: int) -> tuple[Any, float]:
        begun = time.process_time()
        settings = TrainingOptions(steps=count, learning_rate=0.02, relative=True, zero_mean=True)
        return train(network, objective, batches, settings), time.process_time() - begun

    _, first = steps(40)  # the first steps are the slowest
    result, spent = steps(max(40, int(40 * seconds / first)))
    psnrs = [row["train_psnr"] for row in result.rows if "train_psnr" in row]
    print(f"{dimensions}D: {len(psnrs)} steps in {spent:.0f} s, ", end="")
    print(f"training PSNR {psnrs[0]:.2f} -> {sum(psnrs[-20:]) / 20:.2f} dB", flush=True)
    return network


def start(task: str, name: str) -> list[float]:
    """Weights to choose from."""
    centre = {"denoising": 0.05 if "total" in name else 0.1, "60 views": 14.0}[task]
    return [centre * factor for factor in FACTORS]


def score(network: Any, clean: Tensor, task: str, weight: float) -> float:
    """The mean PSNR of the slices of a volume; regularizers of images see slices."""
    generator = torch.Generator().manual_seed(1)
    volume = network.dimensions == 3
    scan: Any = cl.ParallelBeam(SIDE, angles=60, bins=190) if task == "60 views" else cl.Identity()
    x = clean[:, None]
    data = scan(x)
    noise = SIGMA if task == "denoising" else 0.01 * float(data.max())
    data = data + noise * torch.randn(data.shape, generator=generator)
    if task == "60 views" and volume:
        scan = cl.Slices(scan, depth=DEPTH)
    if volume:
        data = data.transpose(0, 1)[None]
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(data), operator=scan, regularizer=network, weight=weight,
        box=(0, None),
    )  # fmt: skip
    found = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=400)).x
    return float(psnr(found.reshape(x.shape), x).mean())


if __name__ == "__main__":
    main()
