"""Line plots as SVG in the page's own colours: they are sharp, small, and follow dark mode.

Colours come from the style sheet by class (``line-0`` and so on), text is the page's text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 34, 44


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
    logarithmic: bool = False

    def x(self, value: float) -> float:
        """Across."""
        share = (value - self.left) / (self.right - self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Down."""
        a, b, v = self.low, self.high, value
        if self.logarithmic:
            a, b, v = math.log10(a), math.log10(b), math.log10(v)
        share = (min(max(v, a), b) - a) / (b - a)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def closing_plot(
    iterations: Sequence[float], objective: Sequence[float], bound: Sequence[float]
) -> str:
    """Objective and certified lower bound against iterations, the gap between them shaded."""
    lines = [Line("objective", iterations, objective), Line("lower bound", iterations, bound)]
    drawn = [line.points(False) for line in lines]
    # The first values would flatten all others; they leave the picture once there are more.
    values = [y for points in drawn for _, y in (points[1:] if len(points) > 3 else points)]
    if not values:
        return _svg("Objective and lower bound", [_note("waiting for the first bound")])
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) + 1e-6 * abs(high) + 1e-12
    frame = Frame(0, max(*iterations, 1), low - margin, high + margin)
    area = ""
    if drawn[0] and drawn[1]:
        outline = [*drawn[0], *reversed(drawn[1])]
        area = f'<polygon class="gap" points="{_places(outline, frame)}"/>'
    return _svg(
        "Objective and lower bound against iterations",
        [_axes(frame, "iterations"), area, *_curves(drawn, frame), _legend(lines)],
    )


def race_plot(lines: Sequence[Line], across: str) -> str:
    """Several curves on a logarithmic scale."""
    drawn = [line.points(True) for line in lines]
    everything = [point for points in drawn for point in points]
    if not everything:
        return _svg("Distance from the best lower bound", [_note("nobody has started yet")])
    low = min(y for _, y in everything)
    high = max(y for _, y in everything)
    low, high = 10 ** math.floor(math.log10(low) - 0.05), 10 ** math.ceil(math.log10(high) + 0.05)
    frame = Frame(0, max(max(x for x, _ in everything), 1e-3), low, high, logarithmic=True)
    return _svg(
        f"Distance from the best lower bound against {across}",
        [_axes(frame, across), *_curves(drawn, frame), _legend(lines)],
    )


def nice_steps(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers between the two."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _axes(frame: Frame, across: str) -> str:
    if frame.logarithmic:
        first, last = round(math.log10(frame.low)), round(math.log10(frame.high))
        levels = [10.0**k for k in range(first, last + 1, max(1, (last - first) // 6))]
        names = [f"1e{round(math.log10(level))}" for level in levels]
    else:
        levels = nice_steps(frame.low, frame.high)
        digits = max(0, math.ceil(-math.log10(levels[1] - levels[0]))) if len(levels) > 1 else 3
        names = [f"{level:,.{digits}f}" for level in levels]
    parts = []
    for level, name in zip(levels, names, strict=True):
        y = frame.y(level)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    for place in nice_steps(frame.left, frame.right, 6):
        x = frame.x(place)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" '
            f'text-anchor="middle">{place:g}</text>'
        )
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{across}</text>'
    )
    return "".join(parts)


def _curves(drawn: Sequence[Sequence[tuple[float, float]]], frame: Frame) -> list[str]:
    parts = []
    for i, points in enumerate(drawn):
        if points:
            parts.append(f'<polyline class="line line-{i}" points="{_places(points, frame)}"/>')
            x, y = points[-1]
            parts.append(
                f'<circle class="dot line-{i}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"/>'
            )
    return parts


def _places(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _legend(lines: Sequence[Line]) -> str:
    parts, x = [], float(LEFT)
    for i, line in enumerate(lines):
        parts.append(f'<line class="line line-{i}" x1="{x}" x2="{x + 20}" y1="16" y2="16"/>')
        parts.append(f'<text class="label" x="{x + 26}" y="20">{html.escape(line.name)}</text>')
        x += 50 + 7.6 * len(line.name)
    return "".join(parts)


def _note(text: str) -> str:
    return f'<text class="tick" x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">{text}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{title}</title>'
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP - 4}" width="{WIDTH - LEFT - RIGHT + 4}" '
        f'height="{HEIGHT - TOP - BOTTOM + 8}"/></clipPath>{"".join(parts)}</svg>'
    )
