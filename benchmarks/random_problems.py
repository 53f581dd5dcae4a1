"""How often the default solver certifies 1e-3 within 400 iterations, on random problems.

    PYTHONPATH=. python benchmarks/random_problems.py [--count 1000] [--output FILE.json]

The problems are those of the soak test at ordinary scales (``soak.random_problems``): all networks,
data terms, operators, boxes and precisions, small images, always the same for the same numbers.
One line for each family, the worst first.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import os
from pathlib import Path

import torch

import convexlift as cl
from soak.random_problems import random_case

Row = tuple[int, tuple[str, ...], list[float], list[int]]


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
    for _, words, gaps, _ in found:
        for word in ("all", *words):
            families[word] += [gap <= given.gap for gap in gaps]
    for word, reached in sorted(families.items(), key=lambda each: sum(each[1]) / len(each[1])):
        print(f"{100 * sum(reached) / len(reached):5.1f} %  of {len(reached):4}  {word}")


def solved(seed: int, stop: cl.StopWhen) -> Row | None:
    """Seed, parts, gaps and iterations; None for a combination that the library refuses."""
    torch.set_num_threads(1)
    try:
        case = random_case(seed, tame=True)
    except ValueError:  # a box without images, say
        return None
    words = tuple(word for word in case.words if not word.startswith("method"))
    solution = cl.solve(case.problem, stop=stop)
    return seed, words, solution.gap.tolist(), solution.iterations.tolist()


if __name__ == "__main__":
    main()
