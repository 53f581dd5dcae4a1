"""Iterations of the default solver, the paper's PDHG, NMAPG and L-BFGS on the test faces.

    PYTHONPATH=. python benchmarks/solver_iterations.py --data DIR --output FILE.json

DIR holds ``faces/test``, ``faces/train`` and ``faces/mask.png``. All faces are solved together, on
a GPU if there is one; what is counted does not depend on the machine. Counts are means over the
faces of the first iteration with a relative objective error, and with a certified gap, below a
tolerance, looked at every ``EVERY`` iterations. The reference is the best objective of the default
solver run to a gap of 1e-6, or to the limit. The paper's steps are the best of its 49 pairs on
training faces: the fewest iterations to an objective error of 1e-3.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet
from experiments.benchmark.cases import CASES

DEEP = "deep, cosine filters"
EVERY = 2
ERRORS = (1e-3, 1e-4, 1e-5)
GAPS = (1e-3, 1e-4)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--faces", type=int, default=20)
    parser.add_argument("--limit", type=int, default=800)
    parser.add_argument("--tasks", nargs="*", help="numbers of tasks; all unless given", type=int)
    parser.add_argument("--methods", nargs="*", default=["default", "paper", "nmapg", "lbfgs"])
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest run of a method")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    test = ImageSet.from_folder(arguments.data / "faces/test")
    train = ImageSet.from_folder(arguments.data / "faces/train", limit=4)
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    cases: list[tuple[str, Task]] = [
        ("faces-inpainting-bilevel", Inpainting(mask=mask)),
        ("faces-denoising", SaltAndPepper()),
        ("faces-inpainting-adversarial", Inpainting(mask=mask)),
        ("photo-any-size", Inpainting(mask=mask)),
        ("photo-any-size", GaussianDenoising()),
        ("photo-any-size", SaltAndPepper()),
        (DEEP, GaussianDenoising()),
    ]
    rows: list[dict[str, object]] = []
    for number in arguments.tasks or range(len(cases)):
        name, task = cases[number]
        if name == DEEP:  # not trained
            network, weight = CASES["deep"].network(256, 0).to(device), CASES["deep"].weight
        else:
            network = cl.load(name, device=device)
            weight = network.card.weights.get(task.name, network.card.weight)

        def stated(images: ImageSet, count: int) -> cl.VariationalProblem:
            clean = torch.stack([images[i] for i in range(count)]).to(device)
            generators = [torch.Generator(device).manual_seed(i) for i in range(count)]
            return task.measure(clean, generators).problem(network, weight)  # noqa: B023

        problem = stated(test, arguments.faces)
        reference, proven = optimum(problem)
        print(f"{name} {task.name}: reference certified to {proven:.1e}", flush=True)
        methods: dict[str, Callable[[], cl.Method]] = {
            "default": cl.PDHG,
            "paper": lambda: best_steps(stated(train, 4)),
            "nmapg": cl.NMAPG,
            "lbfgs": cl.LBFGS,
        }
        for label in arguments.methods:
            method = methods[label]()
            began = time.perf_counter()
            counts = measure(problem, method, reference, arguments.limit, arguments.seconds)
            rows.append(
                {
                    "regularizer": name,
                    "task": task.name,
                    "method": label,
                    "steps": cl.describe_steps(method),
                    "faces": arguments.faces,
                    "reference gap": proven,
                    **counts,
                    "seconds": round(time.perf_counter() - began, 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            arguments.output.write_text(json.dumps(rows, indent=2) + "\n")


def optimum(problem: cl.VariationalProblem) -> tuple[Tensor, float]:
    """The best objective known of each image, and the largest gap to what is proven."""
    stop = cl.StopWhen(gap=1e-6, max_iterations=4000, check_every=50, seconds=60)
    solution = cl.solve(problem, stop=stop)
    return solution.objective.cpu(), float(solution.gap.max())


def best_steps(problem: cl.VariationalProblem) -> cl.PDHG:
    """The pair of the paper's grid with the fewest iterations to an objective error of 1e-3."""
    reference, _ = optimum(problem)

    def needed(method: cl.PDHG) -> tuple[float, float]:
        errors = follow(problem, method, reference, limit=150, every=5, seconds=20)[1]
        reached = (errors <= ERRORS[0]).to(torch.float64).mean(0)  # later is less
        return -float(reached.mean()), float(errors[-1].mean())

    return min(cl.METHODS["paper"].grid(problem, False), key=needed)


def follow(
    problem: cl.VariationalProblem,
    method: cl.Method,
    reference: Tensor,
    limit: int,
    every: int,
    seconds: float,
) -> tuple[list[int], Tensor, Tensor]:
    """Iterations, and at each the errors of the best objective so far and the certified gaps."""
    stop = cl.StopWhen(gap=None, max_iterations=limit, check_every=every, seconds=seconds)

    def enough(progress: cl.Progress) -> bool:
        error = (progress.objective.cpu() - reference) / reference.abs()
        return bool((error <= ERRORS[-1]).all()) and bool((progress.gap <= GAPS[-1]).all())

    records = cl.solve(problem, method=method, stop=stop, callback=enough).history.records
    objectives = torch.stack([record.objective.cpu() for record in records])
    errors = (objectives.cummin(0).values - reference) / reference.abs()
    gaps = torch.stack([record.gap.cpu() for record in records])
    return [record.iteration for record in records], errors, gaps


def measure(
    problem: cl.VariationalProblem, method: cl.Method, reference: Tensor, limit: int, seconds: float
) -> dict[str, object]:
    """Mean iterations to each tolerance; how many faces got there, where not all did."""
    iterations, errors, gaps = follow(problem, method, reference, limit, EVERY, seconds)
    counts: dict[str, object] = {}
    for kind, values, tolerances in (("error", errors, ERRORS), ("gap", gaps, GAPS)):
        for tolerance in tolerances:
            reached = (values <= tolerance).int()
            first = torch.tensor(iterations)[reached.argmax(0)].to(torch.float64)
            got_there = reached.any(0)
            counts[f"{kind} {tolerance:g}"] = (
                round(float(first.mean()), 1)
                if bool(got_there.all())
                else f"{int(got_there.sum())} of {len(got_there)} in {iterations[-1]}"
            )
    return counts


if __name__ == "__main__":
    main()
