"""A report before it is written: sections of paragraphs, tables and figures.

Figures are drawn when the report is written, so that a report can be made, and its numbers read,
where matplotlib is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.figures import Tile, pictures
from experiments.tables import Comparison, Table


@dataclass(frozen=True, eq=False)
class Figure:
    """A drawing with a caption.

    Attributes:
        name: of its files.
        caption: below it; `code` in backticks.
        draw: makes the matplotlib figure.
        tiles: of a figure of pictures, which the page shows pixel for pixel, as many in a row as
            there is space for.
        high: what is white in its pictures.
    """

    name: str
    caption: str
    draw: Callable[[], Any]
    tiles: Sequence[Sequence[Tile]] = ()
    high: float = 1.0

    @classmethod
    def of_pictures(
        cls, name: str, caption: str, tiles: Sequence[Sequence[Tile]], high: float = 1.0
    ) -> Figure:
        """Rows of pictures."""
        return cls(name, caption, lambda: pictures(tiles, high=high), tiles, high)


Block = str | Table | Figure
"""A paragraph is a string with `code` in backticks."""


@dataclass(frozen=True, eq=False)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, eq=False)
class Document:
    """All that an experiment reports.

    Attributes:
        title: of the page.
        summary: paragraphs on top: what was done, and what came out.
        comparisons: our numbers beside the paper's; they come right after the summary.
        sections: everything else.
        results: further numbers for the JSON file.
    """

    title: str
    summary: Sequence[str]
    comparisons: Sequence[Comparison]
    sections: Sequence[Section]
    results: Mapping[str, Any] = field(default_factory=dict)
