"""What pages of reports share: embedded pictures, code in texts, colours for day and night."""

from __future__ import annotations

import base64
import html

COLOURS = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #14181d; --line: #3d444d; }
  .plot { filter: invert(0.91) hue-rotate(180deg); }
}
"""
"""Style of every page: plots, which are drawn on white, are inverted at night."""


def embedded(png: bytes) -> str:
    """A picture as an address, so that a page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def with_code(text: str) -> str:
    """Text as HTML, with what stands between backticks as code."""
    plain, *others = html.escape(text).split("`")
    return plain + "".join(
        f"<code>{part}</code>" if i % 2 == 0 else part for i, part in enumerate(others)
    )
