"""How often the default solver certifies 1e-3 within 400 iterations, on random problems.

    PYTHONPATH=. python benchmarks/random_problems.py [--count 1000] [--output FILE.json]

The problems are those of the soak test at ordinary scales (``soak.random_problems``): all networks,
data terms, operators, boxes and precisions, small images, always the same for the same numbers.
One line for each family, the worst first. Two classes of images cannot succeed, and are counted by
themselves as well (``Kind``).
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import math
import multiprocessing
import os
from pathlib import Path

import torch

import convexlift as cl
from soak.random_problems import random_case

Row = tuple[int, tuple[str, ...], list[float], list[int], list[str]]
NOTHING = 1e-6
"""The largest part of the first objective that counts as zero."""
FAR = 1e6
"""Multiples of the way from the first image to the last at which a ray still has to fall."""


class Kind:
    """What may make a small relative gap impossible, or meaningless, for an image.

    ZERO: the bound is at most 0, the objective at least 0, and they differ by at most ``NOTHING``
    times the objective of the first image. No gap can be proved relative to zero.
    ENDLESS: from the first image through the best one, the objective falls ``FAR`` times as far,
    at a tenth of the rate at least, and no bound is global: it has no minimum, and gaps relative to
    it become arbitrarily small. (Where data are quadratic, only directions are tried that these do
    not see, behind diagonal operators.)
    """

    ORDINARY, ZERO, ENDLESS = "ordinary", "optimum of about zero", "no minimum"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, help="a JSON file: seed, family, gaps, iterations")
    given = parser.parse_args()
    stop = cl.StopWhen(gap=given.gap, max_iterations=given.iterations)
    seeds = range(given.first, given.first + given.count)
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        rows = pool.map(functools.partial(solved, stop=stop), seeds, chunksize=4)
    found = [row for row in rows if row is not None]
    if given.output is not None:
        given.output.write_text(json.dumps(found))
    families = collections.defaultdict(list)
    for _, words, gaps, _, _ in found:
        for word in ("all", *words):
            families[word] += [gap <= given.gap for gap in gaps]
    for word, reached in sorted(families.items(), key=lambda each: sum(each[1]) / len(each[1])):
        print(f"{100 * sum(reached) / len(reached):5.1f} %  of {len(reached):4}  {word}")
    images = [
        (gap <= given.gap, count, kind)
        for *_, gaps, iterations, kinds in found
        for gap, count, kind in zip(gaps, iterations, kinds, strict=True)
    ]
    print(f"{sum(count for _, count, _ in images)} iterations")
    for kind in (Kind.ZERO, Kind.ENDLESS, Kind.ORDINARY):
        reached = [ends for ends, _, its in images if its == kind]
        print(f"{sum(reached):5} of {len(reached):4} images reach the gap: {kind}")


def solved(seed: int, stop: cl.StopWhen) -> Row | None:
    """Seed, parts, gaps and iterations; None for a combination that the library refuses."""
    torch.set_num_threads(1)
    try:
        case = random_case(seed, tame=True)
    except ValueError:  # a box without images, say
        return None
    words = tuple(word for word in case.words if not word.startswith("method"))
    solution = cl.solve(case.problem, stop=stop)
    numbers = solution.gap.tolist(), solution.iterations.tolist()
    return seed, words, *numbers, kinds_of(case.problem, solution, stop.gap or 0.0)


def kinds_of(problem: cl.VariationalProblem, solution: cl.Solution, tolerance: float) -> list[str]:
    """The ``Kind`` of each image."""
    first = solution.history[0].objective
    objective, bound = solution.objective.double().cpu(), solution.lower_bound.double().cpu()
    near = objective.isfinite() & (objective - bound <= NOTHING * first.abs())
    zero = (bound <= 0) & (objective >= 0) & near & ~(solution.gap.cpu() <= tolerance)
    unproved = torch.tensor([each is not cl.Guarantee.GLOBAL for each in solution.guarantee])
    endless = unproved & falls_without_end(problem, solution.x, first).cpu()
    return [
        Kind.ENDLESS if falls else Kind.ZERO if about else Kind.ORDINARY
        for falls, about in zip(endless.tolist(), zero.tolist(), strict=True)
    ]


def falls_without_end(
    problem: cl.VariationalProblem, x: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Whether J falls from x on as far as anyone looks, (B,); ``first`` is J at the start."""
    double = problem.to(dtype=torch.float64)
    x, start = x.double(), double.initial_image().double()
    way = x - start
    if double.fidelity.conjugate_domain == (-math.inf, math.inf):  # grows faster than R falls
        if double.operator.diagonal is None:
            return torch.zeros_like(first, dtype=torch.bool)
        seen = double.fidelity.measured & (double.operator.diagonal != 0)
        way = torch.where(seen.expand_as(way), 0.0, way)
    with torch.no_grad():
        here, there = (
            double.evaluate(double.bounds.project(x + far * way)).objective.double()
            for far in (0.0, FAR)
        )
    fallen = (first - here).clamp_min(0)
    return (fallen > 0) & (there < here - 0.1 * FAR * fallen)


if __name__ == "__main__":
    main()
