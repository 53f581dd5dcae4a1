"""Seconds to an objective error and to a certified gap, of the default, the paper's PDHG, NMAPG and
L-BFGS, on one test face with every shipped regularizer that fits it.

    PYTHONPATH=. python benchmarks/time_to_error.py --data DIR --output FILE.json --plot FILE.svg

DIR holds ``faces/test`` and ``faces/mask.png``. On a CPU, seconds are those of the processor, so
that a busy machine does not distort them; use one thread, and let the C library keep freed memory
(``KEPT`` in ``all_tables.py``), since the others profit most. On a GPU, and with ``--wall`` (for
several threads on an idle machine), they are those of a clock.

Objective errors: first the iterations that a method needs are counted in a run that is not timed;
then it is run for exactly so many, and nothing is evaluated between the first and the last.
Certified gaps: ``cl.solve`` with that tolerance, as a user calls it. Methods take turns, and the
least of several runs counts. ``--from FILE.json`` prints and plots finished results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.solvers.method import Method
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet

CASES: list[tuple[str, type[Task], tuple[float, ...] | None]] = [
    ("faces-inpainting-bilevel", Inpainting, (1.0, 1e-4)),
    ("faces-inpainting-adversarial", Inpainting, (1.0, 1e-5)),
    ("faces-denoising", SaltAndPepper, (50.0, 2.5e-4)),
    ("photo-any-size", Inpainting, (1.0,)),
    ("photo-any-size", GaussianDenoising, (1.0,)),
    ("photo-any-size", SaltAndPepper, (50.0,)),
    ("photo-open", Inpainting, None),
    ("photo-open", GaussianDenoising, None),
    ("photo-open", SaltAndPepper, None),
]
"""Regularizer, task, and the best of the paper's 49 pairs c (``solver_iterations.py``)."""
COLOURS = {"default": "C0", "paper": "C1", "nmapg": "C2", "lbfgs": "C3"}
GAP = 1e-3
Stated = Callable[[], cl.VariationalProblem]
Clock = Callable[[], float]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--from", dest="finished", type=Path, nargs="*", default=[])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--faces", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="seconds of a clock, on a CPU too")
    parser.add_argument("--limit", type=int, default=250, help="iterations of a run")
    parser.add_argument("--reference", type=int, default=500, help="iterations of the reference")
    parser.add_argument("--methods", nargs="*", default=["default", "paper", "nmapg", "lbfgs"])
    parser.add_argument("--errors", type=float, nargs="*", default=[1e-3, 1e-4])
    parser.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    arguments = parser.parse_args()
    rows = [row for path in arguments.finished for row in json.loads(path.read_text())]
    if not arguments.finished:
        torch.set_num_threads(arguments.threads)
        for number in arguments.cases:
            for row in measured(arguments, *CASES[number]):
                rows.append(row)
                print(json.dumps({k: v for k, v in row.items() if k != "curve"}), flush=True)
                arguments.output.write_text(json.dumps(rows) + "\n")
    report(rows)
    if arguments.plot is not None:
        plot(rows, arguments.plot)


