"""The files of a report.

OUTPUT/report.html               everything, in one file
OUTPUT/results.json              numbers, environment, date
OUTPUT/tables/NAME.csv, .md      every table; comparison is the one with the paper's numbers
OUTPUT/figures/NAME.png, .svg    every figure
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convexlift.images import atomic_path
from experiments.document import Document, Figure
from experiments.figures import DPI, pyplot
from experiments.page import page
from experiments.parts import Part
from experiments.tables import Table, comparison_table


def results(document: Document, run: Mapping[str, Any], parts: Mapping[str, Part]) -> Any:
    """All numbers as plain data, for JSON; infinity and NaN are None."""
    return _finite(
        {
            **environment(parts),
            "experiment": run["experiment"],
            "quick": run["quick"],
            "seed": run["seed"],
            "seconds": sum(part.about.get("seconds", 0.0) for part in parts.values()),
            "comparisons": [each.as_plain() for each in document.comparisons],
            **document.results,
        }
    )


def environment(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Of the part that was computed last; parts of one run have the same but for the date."""
    latest = max(parts.values(), key=lambda part: str(part.about.get("date", "")))
    return {name: value for name, value in latest.about.items() if name != "seconds"}


def write(document: Document, folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """All files of a document, each whole or not at all; the page comes last.

    Args:
        document: what to write.
        folder: where to.
        content: what ``results`` made, for results.json and the head of the page.
    """
    files = []
    blocks = [block for section in document.sections for block in section.blocks]
    tables = [each for each in blocks if isinstance(each, Table)]
    if document.comparisons:
        tables.insert(0, comparison_table(document.comparisons))
    for table in tables:
        for suffix, text in (("csv", table.as_csv()), ("md", table.as_markdown())):
            files.append(_write(folder / "tables" / f"{table.name}.{suffix}", text.encode()))
    drawings = {}
    for figure in blocks:
        if isinstance(figure, Figure):
            for suffix, data in _drawn(figure).items():
                files.append(_write(folder / "figures" / f"{figure.name}.{suffix}", data))
                if suffix == "png":
                    drawings[figure.name] = data
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    files.append(_write(folder / "results.json", text.encode()))
    html = page(document, drawings, _facts(content))
    files.append(_write(folder / "report.html", html.encode()))
    return files


def _drawn(figure: Figure) -> dict[str, bytes]:
    drawing = figure.draw()
    found = {}
    for suffix in ("png", "svg"):
        file = io.BytesIO()
        # No date in the file: the same parts give the same figures.
        extra = {"metadata": {"Date": None}} if suffix == "svg" else {}
        drawing.savefig(file, format=suffix, dpi=DPI if figure.tiles else 150, **extra)
        found[suffix] = file.getvalue()
    pyplot().close(drawing)
    return found


def _facts(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    machine = content.get("machine") or {}
    place = machine.get("gpu") or f"{machine.get('processor')}, {machine.get('threads')} threads"
    return [
        ("convexlift", content.get("convexlift")),
        ("commit", content.get("commit")),
        ("date", str(content.get("date", ""))[:10]),
        ("machine", place),
        ("PyTorch", machine.get("torch")),
        ("seed", str(content.get("seed"))),
        ("computed in", f"{content.get('seconds', 0):.0f} s"),
        ("version", "quick: fewer images and iterations" if content.get("quick") else "full"),
    ]


def _write(path: Path, data: bytes) -> Path:
    with atomic_path(path) as part:
        part.write_bytes(data)
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
