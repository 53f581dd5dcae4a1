"""``report.html``: a document as one page that needs no other file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from convexlift.html import COLOURS, embedded, with_code
from experiments.document import Document, Figure, Section
from experiments.figures import Tile, tile_file
from experiments.tables import Table, comparison_table

STYLE = """
body { font: 17px/1.6 Georgia, "Times New Roman", serif; color: var(--ink);
       background: var(--paper); max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 0.3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 0.6rem; border-bottom: 1px solid var(--line); }
p { max-width: 46rem; }
.about, figcaption, .caption, table { font-family: system-ui, sans-serif; }
.about { font-size: 0.84rem; opacity: 0.85; max-width: none; }
code { font: 0.88em ui-monospace, monospace; }
.scroll { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; font-size: 0.84rem; line-height: 1.45; }
.caption { font-size: 0.9rem; line-height: 1.45; margin-bottom: -0.4rem; }
thead th { border-top: 2px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody tr:last-child td { border-bottom: 2px solid var(--ink); }
th, td { padding: 0.28rem 0.75rem; text-align: right; vertical-align: top;
         font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0.2rem; }
.comparison th:nth-child(2), .comparison td:nth-child(2),
.comparison th:last-child, .comparison td:last-child { text-align: left; }
.comparison td:last-child { min-width: 16rem; white-space: normal; }
figure { margin: 1.2rem 0 1.8rem; }
figure .scroll { margin: 0; }
figure .plot { max-width: 100%; height: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; justify-content: center; margin-bottom: 8px;
         width: max-content; max-width: 94vw; position: relative; left: 50%;
         transform: translateX(-50%); }
.tile { position: relative; font: 0.8rem system-ui, sans-serif; text-align: center; }
.tile span { display: block; line-height: 1.5; }
.tile img { display: block; max-width: 94vw; height: auto; }
.tile b { position: absolute; right: 5px; top: 1.85em; padding: 0 5px; border-radius: 3px;
          color: #fff; background: rgb(0 0 0 / 62%); }
figcaption { font-size: 0.9rem; line-height: 1.45; max-width: 46rem; padding-top: 0.4rem; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def page(
    document: Document, drawings: Mapping[str, bytes], about: Sequence[tuple[str, Any]]
) -> str:
    """The whole page.

    Args:
        document: what it says.
        drawings: PNG files of its figures, by name.
        about: environment and options, as names and values.
    """
    facts = " · ".join(f"{html.escape(n)} {html.escape(str(v))}" for n, v in about if v)
    comparison = (
        f'<h2>Beside the paper</h2>\n<div class="comparison">'
        f"{comparison_table(document.comparisons).as_html()}</div>"
        if document.comparisons
        else ""
    )
    figures = Numbered()
    body = "\n".join(_section(section, drawings, figures) for section in document.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(document.title)}</title>
<style>{COLOURS}{STYLE}</style>
</head>
<body>
<h1>{html.escape(document.title)}</h1>
<p class="about">{facts}</p>
{"".join(f"<p>{with_code(text)}</p>" for text in document.summary)}
{comparison}
{body}
</body>
</html>
"""


class Numbered:
    """Figure 1, Figure 2, ..., and Table 1, Table 2, ..."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def next(self, kind: str) -> str:
        """The next of its kind."""
        self.count[kind] = self.count.get(kind, 0) + 1
        return f"{kind} {self.count[kind]}"


def _section(section: Section, drawings: Mapping[str, bytes], numbered: Numbered) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    for block in section.blocks:
        if isinstance(block, Table):
            parts.append(block.as_html(numbered.next("Table") if block.caption else ""))
        elif isinstance(block, Figure):
            parts.append(_figure(block, drawings[block.name], numbered.next("Figure")))
        else:
            parts.append(f"<p>{with_code(block)}</p>")
    return "\n".join(parts)


def _figure(figure: Figure, png: bytes, number: str) -> str:
    if figure.tiles:
        shown = "".join(_tiles(row, figure.high) for row in figure.tiles)
    else:
        alt = html.escape(figure.caption)
        shown = f'<div class="scroll"><img class="plot" alt="{alt}" src="{embedded(png)}"></div>'
    caption = f"<figcaption><b>{number}.</b> {with_code(figure.caption)}</figcaption>"
    return f"<figure>{shown}{caption}</figure>"


def _tiles(row: Sequence[Tile], high: float) -> str:
    cells = ""
    for tile in row:
        if tile.picture is None:
            continue
        title, (height, width) = html.escape(tile.title), tile.picture.shape
        corner = f"<b>{html.escape(tile.corner)}</b>" if tile.corner else ""
        cells += (
            f'<div class="tile"><span>{title}</span><img alt="{title}" width="{width}" '
            f'height="{height}" src="{embedded(tile_file(tile.picture, high))}">{corner}</div>'
        )
    return f'<div class="tiles">{cells}</div>'
