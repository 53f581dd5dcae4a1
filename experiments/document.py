"""Reports: tables, numbers beside the paper's, and documents made from a text template."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.figures import Figure, tile_file


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is left-aligned."""

    name: str  # of its files
    columns: tuple[str, ...]  # headings
    rows: tuple[tuple[str, ...], ...]  # as many cells each
    caption: str = ""  # above it

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: {len(self.columns)} columns, but a row {row}")

    def as_csv(self) -> str:
        """Comma-separated, with a line of headings."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def as_markdown(self) -> str:
        """With pipes."""
        lines = [f"| {' | '.join(self.columns)} |", "|---" + "|--:" * (len(self.columns) - 1) + "|"]
        for row in self.rows:
            cells = [cell.replace("|", "\\|") for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """Two decimals, two digits below 0.1, none from 100 on, or as an int; a dash for None, NaN."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 100 or isinstance(value, int):
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def small(value: float | None) -> str:
    """A gap or an error: one digit after the point, and its power of ten."""
    if value is None or not math.isfinite(value):
        return "-"
    return "0" if value == 0 else f"{value:.1e}"


def percent(value: float) -> str:
    """Two digits, or no fraction."""
    if not math.isfinite(value):
        return "nothing"
    return f"{100 * value:.0f} %" if value >= 1 else f"{100 * value:.2g} %"


@dataclass(frozen=True)
class Printed:
    """A number of the paper."""

    value: float  # as printed
    where: str  # section, table or figure
    unit: str = ""  # of the value, if it has one
    deviation: float | None = None  # its standard deviation, if printed

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:g}"
        return f"{number(self.value)}{spread}"


def psnr(value: float, where: str) -> Printed:
    """A PSNR in dB."""
    return Printed(value, where, "dB")


OTHER_DATA, OTHER_NETWORK = "other data", "another network"
"""Verdicts on numbers that cannot be compared with the printed ones."""


@dataclass(frozen=True)
class Comparison:
    """One number of the paper, as its authors obtained it, and ours.

    Values are None where nothing was measured, and infinite where something was not reached.
    """

    quantity: str  # its name
    paper: Printed  # the printed number
    ours: float | None  # with our choices
    authors: float | None = None  # the same quantity here, with the authors' choices
    tolerance: float = 0.5  # a difference up to this counts as agreement, in the unit of the number
    remark: str = ""  # why they differ, or what a reader must know, in sentences
    deviation: float | None = None  # the standard deviation of ours, if there is one
    authors_deviation: float | None = None  # and of the other
    other: str = ""  # why they cannot be compared: ``OTHER_DATA`` or ``OTHER_NETWORK``

    @property
    def judged(self) -> float | None:
        """The number beside the printed one: with the authors' choices if there is one."""
        return self.ours if self.authors is None else self.authors

    @property
    def difference(self) -> float | None:
        """``judged`` minus the printed number."""
        return None if self.judged is None else self.judged - self.paper.value

    @property
    def verdict(self) -> str:
        """In a word: agrees, higher, lower, or why there is none."""
        if self.difference is None:
            return "not measured"
        if not math.isfinite(self.difference):
            return "not reached"
        if self.other:
            return self.other
        if abs(self.difference) <= self.tolerance:
            return "agrees"
        return "higher" if self.difference > 0 else "lower"

    @property
    def cells(self) -> tuple[str, ...]:
        """Those of ``COMPARED``."""
        unit = f", {self.paper.unit}" if self.paper.unit else ""
        return (
            f"{self.quantity}{unit}", self.paper.where, str(self.paper),
            _measured(self.authors, self.authors_deviation), _measured(self.ours, self.deviation),
            f"{self.verdict.capitalize()}. {self.remark}".strip(),
        )  # fmt: skip

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "quantity": self.quantity,
            "paper": self.paper.value,
            "where": self.paper.where,
            "unit": self.paper.unit,
            "authors": self.authors,
            "ours": self.ours,
            "deviation": self.deviation,
            "difference": self.difference,
            "verdict": self.verdict,
            "remark": self.remark,
        }


COMPARED = ("Quantity", "In the paper", "Printed", "As the authors ran it", "Ours", "Remark")
"""Columns of a table of comparisons."""


def compared(name: str, comparisons: Sequence[Comparison], caption: str = "") -> Table:
    """A table of comparisons."""
    return Table(name, COMPARED, tuple(each.cells for each in comparisons), caption)


def _measured(value: float | None, deviation: float | None) -> str:
    if value is None:
        return "not measured"
    if not math.isfinite(value):
        return "not reached"
    return number(value) + ("" if deviation is None else f" ± {number(deviation)}")


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
        """All comparisons."""
        return compared("comparison", self.comparisons)


def templates(*folders: Path, autoescape: bool = False) -> Any:
    """A Jinja environment for templates in the given folders and in ``experiments``."""
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
    """``report.html``, which needs no other file; ``drawings`` are its figures in PNG, by name."""
    template = templates(autoescape=True).get_template("report.html")
    html: str = template.render(document=document, drawings=drawings, facts=facts)
    return html
