"""The outlook of the paper, a primal-dual method whose dual blocks take turns, against PDHG.

    python benchmarks/coordinate_descent.py ct --image SLICE.png
    python benchmarks/coordinate_descent.py faces --image FACE.png

SPDHG (``coordinate_solver.py``) by subsets of angles, groups of filters and layers; the default;
and the paper's PDHG. T is one number for each primal block; in CT also the default's T, which
depends on the frequency (the box is a block of its own then). These numbers, and the paper's c,
are the best of a search on the measured image, which is not counted.

A pass is a product with an operator and one with its adjoint: an iteration of PDHG takes one pass
over A and one over the filters V, a draw of SPDHG a part of one of them. Work is passes weighted by
the processor time of each, one iteration of PDHG being 1. Looks at objective and certificate and
proximal maps are not work. Seconds are those of the processor for all iterations to an error of
1e-3, proximal maps and one look included, norms and tables of weights not.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from coordinate_solver import Coordinates
from torch import Tensor

import convexlift as cl
from convexlift.images import load_image
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.tasks import Inpainting, SaltAndPepper, SparseViewCT

ERRORS, GAPS = (1e-2, 1e-3, 1e-4), (1e-2, 1e-3)
SEARCHED, FACTOR = 1e-3, 10**0.5
SEEDS = 3
"""Orders of the draws, of which means are given."""
Steps = tuple[float, ...]
Make = Callable[[Steps], cl.Method]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=["ct", "faces"])
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--size", type=int, default=128, help="of the slice, averaged down to it")
    parser.add_argument("--network", help="of the faces; decides about the task")
    parser.add_argument("--work", type=float, default=200.0, help="limit of a run")
    parser.add_argument("--reference", type=int, default=2000, help="iterations, at most")
    given = parser.parse_args()
    torch.set_num_threads(1)
    problem, start = (ct if given.case == "ct" else faces)(given)
    stop = cl.StopWhen(gap=1e-6, max_iterations=given.reference, check_every=50)
    best = cl.solve(problem, stop=stop, start=start)
    bench = Bench(problem, start, float(best.objective), given.work)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in bench.shares.items())
    print(f"reference {float(best.objective):.8g}, certified to {float(best.gap):.1e}; {shares}")
    print("| method | T or c | " + " | ".join([f"error {e:g}" for e in ERRORS] + [f"gap {g:g}"
          for g in GAPS]) + f" | A, V to {SEARCHED:g} | seconds |")  # fmt: skip
    print("|---|---|" + "---|" * (len(ERRORS) + len(GAPS) + 2))
    bench.row("default", lambda _: cl.PDHG(), ())
    contestants = ct_methods(bench) if given.case == "ct" else face_methods()
    for label, make, first in contestants:
        bench.row(label, make, bench.searched(make, first))


def ct(given: argparse.Namespace) -> tuple[cl.VariationalProblem, Tensor]:
    """The paper's scanner scaled down, its noise, and ``ct-abdomen-chest``."""
    clean = F.interpolate(load_image(given.image), given.size, mode="area")
    views, bins = round(200 * given.size / 512), round(400 * given.size / 512)
    task = SparseViewCT(scanner=cl.paper_scanner(given.size, views, bins), box=(0.0, 2.0))
    data = task.measure(clean, [torch.Generator().manual_seed(0)])
    return data.problem(cl.load("ct-abdomen-chest"), 1.0), data.picture


def faces(given: argparse.Namespace) -> tuple[cl.VariationalProblem, Tensor]:
    """Inpainting or salt and pepper with a network of two layers."""
    network = cl.load(given.network or "faces-denoising")
    task = Inpainting() if network.card.task == "inpainting" else SaltAndPepper()
    data = task.measure(load_image(given.image), [torch.Generator().manual_seed(0)])
    problem = data.problem(network, network.card.weight)
    return problem, problem.initial_image()


def ct_methods(bench: Bench) -> list[tuple[str, Make, Steps]]:
    """The paper's PDHG, and SPDHG by angles and filters in either metric."""
    found: list[tuple[str, Make, Steps]] = [
        ("paper's PDHG", lambda c: cl.PDHG(steps=cl.PaperSteps(c)), (1600.0, 320.0))
    ]
    for metric in (None, default_metric(bench)):
        kind, first = ("one T", 1.7e-4) if metric is None else ("T by frequency", 0.32)
        for n, groups in ((1, 1), (10, 1), (25, 1), (10, 4)) if metric is None else ((10, 1),):
            label = f"SPDHG, angles in {n}, filters in {groups}, {kind}"

            def make(t: Steps, n: int = n, g: int = groups, T: Tensor | None = metric) -> Any:
                return Coordinates(t, subsets=n, groups=g, spectrum=T)

            found.append((label, make, (first,)))
    return found


def default_metric(bench: Bench) -> Tensor:
    """T of the default after 40 iterations, (1, 1, H, W//2 + 1)."""
    stop = cl.StopWhen(gap=None, max_iterations=40, check_every=40)
    solver = cl.PDHG().solver(bench.problem)
    assert isinstance(solver, RestartedPDHG)
    state = cl.solve(bench.problem, method=cl.PDHG(), stop=stop, start=bench.start).state
    return solver.coupling.tau(state.sigma)["x"]


