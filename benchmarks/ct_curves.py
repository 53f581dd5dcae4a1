"""Objective, data term and regularizer against iterations in CT, as in the paper's Figures.

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
import csv
import importlib.util
import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.benchmark.measure import find_reference
from convexlift.benchmark.methods import describe
from convexlift.benchmark.results import machine
from convexlift.images import atomic_path, load_image, psnr
from convexlift.operators.tomography.presets import PAPER_UNIT
from convexlift.solvers.method import Method
from convexlift.tasks import SparseViewCT

SHIPPED = ("ct-abdomen-chest", "ct-abdomen-chest-deep")
METHODS = {
    "default": "default",
    "paper": "the paper's PDHG",
    "nmapg": "NMAPG",
    "lbfgs": "L-BFGS",
    "sm-c": "SM-C",
    "sm-d": "SM-D",
}
PAPER_WEIGHT = {2: 600.0, 4: 650.0}
PAPER_C = {1: (500.0, 100.0), 2: (500.0, 100.0, 0.1), 4: (500.0, 100.0, 5.0, 0.5, 0.1)}
"""Of its baseline and its deep network, by their layers; with one layer, its first two numbers."""
SM_C, SM_D = 2e-4, 3e-3
"""The middle of the steps in the paper's released code."""
HALFLINE, BOX = "x >= 0", "0 <= x <= 2"
BOXES = {HALFLINE: (0.0, None), BOX: (0.0, 2.0)}
ERRORS, GAPS = (1e-2, 1e-3, 1e-4, 1e-5), (1e-2, 1e-3)
SEARCHED, SEARCH_EVERY = 1e-3, 10
STILL = 8
"""A run ends when so many looks saw the same objective to 1e-7, and the same gap to a hundredth."""
REFERENCE_GAP, REFERENCE_ITERATIONS = 1e-5, 5000

Steps = tuple[float, ...]


@dataclass
class Run:
    """One method on one problem; lists have a number for each look at it."""

    method: str
    steps: str
    problem: str
    tried: dict[str, str]
    guarantee: str
    seconds: float
    psnr_of_best: float
    iteration: list[int]
    objective: list[float]
    data_term: list[float]
    regularizer: list[float]
    lower_bound: list[float]
    gap: list[float]
    psnr: list[float]

    def plain(self) -> dict[str, Any]:
        """For JSON, which knows neither infinity nor NaN: None."""
        return {
            name: [v if math.isfinite(v) else None for v in value]
            if isinstance(value, list)
            else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Run:
        """What ``plain`` made."""
        return cls(
            **{
                name: [math.nan if v is None else v for v in value]
                if isinstance(value, list)
                else value
                for name, value in plain.items()
            }
        )


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
        draw(cases, arguments)
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
    shipped = [name for name in SHIPPED if name in cl.models.names()]
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
    draw(cases, arguments)


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
    return cl.ParallelBeam(size, views, bins, 256.0) * (1 / PAPER_UNIT)


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
    reference = find_reference(
        problems[BOX], REFERENCE_ITERATIONS, gap=REFERENCE_GAP, start=start, double=arguments.double
    )
    known, largest = reference.objective, float(reference.x.max())
    print(
        f"reference: {known:.8g}, certified to {reference.gap:.1e} after {reference.iterations} "
        f"iterations ({reference.precision}); largest pixel {largest:.2f}, so that the optimum "
        f"for x >= 0 is {'the same' if largest < BOXES[BOX][1] else 'ANOTHER'}",
        flush=True,
    )

    def look(method: Method, box: str, stop: cl.StopWhen, enough: float = -math.inf) -> Run:
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
            tried[describe(make(steps))] = short if needed is None else str(needed)  # noqa: B023
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


def family(label: str, layers: int) -> tuple[Callable[[Steps], Method], Steps, float]:
    """A method as a function of its step sizes, the paper's, and the factor of the search."""
    if label == "paper":
        inner = tuple(100.0 * 1e-3 ** (i / max(layers - 1, 1)) for i in range(layers))
        first = PAPER_C.get(layers, (500.0, *map(rounded, inner)))
        return (lambda c: cl.PDHG(steps=cl.PaperSteps(c))), first, 10.0
    if label in ("sm-c", "sm-d"):
        diminishing = label == "sm-d"
        first = (SM_D,) if diminishing else (SM_C,)
        return (lambda step: cl.Subgradient(*step, diminishing)), first, 2.0
    fixed: dict[str, Method] = {"default": cl.PDHG(), "nmapg": cl.NMAPG(), "lbfgs": cl.LBFGS()}
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
    method: Method,
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
        steps=describe(method),
        problem=text,
        tried={},
        guarantee=solution.guarantee[0].name,
        seconds=solution.seconds,
        psnr_of_best=float(psnr(solution.x, clean)),
        iteration=solution.history["iteration"].tolist(),
        psnr=quality,
        **columns,
    )


def relative(objective: Sequence[float], optimum: float) -> list[float]:
    """(objective - optimum) / |optimum|, infinite where there is no number."""
    errors = [(value - optimum) / abs(optimum) for value in objective]
    return [math.inf if math.isnan(error) else error for error in errors]


def first_below(iterations: Sequence[int], values: Sequence[float], level: float) -> int | None:
    """The first iteration with such a value, or None."""
    return next((k for k, v in zip(iterations, values, strict=True) if v <= level), None)


def named(run: Run) -> str:
    """The method with its steps, if it has any."""
    label, steps = METHODS[run.method], run.steps.replace("e+0", "e").replace("e-0", "e-")
    return label if run.steps == describe(cl.PDHG()) else f"{label}, {steps}"


