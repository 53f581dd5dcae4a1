"""The files of a report.

OUTPUT/report.html               everything, in one file
OUTPUT/results.json              numbers, environment, date
OUTPUT/tables/NAME.csv, .md      every table; comparison is the one with the paper's numbers
OUTPUT/figures/NAME.png, .svg    every figure
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convexlift.images import atomic_path
from experiments.document import Document, Table, page
from experiments.figures import Figure
from experiments.runner.parts import Parts, finite


def results(document: Document, run: Mapping[str, Any], parts: Parts) -> Any:
    """All numbers as plain data, for JSON, with the environment of the part computed last."""
    latest = max(parts.values(), key=lambda part: str(part.about.get("date", "")))
    return finite(
        {
            **latest.about,
            "experiment": run["experiment"],
            "quick": run["quick"],
            "seed": run["seed"],
            "seconds": sum(part.about.get("seconds", 0.0) for part in parts.values()),
            "comparisons": [each.as_plain() for each in document.comparisons],
            **document.results,
        }
    )


def write(document: Document, folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """All files of a document with its ``results``, each atomically; the page comes last."""
    files: dict[Path, bytes] = {}
    blocks = [block for section in document.sections for block in section.blocks]
    tables = [each for each in blocks if isinstance(each, Table)]
    for table in [*([document.comparison_table] if document.comparisons else []), *tables]:
        files[folder / "tables" / f"{table.name}.csv"] = table.as_csv().encode()
        files[folder / "tables" / f"{table.name}.md"] = table.as_markdown().encode()
    drawings: dict[str, bytes] = {}
    for figure in blocks:
        if isinstance(figure, Figure):
            drawn = figure.files()
            drawings[figure.name] = drawn["png"]
            for suffix, data in drawn.items():
                files[folder / "figures" / f"{figure.name}.{suffix}"] = data
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    files[folder / "results.json"] = text.encode()
    files[folder / "report.html"] = page(document, drawings, _facts(content)).encode()
    for path, data in files.items():
        with atomic_path(path) as part:
            part.write_bytes(data)
    return list(files)


def _facts(content: Mapping[str, Any]) -> dict[str, Any]:
    machine = content.get("machine") or {}
    threads = machine.get("threads")
    cores = f"{threads} thread" if threads == 1 else f"{threads} threads"
    place = machine.get("gpu") or f"{machine.get('processor')}, {cores}"
    facts = {
        "convexlift": content.get("convexlift"),
        "commit": content.get("commit"),
        "date": str(content.get("date", ""))[:10],
        "machine": place,
        "PyTorch": machine.get("torch"),
        "seed": str(content.get("seed")),
        "all steps together": f"{content.get('seconds', 0):.0f} s",
        "version": "quick: fewer images and iterations" if content.get("quick") else "full",
    }
    return {name: value for name, value in facts.items() if value}
