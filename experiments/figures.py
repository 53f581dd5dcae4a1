"""Figures of all experiments: curves, heat maps, and pictures at their true size.

matplotlib is imported when something is drawn, so that experiments can be computed without it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.benchmark.styles import FLOOR, STYLES
from experiments.parts import Array

DPI = 100
"""Of files with pictures: one of their pixels is one of the file."""

MOST_COLUMNS = 5
"""Of legends."""

TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True, eq=False)
class Line:
    """A curve in a panel.

    Attributes:
        x: iterations or seconds.
        y: as many values; those that are not finite are left out.
        family: gives its colour and line, a key of ``STYLES``.
        label: in the legend.
        shade: 0 for the colour itself, towards 1 for paler ones of the same family.
    """

    x: Array
    y: Array
    family: str
    label: str
    shade: float = 0.0


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        label: of the vertical axis.
        lines: curves.
        log: whether the vertical axis is logarithmic.
        limits: of the vertical axis, or None for those that fit.
        marked: iterations with a thin vertical line.
        horizontal: label of the horizontal axis; iterations, straight to 1 and logarithmic then.
        unknown: errors below this are less than the accuracy of the optimum, and shaded.
    """

    title: str
    label: str
    lines: Sequence[Line]
    log: bool = True
    limits: tuple[float, float] | None = None
    marked: Sequence[float] = ()
    horizontal: str = "iterations"
    unknown: float | None = None


def curves(rows: Sequence[Sequence[Panel]]) -> Any:
    """Panels in rows, with one legend for all on top."""
    plt = pyplot()
    height = 3.1 * len(rows) + 0.7
    width = 5.0 * len(rows[0])
    figure, axes = plt.subplots(len(rows), len(rows[0]), figsize=(width, height), squeeze=False)
    entries: dict[str, Any] = {}
    for row, line in zip(rows, axes, strict=True):
        for panel, axis in zip(row, line, strict=True):
            for label, handle in _fill(axis, panel):
                entries.setdefault(label, handle)
    lines = math.ceil(len(entries) / _legend(figure, entries))
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.12 + 0.22 * lines) / height))
    return figure


def _legend(figure: Any, entries: Mapping[str, Any]) -> int:
    """Above the panels, in as many columns as there is room for; how many."""

    def drawn(columns: int) -> Any:
        return figure.legend(
            entries.values(), entries.keys(), loc="upper center", ncols=columns,
            frameon=False, fontsize=9, handlelength=2.8,
        )  # fmt: skip

    columns, legend = MOST_COLUMNS, drawn(MOST_COLUMNS)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        columns -= 1
        legend = drawn(columns)
    return columns


@dataclass(frozen=True)
class Mark:
    """A cell of a heat map that stands out."""

    row: int
    column: int
    shape: str
    colour: str
    label: str = ""


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Numbers on a grid, with ticks as text."""

    values: Array
    rows: Sequence[str]
    columns: Sequence[str]
    row_label: str
    column_label: str
    title: str
    marks: Sequence[Mark] = field(default=())
    digits: str = ".0f"


def heat_map_with_curves(heat: HeatMap, panel: Panel, colours: Mapping[str, str]) -> Any:
    """The grid on the left, the marked cells as curves on the right.

    Args:
        heat: the grid.
        panel: curves, whose labels are those of the marks.
        colours: of the curves, by label.
    """
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.0, 4.6), gridspec_kw={"width_ratios": (1.1, 1)}
    )
    image = left.imshow(heat.values, cmap="viridis", aspect="auto")
    left.set_xticks(range(len(heat.columns)), heat.columns)
    left.set_yticks(range(len(heat.rows)), heat.rows)
    left.set(xlabel=heat.column_label, ylabel=heat.row_label)
    left.set_title(heat.title, fontsize=10)
    low, high = float(np.nanmin(heat.values)), float(np.nanmax(heat.values))
    for (i, j), value in np.ndenumerate(heat.values):
        bright = value > low + 0.6 * (high - low)
        left.text(j, i + 0.27, format(value, heat.digits), ha="center", va="center", fontsize=8,
                  color="black" if bright else "white")  # fmt: skip
    for mark in heat.marks:
        left.plot(mark.column, mark.row - 0.14, mark.shape, color=mark.colour, markersize=10,
                  markeredgecolor="white", markeredgewidth=1.0)  # fmt: skip
    figure.colorbar(image, ax=left, fraction=0.046, pad=0.03)
    for line in panel.lines:
        shape = next((m.shape for m in heat.marks if m.label == line.label), "")
        right.plot(
            line.x, _drawable(line.y, panel.log), color=colours[line.label], label=line.label,
            linewidth=1.6, marker=shape, markevery=0.17, markersize=6,
        )  # fmt: skip
    _finish(right, panel)
    right.legend(fontsize=8.5, frameon=False)
    figure.tight_layout()
    return figure


@dataclass(frozen=True, eq=False)
class Tile:
    """A picture with a title, and a number in its corner; without a picture, empty space."""

    title: str = ""
    picture: Array | None = None
    corner: str = ""


def pictures(rows: Sequence[Sequence[Tile]], *, high: float = 1.0) -> Any:
    """Rows of pictures, pixel for pixel, each below its title.

    Args:
        rows: of tiles, all of one size.
        high: what is drawn white; black is 0.
    """
    plt = pyplot()
    side_y, side_x = next(t.picture.shape for row in rows for t in row if t.picture is not None)
    gap, strip = 8, 22
    across, down = max(len(row) for row in rows), len(rows)
    width = across * side_x + (across + 1) * gap
    height = down * (side_y + strip) + (down + 1) * gap
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            if tile.picture is None:
                continue
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
    """Every pixel a square of so many by so many."""
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


def shades(count: int) -> list[float]:
    """For several members of a family: from the colour itself to a pale one."""
    return [0.62 * i / max(count - 1, 1) for i in range(count)]


def _fill(axis: Any, panel: Panel) -> list[tuple[str, Any]]:
    entries = []
    for line in panel.lines:
        colour, style, width = STYLES[line.family]
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
        axis.set_xscale("log")
    if panel.unknown is not None and panel.limits is not None:
        axis.axhspan(panel.limits[0], panel.unknown, color="0.5", alpha=0.13, linewidth=0)
    for place in panel.marked:
        axis.axvline(place, color="0.45", linewidth=0.8, linestyle=(0, (1, 2)))
    axis.grid(alpha=0.25)


def _drawable(values: Array, log: bool) -> Array:
    """Not a number where nothing can be drawn; at the floor where errors are below it."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return np.maximum(finite, FLOOR) if log else finite
