"""Results of a benchmark as rows, JSON and CSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch

from convexlift.images import atomic_path
from experiments.benchmark.measure import Curve, Reference, Trace

ERROR, GAP = "objective error", "certified gap"
"""What a tolerance is of."""

POINTS = 200
"""At most so many points of a curve are kept in JSON files."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one method needed for one accuracy.

    Medians are over batches of images, times also over repetitions; a run that does not get there
    counts as infinite, and None stands for infinite.

    Attributes:
        measure: what the tolerance is of: ``objective error`` or ``certified gap``.
        objective_error: the largest of the images, then; or at the end of runs that did not
            get there.
        gap: the largest certified gap, at the same moments.
        psnr: the mean, at the same moments.
        reached: images that got there.
        images: all images.
    """

    task: str
    method: str
    device: str
    batch: int
    measure: str
    tolerance: float
    iterations: float | None
    iterations_min: float | None
    iterations_max: float | None
    seconds: float | None
    seconds_min: float | None
    seconds_max: float | None
    objective_error: float | None
    gap: float | None
    psnr: float | None
    reached: int
    images: int


COLUMNS = tuple(each.name for each in fields(Row))


@dataclass(frozen=True, eq=False)
class Entry:
    """One method on one task: its curves, and the times behind them.

    Attributes:
        clock: (iterations, median seconds) of timed runs of one batch size, the smallest; the
            first is one iteration and the set-up.
        trace: the first of its runs to a certified gap.
    """

    task: str
    method: str
    steps: str
    curves: tuple[Curve, ...]
    clock: tuple[tuple[int, float], ...]
    trace: Trace | None

    def seconds(self, iteration: int) -> float:
        """Without evaluations: straight lines between timed runs, and on beyond the last."""
        lines = list(itertools.pairwise(self.clock))
        if not lines:
            return math.nan
        (a, s), (b, t) = next((line for line in lines if iteration <= line[1][0]), lines[-1])
        return s + (t - s) * (iteration - a) / (b - a)


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
    """Everything measured so far.

    Attributes:
        about: version, command, date, machine and options.
        rows: the table.
        entries: curves behind it.
        references: for each task and image, with the box and without.
        choices: of step sizes.
        notes: what a reader must know, in sentences.
        complete: whether all that was asked for is there.
    """

    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    references: list[dict[str, Any]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def note(self, sentence: str) -> None:
        """Say it once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add_reference(self, task: str, image: int, bounded: bool, found: Reference) -> None:
        """Keep a reference, without its image."""
        self.references.append(
            {
                "task": task,
                "image": image,
                "box": bounded,
                "objective": found.objective,
                "gap": found.gap,
                "guarantee": found.guarantee.name,
                "precision": found.precision,
                "iterations": found.iterations,
                "certified": found.certified,
            }
        )

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; infinity and NaN are None."""
        content = {
            **self.about,
            "complete": self.complete,
            "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
            "references": self.references,
            "choices": [asdict(choice) for choice in self.choices],
            "curves": [_curve(e, i) for e in self.entries for i in range(len(e.curves))],
        }
        plain: dict[str, Any] = _finite(content)
        return plain

    def write(self, folder: Path) -> list[Path]:
        """benchmark.json and benchmark.csv, each whole or not at all."""
        text = json.dumps(self.as_plain(), indent=2, allow_nan=False) + "\n"
        files = {folder / "benchmark.json": text, folder / "benchmark.csv": self.as_csv()}
        for path, content in files.items():
            with atomic_path(path) as part:
                part.write_text(content, encoding="utf-8", newline="")
        return list(files)

    def as_csv(self) -> str:
        """The rows; an empty cell is a tolerance that was not reached."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_finite(asdict(row)) for row in self.rows)
        return text.getvalue()


def spread(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """Median, least and largest, where None is infinite."""
    numbers = [math.inf if value is None else value for value in values]
    summary = (median(numbers), min(numbers), max(numbers))
    low, least, high = (value if math.isfinite(value) else None for value in summary)
    return low, least, high


def machine(device: torch.device) -> dict[str, Any]:
    """What the times belong to."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
    }


def thinned(count: int) -> list[int]:
    """At most POINTS of the numbers below ``count``: all small ones, and the last."""
    if count <= POINTS:
        return list(range(count))
    ratio = (count - 1) ** (1 / (POINTS - 2))
    return sorted({0, *(min(round(ratio**i), count - 1) for i in range(POINTS - 1))})


def _curve(entry: Entry, image: int) -> dict[str, Any]:
    curve = entry.curves[image]
    chosen = thinned(len(curve))
    return {
        "task": entry.task,
        "method": entry.method,
        "steps": entry.steps,
        "image": image,
        "iteration": chosen,
        "seconds": [entry.seconds(k) for k in chosen],
        "objective_error": [curve.error[k] for k in chosen],
        "gap": [curve.gap[k] for k in chosen],
        "psnr": [curve.psnr[k] for k in chosen],
    }


def _finite(value: Any) -> Any:
    """Plain data in which infinity and NaN are None, as JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
