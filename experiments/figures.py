"""Figures: curves in panels, a heat map, and pictures at their true size.

matplotlib is imported when something is drawn, so that experiments can be computed without it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STYLES: dict[str, tuple[str, Any, float]] = {
    "default": ("#0072b2", "-", 2.4),
    "paper": ("#d55e00", "-", 1.6),
    "nmapg": ("#009e73", "--", 1.6),
    "lbfgs": ("#cc79a7", "-.", 1.6),
    "sm-c": ("#000000", ":", 1.4),
    "sm-d": ("#8a6d00", (0, (5, 1, 1, 1, 1, 1)), 1.4),
}
"""Colour (safe for colour-blind readers), line and width of each method, in every figure."""

FLOOR = 1e-7
"""Smaller errors are drawn here: they are below the accuracy of the reference."""

DPI = 100
"""Of files with pictures: one of their pixels is one of the file."""

MOST_COLUMNS = 5
"""Of legends."""

TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True, eq=False)
class Line:
    """A curve in a panel."""

    x: Array  # iterations or seconds
    y: Array  # as many values; infinite ones are left out
    family: str  # gives its colour and line, a key of ``STYLES``
    label: str  # in the legend
    shade: float = 0.0  # 0 for the colour itself, towards 1 for paler ones of the same family


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes."""

    title: str  # above it
    label: str  # of the vertical axis
    lines: Sequence[Line]  # curves
    log: bool = True  # whether the vertical axis is logarithmic
    limits: tuple[float, float] | None = None  # of the vertical axis, or None to fit the data
    marked: Sequence[float] = ()  # iterations with a thin vertical line
    # label of the horizontal axis; iterations, straight to 1 and logarithmic then
    horizontal: str = "iterations"
    # errors below this are less than the accuracy of the optimum, and shaded
    unknown: float | None = None
    levels: Sequence[float] = ()  # values with a thin horizontal line


def curves(rows: Sequence[Sequence[Panel]], title: str = "") -> Any:
    """Panels in rows, below a title and one legend for all."""
    plt = pyplot()
    height = 3.1 * len(rows) + 0.7
    width = 5.0 * len(rows[0])
    figure, axes = plt.subplots(len(rows), len(rows[0]), figsize=(width, height), squeeze=False)
    entries: dict[str, Any] = {}
    for row, line in zip(rows, axes, strict=True):
        for panel, axis in zip(row, line, strict=True):
            for label, handle in _fill(axis, panel):
                entries.setdefault(label, handle)
    above = 0.3 if title else 0.0
    figure.text(0.5, 1 - 0.25 / height, title, fontsize=12, ha="center")
    lines = math.ceil(len(entries) / _legend(figure, entries, 1 - above / height))
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.12 + 0.22 * lines + above) / height))
    return figure


def _legend(figure: Any, entries: Mapping[str, Any], top: float) -> int:
    """Above the panels, in as many columns as there is room for; their number."""

    def drawn(columns: int) -> Any:
        return figure.legend(
            entries.values(), entries.keys(), loc="upper center", ncols=columns,
            frameon=False, fontsize=9, handlelength=2.8, bbox_to_anchor=(0.5, top),
        )  # fmt: skip

    columns, legend = MOST_COLUMNS, drawn(MOST_COLUMNS)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        columns -= 1
        legend = drawn(columns)
    return columns


@dataclass(frozen=True, eq=False)
class Figure:
    """A drawing, made when the report is written."""

    name: str  # of its files
    draw: Callable[[], Any]  # makes the matplotlib figure
    # of a figure of pictures, which the page shows pixel for pixel
    tiles: Sequence[Sequence[Tile]] = ()
    high: float = 1.0  # the value that is white in its pictures
    caption: str = ""  # below it; `code` in backticks

    @classmethod
    def of_curves(cls, name: str, rows: Sequence[Sequence[Panel]]) -> Figure:
        """Panels in rows."""
        return cls(name, lambda: curves(rows))

    @classmethod
    def of_pictures(cls, name: str, tiles: Sequence[Sequence[Tile]], high: float = 1.0) -> Figure:
        """Rows of pictures."""
        return cls(name, lambda: pictures(tiles, high=high), tiles, high)

    def files(self) -> dict[str, bytes]:
        """The drawing in PNG and SVG; without a date, so that the same parts give the same file."""
        drawing, found = self.draw(), {}
        for suffix, extra in (("png", {}), ("svg", {"metadata": {"Date": None}})):
            file = io.BytesIO()
            drawing.savefig(file, format=suffix, dpi=DPI if self.tiles else 150, **extra)
            found[suffix] = file.getvalue()
        pyplot().close(drawing)
        return found