def measured(arguments: Any, name: str, kind: type[Task], c: tuple[float, ...] | None) -> Any:
    """The rows of one regularizer and task."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = chosen_clock(wall=arguments.wall)
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    task = kind(mask=mask) if kind is Inpainting else kind()
    faces = ImageSet.from_folder(arguments.data / "faces/test")
    network = cl.load(name, device=device)
    weight = network.card.weights.get(task.name, network.card.weight)
    methods: dict[str, Method] = {
        "default": cl.PDHG(),
        **({} if c is None else {"paper": cl.PDHG(steps=cl.PaperSteps(c))}),
        "nmapg": cl.NMAPG(),
        "lbfgs": cl.LBFGS(),
    }
    methods = {label: each for label, each in methods.items() if label in arguments.methods}
    for i in range(arguments.faces):
        data = task.measure(faces[i][None].to(device), [torch.Generator(device).manual_seed(i)])

        def stated(data: Any = data) -> cl.VariationalProblem:
            return data.problem(network, weight)

        long = cl.StopWhen(gap=1e-5, max_iterations=arguments.reference, check_every=50)
        solution = cl.solve(stated(), stop=long)
        reference = float(solution.objective)
        about = {"regularizer": name, "task": task.name, "face": i}
        about |= {"reference gap": float(solution.gap)}
        counts = {n: needed(stated(), m, reference, arguments) for n, m in methods.items()}
        for error in arguments.errors:
            stops = {
                n: cl.StopWhen(gap=None, max_iterations=count, check_every=count)
                for n in methods
                if (count := counts[n][error]) is not None
            }
            for label, runs in race(stated, methods, stops, arguments.repeats, clock).items():
                count = counts[label][error]
                yield {**about, "to": f"error {error:g}", "method": label, "iterations": count,
                       "seconds": min(s for s, _ in runs) if runs else None}  # fmt: skip
        stop = cl.StopWhen(gap=GAP, max_iterations=arguments.limit)
        curves: dict[str, list[tuple[float, float]]] = {n: [] for n in methods}
        stops = dict.fromkeys(methods, stop)
        for label, runs in race(stated, methods, stops, 1, clock, curves).items():
            seconds, result = runs[0]
            done = result.status[0] is cl.Status.CONVERGED
            yield {**about, "to": f"certified {GAP:g}", "method": label,
                   "iterations": int(result.iterations[0]) if done else None,
                   "seconds": seconds if done else None, "curve": curves[label]}  # fmt: skip


def needed(
    problem: cl.VariationalProblem, method: Method, reference: float, arguments: Any
) -> dict[float, int | None]:
    """The first iteration with each error, or None within the limit."""
    found: dict[float, int | None] = dict.fromkeys(arguments.errors)

    def look(progress: cl.Progress) -> bool:
        error = (float(progress.objective) - reference) / abs(reference)
        for tolerance in arguments.errors:
            if error <= tolerance and found[tolerance] is None:
                found[tolerance] = max(1, progress.iteration)
        return all(value is not None for value in found.values())

    stop = cl.StopWhen(gap=None, check_every=1, max_iterations=arguments.limit)
    cl.solve(problem, method=method, stop=stop, callback=look)
    return found


def race(
    stated: Stated,
    methods: dict[str, Method],
    stops: dict[str, cl.StopWhen],
    repeats: int,
    clock: Clock,
    curves: dict[str, list[tuple[float, float]]] | None = None,
) -> dict[str, list[tuple[float, cl.Solution]]]:
    """Seconds and solutions of each method, taking turns; none without a stop."""
    found: dict[str, list[tuple[float, cl.Solution]]] = {name: [] for name in methods}
    for _ in range(repeats):
        for label, stop in stops.items():
            problem = stated()
            began = clock()

            def look(progress: cl.Progress, label: str = label, began: float = began) -> None:
                if curves is not None:
                    curves[label].append((clock() - began, float(progress.gap)))

            solution = cl.solve(problem, method=methods[label], stop=stop, callback=look)
            found[label].append((clock() - began, solution))
    return found


def chosen_clock(*, wall: bool = False) -> Clock:
    """Processor seconds, or with a GPU, once it is done, and with ``wall`` those of a clock."""
    return synchronized if wall or torch.cuda.is_available() else time.process_time


def synchronized() -> float:
    """Seconds of a clock, once a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def report(rows: list[dict[str, Any]]) -> None:
    """A table: seconds (iterations), means over the faces, and the best other over the default."""
    groups: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        key = row["regularizer"], row["task"], row["to"]
        groups.setdefault(key, {}).setdefault(row["method"], []).append(row)
    print("| regularizer, task | to | default | paper | NMAPG | L-BFGS | ratio |")
    print("|---|---|---|---|---|---|---|")
    for (name, task, to), group in groups.items():
        means = {
            method: statistics.mean(row["seconds"] for row in some)
            for method, some in group.items()
            if all(row["seconds"] is not None for row in some)
        }
        cells = []
        for method in ("default", "paper", "nmapg", "lbfgs"):
            cell = "" if method not in group else "-"
            if method in means:
                count = statistics.mean(row["iterations"] for row in group[method])
                cell = f"{means[method]:.2g} ({count:.0f})"
            cells.append(cell)
        others = [seconds for method, seconds in means.items() if method != "default"]
        ratio = f"{min(others) / means['default']:.2f}" if others and "default" in means else ""
        print(f"| `{name}`, {task} | {to} | {' | '.join(cells)} | {ratio} |")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Certified gap against seconds, of the first face with each regularizer and task."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text remains text, which is smaller
    import matplotlib.pyplot as plt

    curves = [row for row in rows if row.get("curve") and row["face"] == 0]
    titles = list(dict.fromkeys((row["regularizer"], row["task"]) for row in curves))
    width = min(3, len(titles))
    height = -(-len(titles) // width)
    size = 3.6 * width, 2.8 * height
    figure, axes = plt.subplots(height, width, figsize=size, squeeze=False)
    for axis, title in zip(axes.flat, titles, strict=False):
        for row in curves:
            if (row["regularizer"], row["task"]) == title:
                points = [(s, g) for s, g in row["curve"] if 0 < g < float("inf")]
                style = {"color": COLOURS[row["method"]], "label": row["method"], "linewidth": 1}
                axis.loglog(*zip(*points, strict=True), **style)
        axis.axhline(GAP, color="0.8", linewidth=0.8, zorder=0)
        axis.set_title(", ".join(title), fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(titles) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("seconds", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("certified gap", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
