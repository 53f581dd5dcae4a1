"""A few lines about an object for terminals, and the same with pictures for notebooks.

Pictures are PNG files and curves SVG inside the HTML, made here: the core needs no library for
images.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import textwrap
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SHOWN = 4
"""The most images of a batch that notebooks show."""
SIDE = 240
"""Longest side of a picture on the screen."""
WIDEST = 108
"""The most characters in a line of a summary: as many as the longest line about an image."""


@dataclass(frozen=True)
class Description:
    """The lines that describe an object on a terminal, and the figures that notebooks add.

    Args:
        title: the first line.
        facts: short texts by their label.
        figures: HTML, from ``picture``, ``filters`` or ``curve``.
        summary: the facts in plain words; notebooks then show the facts on a click.
    """

    title: str
    facts: Mapping[str, str]
    figures: Sequence[str] = field(default=())
    summary: str = ""


class Described:
    """An object with a description: ``repr`` shows its lines, notebooks its figures too."""

    @abstractmethod
    def _description(self, *, figures: bool) -> Description:
        """The description; ``figures`` says whether figures will be shown."""

    def __repr__(self) -> str:
        return as_text(self._description(figures=False))

    def _repr_html_(self) -> str:
        return as_html(self._description(figures=True))


def as_text(described: Description) -> str:
    """A title, and one line for each fact."""
    width = max(map(len, described.facts), default=0)
    lines = (
        f"  {label:<{width}}  {text}" if label else f"  {text}"
        for label, text in described.facts.items()
    )
    summary = textwrap.wrap(described.summary, WIDEST, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([described.title, *summary, *lines])


def as_html(described: Description) -> str:
    """The description as a table, with the figures above it; the page's style is not changed."""
    cell = 'style="text-align:left;padding:0 1em 0 0;vertical-align:top"'
    rows = "".join(
        f"<tr><th {cell}>{html.escape(label)}</th><td {cell}>{html.escape(text)}</td></tr>"
        for label, text in described.facts.items()
    )
    figures = "".join(
        f'<div style="display:inline-block;margin:0 1em 0.5em 0">{figure}</div>'
        for figure in described.figures
    )
    title = f"<div><b>{html.escape(described.title)}</b></div>"
    facts = f"<table>{rows}</table>"
    if described.summary:
        title += f"<div>{html.escape(described.summary)}</div>"
        facts = f"<details><summary>Numbers</summary>{facts}</details>"
    return f"<div>{title}{figures}{facts}</div>"


def picture(image: Tensor, caption: str = "", side: int = SIDE) -> str:
    """A grey or colour image (C, H, W): 0 to 1 as black to white, or its smallest to largest.

    Images of more than a million pixels are shown by every second, third, ... pixel.
    """
    values = image.detach().cpu().double().numpy()
    stride = max(1, math.ceil(math.sqrt(values[0].size / 1e6)))
    values = values[:, ::stride, ::stride]
    finite = values[np.isfinite(values)]
    low, high = (0.0, 1.0) if finite.size == 0 else (float(finite.min()), float(finite.max()))
    scaled = not (low >= -0.5 and 0.05 <= high <= 1.5)  # noisy images in [0, 1] exceed it a little
    if not scaled:
        low, high = 0.0, 1.0
    values = np.nan_to_num((values - low) / max(high - low, 1e-30))
    samples = np.round(255 * values.clip(0, 1)).astype(np.uint8)
    channels, height, width = samples.shape
    note = f"{caption}; black {low:.3g}, white {high:.3g}" if scaled else caption
    zoom = side / max(height, width)
    size = f'width="{round(width * zoom)}" height="{round(height * zoom)}"'
    sharp = "image-rendering:pixelated" if zoom > 1 else ""
    source = base64.b64encode(png(samples if channels == 3 else samples[:1])).decode()
    return (
        f'<img alt="{html.escape(note)}" {size} style="{sharp}" '
        f'src="data:image/png;base64,{source}"/><br/><small>{html.escape(note)}</small>'
    )


def is_picture(values: Tensor) -> bool:
    """Whether a batch (B, C, H, W) can be shown as grey or colour images."""
    return values.ndim == 4 and values.shape[1] in (1, 3) and values.numel() > 0


def filters(kernels: Tensor, caption: str) -> str:
    """Filters (n, C, h, w) side by side, each scaled to its largest entry; grey is zero."""
    kept = kernels.detach().cpu().double()[:64].mean(1)
    kept = 0.5 + 0.5 * kept / kept.abs().amax((1, 2), keepdim=True).clamp_min(1e-30)
    count, height, width = kept.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = kept.new_ones((1, rows * (height + 1) + 1, columns * (width + 1) + 1))
    for number, kernel in enumerate(kept):
        top, left = (1 + (number // columns) * (height + 1), 1 + number % columns * (width + 1))
        sheet[0, top : top + height, left : left + width] = kernel
    return picture(sheet, caption)


def curve(steps: Iterable[float], values: Iterable[float], caption: str) -> str:
    """Positive values over steps on a logarithmic scale, as SVG; empty for fewer than two."""
    points = [(x, y) for x, y in zip(steps, values, strict=True) if 0 < y < math.inf]
    if len(points) < 2:
        return ""
    width, height, left, bottom = 300, SIDE - 40, 46, 28
    last = max(x for x, _ in points) or 1.0
    low = math.floor(math.log10(min(y for _, y in points)))
    high = max(math.ceil(math.log10(max(y for _, y in points))), low + 1)

    def place(x: float, power: float) -> tuple[float, float]:
        across = left + (width - left - 8) * x / last
        down = 8 + (height - bottom - 8) * (high - power) / (high - low)
        return across, down

    line = " ".join("{:.1f},{:.1f}".format(*place(x, math.log10(y))) for x, y in points)
    ticks = []
    for power in range(low, high + 1, max(1, (high - low) // 4)):
        x, y = place(0.0, power)
        ticks.append(
            f'<line x1="{x}" y1="{y:.1f}" x2="{width - 8}" y2="{y:.1f}" stroke="#8884"/>'
            f'<text x="{x - 4}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>'
        )
    note = html.escape(caption)
    return (
        f'<svg role="img" aria-label="{note}" width="{width}" height="{height}" '
        f'font-size="11" fill="currentColor">{"".join(ticks)}'
        f'<polyline points="{line}" fill="none" stroke="#d33" stroke-width="2"/>'
        f'<text x="{width - 8}" y="{height - 8}" text-anchor="end">{last:g}</text></svg>'
        f"<br/><small>{note}</small>"
    )


def png(samples: NDArray[np.uint8]) -> bytes:
    """A PNG file of 8-bit samples (1, H, W) or (3, H, W)."""
    channels, height, width = samples.shape
    lines = np.moveaxis(samples, 0, -1).reshape(height, width * channels)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)  # filter 0: none

    def chunk(kind: bytes, data: bytes) -> bytes:
        content = kind + data
        return struct.pack(">I", len(data)) + content + struct.pack(">I", zlib.crc32(content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    body = zlib.compress(raw.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
