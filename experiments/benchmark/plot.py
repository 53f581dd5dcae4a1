"""A figure for each task: error and certified gap against iterations and against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convexlift.images import atomic_path
from experiments.benchmark.results import Entry, Results, thinned
from experiments.figures import Line, Panel, curves, pyplot


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
