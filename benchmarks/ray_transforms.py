"""Time of ray transforms on a CPU: tables, weights on the way, and ASTRA, taking turns.

    OMP_NUM_THREADS=1 python benchmarks/ray_transforms.py --cpu --size 512 --angles 200 --bins 400

Prints, for each way, the seconds to build, the megabytes that it keeps, the median milliseconds of
a product and of an adjoint, and the distance of sinograms from double precision. ASTRA's CPU code
computes weights at each product, in one thread.

Where there is a GPU, and without ``--cpu``, its kernels are timed (``gpu_ray_transforms.py``).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import convexlift as cl
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.sparse_projector import Tables, tables
from convexlift.phantoms import shepp_logan

Pair = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]
UNLIMITED = 2**62


def megabytes(found: Tables) -> float:
    """Of both matrices."""
    parts = [
        tensor
        for table in found._tables
        for matrix in (table.matrix, table.transpose)
        for tensor in (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    ]
    return sum(part.nbytes for part in parts) / 1e6


def astra_pair(beam: cl.ParallelBeam, x: torch.Tensor, y: torch.Tensor) -> Pair:
    """ASTRA's products, with data already in its memory."""
    import astra

    half = beam.grid.width * beam.grid.pixel_width / 2
    volume = astra.create_vol_geom(beam.grid.height, beam.grid.width, -half, half, -half, half)
    rays = astra.create_proj_geom(
        "parallel", float(beam.bin_width), len(beam.bins), beam.exact_angles
    )
    linear = astra.create_projector("linear", rays, volume)

    def algorithm(kind: str) -> Callable[[], torch.Tensor]:
        image = astra.data2d.create("-vol", volume, x[0].numpy() if kind == "FP" else 0)
        sinogram = astra.data2d.create("-sino", rays, y[0].numpy() if kind == "BP" else 0)
        options = astra.astra_dict(kind)
        options["ProjectorId"], options["ProjectionDataId"] = linear, sinogram
        options["VolumeDataId" if kind == "FP" else "ReconstructionDataId"] = image
        ready = astra.algorithm.create(options)

        def run() -> torch.Tensor:
            astra.algorithm.run(ready)
            return torch.from_numpy(astra.data2d.get(sinogram if kind == "FP" else image))

        return run

    return algorithm("FP"), algorithm("BP")


def main() -> None:
    """The scanner, and the device."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--angles", type=int, default=200)
    parser.add_argument("--bins", type=int, default=400)
    parser.add_argument("--golden", action="store_true", help="angles without symmetries")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="on a CPU, even if there is a GPU")
    parser.add_argument("--tiles", action="store_true", help="compare tilings of the GPU's kernels")
    options = parser.parse_args()
    golden = np.mod(np.arange(options.angles) * (math.sqrt(5) - 1) / 2, 1) * math.pi
    angles = list(golden) if options.golden else options.angles
    beam = cl.ParallelBeam(options.size, angles, options.bins, 256.0)
    if torch.cuda.is_available() and not options.cpu:
        import gpu_ray_transforms

        gpu_ray_transforms.main(beam, options)
    else:
        on_cpu(beam, options)


def on_cpu(beam: cl.ParallelBeam, options: argparse.Namespace) -> None:
    """Build all, then take turns."""
    device = torch.device("cpu")
    x = shepp_logan(options.size)[:, 0].to(torch.float32)
    exact = Joseph(beam.lines(), beam.grid, device).project(x.double())
    y = exact.float()

    ways: dict[str, Pair] = {}
    began = time.perf_counter()
    kept = tables(beam.lines(), beam.grid, torch.float32, UNLIMITED)
    assert kept is not None
    print(f"tables: {time.perf_counter() - began:.2f} s to build, {megabytes(kept):.0f} MB")
    ways["tables"] = (lambda: kept.project(x), lambda: kept.backproject(y))
    began = time.perf_counter()
    weights = Joseph(beam.lines(), beam.grid, device)
    print(f"weights on the way: {time.perf_counter() - began:.2f} s to build")
    ways["weights on the way"] = (lambda: weights.project(x), lambda: weights.backproject(y))
    if importlib.util.find_spec("astra") is None:
        print("ASTRA is not here: pip install astra-toolbox")
    else:
        ways["ASTRA"] = astra_pair(beam, x, y)

    times: dict[str, list[list[float]]] = {name: [[], []] for name in ways}
    for _ in range(options.turns):
        for name, pair in ways.items():
            for product, record in zip(pair, times[name], strict=True):
                began = time.perf_counter()
                product()
                record.append(1e3 * (time.perf_counter() - began))
    for name, (project, _) in ways.items():
        error = float((project().double().reshape(exact.shape) - exact).norm() / exact.norm())
        there, back = (statistics.median(record) for record in times[name])
        print(f"{name:20s} A {there:7.1f} ms   A* {back:7.1f} ms   error {error:.1e}")


if __name__ == "__main__":
    main()
