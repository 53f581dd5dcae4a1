"""Tables in CSV and Markdown, and numbers as text."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass


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
    """Two decimals, or two digits of a number below 0.1; a dash for None and NaN."""
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


def percent(value: float) -> str:
    """Two digits, or no fraction."""
    if not math.isfinite(value):
        return "nothing"
    return f"{100 * value:.0f} %" if value >= 1 else f"{100 * value:.2g} %"
