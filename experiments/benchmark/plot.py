"""A figure for each task: error and certified gap against iterations and against seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from convexlift.images import atomic_path
from experiments.benchmark.measure import Curve
from experiments.benchmark.results import Entry, Results, thinned
from experiments.benchmark.styles import FLOOR, STYLES


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
        plt.close(figure)
    return files


def plot_task(task: str, entries: Sequence[Entry], tolerances: Sequence[float], device: str) -> Any:
    """Above the relative objective error, below the certified gap; the first image."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6), sharey=True)
    for entry in entries:
        curve = entry.curves[0]
        chosen = [k for k in thinned(len(curve)) if k > 0] or [0]
        seconds = [entry.seconds(k) for k in chosen]
        _line(axes[0][0], entry, chosen, _values(curve, "error", chosen))
        _line(axes[0][1], entry, seconds, _values(curve, "error", chosen))
        _line(axes[1][0], entry, chosen, _values(curve, "gap", chosen))
        if entry.trace is not None:
            checks = entry.trace.checks
            _line(axes[1][1], entry, [s for _, s, _ in checks], [_clip(g) for *_, g in checks])
    for axis, label in zip(
        axes.flat,
        (
            ("iterations", "relative objective error"),
            ("seconds, without checks", ""),
            ("iterations", "certified relative gap"),
            ("seconds, with checks", ""),
        ),
        strict=True,
    ):
        if not axis.lines:
            axis.set_xlim(0.1, 10)
            axis.text(0.5, 0.5, "nothing was measured", ha="center", color="0.4",
                      transform=axis.transAxes)  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel=label[0], ylabel=label[1])
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.tick_params(axis="x", labelsize=8)
        axis.grid(alpha=0.25)
        for tolerance in tolerances:
            axis.axhline(tolerance, color="0.45", linewidth=0.7, linestyle=(0, (1, 2)))
    axes[0][0].set_ylim(min([*tolerances, 1e-4]) / 5, 2.0)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=6, frameon=False,
                  bbox_to_anchor=(0.5, 0.955), handlelength=3.2)  # fmt: skip
    figure.suptitle(f"{task}, on the {'GPU' if device == 'cuda' else 'CPU'}", fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure


def _line(axis: Any, entry: Entry, x: Sequence[float], y: Sequence[float]) -> None:
    if not any(map(math.isfinite, y)):
        return
    colour, style, width = STYLES.get(entry.method, ("0.3", "-", 1.4))
    axis.plot(x, y, color=colour, linestyle=style, linewidth=width, label=entry.method)


def _values(curve: Curve, name: str, chosen: Sequence[int]) -> list[float]:
    values = getattr(curve, name)
    return [_clip(values[k]) for k in chosen]


def _clip(value: float) -> float:
    return max(value, FLOOR) if math.isfinite(value) else math.nan
