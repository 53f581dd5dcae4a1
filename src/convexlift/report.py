"""The demo's files: pictures, plots, a table, JSON and a self-contained page."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from convexlift.demo import Demo, Result
from convexlift.images import atomic_path, save_image

OBJECTIVE, BOUND, GAP = "#0072b2", "#d55e00", "#009e73"  # the same in every plot
COLUMNS = (
    *("Task", "Given dB", "Result dB", "Objective", "Lower bound", "Gap", "Holds", "Steps"),
    *("Time", "Status"),
)
"""Columns of the table: PSNR before and after, and for whom the bound holds."""


def write_report(demo: Demo, folder: Path, version: str) -> list[Path]:
    """Write everything into a folder; returns the files, the page last."""
    files = []
    for result in demo.results:
        pictures = {
            "clean": result.task.clean,
            "degraded": result.task.degraded,
            "reconstructed": result.solution.x,
        }
        for kind, picture in pictures.items():
            files.append(folder / f"{result.task.name}-{kind}.png")
            save_image(files[-1], picture)
    overview, convergence = folder / "overview.png", folder / "convergence.png"
    _save_figure(plot_overview(demo), overview)
    _save_figure(plot_convergence(demo), convergence)
    texts = {
        "table.md": markdown_table(demo),
        "results.json": json.dumps(as_json(demo, version), indent=2) + "\n",
        "report.html": page(demo, overview, convergence, version),
    }
    files += [overview, convergence]
    for name, text in texts.items():
        files.append(folder / name)
        with atomic_path(files[-1]) as part:
            part.write_text(text, encoding="utf-8")
    return files


def rows(demo: Demo) -> list[tuple[str, ...]]:
    """The table's cells, in the order of ``COLUMNS``."""
    return [
        (
            result.task.name,
            f"{result.psnr_before:.2f}",
            f"{result.psnr_after:.2f}",
            f"{float(result.solution.objective):.6g}",
            f"{float(result.solution.lower_bound):.6g}",
            f"{float(result.solution.gap):.1e}",
            result.solution.guarantee[0].name.lower().replace("_", " "),
            f"{int(result.solution.iterations)}",
            f"{result.solution.seconds:.1f} s",
            result.solution.status[0].name.lower().replace("_", " "),
        )
        for result in demo.results
    ]


def regularizer_note(demo: Demo) -> str:
    """Which regularizer it was, and under which terms."""
    card = demo.card
    return (
        f"Regularizer: {card.name}, which comes with the package. Licence: {card.license}. "
        f"See `convexlift models {card.name}`."
    )


def as_json(demo: Demo, version: str) -> dict[str, Any]:
    """The results as plain data."""
    return {
        "version": version,
        "regularizer": demo.card.name,
        "tolerance": demo.options.gap,
        "tasks": [_record(result) for result in demo.results],
    }


def _record(result: Result) -> dict[str, Any]:
    solution = result.solution
    return {
        "task": result.task.name,
        "title": result.task.title,
        "weight": result.task.problem.weight,
        "psnr_before": result.psnr_before,
        "psnr_after": result.psnr_after,
        "objective": float(solution.objective),
        "lower_bound": float(solution.lower_bound),
        "gap": float(solution.gap),
        "guarantee": solution.guarantee[0].name,
        "status": solution.status[0].name,
        "iterations": int(solution.iterations),
        "seconds": solution.seconds,
    }


def markdown_table(demo: Demo) -> str:
    """The table and the note, in Markdown."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in rows(demo)),
    ]
    return "\n".join([*lines, "", regularizer_note(demo), ""])


def plot_overview(demo: Demo) -> Any:
    """A row for each task: clean, degraded, reconstructed."""
    count = len(demo.results)
    figure, axes = plt.subplots(count, 3, figsize=(8.4, 2.95 * count), squeeze=False)
    for line, result in zip(axes, demo.results, strict=True):
        solution = result.solution
        titles = (
            result.task.title,
            f"degraded, {result.psnr_before:.2f} dB",
            f"reconstructed, {result.psnr_after:.2f} dB\ncertified gap {float(solution.gap):.1e}",
        )
        pictures = (result.task.clean, result.task.degraded, solution.x)
        for axis, title, picture in zip(line, titles, pictures, strict=True):
            axis.imshow(_plane(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(title, fontsize=8.5)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def plot_convergence(demo: Demo) -> Any:
    """Above: objective and lower bound closing in on each other; below: the certified gap."""
    count = len(demo.results)
    figure, axes = plt.subplots(2, count, figsize=(3.9 * count, 5.6), sharex="col", squeeze=False)
    for column, result in enumerate(demo.results):
        history, best = result.solution.history, float(result.solution.objective)
        iterations = history["iteration"]
        above, below = axes[0][column], axes[1][column]
        objective, bound = history["objective"][:, 0], history["lower_bound"][:, 0]
        above.plot(iterations, objective, color=OBJECTIVE, label="objective")
        above.plot(iterations, bound, color=BOUND, label="certified lower bound")
        above.fill_between(iterations, bound, objective, color="0.5", alpha=0.15, linewidth=0)
        # From the second check on: the first values would flatten all others.
        later = slice(1, None) if len(history) > 2 else slice(None)
        seen = torch.cat([objective[later], bound[later]])
        seen = seen[torch.isfinite(seen)]
        low, high = float(seen.min()), float(seen.max())
        margin = 0.08 * (high - low) + 1e-6 * abs(best)
        above.set_ylim(low - margin, high + margin)
        above.set_title(result.task.title, fontsize=9)
        above.grid(alpha=0.25)
        below.semilogy(iterations, history["gap"][:, 0], color=GAP, marker=".", label="gap")
        below.axhline(demo.options.gap, color="0.4", linewidth=0.8, linestyle="--")
        below.set_xlabel("iterations")
        below.grid(alpha=0.25, which="both")
    axes[0][0].set_ylabel("objective and lower bound")
    axes[1][0].set_ylabel("certified relative gap")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def page(demo: Demo, overview: Path, convergence: Path, version: str) -> str:
    """One HTML file with everything in it."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(demo)
    )
    gap = f"{demo.options.gap:g}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>convexlift demo</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --paper: #14181d; --line: #3d444d; }}
}}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
        max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; white-space: nowrap; }}
th, td {{ padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
.note {{ border-left: 4px solid {BOUND}; padding: 0.2rem 0 0.2rem 1rem; }}
</style>
</head>
<body>
<h1>convexlift demo</h1>
<p>Each image minimises <em>D(Ax, y) + weight&nbsp;R(x)</em> over images with values in [0,&nbsp;1],
<em>R</em> a convex neural network. The lower bound is a proof: no such image has a smaller
objective. The solver was asked for a relative gap of {gap}, and given no step sizes.</p>
<p class="note">{html.escape(regularizer_note(demo))}</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<h2>Images</h2>
<p><img alt="Clean, degraded and reconstructed images of each task" src="{_embedded(overview)}"></p>
<h2>Convergence</h2>
<p>Above, the objective of the iterates (blue) and the certified lower bound (orange): the optimum
lies between them. Below, the certified relative gap, and the tolerance as a dashed line.</p>
<p><img alt="Objective, lower bound and gap against iterations" src="{_embedded(convergence)}"></p>
<p><small>convexlift {html.escape(version)}</small></p>
</body>
</html>
"""


def _plane(picture: Tensor) -> Any:
    return picture[0, 0].detach().cpu().numpy()


def _save_figure(figure: Any, path: Path) -> None:
    with atomic_path(path) as part:
        figure.savefig(part, dpi=110, format="png")
    plt.close(figure)


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
