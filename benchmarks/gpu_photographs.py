"""Time to denoise photographs with a certified gap of 1e-3 on a GPU, one by one and in a batch.

    python benchmarks/gpu_photographs.py FOLDER [--names photo photo-open] [--batch 33]

FOLDER holds clean pictures; the held-out ones of ``train_adaptive`` are taken, at their common
size. Noise of 25 of 255. Seconds include everything from the noisy pictures on: the guide, the
set-up, the solve and the proof of its gap. Medians of five calls after two that compile kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from training_crops import read

import convexlift as cl
from convexlift.images import psnr

SIGMA = 25 / 255


def milliseconds(call: Callable[[], object], repeats: int = 5) -> float:
    """The median of some calls, each waited for."""
    times = []
    for repeat in range(repeats + 2):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if repeat >= 2:
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def row(network: cl.InputConvexNetwork, clean: Tensor) -> str:
    """Times, iterations, gap and PSNR of a batch."""
    generator = torch.Generator().manual_seed(0)
    y = clean + SIGMA * torch.randn(clean.shape, generator=generator).to(clean)

    def state() -> cl.VariationalProblem:
        return cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0, noise=SIGMA
        )

    solution = cl.solve(state())
    whole, guide, count = milliseconds(lambda: cl.solve(state())), milliseconds(state), len(clean)
    quality = float(psnr(solution.x.clamp(0, 1), clean).mean())
    return (
        f"batch {count:3}: {whole / count:6.1f} ms a picture, the guide {guide / count:.2f} of it; "
        f"{int(solution.iterations.max())} iterations, gap {float(solution.gap.max()):.1e}, "
        f"{quality:.2f} dB"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="+", default=["photo", "photo-open"])
    parser.add_argument("--batch", type=int, default=33)
    given = parser.parse_args()
    clean = read([given.folder], colour=False)[1][: given.batch].cuda().float() / 255
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {tuple(clean.shape[2:])}")
    for name in given.names:
        network = cl.load(name).cuda()
        for batch in (clean[:1], clean):
            print(f"{name:16} {row(network, batch)}", flush=True)


if __name__ == "__main__":
    main()
