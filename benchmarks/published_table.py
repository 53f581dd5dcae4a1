"""PSNR of photographs denoised by a published regularizer, and what is proved about each.

    python benchmarks/published_table.py FILE FOLDER [--sigmas 5 15 25] [--device cuda]

FILE is a regularizer of others for ``cl.interop.load`` (with its ``config.json`` beside it), and
FOLDER holds clean pictures, BSD68 for example. The objective is its authors',
1/2 |x - y|^2 + R(x) at the stated noise level; pictures are grey, noise is not clipped, and picture
i has the seed i. The figure published for WCRR-NN on BSD68 at sigma 25 is 28.68 dB.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import psnr
from convexlift.training import ImageSet


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each noise level."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", help="see cl.interop.load; by default it is recognised")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[25.0], help="of 255")
    parser.add_argument("--gap", type=float, default=1e-4)
    parser.add_argument(
        "--one-level", action="store_true", help="the file is for one noise level, or for any"
    )
    parser.add_argument("--merge", action="store_true", help="one convolution for a chain of them")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    images = ImageSet.from_folder(given.folder)
    stop = cl.StopWhen(gap=given.gap, max_iterations=20_000)
    for sigma in given.sigmas:
        noise = None if given.one_level else sigma / 255
        network = cl.interop.load(
            given.file, given.format, noise=noise, merge=given.merge, dtype=torch.float32
        )
        network = network.to(given.device)
        weakly = isinstance(network, cl.WeaklyConvexNetwork)
        state = cl.WeaklyConvexProblem if weakly else cl.VariationalProblem
        ratios, gaps, proved, begin = [], [], Counter[str](), time.perf_counter()
        for i in range(len(images)):
            clean = images[i][None].to(given.device)
            drawn = torch.randn(clean.shape, generator=torch.Generator().manual_seed(i))
            y = clean + sigma / 255 * drawn.to(clean)
            problem = state(fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0)
            solution = cl.solve(problem, stop=stop)
            ratios.append(float(psnr(solution.x, clean)))
            gaps.append(float(solution.gap[0]))
            proved[solution.guarantee[0].name] += 1
        seconds = (time.perf_counter() - begin) / len(images)
        claims = ", ".join(f"{count} {name}" for name, count in proved.items())
        print(
            f"sigma {sigma:g}: {sum(ratios) / len(ratios):.2f} dB over {len(ratios)} pictures, "
            f"gaps at most {max(gaps):.1e} ({claims}), {seconds:.1f} s each",
            flush=True,
        )


if __name__ == "__main__":
    main()
