"""Results of a benchmark as rows, JSON, CSV, and a figure for each task."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from convexlift.images import atomic_path
from experiments.figures import Line, Panel, curves, pyplot
from experiments.measuring import Reference, Trace
from experiments.runner.parts import finite

ERROR, GAP = "objective error", "certified gap"
"""The two measures of a tolerance."""

POINTS = 200
"""The largest number of points of a curve in JSON files."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The effort of one method for one accuracy.

    Medians are over batches of images, times also over repetitions; a run that does not reach the
    accuracy counts as infinite, and None means infinite.
    """

    task: str
    method: str
    device: str
    batch: int
    measure: str  # of the tolerance: ``objective error`` or ``certified gap``
    tolerance: float
    iterations: float | None
    iterations_min: float | None
    iterations_max: float | None
    seconds: float | None
    seconds_min: float | None
    seconds_max: float | None
    # the largest of the images at that moment; or at the end of runs that did not reach it
    objective_error: float | None
    gap: float | None  # the largest certified gap, at the same moments
    psnr: float | None  # the mean, at the same moments
    reached: int  # images that reached the accuracy
    images: int  # all images


COLUMNS = tuple(each.name for each in fields(Row))


@dataclass(frozen=True)
class Convergence:
    """One image in every iteration k = 0, 1, ...: least error and gap so far, current PSNR."""

    error: tuple[float, ...]
    gap: tuple[float, ...]
    psnr: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.error)


@dataclass(frozen=True, eq=False)
class Entry:
    """One method on one task: its curves, and the times behind them."""

    task: str
    method: str
    steps: str
    curves: tuple[Convergence, ...]
    # (iterations, median seconds) of timed runs of one batch size, the smallest; the first is one
    # iteration and the set-up
    clock: tuple[tuple[int, float], ...]
    trace: Trace | None  # the first of its runs to a certified gap

    def seconds(self, iteration: int) -> float:
        """Without evaluations: linear between timed runs, and beyond the last."""
        lines = list(itertools.pairwise(self.clock))
        if not lines:
            return math.nan
        (a, s), (b, t) = next((line for line in lines if iteration <= line[1][0]), lines[-1])
        return s + (t - s) * (iteration - a) / (b - a)

    def as_plain(self, image: int) -> dict[str, Any]:
        """The curve of one image, for JSON."""
        curve = self.curves[image]
        chosen = thinned(len(curve))
        return {
            "task": self.task,
            "method": self.method,
            "steps": self.steps,
            "image": image,
            "iteration": chosen,
            "seconds": [self.seconds(k) for k in chosen],
            "objective_error": [curve.error[k] for k in chosen],
            "gap": [curve.gap[k] for k in chosen],
            "psnr": [curve.psnr[k] for k in chosen],
        }


@dataclass(frozen=True)
class Choice:
    """The step sizes of a method, and how they were chosen."""

    task: str
    method: str
    steps: str
    candidates: int
    iterations: int | None  # to the tolerance of the choice, on the picture for it
    tolerance: float
    at_edge: bool


@dataclass(eq=False)
class Results:
    """Everything measured so far."""

    about: dict[str, Any]  # version, command, date, machine and options
    rows: list[Row] = field(default_factory=list)  # the table
    entries: list[Entry] = field(default_factory=list)  # curves behind it
    # for each task and image, with the box and without
    references: list[dict[str, Any]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)  # of step sizes
    notes: list[str] = field(default_factory=list)  # sentences that a reader must know
    complete: bool = False  # whether all that was asked for is there

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add_reference(self, task: str, image: int, bounded: bool, found: Reference) -> None:
        """Keep a reference, without its image."""
        names = ("objective", "gap", "precision", "iterations", "certified")
        values = {name: getattr(found, name) for name in names}
        values["guarantee"] = found.guarantee.name
        self.references.append({"task": task, "image": image, "box": bounded, **values})

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; infinity and NaN are None."""
        content = {
            **self.about,
            "complete": self.complete,
            "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
            "references": self.references,
            "choices": [asdict(choice) for choice in self.choices],
            "curves": [each.as_plain(i) for each in self.entries for i in range(len(each.curves))],
        }
        plain: dict[str, Any] = finite(content)
        return plain

    def write(self, folder: Path) -> None:
        """benchmark.json and benchmark.csv, each atomically."""
        text = json.dumps(self.as_plain(), indent=2, allow_nan=False) + "\n"
        for name, content in {"benchmark.json": text, "benchmark.csv": self.as_csv()}.items():
            with atomic_path(folder / name) as part:
                part.write_text(content, encoding="utf-8", newline="")

    def as_csv(self) -> str:
        """The rows; an empty cell is a tolerance that was not reached."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finite(asdict(row)) for row in self.rows)
        return text.getvalue()


def spread(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """Median, least and largest, where None is infinite."""
    numbers = [math.inf if value is None else value for value in values]
    summary = (median(numbers), min(numbers), max(numbers))
    low, least, high = (value if math.isfinite(value) else None for value in summary)
    return low, least, high


def thinned(count: int) -> list[int]:
    """At most POINTS of the numbers below ``count``: all small ones, and the last."""
    if count <= POINTS:
        return list(range(count))
    ratio = (count - 1) ** (1 / (POINTS - 2))
    return sorted({0, *(min(round(ratio**i), count - 1) for i in range(POINTS - 1))})


def write_plots(results: Results, folder: Path) -> list[Path]:
    """benchmark-TASK.png for every task with curves."""
    files = []
    for task in dict.fromkeys(entry.task for entry in results.entries):
        entries = [entry for entry in results.entries if entry.task == task]
        tolerances = sorted({row.tolerance for row in results.rows if row.task == task})
        figure = plot_task(task, entries, tolerances, str(results.about["device"]))
        files.append(folder / f"benchmark-{task}.png")
        with atomic_path(files[-1]) as part:
            figure.savefig(part, dpi=120, format="png")
        pyplot().close(figure)
    return files


def plot_task(task: str, entries: Sequence[Entry], tolerances: Sequence[float], device: str) -> Any:
    """Above the relative objective error, below the certified gap; the first image."""
    lines: list[list[Line]] = [[], [], [], []]
    for entry in entries:
        curve = entry.curves[0]
        chosen = [k for k in thinned(len(curve)) if k > 0] or [0]
        error, gap = ([values[k] for k in chosen] for values in (curve.error, curve.gap))
        seconds = [entry.seconds(k) for k in chosen]
        checks = entry.trace.checks if entry.trace is not None else ()
        pairs = [
            (chosen, error), (seconds, error), (chosen, gap),
            ([s for _, s, _ in checks], [g for *_, g in checks]),
        ]  # fmt: skip
        for panel, (x, y) in zip(lines, pairs, strict=True):
            if np.isfinite(y).any():
                panel.append(Line(np.array(x), np.array(y), entry.method, entry.method))
    limits = (min([*tolerances, 1e-4]) / 5, 2.0)
    axes = [
        ("", "relative objective error", "iterations"),
        ("", "relative objective error", "seconds, without checks"),
        ("", "certified relative gap", "iterations"),
        ("", "certified relative gap", "seconds, with checks"),
    ]
    panels = [
        Panel(title, label, found, limits=limits, horizontal=horizontal, levels=tolerances)
        for (title, label, horizontal), found in zip(axes, lines, strict=True)
    ]
    title = f"{task}, on the {'GPU' if device == 'cuda' else 'CPU'}"
    return curves([panels[:2], panels[2:]], title)
