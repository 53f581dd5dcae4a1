"""Objective, data term and regularizer against iterations in CT, as in the paper's Figures.

    export PYTHONPATH=.        # for the folder experiments
    python benchmarks/ct_curves.py --data DIR --output DIR
    python benchmarks/ct_curves.py --data DIR --output DIR --size 64 --iterations 200   # on a CPU
    python benchmarks/ct_curves.py --output DIR --redraw        # the figures, from curves.json

One slice behind the paper's scanner, with its Poisson noise, Kullback-Leibler data term and x >= 0,
once for each regularizer. All methods have the same data and start, the filtered back projection:
SM-C, SM-D and PDHG with the paper's steps, our default, and where the problem is smooth NMAPG and
L-BFGS.

The networks are not the paper's, so its step sizes need not suit them. Those who have any get the
best of a search *on the measured slice*: from the paper's numbers (for SM-C and SM-D those of its
released code, a tenth of the printed ones), one at a time goes up and down by a factor, and then by
its root, as long as that saves iterations to an objective error of 1e-3, or, where no run gets
there, lowers the error at the end. All that was tried is printed. SM-C and SM-D are projected
onto x >= 0.

Then each runs to the end for x >= 0 and for 0 <= x <= 2, looked at every ``--every`` iterations; it
also ends when neither objective nor gap change any more, since line searches are long then. The
optimum is the same unless a pixel of it is at 2, which is checked; certificates differ. Errors are
relative to the least objective that anything found, the reference included: our default, run
longer, in the box, to a certified gap of 1e-5 or as far as it gets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ct_curves_output import (
    BOX,
    BOXES,
    HALFLINE,
    METHODS,
    Run,
    draw,
    first_below,
    relative,
    table,
    write,
)
from torch import Tensor

import convexlift as cl
from convexlift.images import load_image, psnr
from convexlift.tasks import SparseViewCT
from experiments.measuring import find_reference
from experiments.runner.run import machine

PAPER_WEIGHT = {2: 600.0, 4: 650.0}
PAPER_C = {1: (500.0, 100.0), 2: (500.0, 100.0, 0.1), 4: (500.0, 100.0, 5.0, 0.5, 0.1)}
"""Of its baseline and its deep network, by their layers; with one layer, its first two numbers."""
SM_C, SM_D = 2e-4, 3e-3
"""The middle of the steps in the paper's released code."""
SEARCHED, SEARCH_EVERY = 1e-3, 10
STILL = 8
"""A run ends when so many looks saw the same objective to 1e-7, and the same gap to a hundredth."""
REFERENCE_GAP, REFERENCE_ITERATIONS = 1e-5, 5000

Steps = tuple[float, ...]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="slices, or a folder with ct/test or test")
    parser.add_argument("--slice", default="TCGA-17-Z011_011.png")
    parser.add_argument("--models", nargs="*", help="names or paths; those shipped unless given")
    parser.add_argument("--weight", type=float, help="of all models; else that of the card")
    parser.add_argument(
        "--also-paper", nargs="*", default=[], metavar="PATH",
        help="models like the paper's baseline or deep network, with its gamma of 600 or 650",
    )  # fmt: skip
    parser.add_argument("--methods", nargs="*", choices=[*METHODS])
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=5, help="look so often")
    parser.add_argument("--tries", type=int, default=24, help="of a search for steps, at most")
    parser.add_argument("--size", type=int, default=512, help="slices are averaged down to it")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--double", action="store_true", help="continue the reference in double precision"
    )
    parser.add_argument("--redraw", action="store_true")
    arguments = parser.parse_args()
    if arguments.redraw:
        cases = json.loads((arguments.output / "curves.json").read_text())["cases"]
        for case in cases:
            case["runs"] = [Run.of(run) for run in case["runs"]]
        draw(cases, arguments.output)
        return
    if arguments.data is None:
        parser.error("--data is needed, unless there are curves to --redraw")
    clean = load_slice(arguments).to(arguments.device)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(torch.device(arguments.device)),
        "slice": arguments.slice,
        "size": arguments.size,
        "iterations": arguments.iterations,
        "every": arguments.every,
    }
    cases = []
    shipped = [name for name in cl.models.names() if cl.models.card(name).task == "ct"]
    for name in [*(shipped if arguments.models is None else arguments.models),
                 *arguments.also_paper]:  # fmt: skip
        network = cl.load(name, device=arguments.device)
        weight = arguments.weight
        if name in arguments.also_paper:
            weight = PAPER_WEIGHT.get(len(network.layers))
        elif weight is None and network.card is not None:
            weight = network.card.weights.get("ct", network.card.weight)
        if weight is None:
            parser.error(f"{name} has no weight for CT; give --weight")
        began = time.perf_counter()
        cases.append(compare(Path(name).stem, network, weight, clean, arguments))
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
        write({**about, "cases": cases}, arguments.output)
    draw(cases, arguments.output)