def table(case: dict[str, Any]) -> str:
    """Iterations to each accuracy, in Markdown."""
    levels = [f"error {power(ERRORS[0])}", *map(power, ERRORS[1:])]
    for box in BOXES:
        levels += [f"gap {power(GAPS[0])}, {box}", *map(power, GAPS[1:])]
    lines = [f"| {case['model']} | {' | '.join(levels)} | PSNR |", "|---" * (len(levels) + 2) + "|"]
    runs: dict[str, dict[str, Run]] = {}
    for run in case["runs"]:
        runs.setdefault(run.method, {})[run.problem] = run
    for both in runs.values():
        main = both[HALFLINE]
        error = relative(main.objective, case["optimum"])
        counts = [first_below(main.iteration, error, level) for level in ERRORS]
        for box in BOXES:
            run = both[box]
            counts += [first_below(run.iteration, run.gap, level) for level in GAPS]
        cells = ["-" if count is None else str(count) for count in counts]
        lines.append(f"| {named(main)} | {' | '.join(cells)} | {main.psnr_of_best:.2f} |")
    return "\n".join(lines)


def power(level: float) -> str:
    """A power of ten, as in 1e-3."""
    return f"1e{round(math.log10(level))}"


def write(content: dict[str, Any], folder: Path) -> None:
    """curves.json with everything, and curves.csv with a line for each look."""
    plain = {
        **content,
        "cases": [
            {**case, "runs": [run.plain() for run in case["runs"]]} for case in content["cases"]
        ],
    }
    with atomic_path(folder / "curves.json") as part:
        part.write_text(json.dumps(plain, allow_nan=False) + "\n")
    names = ["iteration", "objective", "data_term", "regularizer", "lower_bound", "gap", "psnr"]
    with atomic_path(folder / "curves.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "method", "steps", "problem", "error", *names])
        for case in content["cases"]:
            for run in case["runs"]:
                label = [case["model"], run.method, run.steps, run.problem]
                error = relative(run.objective, case["optimum"])
                columns = [getattr(run, name) for name in names]
                writer.writerows([*label, *row] for row in zip(error, *columns, strict=True))


def draw(cases: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """curves-MODEL.png for each regularizer."""
    if importlib.util.find_spec("matplotlib") is None:  # machines with GPUs may be bare
        print("matplotlib is not here; draw elsewhere with --redraw")
        return
    from convexlift.benchmark.plot import FLOOR, STYLES, plt

    for case in cases:
        figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), sharex=True)
        (top, gaps), (data, regularizer) = axes
        for run in case["runs"]:
            colour, style, width = STYLES[run.method]
            line = {"color": colour, "linestyle": style, "linewidth": width}
            if run.problem == BOX:
                gaps.plot(run.iteration, run.gap, **line)
                continue
            error = [max(value, FLOOR) for value in relative(run.objective, case["optimum"])]
            top.plot(run.iteration, error, label=named(run), **line)
            data.plot(run.iteration, run.data_term, **line)
            weighted = [case["weight"] * value for value in run.regularizer]
            regularizer.plot(run.iteration, weighted, **line)
            gaps.plot(run.iteration, run.gap, **{**line, "linewidth": 0.8, "alpha": 0.55})
        finish(case, axes)
        handles, labels = top.get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=3, frameon=False,
                      bbox_to_anchor=(0.5, 0.965), handlelength=3.2)  # fmt: skip
        figure.suptitle(f"Sparse-view CT with {case['model']}", fontsize=12)
        figure.tight_layout(rect=(0, 0, 1, 0.925))
        with atomic_path(arguments.output / f"curves-{case['model']}.png") as part:
            figure.savefig(part, dpi=120, format="png")
        plt.close(figure)


def finish(case: dict[str, Any], axes: Any) -> None:
    """Labels and ranges, in which the first swings of some methods do not fit."""
    (top, gaps), parts = axes
    top.set(yscale="log", ylim=(1e-6, 3), title="relative objective error")
    gaps.set(yscale="log", ylim=(1e-5, 1.5), title="certified relative gap")
    gaps.text(0.02, 0.04, f"thick: {BOX}, thin: {HALFLINE}", transform=gaps.transAxes,
              fontsize=9, color="0.3")  # fmt: skip
    runs = [run for run in case["runs"] if run.problem == HALFLINE]
    best = min(runs, key=lambda run: min(run.objective))
    at = best.objective.index(min(best.objective))
    names = ("data_term", "regularizer")
    titles = ("data term D(A x, y)", "regularizer, with its weight")
    for axis, name, title, factor in zip(parts, names, titles, (1, case["weight"]), strict=True):
        optimal, first = factor * getattr(best, name)[at], factor * getattr(best, name)[0]
        lowest = min(factor * min(getattr(run, name)) for run in runs)
        reach = max(abs(first - optimal), 0.45 * optimal)
        axis.axhline(optimal, color="0.45", linewidth=0.7, linestyle=(0, (1, 2)))
        axis.set(ylim=(min(lowest, optimal) - 0.08 * reach, optimal + 1.1 * reach), title=title)
        axis.set_xlabel("iterations")
    last = max(run.iteration[-1] for run in runs)
    ticks = [k for k in (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if k <= last]
    top.set_xscale("symlog", linthresh=5, linscale=0.25)  # straight to 5, so that the start is seen
    top.set_xlim(0, last)
    for axis in axes.flat:
        axis.set_xticks(ticks, [str(k) for k in ticks])
        axis.set_xticks([], minor=True)
        axis.title.set_size(10)
        axis.grid(alpha=0.25)


if __name__ == "__main__":
    main()
