"""Peak memory of a solve over what it needs to load the library, for several image sizes.

    python benchmarks/solver_memory.py --sizes 128 256 512 1024 2048

Every size runs in a process of its own: the high-water mark of the resident set (ru_maxrss), less
that after the imports. "Dual variables" is the size of one dual variable of the first layer, of
which a solver holds a few; a constant last column is linear growth.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import torch

import convexlift as cl
from convexlift.images import load_example
from convexlift.tasks import Inpainting

MEGABYTE = 2.0**20


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="photo-any-size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(*measure(arguments.network, arguments.sizes[0], arguments.iterations))
        return
    print(f"{'size':>6} {'peak MB':>9} {'dual MB':>9} {'peak/dual':>10}")
    for size in arguments.sizes:
        peak, dual = in_a_process_of_its_own(arguments.network, size, arguments.iterations)
        print(f"{size:>6} {peak:>9.0f} {dual:>9.1f} {peak / dual:>10.1f}", flush=True)


def in_a_process_of_its_own(network: str, size: int, iterations: int) -> tuple[float, float]:
    """``measure``, with a high-water mark that nobody else has raised."""
    command = [sys.executable, __file__, "--alone", "--network", network, "--sizes", str(size)]
    command += ["--iterations", str(iterations)]
    peak, dual = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(peak), float(dual)


def measure(name: str, size: int, iterations: int) -> tuple[float, float]:
    """Peak memory over the imports, and the size of a dual variable, in megabytes."""
    imported = high_water()
    network = cl.load(name)
    image = torch.nn.functional.interpolate(load_example("camera"), (size, size), mode="bilinear")
    data = Inpainting().measure(image, [torch.Generator().manual_seed(0)])
    problem = data.problem(network, network.card.weights.get("inpainting", network.card.weight))
    stop = cl.StopWhen(gap=None, max_iterations=iterations)
    solution = cl.solve(problem, stop=stop)
    dual = next(iter(solution.duals.values()))
    return high_water() - imported, dual.numel() * dual.element_size() / MEGABYTE


def high_water() -> float:
    """Of the resident set, in megabytes (Linux counts in kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE


if __name__ == "__main__":
    main()
