"""How often the default solver certifies 1e-3 within 400 iterations, on random problems.

    PYTHONPATH=. python benchmarks/random_problems.py [--count 1000] [--output FILE.json]

The problems are those of the soak test at ordinary scales (``soak.random_problems``): all networks,
data terms, operators, boxes and precisions, small images, always the same for the same numbers.
One line for each family, the worst first. Three classes of images cannot succeed, and are counted
by themselves as well (``Kind``).
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

import numpy as np
import scipy.optimize
import torch

import convexlift as cl
from convexlift.problems.claims import in_double, objective_above
from soak.random_problems import random_case

Row = tuple[int, tuple[str, ...], list[float], list[int], list[str]]
LONGER = 5
"""More iterations, to see whether an objective vanishes in double precision."""
LARGEST_MATRIX = 10**6
"""The most entries of a matrix A for linear programming."""
FAR = 1e6
"""Multiples of the way from the first image to the last at which a ray still has to fall."""


class Kind:
    """What may make a small relative gap impossible, or meaningless, for an image.

    ZERO: the bound is at most 0, the objective at least 0, and at the best image of the problem in
    double precision, after ``LONGER`` times as many iterations, the objective is smaller than its
    rounding error divided by the tolerance. Claims are made in double precision and add that error,
    so that none can have a smaller gap there: relative to zero, nothing can be proved.
    ENDLESS: from the first image through the best or the last one, the objective falls ``FAR``
    times as far, at a tenth of the rate at least, and no bound is global: it has no minimum, and
    gaps relative to it become arbitrarily small. (Where data are quadratic, only directions are
    tried that these do not see, behind diagonal operators.)
    IMPOSSIBLE: counts without background, and some l >= 0 with A* l < 0 at every pixel. Then
    <l, A x> < 0 for every x >= 0 but x = 0, so that no image has A x >= 0, as the domain of the
    data term asks, and counts where A x > 0: all objectives are infinite. Linear programming finds
    l, and A* l is computed from it with a margin far above rounding errors.
    """

    ORDINARY, ZERO, ENDLESS = "ordinary", "optimum of about zero", "no minimum"
    IMPOSSIBLE = "no finite objective"


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
    for kind in (Kind.ZERO, Kind.ENDLESS, Kind.IMPOSSIBLE, Kind.ORDINARY):
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
    zero = (bound <= 0) & (objective >= 0) & objective.isfinite() & ~(solution.gap <= tolerance)
    if bool(zero.any()):
        zero &= vanishes(problem, tolerance, LONGER * int(solution.iterations.max()))
    unproved = torch.tensor([each is not cl.Guarantee.GLOBAL for each in solution.guarantee])
    falls = [falls_without_end(problem, x, first).cpu() for x in (solution.x, solution.state.x)]
    endless = unproved & (falls[0] | falls[1])
    return [
        Kind.ENDLESS if endless[i]
        else Kind.ZERO if zero[i]
        else Kind.IMPOSSIBLE if objective[i] == math.inf and nothing_explains(problem, i)
        else Kind.ORDINARY
        for i in range(problem.batch_size)
    ]  # fmt: skip


def vanishes(problem: cl.VariationalProblem, tolerance: float, iterations: int) -> torch.Tensor:
    """Whether the objective ends below its rounding error in double precision, (B,)."""
    double = in_double(problem.detach())
    stop = cl.StopWhen(gap=tolerance, max_iterations=iterations)
    x = cl.solve(double, stop=stop).x
    claimed = objective_above(double, x)
    return claimed - double.objective(x) >= tolerance * claimed


def nothing_explains(problem: cl.VariationalProblem, i: int) -> bool:
    """Whether every objective of image i is infinite, because A x >= 0 implies x = 0."""
    double = problem.to(dtype=torch.float64)
    y, box, shape = double.fidelity.y, double.bounds, double.image_shape
    counts = isinstance(double.fidelity, cl.KullbackLeibler) and box.lower == 0
    if not counts or bool((double.fidelity.offset != 0).any()) or not bool((y[i] > 0).any()):
        return False
    data, pixels = y[i].numel(), math.prod(shape)
    if data * pixels > LARGEST_MATRIX:
        return False
    rows = []
    for unit in torch.eye(data, dtype=torch.float64):
        rows.append(double.operator.adjoint(unit.reshape(1, *y.shape[1:]).expand_as(y))[i])
    A = torch.stack(rows).flatten(1).numpy()
    # The largest e with A* l <= -e at every pixel, over 0 <= l <= 1.
    found = scipy.optimize.linprog(
        np.r_[np.zeros(data), -1.0],
        A_ub=np.c_[A.T, np.ones(pixels)], b_ub=np.zeros(pixels), bounds=[(0, 1)] * (data + 1),
    )  # fmt: skip
    if found.status != 0:
        return False
    below = A.T @ np.clip(found.x[:data], 0, 1)
    return bool((below < -1e-9 * np.abs(A).sum(0).max()).all())


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
