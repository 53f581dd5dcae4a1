"""Documents: paragraphs, tables and figures, made from a text template and shown as a page."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.figures import Figure, tile_file
from experiments.paper import Comparison
from experiments.tables import Table, number, percent, small


@dataclass(frozen=True, eq=False)
class Section:
    """A heading with paragraphs, which are strings with `code` in backticks, tables, figures."""

    title: str
    blocks: Sequence[str | Table | Figure]


@dataclass(frozen=True, eq=False)
class Document:
    """The report of an experiment."""

    title: str  # of the page
    summary: Sequence[str]  # paragraphs on top: the problem and the outcome
    comparisons: Sequence[Comparison]  # our numbers beside the paper's, right after the summary
    sections: Sequence[Section]  # everything else
    results: Mapping[str, Any] = field(default_factory=dict)  # further numbers for the JSON file

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
        """Text as HTML, with code between backticks."""
        pieces = [
            Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
            for i, piece in enumerate(text.split("`"))
        ]
        return Markup("").join(pieces)

    def embedded(png: bytes) -> str:
        return "data:image/png;base64," + base64.b64encode(png).decode()

    found = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]), autoescape=autoescape,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
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


def page(document: Document, drawings: Mapping[str, bytes], facts: Mapping[str, Any]) -> str:
    """``report.html``, which needs no other file.

    Args:
        document: the report.
        drawings: PNG files of its figures, by name.
        facts: environment and options.
    """
    template = templates(autoescape=True).get_template("report.html")
    html: str = template.render(document=document, drawings=drawings, facts=facts)
    return html
