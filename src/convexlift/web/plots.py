"""Line plots as SVG in the page's own colours: they are sharp, small, and follow dark mode.

Colours come from the style sheet by class (``line-0`` and so on), text is the page's text. The
legend is text above the picture, so that no curve crosses it, and letters are no smaller on phones.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

SMALL, LARGE = (480, 330), (800, 400)
"""Width and height, in units that are about pixels where the plot is shown."""
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 50
SPARE = 4
"""Curves may leave the axes by so much, for the sake of their width."""


@dataclass(frozen=True)
class Line:
    """A named curve; points that are not finite are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def points(self, logarithmic: bool) -> list[tuple[float, float]]:
        """What can be drawn."""
        return [
            (x, y)
            for x, y in zip(self.x, self.y, strict=True)
            if math.isfinite(x) and math.isfinite(y) and (y > 0 or not logarithmic)
        ]


@dataclass(frozen=True)
class Frame:
    """From numbers to places in the picture."""

    left: float
    right: float
    low: float
    high: float
    size: tuple[int, int] = SMALL
    logarithmic: bool = False

    def x(self, value: float) -> float:
        """Across."""
        share = (value - self.left) / (self.right - self.left)
        return LEFT + share * (self.size[0] - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Down."""
        a, b, v = self.low, self.high, value
        if self.logarithmic:
            a, b, v = math.log10(a), math.log10(b), math.log10(v)
        share = min(max((v - a) / (b - a), -4.0), 5.0)  # what is far outside is cut off there
        base = self.size[1] - BOTTOM
        return base - share * (base - TOP)


def closing_plot(
    iterations: Sequence[float], objective: Sequence[float], bound: Sequence[float]
) -> str:
    """Objective and certified lower bound against iterations, the gap between them shaded."""
    lines = [Line("objective", iterations, objective), Line("lower bound", iterations, bound)]
    drawn = [line.points(False) for line in lines]
    # The first values would flatten all others; they leave the picture as more come.
    values = [y for points in drawn for _, y in points[len(points) // 3 :]]
    if not values:
        return _svg("Objective and lower bound", SMALL, [_note("objective and bound", SMALL)])
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) + 1e-6 * abs(high) + 1e-12
    frame = Frame(0, max(*iterations, 1), low - margin, high + margin)
    area = ""
    if drawn[0] and drawn[1]:
        outline = [*drawn[0], *reversed(drawn[1])]
        area = f'<polygon class="gap" points="{_places(outline, frame)}"/>'
    title = "Objective and lower bound against iterations"
    inside = _inside([area, *_curves(drawn, frame)], SMALL)
    return _legend(lines) + _svg(title, SMALL, [_axes(frame, "iterations"), inside])


def race_plot(lines: Sequence[Line], across: str) -> str:
    """Several curves on a logarithmic scale."""
    drawn = [line.points(True) for line in lines]
    everything = [point for points in drawn for point in points]
    if not everything:
        return _svg(
            "Distance from the best lower bound", LARGE, [_note("nobody has started", LARGE)]
        )
    low = min(y for _, y in everything)
    high = max(y for _, y in everything)
    low, high = 10 ** math.floor(math.log10(low) - 0.05), 10 ** math.ceil(math.log10(high) + 0.05)
    frame = Frame(0, max(max(x for x, _ in everything), 1e-3), low, high, LARGE, logarithmic=True)
    title = f"Distance from the best lower bound against {across}"
    inside = _inside(_curves(drawn, frame), LARGE)
    return _legend(lines) + _svg(title, LARGE, [_axes(frame, across), inside])


def nice_steps(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers between the two."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _axes(frame: Frame, across: str) -> str:
    end, base = frame.size[0] - RIGHT, frame.size[1] - BOTTOM
    parts = []
    for level, name in _levels(frame):
        y = frame.y(level)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
        )
    for place in nice_steps(frame.left, frame.right, 6):
        parts.append(
            f'<text class="tick" x="{frame.x(place):.1f}" y="{base + 20}" '
            f'text-anchor="middle">{place:g}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{end}" y1="{base}" y2="{base}"/>')
    parts.append(
        f'<text class="tick" x="{(LEFT + end) / 2}" y="{frame.size[1] - 8}" '
        f'text-anchor="middle">{across}</text>'
    )
    return "".join(parts)


def _levels(frame: Frame) -> list[tuple[float, str]]:
    """Places of the vertical axis, and what is written there."""
    if frame.logarithmic:
        first, last = round(math.log10(frame.low)), round(math.log10(frame.high))
        powers = range(first, last + 1, max(1, (last - first) // 6))
        return [(10.0**k, f"1e{k}") for k in powers]
    levels = nice_steps(frame.low, frame.high)
    step = levels[1] - levels[0] if len(levels) > 1 else abs(frame.high) or 1.0
    unit, mark = (1000.0, "k") if max(map(abs, levels), default=0) >= 1e4 else (1.0, "")
    digits = max(0, math.ceil(-math.log10(step / unit) - 1e-9))
    return [(level, f"{level / unit:.{digits}f}{mark}" if level else "0") for level in levels]


def _curves(drawn: Sequence[Sequence[tuple[float, float]]], frame: Frame) -> list[str]:
    parts = []
    for i, points in enumerate(drawn):
        if points:
            parts.append(f'<polyline class="line line-{i}" points="{_places(points, frame)}"/>')
            x, y = frame.x(points[-1][0]), frame.y(points[-1][1])
            parts.append(f'<circle class="dot line-{i}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return parts


def _places(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _inside(parts: Sequence[str], size: tuple[int, int]) -> str:
    """Cut off at the axes, by a picture in the picture.

    A clipPath has a name, and the page has a plot in each tab: with one name for all of them, none
    is cut off once the tab with the first of them is hidden.
    """
    x, y = LEFT - SPARE, TOP - SPARE
    width, height = size[0] - LEFT - RIGHT + 2 * SPARE, size[1] - TOP - BOTTOM + 2 * SPARE
    return (
        f'<svg x="{x}" y="{y}" width="{width}" height="{height}" '
        f'viewBox="{x} {y} {width} {height}" overflow="hidden">{"".join(parts)}</svg>'
    )


def _legend(lines: Sequence[Line]) -> str:
    names = "".join(
        f'<span><i class="swatch line-{i}"></i>{html.escape(line.name)}</span>'
        for i, line in enumerate(lines)
    )
    return f'<p class="legend">{names}</p>'


def _note(text: str, size: tuple[int, int]) -> str:
    return (
        f'<text class="tick" x="{size[0] / 2}" y="{size[1] / 2}" text-anchor="middle">{text}</text>'
    )


def _svg(title: str, size: tuple[int, int], parts: Sequence[str]) -> str:
    width, height = size
    kind = " large" if size == LARGE else ""
    return (
        f'<svg class="plot{kind}" role="img" viewBox="0 0 {width} {height}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{title}</title>{"".join(parts)}</svg>'
    )
