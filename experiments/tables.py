"""Tables in CSV, Markdown and HTML, and comparisons with the paper's numbers."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from convexlift.html import with_code
from experiments.paper import Printed


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is left-aligned.

    Attributes:
        name: of its files.
        columns: headings.
        rows: as many cells each.
        caption: above it.
        bold: (row, column) of cells that stand out, such as the best.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: {len(self.columns)} columns, but a row {row}")

    def as_csv(self) -> str:
        """Comma-separated, with a line of headings."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def as_markdown(self) -> str:
        """With pipes."""
        lines = [f"| {' | '.join(self.columns)} |", "|---" + "|--:" * (len(self.columns) - 1) + "|"]
        for i, row in enumerate(self.rows):
            cells = [
                f"**{cell}**" if (i, j) in self.bold and cell else cell.replace("|", "\\|")
                for j, cell in enumerate(row)
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def as_html(self, number: str = "") -> str:
        """A table element that scrolls by itself, below its caption and, with one, its number."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = ""
        for i, row in enumerate(self.rows):
            cells = [with_code(cell) for cell in row]
            for j, cell in enumerate(cells):
                cells[j] = f"<td><b>{cell}</b></td>" if (i, j) in self.bold else f"<td>{cell}</td>"
            body += f"<tr>{''.join(cells)}</tr>\n"
        caption = ""
        if self.caption:
            label = f"<b>{number}.</b> " if number else ""
            caption = f'<p class="caption">{label}{with_code(self.caption)}</p>'
        return (
            f'{caption}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>\n{body}</tbody></table></div>"
        )


Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Comparison:
    """One quantity of the paper, and ours.

    Attributes:
        quantity: what it is.
        paper: the printed number.
        ours: the same quantity here; None where it was not reached or not measured.
        better: which direction is an improvement.
        tolerance: a difference up to this counts as agreement, in the unit of the number.
        remark: why it differs, or what a reader must know.
        deviation: the standard deviation of ours, if there is one.
        comparable: whether both numbers are of the same kind of data at all.
    """

    quantity: str
    paper: Printed
    ours: float | None
    better: Better = "higher"
    tolerance: float = 0.5
    remark: str = ""
    deviation: float | None = None
    comparable: bool = True

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None else self.ours - self.paper.value

    @property
    def verdict(self) -> str:
        """In a word: agrees, better, worse, higher, lower, not reached, not comparable."""
        if self.difference is None or not math.isfinite(self.difference):
            return "not reached"
        if not self.comparable:
            return "not comparable"
        if abs(self.difference) <= self.tolerance:
            return "agrees"
        higher = self.difference > 0
        if self.better == "neither":
            return "higher" if higher else "lower"
        return "better" if higher == (self.better == "higher") else "worse"

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "quantity": self.quantity,
            "paper": self.paper.value,
            "where": self.paper.where,
            "unit": self.paper.unit,
            "ours": self.ours,
            "deviation": self.deviation,
            "difference": self.difference,
            "verdict": self.verdict,
            "remark": self.remark,
        }


def comparison_table(comparisons: Sequence[Comparison], name: str = "comparison") -> Table:
    """Quantity, place in the paper, its number, ours, difference, verdict."""
    rows = []
    for each in comparisons:
        ours, difference = "-", "-"
        if each.ours is not None and each.difference is not None:
            spread = "" if each.deviation is None else f" ± {number(each.deviation)}"
            ours, difference = f"{number(each.ours)}{spread}", f"{each.difference:+.2f}"
        unit = f", {each.paper.unit}" if each.paper.unit else ""
        verdict = each.verdict + (f": {each.remark}" if each.remark else "")
        rows.append(
            (f"{each.quantity}{unit}", each.paper.where, str(each.paper), ours, difference, verdict)
        )
    return Table(
        name, ("Quantity", "In the paper", "Paper", "Ours", "Difference", "Verdict"), tuple(rows)
    )


def number(value: float | None) -> str:
    """Two decimals, or three digits where those would hide it; a dash for nothing."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def small(value: float | None) -> str:
    """A gap or an error: one digit after the point, and its power of ten."""
    if value is None or not math.isfinite(value):
        return "-"
    return "0" if value == 0 else f"{value:.1e}"
