"""Iterations and seconds of the default solver, the paper's PDHG, L-BFGS and NMAPG on faces.

    python benchmarks/solver_iterations.py --data DIR --output FILE.json --faces 20

DIR holds ``faces/test`` and ``faces/mask.png``. Counts are to a relative objective error, against
the best objective of a long run of the default solver, and to a certified gap; both are looked at
every ``EVERY`` iterations. Seconds are those of runs with so many iterations and no checks in
between. The paper's steps are the best of the coarse grid of ``convexlift benchmark``, on the last
face.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor

import convexlift as cl
from convexlift.benchmark.methods import paper_grid
from convexlift.images import load_image
from convexlift.solvers.method import Method
from convexlift.tasks import Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet

EVERY = 2
ERRORS = (1e-3, 1e-4, 1e-5)
GAP = 1e-3


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--faces", type=int, default=20)
    parser.add_argument("--others", type=int, default=2, help="faces for the other methods")
    parser.add_argument("--limit", type=int, default=300)
    arguments = parser.parse_args()
    faces = ImageSet.from_folder(arguments.data / "faces/test")
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    cases: list[tuple[str, Task]] = [
        ("faces-inpainting-bilevel", Inpainting(mask=mask)),
        ("faces-denoising", SaltAndPepper()),
    ]
    rows = []
    for name, task in cases:
        network = cl.load(name)

        def stated(i: int, network: cl.InputConvexNetwork = network, task: Task = task):  # type: ignore[no-untyped-def]
            data = task.measure(faces[i][None], [torch.Generator().manual_seed(i)])
            return data.problem(network, network.card.weight)

        paper = best_steps(stated(len(faces) - 1))
        methods: dict[str, Method] = {
            "default": cl.PDHG(),
            f"paper {paper.steps}": paper,
            "lbfgs": cl.LBFGS(),
            "nmapg": cl.NMAPG(),
        }
        for label, method in methods.items():
            count = arguments.faces if label == "default" else arguments.others
            runs = [measure(stated(i), method, arguments.limit) for i in range(count)]
            row = {"task": task.name, "method": label, "faces": count, **summary(runs)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            arguments.output.write_text(json.dumps(rows, indent=2) + "\n")


def best_steps(problem: cl.VariationalProblem) -> cl.PDHG:
    """That of the coarse grid with the lowest objective after 40 iterations."""
    stop = cl.StopWhen(gap=None, max_iterations=40, check_every=40)

    def objective(method: cl.PDHG) -> float:
        return float(cl.solve(problem, method=method, stop=stop).objective)

    return min(paper_grid(problem, coarse=True), key=objective)


def measure(problem: cl.VariationalProblem, method: Method, limit: int) -> dict[str, float | None]:
    """Iterations to each tolerance, and the seconds of an iteration."""
    long = cl.StopWhen(gap=1e-6, max_iterations=400, check_every=20)
    reference = float(cl.solve(problem, stop=long).objective)
    stop = cl.StopWhen(gap=None, max_iterations=limit, check_every=EVERY)

    def enough(progress: cl.Progress) -> bool:
        error = (float(progress.objective) - reference) / abs(reference)
        return error <= ERRORS[-1] and float(progress.gap) <= GAP

    records = cl.solve(problem, method=method, stop=stop, callback=enough).history.records
    best = torch.stack([record.objective for record in records]).flatten().cummin(0).values
    errors = (best - reference) / abs(reference)
    gaps = torch.stack([record.gap for record in records]).flatten()
    iterations = [record.iteration for record in records]
    blind = [cl.StopWhen(gap=None, max_iterations=n, check_every=n) for n in (5, 25)]
    seconds = [cl.solve(problem, method=method, stop=stop).seconds for stop in blind]
    return {
        **{f"error {e:g}": first(iterations, errors, e) for e in ERRORS},
        f"gap {GAP:g}": first(iterations, gaps, GAP),
        "milliseconds": 1e3 * (seconds[1] - seconds[0]) / 20,
    }


def first(iterations: list[int], values: Tensor, tolerance: float) -> float | None:
    """The first iteration at which the value is below the tolerance."""
    return next(
        (k for k, value in zip(iterations, values.tolist(), strict=True) if value <= tolerance),
        None,
    )


def summary(runs: list[dict[str, float | None]]) -> dict[str, float | str | None]:
    """Means over the faces; "> limit" for what some face did not reach."""
    means: dict[str, float | str | None] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        reached = [value for value in values if value is not None]
        means[name] = (
            round(statistics.mean(reached), 1)
            if len(reached) == len(values)
            else f"{len(reached)} of {len(values)}"
        )
    return means


if __name__ == "__main__":
    main()
