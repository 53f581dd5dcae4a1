"""The demo's files: pictures, plots, a table, JSON and a self-contained page."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from convexlift.demo import NEXT, Demo, Result
from convexlift.html import COLOURS, embedded, with_code
from convexlift.images import atomic_path, save_image

OBJECTIVE, BOUND, GAP = "#0072b2", "#d55e00", "#009e73"  # the same in every plot
COLUMNS = (
    *("Task", "Given dB", "Result dB", "Objective", "Lower bound", "Gap", "Holds"),
    *("Iterations", "Time", "Status"),
)
"""Columns of the table: PSNR before and after, and for whom the bound holds."""


def write_report(demo: Demo, folder: Path, version: str) -> list[Path]:
    """Write everything into a folder; returns the files, the page last."""
    files = []
    for result in demo.results:
        pictures = {
            "degraded": result.task.degraded,
            "reconstructed": result.solution.x,
            "clean": result.task.clean,
        }
        for kind, picture in pictures.items():
            files.append(_picture(folder, result, kind))
            save_image(files[-1], picture)
        files.append(result.solution.proof.save(folder / f"{result.task.name}.proof"))
    figures = {
        "overview.png": plot_overview(demo),
        "convergence.png": plot_convergence(demo.results, demo.options.gap),
    }
    for name, figure in figures.items():
        files.append(folder / name)
        with atomic_path(files[-1]) as part:
            part.write_bytes(_png(figure, dpi=110))
    texts = {
        "table.md": markdown_table(demo),
        "results.json": json.dumps(as_json(demo, version), indent=2) + "\n",
        "report.html": page(demo, folder, version),
    }
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
            "clean",
            f"{result.task.title}\n{result.psnr_before:.2f} dB",
            f"reconstructed, {result.psnr_after:.2f} dB\ncertified gap {float(solution.gap):.1e}",
        )
        pictures = (result.task.clean, result.task.degraded, solution.x)
        for axis, title, picture in zip(line, titles, pictures, strict=True):
            axis.imshow(_plane(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(title, fontsize=8.5)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def plot_convergence(results: Sequence[Result], tolerance: float) -> Any:
    """Above: objective and lower bound closing in on each other; below: the certified gap."""
    count = len(results)
    figure, axes = plt.subplots(2, count, figsize=(3.9 * count, 5.6), sharex="col", squeeze=False)
    for column, result in enumerate(results):
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
        below.axhline(tolerance, color="0.4", linewidth=0.8, linestyle="--")
        below.set_xlabel("iterations")
        below.grid(alpha=0.25, which="both")
    axes[0][0].set_ylabel("objective and lower bound")
    axes[1][0].set_ylabel("certified relative gap")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def page(demo: Demo, folder: Path, version: str) -> str:
    """One HTML file with everything in it; the pictures are those in the folder."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(demo)
    )
    note = with_code(regularizer_note(demo))
    images = "\n".join(_images(result, folder) for result in demo.results)
    plots = "\n".join(_plot(result, demo.options.gap) for result in demo.results)
    commands = "\n".join(
        f"<li><code>convexlift {html.escape(command)}</code>: {html.escape(purpose)}</li>"
        for command, purpose in NEXT
    )
    scaling = "pixelated" if demo.options.size < 128 else "auto"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>convexlift demo</title>
<style>
{COLOURS}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
        max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ display: block; width: 100%; height: auto; border-radius: 6px; }}
.picture {{ image-rendering: {scaling}; }}
.scroll {{ overflow-x: auto; }}
table {{ border-spacing: 0; font-size: 14px; line-height: 22px; white-space: nowrap; width: 100%; }}
th, td {{ padding: 6px 11px; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0;
        position: sticky; left: 0; background: var(--paper); }}
.note {{ border-left: 4px solid {BOUND}; padding: 0.2rem 0 0.2rem 1rem; }}
.row {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: 1rem; align-items: start; }}
.row p {{ grid-column: 1 / -1; margin: 0; }}
figure {{ margin: 0; }}
figcaption {{ font-size: 0.9rem; padding-top: 0.25rem; }}
@media (max-width: 40rem) {{
  .row {{ grid-template-columns: repeat(2, 1fr); gap: 0.75rem; }}
  .row p {{ grid-column: auto; }}
  .row.plots {{ grid-template-columns: 1fr; }}
}}
</style>
</head>
<body>
<h1>convexlift demo</h1>
<p>Each image minimises <em>D(Ax, y) + weight&nbsp;R(x)</em> over images with values in [0,&nbsp;1],
<em>R</em> a convex neural network. The lower bound is a proof: no such image has a smaller
objective. The solver was asked for a relative gap of {demo.options.gap:g}, and given no step
sizes.</p>
<p class="note">{note}</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<h2>Images</h2>
{images}
<h2>Convergence</h2>
<p>Above, the objective of the iterates (blue) and the certified lower bound (orange): the optimum
lies between them. Below, the certified relative gap, and the tolerance as a dashed line.</p>
<div class="row plots">
{plots}
</div>
<h2>Next, try</h2>
<ul>
{commands}
</ul>
<p><small>convexlift {html.escape(version)}</small></p>
</body>
</html>
"""


def _images(result: Result, folder: Path) -> str:
    """The pictures of a task side by side; on narrow screens two by two, with the facts."""
    captions = {
        "degraded": f"Degraded, {result.psnr_before:.2f}&nbsp;dB",
        "reconstructed": f"Reconstructed, {result.psnr_after:.2f}&nbsp;dB",
        "clean": "Clean",
    }
    figures = "".join(
        f'<figure><img class="picture" alt="{caption}" '
        f'src="{embedded(_picture(folder, result, kind).read_bytes())}">'
        f"<figcaption>{caption}</figcaption></figure>"
        for kind, caption in captions.items()
    )
    solution = result.solution
    facts = (
        f"Certified gap {float(solution.gap):.1e} after {int(solution.iterations)} iterations, "
        f"{solution.seconds:.1f} s."
    )
    title = html.escape(result.task.title)
    return f'<h3>{title}</h3>\n<div class="row">{figures}<p>{facts}</p></div>'


def _plot(result: Result, tolerance: float) -> str:
    figure = _png(plot_convergence([result], tolerance), dpi=180)
    alt = f"Objective, lower bound and gap against iterations: {result.task.title}"
    return f'<img class="plot" alt="{html.escape(alt)}" src="{embedded(figure)}">'


def _picture(folder: Path, result: Result, kind: str) -> Path:
    return folder / f"{result.task.name}-{kind}.png"


def _plane(picture: Tensor) -> Any:
    return picture[0, 0].detach().cpu().numpy()


def _png(figure: Any, dpi: int) -> bytes:
    """The file of a figure, which is closed."""
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    plt.close(figure)
    return file.getvalue()
