"""Reports: documents of paragraphs, tables and figures, and the files that they become.

OUTPUT/report.html               everything, in one file
OUTPUT/results.json              numbers, environment, date
OUTPUT/tables/NAME.csv, .md      every table; comparison is the one with the paper's numbers
OUTPUT/figures/NAME.png, .svg    every figure
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convexlift.images import atomic_path
from experiments.figures import Figure, tile_file
from experiments.paper import Comparison
from experiments.runner.parts import Parts, finite
from experiments.tables import Table, number, percent, small


@dataclass(frozen=True, eq=False)
class Section:
    """A heading with paragraphs, which are strings with `code` in backticks, tables, figures."""

    title: str
    blocks: Sequence[str | Table | Figure]


@dataclass(frozen=True, eq=False)
class Document:
    """The report of an experiment.

    Attributes:
        title: of the page.
        summary: paragraphs on top: the problem and the outcome.
        comparisons: our numbers beside the paper's, right after the summary.
        sections: everything else.
        results: further numbers for the JSON file.
    """

    title: str
    summary: Sequence[str]
    comparisons: Sequence[Comparison]
    sections: Sequence[Section]
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def comparison_table(self) -> Table:
        """Quantity, place in the paper, its number, ours, difference, verdict."""
        columns = ("Quantity", "In the paper", "Paper", "Ours", "Difference", "Verdict")
        return Table("comparison", columns, tuple(each.cells for each in self.comparisons))


def templates(*folders: Path, autoescape: bool = False) -> Any:
    """A Jinja environment for templates in the folders and in that of all experiments."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        """Text in which what is between backticks is code."""
        pieces = [
            Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
            for i, piece in enumerate(text.split("`"))
        ]
        return Markup("").join(pieces)

    def embedded(png: bytes) -> str:
        return "data:image/png;base64," + base64.b64encode(png).decode()

    found = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parents[1]]), autoescape=autoescape,
        undefined=StrictUndefined,
    )  # fmt: skip
    found.filters.update(
        code=code, embedded=embedded, tile_file=tile_file, g=lambda value: f"{value:g}",
        number=number, small=small, percent=percent,
    )  # fmt: skip
    return found


def document(
    folder: Path,
    context: Mapping[str, Any],
    *,
    comparisons: Sequence[Comparison],
    blocks: Sequence[Table | Figure],
    results: Mapping[str, Any],
) -> Document:
    """The document of ``report.md`` in a folder, with the values of ``context``.

    The text is Markdown: a title, a summary, and sections. ``![CAPTION](NAME)`` is the table or
    the figure of that name among ``blocks``.
    """
    text = templates(folder).get_template("report.md").render(context)
    named = {block.name: block for block in blocks}
    title, *paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text.strip())]
    sections: list[tuple[str, list[str | Table | Figure]]] = [("", [])]
    for paragraph in paragraphs:
        if paragraph.startswith("## "):
            sections.append((paragraph.removeprefix("## "), []))
        elif shown := re.fullmatch(r"!\[(.*)\]\(([\w-]+)\)", paragraph):
            sections[-1][1].append(replace(named[shown[2]], caption=shown[1]))
        elif paragraph:
            sections[-1][1].append(paragraph)
    (_, summary), *others = sections
    return Document(
        title.removeprefix("# "), [str(each) for each in summary], comparisons,
        [Section(*each) for each in others], results,
    )  # fmt: skip


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
    """All files of a document, each atomically; the page comes last.

    Args:
        document: the report.
        folder: for the files.
        content: the ``results``, for results.json and the head of the page.
    """
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


def page(document: Document, drawings: Mapping[str, bytes], facts: Mapping[str, Any]) -> str:
    """``report.html``, which needs no other file.

    Args:
        document: the report.
        drawings: PNG files of its figures, by name.
        facts: environment and options.
    """
    template = templates(autoescape=True).get_template("runner/report.html")
    html: str = template.render(document=document, drawings=drawings, facts=facts)
    return html


def _facts(content: Mapping[str, Any]) -> dict[str, Any]:
    machine = content.get("machine") or {}
    place = machine.get("gpu") or f"{machine.get('processor')}, {machine.get('threads')} threads"
    facts = {
        "convexlift": content.get("convexlift"),
        "commit": content.get("commit"),
        "date": str(content.get("date", ""))[:10],
        "machine": place,
        "PyTorch": machine.get("torch"),
        "seed": str(content.get("seed")),
        "computed in": f"{content.get('seconds', 0):.0f} s",
        "version": "quick: fewer images and iterations" if content.get("quick") else "full",
    }
    return {name: value for name, value in facts.items() if value}