def face_methods() -> list[tuple[str, Make, Steps]]:
    """The paper's PDHG, and SPDHG by layers and groups of filters."""
    found: list[tuple[str, Make, Steps]] = [
        ("paper's PDHG", lambda c: cl.PDHG(steps=cl.PaperSteps(c)), (100.0, 1e-3))
    ]
    for groups in (1, 4, 8):

        def make(t: Steps, groups: int = groups) -> Any:
            return Coordinates(t, groups=groups)

        found.append((f"SPDHG, layers, filters in {groups}", make, (0.0032, 0.1)))
    return found


class Bench:
    """One problem: runs of methods against a reference objective."""

    def __init__(
        self, problem: cl.VariationalProblem, start: Tensor, reference: float, limit: float
    ) -> None:
        self.problem, self.start, self.reference, self.limit = problem, start, reference, limit
        layer = problem.network.layers[0]
        seconds = {"V": pair_seconds(layer.operators[0], start)}
        if problem.operator.diagonal is None:
            seconds["A"] = pair_seconds(problem.operator, start)
        self.shares = {name: s / sum(seconds.values()) for name, s in seconds.items()}

    def work(self, method: cl.Method, iteration: int) -> float:
        """Iterations of PDHG that cost as much."""
        if not isinstance(method, Coordinates):
            return float(iteration)
        return sum(share * method.passes[name] for name, share in self.shares.items())

    def follow(
        self, method: cl.Method, limit: float, *, enough: float | None = None
    ) -> dict[str, tuple[float, int, dict[str, float]]]:
        """Work, iterations and passes at the first look below each tolerance."""
        found: dict[str, tuple[float, int, dict[str, float]]] = {}
        every = 1
        if isinstance(method, Coordinates):
            solver = method.solver(self.problem)
            each = sum(p * share * part.cost.get(name, 0.0)
                       for p, part in zip(solver.p, solver.parts, strict=True)
                       for name, share in self.shares.items())  # fmt: skip
            every = max(1, round(0.5 / each))

        def look(progress: cl.Progress) -> bool:
            work = self.work(method, progress.iteration)
            error = (float(progress.objective) - self.reference) / abs(self.reference)
            passes = dict(getattr(method, "passes", dict.fromkeys(self.shares, work)))
            reached = [f"error {e:g}" for e in ERRORS if error <= e]
            reached += [f"gap {g:g}" for g in GAPS if float(progress.gap) <= g]
            for name in reached:
                found.setdefault(name, (work, progress.iteration, passes))
            done = enough is not None and error <= enough
            lost = not math.isfinite(error) or error > 1e6
            return done or lost or work >= limit or len(found) == len(ERRORS) + len(GAPS)

        stop = cl.StopWhen(gap=None, check_every=every, max_iterations=10**6)
        cl.solve(self.problem, method=method, stop=stop, start=self.start, callback=look)
        return found

    def searched(self, make: Make, first: Steps) -> Steps:
        """The steps with the least work to ``SEARCHED``, one number at a time by ``FACTOR``."""
        name = f"error {SEARCHED:g}"

        def score(steps: Steps, limit: float) -> float:
            found = self.follow(make(steps), limit, enough=SEARCHED)
            return found[name][0] if name in found else math.inf

        best = first
        scores = {first: score(first, self.limit)}
        improved = True
        while improved:
            improved = False
            for i, factor in itertools.product(range(len(first)), (FACTOR, 1 / FACTOR)):
                while True:
                    after = (*best[:i], float(f"{best[i] * factor:.2g}"), *best[i + 1 :])
                    if after in scores:
                        break
                    scores[after] = score(after, min(self.limit, scores[best]))
                    if scores[after] >= scores[best]:
                        break
                    best, improved = after, True
        return best

    def row(self, label: str, make: Make, steps: Steps) -> None:
        """A line of the table: means over several orders of the draws."""
        names = [f"error {e:g}" for e in ERRORS] + [f"gap {g:g}" for g in GAPS]
        runs, passes, seconds = [], [], []
        for seed in range(SEEDS):
            method = make(steps)
            if isinstance(method, Coordinates):
                method.seed = seed
            elif seed:
                break
            runs.append(self.follow(method, self.limit))
            if (name := f"error {SEARCHED:g}") in runs[-1]:
                _, count, spent = runs[-1][name]
                passes.append([spent[k] for k in sorted(self.shares)])
                seconds.append(self._seconds(make(steps), max(count, 1)))
        cells = [f"{statistics.mean(run[n][0] for run in runs):.0f}"
                 if all(n in run for run in runs) else "-" for n in names]  # fmt: skip
        done = len(passes) == len(runs)
        means = [f"{statistics.mean(each):.0f}" for each in zip(*passes, strict=True)]
        cells += [", ".join(means), f"{statistics.mean(seconds):.2f}"] if done else ["-", "-"]
        told = ", ".join(f"{step:.2g}" for step in steps) or "none"
        print(f"| {label} | {told} | {' | '.join(cells)} |", flush=True)

    def _seconds(self, method: cl.Method, count: int) -> float:
        """Of the iterations alone, without looks between them."""
        times = []

        def look(progress: cl.Progress) -> None:
            times.append(time.process_time())

        stop = cl.StopWhen(gap=None, max_iterations=count, check_every=count)
        cl.solve(self.problem, method=method, stop=stop, start=self.start, callback=look)
        return times[-1] - times[0]


def pair_seconds(K: cl.LinearOperator, x: Tensor) -> float:
    """Processor seconds of K* K x, the least of several."""
    K.adjoint(K(x))
    times = []
    for _ in range(7):
        began = time.process_time()
        K.adjoint(K(x))
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    main()
