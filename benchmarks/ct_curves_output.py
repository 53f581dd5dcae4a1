"""What ``ct_curves`` measured: its record, tables, files and figures."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import convexlift as cl
from convexlift.images import atomic_path

METHODS = {
    "default": "PDHG, nothing to tune",
    "paper": "the paper's PDHG",
    "nmapg": "NMAPG",
    "lbfgs": "L-BFGS",
    "sm-c": "SM-C",
    "sm-d": "SM-D",
}
HALFLINE, BOX = "x >= 0", "0 <= x <= 2"
BOXES = {HALFLINE: (0.0, None), BOX: (0.0, 2.0)}
ERRORS, GAPS = (1e-2, 1e-3, 1e-4, 1e-5), (1e-2, 1e-3)


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
    return label if run.steps == cl.describe_steps(cl.PDHG()) else f"{label}, {steps}"


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


def draw(cases: Sequence[dict[str, Any]], folder: Path) -> None:
    """curves-MODEL.png for each regularizer."""
    if importlib.util.find_spec("matplotlib") is None:  # machines with GPUs may be bare
        print("matplotlib is not here; draw elsewhere with --redraw")
        return
    from experiments.figures import FLOOR, STYLES, pyplot

    plt = pyplot()

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
        with atomic_path(folder / f"curves-{case['model']}.png") as part:
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
