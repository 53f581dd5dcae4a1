"""Help texts in one or two columns, as wide as the terminal up to 120 characters.

Typer's own tables leave 24 of 80 columns for the descriptions. Imports nothing but Typer.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

STATUSES = (
    "Exit status: 0 done; 1 started, but some of it failed (what failed is named, the rest is "
    "done); 2 refused before anything was done: change the command; 130 interrupted by Ctrl-C."
)
"""The exit statuses of all commands."""
WIDEST, LEFT = 120, 28
"""Columns of the text; columns of names, beyond which descriptions start on the next line."""
VALUES = {"path": "PATH", "int": "N", "float": "NUMBER", "str": "TEXT", "bool": ""}


def epilog(examples: str) -> str:
    """Examples, one in a line, and the exit statuses: the end of a help text."""
    return f"Examples:\n\n{textwrap.indent(examples, '  ')}\n\n{STATUSES}"


class Entry(NamedTuple):
    """An argument or option in a help text."""

    names: str  # with the type of its value
    text: str
    choices: tuple[str, ...] = ()


def entry(parameter: Any, context: Any) -> Entry | None:
    """The names, values and description of a parameter; None for hidden ones."""
    record = parameter.get_help_record(context)
    if record is None or getattr(parameter, "hidden", False):
        return None
    names, text = record[0].strip(), " ".join(record[1].split())
    names, _, kind = names.partition(" <")
    kind = kind.rstrip(">")
    choices = tuple(kind.split("|")) if "|" in kind else ()
    if parameter.param_type_name == "argument":  # its description names the choices
        names, value = names.upper(), ""
    elif choices and len(kind) <= LEFT - len(names) - 6:
        value = kind
    elif choices:
        value, text = "NAME", f"{text} One of {', '.join(choices)}."
    else:
        value = VALUES.get(kind.split()[0] if kind else "", "TEXT" if kind else "")
    if kind.startswith("list[") and not names.endswith("..."):
        names, value = (names, f"{value}...") if value else (f"{names}...", "")
    return Entry(f"{', '.join(re.split(', *', names))} {value}".strip(), text, choices)


def help_text(command: Any, context: Any, width: int) -> str:
    """Usage, description, arguments, options, commands, examples and exit statuses."""
    usage = " ".join(command.get_usage(context).split())
    blocks = [textwrap.fill(usage, width, subsequent_indent="    ")]
    blocks += paragraphs(command.help or "", width)
    found: dict[str, list[Entry]] = {"Arguments": [], "Options": [], "Commands": []}
    for parameter in command.get_params(context):
        if (each := entry(parameter, context)) is not None:
            found["Arguments" if parameter.param_type_name == "argument" else "Options"].append(
                each
            )
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            found["Commands"].append(Entry(name, (inner.help or "").strip().split("\n")[0]))
    for title, entries in found.items():
        if entries:
            blocks.append("\n".join([_bold(f"{title}:"), *columns(entries, width)]))
    blocks += paragraphs(command.epilog or "", width)
    return "\n\n".join(blocks) + "\n"


def paragraphs(text: str, width: int) -> Iterator[str]:
    """Paragraphs filled to the width; indented lines stay apart, and commands can be pasted."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if not paragraph.startswith(" "):
            filled = textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)
            yield _bold(filled) if filled.endswith(":") and "\n" not in filled else filled
            continue
        lines = []
        for line in paragraph.splitlines():
            start = re.match(r" *(\S+ {2,})?", line)
            assert start is not None
            inset = " " * (start.end() if start[1] else start.end() + 4)
            room, ending = width, "\n"
            if line.lstrip().startswith("convexlift ") and len(line) > width:
                room, ending = width - 2, " \\\n"
            lines.append(
                ending.join(textwrap.wrap(line, room, subsequent_indent=inset, **_WHOLE_WORDS))
            )
        yield "\n".join(lines)


def columns(entries: list[Entry], width: int) -> Iterator[str]:
    """Names on the left, descriptions on the right, or below names that are long."""
    short = [len(each.names) for each in entries if len(each.names) <= LEFT]
    left = max(short, default=LEFT) + 4
    for each in entries:
        lines = textwrap.wrap(each.text, width - left, **_WHOLE_WORDS) or [""]
        names = f"  {each.names}"
        if len(each.names) <= LEFT:
            first, *lines = lines
            yield f"{_bold(names)}{' ' * (left - len(names))}{first}".rstrip()
        else:
            yield _bold(names)
        yield from (f"{' ' * left}{line}" for line in lines)


_WHOLE_WORDS: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}


def _bold(text: str) -> str:
    """Bold on terminals; printed elsewhere, the escape sequences are removed."""
    return typer.style(text, bold=True)


def _write(command: Any, context: Any, formatter: Any) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    formatter.write(help_text(command, context, max(width, 50)))


def _plain_usage(usage: str) -> str:
    """Names of arguments in capitals: versions of Typer write {inputs}, INPUTS or [name]."""
    return re.sub(r"\{(\w+)\}|(\[\w+\])", lambda found: (found[1] or found[2]).upper(), usage)


class Command(TyperCommand):
    """A command with this help text."""

    def get_usage(self, ctx: Any) -> str:
        """The first line of help texts and of errors."""
        return _plain_usage(super().get_usage(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        _write(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands with this help text, which it also prints without arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help text in place of Typer, which expects its own to have been printed."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        _write(self, ctx, formatter)
