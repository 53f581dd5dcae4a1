"""Iterations for line integrals with photon weights: contrast, dose and regularizer.

    python benchmarks/photon_weights.py SLICES [--size 96] [--limit 800] [--single]

SLICES is a folder of CT slices, of which every hundredth is used. A ray through the densest part
lets 1 / contrast of the photons pass; weights are inverse variances, so that those of single rays
differ by that factor and more. ``--single`` keeps iterations in single precision.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.training import ImageSet

WEIGHTS = {"ct": 200.0, "ct-abdomen-chest": 10.0, "tv": 10.0}


def problem(image: Tensor, contrast: float, dose: float, name: str) -> cl.VariationalProblem:
    """Half as many views as rows, Poisson noise."""
    size = image.shape[-1]
    A = cl.ParallelBeam(image_size=size, angles=size // 2, bins=3 * size // 2)
    integrals = A(image)
    decay = math.log(contrast) / float(integrals.max())
    mean = dose * torch.exp(-decay * integrals)
    counts = torch.poisson(mean, generator=torch.Generator().manual_seed(0)).clamp_min(1)
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(-(counts / dose).log() / decay, counts * decay**2),
        operator=A,
        regularizer=cl.TotalVariation() if name == "tv" else cl.load(name),
        weight=WEIGHTS[name],
        box=(0, 2),
    )


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--limit", type=int, default=800, help="of iterations")
    parser.add_argument("--single", action="store_true")
    given = parser.parse_args()
    if given.single:
        RestartedPDHG.in_double = lambda self, state: None  # type: ignore[method-assign]
    images = ImageSet.from_folder(given.folder)
    stop = cl.StopWhen(gap=1e-3, max_iterations=given.limit)
    print(" contrast     dose  regularizer       iterations      gap   in  seconds")
    for contrast in (100.0, 2000.0):
        for dose in (1e4, 1e5):
            for name in WEIGHTS:
                for i in range(40, len(images), 140):
                    image = F.interpolate(images[i][None], (given.size,) * 2, mode="area")
                    solution = cl.solve(problem(image, contrast, dose, name), stop=stop)
                    bits = 8 * solution.state.u["x"].element_size()
                    print(f"{contrast:9g} {dose:8g}  {name:18}{int(solution.iterations):10} "
                          f"{float(solution.gap):8.1e} {bits:4} {solution.seconds:8.1f}",
                          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
