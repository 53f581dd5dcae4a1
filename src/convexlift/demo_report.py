"""Files of the demo: pictures, proofs, plots, a table, JSON and a self-contained page."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from convexlift.demo import NEXT, Demo, DemoResult
from convexlift.files.atomic import atomic_path
from convexlift.images import save_image

OBJECTIVE, BOUND, GAP = "#0072b2", "#d55e00", "#009e73"  # the same in every plot
COLUMNS = (
    *("Task", "Given dB", "Result dB", "Objective", "Lower bound", "Gap", "Holds"),
    *("Iterations", "Time", "Status"),
)
"""Columns of the table: PSNR before and after; "Holds" is the scope of the bound."""


def write_report(demo: Demo, folder: Path, version: str) -> list[Path]:
    """Write everything into a folder; returns the files, with the page last."""
    files = []
    for result in demo.results:
        for kind, picture in _pictures(result).items():
            files.append(_picture_file(folder, result, kind))
            save_image(files[-1], picture)
        files.append(result.solution.proof.save(folder / f"{result.task.name}.proof"))
    contents = {
        "overview.png": _png(plot_overview(demo), dpi=110),
        "convergence.png": _png(plot_convergence(demo.results, demo.options.gap), dpi=110),
        "table.md": markdown_table(demo).encode(),
        "results.json": json.dumps(as_json(demo, version), indent=2).encode() + b"\n",
        "report.html": page(demo, folder, version).encode(),
    }
    for name, content in contents.items():
        files.append(folder / name)
        with atomic_path(files[-1]) as part:
            part.write_bytes(content)
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
    """The name and the licence of the regularizer."""
    card = demo.card
    return (
        f"Regularizer: {card.name}, shipped with the package. Licence: {card.license}. "
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


def _record(result: DemoResult) -> dict[str, Any]:
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
            plane = picture[0, 0].cpu().numpy()
            axis.imshow(plane, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(title, fontsize=8.5)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def plot_convergence(results: Sequence[DemoResult], tolerance: float) -> Any:
    """Above: objective and lower bound as they approach each other; below: the certified gap."""
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
        # From the second check on: the first values would flatten the rest.
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
    """A self-contained HTML file with the pictures of the folder."""
    environment = Environment(
        loader=PackageLoader("convexlift"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("demo.html").render(
        demo=demo,
        version=version,
        columns=COLUMNS,
        rows=rows(demo),
        next=NEXT,
        accent=BOUND,
        picture=lambda result, kind: _embedded(_picture_file(folder, result, kind).read_bytes()),
        plot=lambda result: _embedded(_png(plot_convergence([result], demo.options.gap), dpi=180)),
    )


def _embedded(png: bytes) -> str:
    """A picture as a data URL, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _pictures(result: DemoResult) -> dict[str, Tensor]:
    task = result.task
    return {"degraded": task.degraded, "reconstructed": result.solution.x, "clean": task.clean}


def _picture_file(folder: Path, result: DemoResult, kind: str) -> Path:
    return folder / f"{result.task.name}-{kind}.png"


def _png(figure: Any, dpi: int) -> bytes:
    """The PNG file of a figure, which is then closed."""
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    plt.close(figure)
    return file.getvalue()
