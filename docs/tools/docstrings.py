"""Docstrings as Markdown: <A x, y> is no tag, A* no emphasis, :func: no word.

An extension of griffe, which mkdocstrings reads the code with. Docstrings are written for people
who read code. Indented formulas become code blocks, which Markdown makes of them anyway.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
ROLE = re.compile(r":(?:func|class|meth|mod):(?=`)")
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
MARKUP = re.compile(r"\*|_(?!\w)|(?<!\w)_")
ITEM = re.compile(r"    [\w*]+:")


class PlainMathematics(griffe.Extension):
    """Escapes what Markdown would take for markup, outside of code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Once for everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)


def escaped(text: str) -> str:
    """The same to a reader of the page as the docstring to a reader of the code."""
    lines, in_section = [], False
    for line in ROLE.sub("", text).split("\n"):
        if line and not line.startswith(" "):
            in_section = bool(SECTION.match(line))
        formula = line.startswith("    ") and not in_section
        lines.append(line if formula else _escape(line))
    return "\n".join(lines)


def _escape(line: str) -> str:
    name = ITEM.match(line)  # of an argument, which stays as it is
    start = name.end() if name else 0
    parts = CODE.split(line[start:])
    plain = (
        part if i % 2 else MARKUP.sub(r"\\\g<0>", part.replace("<", "&lt;"))
        for i, part in enumerate(parts)
    )
    return line[:start] + "".join(plain)
