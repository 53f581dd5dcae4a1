"""Peak memory of a solve over what it needs to load the library, for several image sizes.

    python benchmarks/solver_memory.py --sizes 128 256 512 1024 2048
    python benchmarks/solver_memory.py --sizes 640 1024 --gap 1e-5 --iterations 300

Every size runs in a process of its own: the high-water mark of the resident set (ru_maxrss), less
that after the imports. "Dual variables" is the size of one dual variable of the first layer, of
which a solver holds a few; where their ratio is constant, memory grows linearly. With ``--gap``,
solves end there.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

import convexlift as cl
from convexlift.images import load_example
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper

MEGABYTE = 2.0**20
TASKS = {task.name: task for task in (GaussianDenoising(), Inpainting(), SaltAndPepper())}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="photo-any-size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--task", choices=TASKS, default="inpainting")
    parser.add_argument("--gap", type=float)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(measure(arguments, arguments.sizes[0]))
        return
    print(f"{'size':>6} {'peak MB':>9} {'dual MB':>9} {'peak/dual':>10}  iterations, gap, seconds")
    for size in arguments.sizes:  # each with a high-water mark that nobody else has raised
        command = [sys.executable, *sys.argv, "--alone", "--sizes", str(size)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")


def measure(arguments: argparse.Namespace, size: int) -> str:
    """A row: peak memory over the imports, the size of a dual variable, and how the solve ended."""
    imported = high_water()
    network, task = cl.load(arguments.network), TASKS[arguments.task]
    image = torch.nn.functional.interpolate(load_example("camera"), (size, size), mode="bilinear")
    data = task.measure(image, [torch.Generator().manual_seed(0)])
    problem = data.problem(network, network.card.weights.get(task.name, network.card.weight))
    stop = cl.StopWhen(gap=arguments.gap, max_iterations=arguments.iterations)
    began = time.perf_counter()
    solution = cl.solve(problem, stop=stop)
    seconds, peak = time.perf_counter() - began, high_water() - imported
    dual = next(iter(solution.duals.values()))
    dual_size = dual.numel() * dual.element_size() / MEGABYTE
    return (
        f"{size:>6} {peak:>9.0f} {dual_size:>9.1f} {peak / dual_size:>10.1f}  "
        f"{int(solution.iterations)}, {float(solution.gap):.1e}, {seconds:.1f}"
    )


def high_water() -> float:
    """Of the resident set, in megabytes (Linux counts in kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE


if __name__ == "__main__":
    main()
