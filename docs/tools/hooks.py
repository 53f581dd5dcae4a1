"""What is added when the site is built: the command reference, and pages from the root.

Links are written for readers of the repository, and are right on the site as well.
"""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from convexlift.cli.app import app, load
from convexlift.cli.help_text import entry

log = logging.getLogger("mkdocs.hooks")  # a warning of it ends a strict build

ROOT = Path(__file__).parents[2]
COPIES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
POWER = re.compile(r"\b\d+(?:\.\d+)?e-\d+\b")
LOADED = re.compile(
    r"""<(?:script|img|iframe|link rel="?(?:stylesheet|preload))[^>]*["'=]https?:[^>]*>"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in the folder."""
    for page, source in COPIES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The commands below their introduction, and links to files that have become pages."""
    if page.file.src_uri == "commands.md":
        markdown = f"{markdown}\n{command_reference()}"
    return linked_to_copies(markdown)


def linked_to_copies(markdown: str) -> str:
    """Links to files of the root as links to their copies, which are one folder nearer."""
    for page, source in COPIES.items():
        markdown = re.sub(rf"\.\./{re.escape(source)}(?=[#)])", page, markdown)
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Numbers such as 1e-3 in tables are not broken at their sign."""
    return CELL.sub(lambda cell: POWER.sub(r'<span class="number">\g<0></span>', cell[0]), html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what a browser would load from elsewhere; links are another matter."""
    for tag in LOADED.findall(output):
        log.warning("%s loads something from elsewhere: %s", page.file.src_uri, tag)
    return output


def command_reference() -> str:
    """Every command of ``convexlift``, with its arguments and options, as Markdown."""
    group = typer.main.get_command(app)
    with group.make_context("convexlift", [], resilient_parsing=True) as context:
        sections = ["\n".join(options(group, context)) + "\n"]
        for name in group.list_commands(context):
            sections += describe(load(name), name, context)
    return "\n".join(sections) + "\n"


def describe(command: Any, name: str, parent: Any, level: int = 2) -> Iterator[str]:
    """The sections of a command and of those inside it."""
    if command.hidden:
        return
    context = command.context_class(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path}\n"
    yield f"{blocks(command.help or '')}\n"
    inner = getattr(command, "commands", {})
    if not inner:
        usage = command.get_usage(context).removeprefix("Usage: ").strip()
        yield f"```sh\n{' '.join(usage.split())}\n```\n"
        yield "\n".join(options(command, context)) + "\n"
        examples = (command.epilog or "").partition("\n\nExit status")[0]
        yield f"{blocks(examples)}\n"
    for each, below in sorted(inner.items()):
        yield from describe(below, each, context, level + 1)


def options(command: Any, context: Any) -> Iterator[str]:
    """A table of arguments and options, in the order of ``--help``."""
    yield "| argument or option | meaning |"
    yield "|---|---|"
    for parameter in command.get_params(context):
        if (found := entry(parameter, context)) is not None:
            cell = markdown(found.text).replace("|", "\\|")
            yield f"| {code(found.names)} | {cell} |"


def code(text: str) -> str:
    """Code in a cell of a table; a bar would end the cell."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return f"<code>{escaped}</code>"


def blocks(text: str) -> str:
    """A help text as Markdown: paragraphs, and indented lines as they are."""
    parts = text.strip("\n").split("\n\n")
    return "\n\n".join(
        f"```text\n{textwrap.dedent(part)}\n```" if part.startswith(" ") else markdown(part)
        for part in parts
    )


def markdown(text: str) -> str:
    """A help text as Markdown: what looks like a tag or an emphasis is neither."""
    plain = text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[").replace("\b", "")
    return OPTION.sub(r"`\g<0>`", plain)
