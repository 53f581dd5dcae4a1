"""What rigorous claims cost: their time beside that of the solve that they belong to.

    python benchmarks/claims.py [--device cuda] [--batch 20]

A claim is what a solve computes at its end, in double precision and with error bounds: objective,
lower bound and gap (``problems.claims``). Medians of several, on pictures inside the package.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import convexlift as cl
from convexlift.images import gaussian_noise, load_example, salt_and_pepper
from convexlift.phantoms import shepp_logan
from convexlift.problems.claims import claim, in_double

REPEATS = 7


def problems(batch: int) -> Iterator[tuple[str, cl.VariationalProblem]]:
    """Denoising with one layer, with a head and with TV; CT with one layer."""
    generator = torch.Generator().manual_seed(0)
    clean = load_example("camera").expand(batch, -1, -1, -1)
    noisy, hit = gaussian_noise(clean, 0.1, generator), salt_and_pepper(clean, 0.25, generator)
    photo, faces = cl.load("photo-any-size"), cl.load("faces-denoising")
    gaussian = {"fidelity": cl.SquaredL2(noisy)}
    weights = photo.card.weights
    yield (
        "photo-any-size, L2",
        cl.VariationalProblem(**gaussian, regularizer=photo, weight=weights["gaussian-denoising"]),
    )
    yield (
        "faces-denoising, L1",
        cl.VariationalProblem(
            fidelity=cl.L1(hit), regularizer=faces, weight=faces.card.weight, box=(0, 1)
        ),
    )
    yield "TV, L2", cl.VariationalProblem(**gaussian, regularizer=cl.TotalVariation(), weight=0.1)
    scanner = 10 * cl.ParallelBeam(image_size=256, angles=100, bins=200)
    sinogram = scanner(shepp_logan(256).expand(batch, -1, -1, -1))
    counts = torch.poisson(sinogram + 50, generator=generator)
    yield "ct-abdomen-chest, KL, x >= 0", cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(counts, 50.0), operator=scanner,
        regularizer=cl.load("ct-abdomen-chest"), weight=1.0, box=(0, None),
    )  # fmt: skip


def seconds(function: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """The median time."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    print(f"{'problem':<30} {'iterations':>10} {'solve ms':>9} {'claim ms':>9} {'share':>6}  gap")
    for name, problem in problems(options.batch):
        problem = problem.to(device=options.device)
        cl.solve(problem, stop=cl.StopWhen(max_iterations=20))  # tables, kernels and caches
        solution = cl.solve(problem)
        whole = seconds(lambda: cl.solve(problem), options.device, 3)  # noqa: B023

        def claimed() -> object:
            with torch.no_grad():
                double = in_double(problem)  # noqa: B023
                return claim(problem, double, solution.x, solution.duals, tolerance=1e-3)  # noqa: B023

        alone = seconds(claimed, options.device)
        each = 1e3 / options.batch
        print(
            f"{name:<30} {int(solution.iterations.max()):>10} {each * whole:>9.1f} "
            f"{each * alone:>9.2f} {alone / whole:>6.1%}  {float(solution.gap.max()):.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
