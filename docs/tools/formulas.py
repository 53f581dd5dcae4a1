"""Formulas in LaTeX as MathML, which browsers draw without scripts, fonts or a network.

In Markdown, as GitHub shows them too: `$...$` in a line, and a fence ```` ```math ````.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig

DOLLARS = r"(?<![\\$\w])\$(?=[^\s$])([^$]*[^\s$])\$(?![\w$])"
LIMITS = re.compile(r"<msub>(<mo>(?:min|max|inf|sup)</mo>)(.*?)</msub>", re.DOTALL)
BRACKETS = {"&#x027E8;": "prefix", "&#x027E9;": "postfix"}  # angles, made letters by the converter


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have every page read formulas."""
    config.markdown_extensions.append(Formulas())
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "formula", "format": fence}]
    return config


def mathml(latex: str, display: str = "inline") -> str:
    """A formula; the LaTeX is kept in it, for those who copy it."""
    result = str(convert(latex.replace("{aligned}", "{align*}"), display=display))
    if display == "block":
        result = LIMITS.sub(r"<munder>\1\2</munder>", result)
    for sign, form in BRACKETS.items():
        result = result.replace(
            f"<mi>{sign}</mi>", f'<mo stretchy="false" form="{form}">{sign}</mo>'
        )
    return result.replace("<math ", f'<math alttext="{html.escape(" ".join(latex.split()))}" ', 1)


def fence(source: str, *_: Any, **__: Any) -> str:
    """A formula of its own line, which scrolls where the screen is narrow."""
    return f'<div class="formula">{mathml(source, "block")}</div>'


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(mathml(m[1])), m.start(0), m.end(0)


class Formulas(Extension):
    """``$...$``, except in code."""

    def extendMarkdown(self, md: Markdown) -> None:
        """After backticks, which have the priority 190, and before backslashes."""
        md.inlinePatterns.register(_Inline(DOLLARS, md), "formula", 185)