def heat_map_with_curves(
    values: Array,
    rows: tuple[str, Sequence[float]],
    columns: tuple[str, Sequence[float]],
    title: str,
    marks: Mapping[str, tuple[int, int, str, str]],
    panel: Panel,
) -> Any:
    """Numbers on a grid on the left, and on the right a curve for each mark.

    Args:
        values: the numbers.
        rows: a label, and the coordinate of each.
        columns: the same.
        title: above the grid.
        marks: (row, column, shape, colour), by the label of the curve.
        panel: the curves.
    """
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.0, 4.6), gridspec_kw={"width_ratios": (1.1, 1)}
    )
    image = left.imshow(values, cmap="viridis", aspect="auto")
    left.set_xticks(range(len(columns[1])), [f"{value:g}" for value in columns[1]])
    left.set_yticks(range(len(rows[1])), [f"{value:g}" for value in rows[1]])
    left.set(xlabel=columns[0], ylabel=rows[0])
    left.set_title(title, fontsize=10)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    for (i, j), value in np.ndenumerate(values):
        bright = value > low + 0.6 * (high - low)
        left.text(j, i + 0.27, f"{value:.1f}", ha="center", va="center", fontsize=8,
                  color="black" if bright else "white")  # fmt: skip
    for row, column, shape, colour in marks.values():
        left.plot(column, row - 0.14, shape, color=colour, markersize=10,
                  markeredgecolor="white", markeredgewidth=1.0)  # fmt: skip
    figure.colorbar(image, ax=left, fraction=0.046, pad=0.03)
    for line in panel.lines:
        *_, shape, colour = marks[line.label]
        right.plot(
            line.x, _drawable(line.y, panel.log), color=colour, label=line.label,
            linewidth=1.6, marker=shape, markevery=0.17, markersize=6,
        )  # fmt: skip
    _finish(right, panel)
    right.legend(fontsize=8.5, frameon=False)
    figure.tight_layout()
    return figure


@dataclass(frozen=True, eq=False)
class Tile:
    """A picture with a title, and perhaps a number in its corner."""

    title: str
    picture: Array
    corner: str = ""


def pictures(rows: Sequence[Sequence[Tile]], *, high: float = 1.0) -> Any:
    """Rows of pictures of one size, pixel for pixel; black is 0, white is ``high``."""
    plt = pyplot()
    side_y, side_x = rows[0][0].picture.shape
    gap, strip = 8, 22
    across, down = max(len(row) for row in rows), len(rows)
    width = across * side_x + (across + 1) * gap
    height = down * (side_y + strip) + (down + 1) * gap
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            left = gap + j * (side_x + gap)
            top = gap + i * (side_y + strip + gap) + strip
            box = (left / width, 1 - (top + side_y) / height, side_x / width, side_y / height)
            axis = figure.add_axes(box)
            axis.imshow(tile.picture, cmap="gray", vmin=0, vmax=high, interpolation="none",
                        aspect="auto")  # fmt: skip
            axis.set_axis_off()
            axis.set_title(tile.title, fontsize=9, pad=4)
            if tile.corner:
                axis.text(
                    0.975, 0.972, tile.corner, transform=axis.transAxes, ha="right", va="top",
                    fontsize=9, fontweight="bold", color="white",
                    bbox={"facecolor": "black", "alpha": 0.62, "linewidth": 0, "pad": 2.2},
                )  # fmt: skip
    return figure


def tile_file(picture: Array, high: float = 1.0) -> bytes:
    """A picture alone, as a PNG file."""
    file = io.BytesIO()
    pyplot().imsave(file, picture, cmap="gray", vmin=0, vmax=high, format="png")
    return file.getvalue()


def magnified(picture: Array, times: int) -> Array:
    """Every pixel as a square of times x times pixels."""
    return np.kron(picture, np.ones((times, times), picture.dtype))


def pyplot() -> Any:
    """matplotlib, for files only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def pale(colour: str, shade: float) -> str:
    """A colour mixed with white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(p + (255 - p) * min(shade, 0.8)):02x}" for p in parts)


def _fill(axis: Any, panel: Panel) -> list[tuple[str, Any]]:
    entries = []
    for line in panel.lines:
        colour, style, width = STYLES.get(line.family, ("#4d4d4d", "-", 1.4))
        (handle,) = axis.plot(line.x, _drawable(line.y, panel.log), color=pale(colour, line.shade),
                              linestyle=style, linewidth=width)  # fmt: skip
        entries.append((line.label, handle))
    _finish(axis, panel)
    return entries


def _finish(axis: Any, panel: Panel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set(xlabel=panel.horizontal, ylabel=panel.label)
    if panel.log:
        axis.set_yscale("log")
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    last = max((float(line.x[-1]) for line in panel.lines), default=1.0)
    if panel.horizontal == "iterations":
        ticks = [k for k in TICKS if k <= last]
        axis.set_xscale("symlog", linthresh=1, linscale=0.3)
        axis.set_xlim(0, last)
        axis.set_xticks(ticks, [str(k) for k in ticks])
        axis.set_xticks([], minor=True)
    else:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    if panel.unknown is not None and panel.limits is not None:
        axis.axhspan(panel.limits[0], panel.unknown, color="0.5", alpha=0.13, linewidth=0)
    for place in panel.marked:
        axis.axvline(place, color="0.45", linewidth=0.8, linestyle=(0, (1, 2)))
    for value in panel.levels:
        axis.axhline(value, color="0.45", linewidth=0.7, linestyle=(0, (1, 2)))
    if not panel.lines:
        axis.text(0.5, 0.5, "nothing was measured", ha="center", color="0.4",
                  transform=axis.transAxes)  # fmt: skip
    axis.grid(alpha=0.25)


def _drawable(values: Array, log: bool) -> Array:
    """Not a number where nothing can be drawn; at the floor where errors are below it."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return np.maximum(finite, FLOOR) if log else finite