def load_slice(arguments: argparse.Namespace) -> Tensor:
    """The slice, (1, 1, N, N), with pixels averaged down."""
    folders = [arguments.data / "ct/test", arguments.data / "test", arguments.data]
    found = [folder / arguments.slice for folder in folders if (folder / arguments.slice).exists()]
    if not found:
        raise SystemExit(f"there is no {arguments.slice} in {' or '.join(map(str, folders))}")
    return F.interpolate(load_image(found[0]), arguments.size, mode="area")


def scanner(size: int) -> cl.LinearOperator:
    """The paper's, with as many pixels and in proportion as many views and bins."""
    views, bins = round(200 * size / 512), round(400 * size / 512)
    return cl.paper_scanner(size, views, bins)


def compare(
    name: str,
    network: cl.InputConvexNetwork,
    weight: float,
    clean: Tensor,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """All methods with one regularizer."""
    rays = scanner(arguments.size)
    measured = {
        text: SparseViewCT(scanner=rays, box=box).measure(
            clean, [torch.Generator(clean.device).manual_seed(0)]
        )
        for text, box in BOXES.items()
    }
    problems = {text: found.problem(network, weight) for text, found in measured.items()}
    start = measured[HALFLINE].picture
    print(f"\n{name}: weight {weight:g}, {len(network.layers)} layers, FBP "
          f"{float(psnr(start, clean)):.2f} dB", flush=True)  # fmt: skip
    accurate = cl.StopWhen(gap=REFERENCE_GAP, max_iterations=REFERENCE_ITERATIONS)
    reference = find_reference(problems[BOX], accurate, start=start, double=arguments.double)
    known, largest = reference.objective, float(reference.x.max())
    print(
        f"reference: {known:.8g}, certified to {reference.gap:.1e} after {reference.iterations} "
        f"iterations ({reference.precision}); largest pixel {largest:.2f}, so that the optimum "
        f"for x >= 0 is {'the same' if largest < BOXES[BOX][1] else 'ANOTHER'}",
        flush=True,
    )

    def look(method: cl.Method, box: str, stop: cl.StopWhen, enough: float = -math.inf) -> Run:
        return follow(problems[box], method, stop, start, clean, known * (1 + enough), box)

    runs = []
    whole = cl.StopWhen(gap=None, max_iterations=arguments.iterations, check_every=arguments.every)
    for label in arguments.methods or METHODS:
        if label in ("nmapg", "lbfgs") and not (problems[BOX].smooth or arguments.methods):
            continue
        make, first, factor = family(label, len(network.layers))
        tried: dict[str, str] = {}

        def score(steps: Steps, limit: int) -> tuple[float, float]:
            stop = cl.StopWhen(gap=None, max_iterations=limit, check_every=SEARCH_EVERY)
            run = look(make(steps), HALFLINE, stop, SEARCHED)  # noqa: B023
            error = relative(run.objective, known)
            needed = first_below(run.iteration, error, SEARCHED)
            short = f"{min(error):.1e} in {run.iteration[-1]}"
            tried[cl.describe_steps(make(steps))] = short if needed is None else str(needed)  # noqa: B023
            return (math.inf, min(error)) if needed is None else (needed, 0.0)

        best = search(first, factor, arguments.iterations, arguments.tries, score)
        if tried:
            print(f"{label}, iterations to {SEARCHED:g}, or the error reached: "
                  + "; ".join(f"{steps}: {told}" for steps, told in tried.items()))  # fmt: skip
        for box in problems:
            run = look(make(best), box, whole)
            run.method, run.tried = label, tried
            runs.append(run)
        print(f"{label}: {runs[-1].steps}, {runs[-1].seconds:.1f} s", flush=True)
    case = {
        "model": name,
        "weight": weight,
        "layers": len(network.layers),
        "smooth": problems[BOX].smooth,
        "optimum": min(known, *(min(run.objective) for run in runs)),
        "reference": {
            "objective": known,
            "gap": reference.gap,
            "precision": reference.precision,
            "iterations": reference.iterations,
            "largest_pixel": largest,
            "psnr": float(psnr(reference.x, clean)),
        },
        "fbp_psnr": float(psnr(start, clean)),
        "runs": runs,
    }
    print("\n" + table(case), flush=True)
    return case


def family(label: str, layers: int) -> tuple[Callable[[Steps], cl.Method], Steps, float]:
    """A method as a function of its step sizes, the paper's, and the factor of the search."""
    if label == "paper":
        inner = tuple(100.0 * 1e-3 ** (i / max(layers - 1, 1)) for i in range(layers))
        first = PAPER_C.get(layers, (500.0, *map(rounded, inner)))
        return (lambda c: cl.PDHG(steps=cl.PaperSteps(c))), first, 10.0
    if label in ("sm-c", "sm-d"):
        diminishing = label == "sm-d"
        first = (SM_D,) if diminishing else (SM_C,)
        return (lambda step: cl.Subgradient(*step, diminishing)), first, 2.0
    fixed: dict[str, cl.Method] = {"default": cl.PDHG(), "nmapg": cl.NMAPG(), "lbfgs": cl.LBFGS()}
    return (lambda _: fixed[label]), (), 1.0


def search(
    first: Steps,
    factor: float,
    limit: int,
    tries: int,
    score: Callable[[Steps, int], tuple[float, float]],
) -> Steps:
    """The best steps found by changing one number at a time, by the factor and by its root."""
    if not first:
        return first

    def steps(halves: tuple[int, ...]) -> Steps:
        return tuple(
            rounded(c * factor ** (half / 2)) for c, half in zip(first, halves, strict=True)
        )

    best = (0,) * len(first)
    scores = {best: score(first, limit)}
    for size in (2, 1):
        improved = True
        while improved:
            improved = False
            for i, change in itertools.product(range(len(first)), (size, -size)):
                while len(scores) < tries:
                    following = (*best[:i], best[i] + change, *best[i + 1 :])
                    if following in scores:
                        break
                    # Whoever is not faster than the best need not be followed to the end.
                    fewer = max(scores[best][0] - SEARCH_EVERY, SEARCH_EVERY)
                    scores[following] = score(steps(following), int(min(limit, fewer)))
                    # A lower error counts if it is clearly lower: some steps hardly matter.
                    count, error = scores[following]
                    if (count, error / 0.95) >= scores[best]:
                        break
                    best, improved = following, True
    return steps(best)


def rounded(step: float) -> float:
    """To two digits."""
    return float(f"{step:.2g}")


def follow(
    problem: cl.VariationalProblem,
    method: cl.Method,
    stop: cl.StopWhen,
    start: Tensor,
    clean: Tensor,
    enough: float,
    text: str,
) -> Run:
    """What is seen of a run; it ends early at an objective that is low enough."""
    quality: list[float] = []
    seen: deque[tuple[float, float]] = deque(maxlen=STILL)

    def watch(progress: cl.Progress) -> bool:
        quality.append(float(psnr(progress.x, clean)))
        objective, gap = float(progress.objective), float(progress.gap)
        seen.append((objective, gap))
        still = len(seen) == STILL and all(
            abs(value - objective) <= 1e-7 * abs(objective) and abs(other - gap) <= 0.01 * gap
            for value, other in seen
        )
        return still or objective <= enough

    solution = cl.solve(problem, method=method, stop=stop, start=start, callback=watch)
    columns = {
        name: [float(value) for value in solution.history[name]]
        for name in ("objective", "data_term", "regularizer", "lower_bound", "gap")
    }
    return Run(
        method="",
        steps=cl.describe_steps(method),
        problem=text,
        tried={},
        guarantee=solution.guarantee[0].name,
        seconds=solution.seconds,
        psnr_of_best=float(psnr(solution.x, clean)),
        iteration=solution.history["iteration"].tolist(),
        psnr=quality,
        **columns,
    )


if __name__ == "__main__":
    main()
