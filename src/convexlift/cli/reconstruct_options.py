"""Options of ``convexlift reconstruct``: the library's, with its defaults and descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

import typer

from convexlift.cli.app import Debug, Device, UserError
from convexlift.models.files import names
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.scans.volumes import WINDOWS, Window

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")

PLACES: dict[str, Any] = {
    "inputs": Annotated[
        list[str], typer.Argument(help="Files, folders, or globs in quotes.", show_default=False)
    ],
    "output": Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A file for one input file, else a folder.", show_default=False
        ),
    ],
}
OF_RUNS: dict[str, tuple[Any, Any]] = {
    "proof": (False, Annotated[bool, typer.Option(
        "--proof", help="Also write NAME.proof, for convexlift verify.")]),
    "force": (False, Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]),
    "resume": (False, Annotated[bool, typer.Option(
        "--resume",
        help="After a killed run: keep its finished results, and do only the missing ones.")]),
    "json_file": (None, Annotated[str | None, typer.Option(
        "--json", help="Also write all results to this file; - for standard output.")]),
    "debug": (False, Debug),
}  # fmt: skip
"""Options of the command line alone, with their defaults."""

TYPES: dict[str, Any] = {
    "regularizer": str, "weight": str | None, "batch": str, "range": str, "rows": str | None,
    "window": str, "device": Device, "truth": Path | None, "mask": Path | None,
    "flat": str | None, "dark": str | None,
}  # fmt: skip
"""Types on the command line, where the library's are richer."""

MORE: dict[str, dict[str, Any]] = {
    "regularizer": {"autocompletion": lambda: [*names(), "tv"]},
    "mask_colour": {"param_decls": ("--mask-colour", "--mask-color")},
    "colour_tolerance": {"param_decls": ("--colour-tolerance", "--color-tolerance")},
    "gap_map": {"help": "Also write NAME.gap.npy and .png: a map of the gap."},
}
"""Further arguments of ``typer.Option``."""


def signature(kind: type[Reconstructor]) -> inspect.Signature:
    """The options of a task as a signature, which typer reads."""
    hints, texts = get_type_hints(kind), descriptions(kind)
    found: dict[str, tuple[Any, Any]] = {
        name: (Parameter.empty, annotation) for name, annotation in PLACES.items()
    }
    for option in fields(kind):
        name, default = option.name, option.default
        if name in kind.python_only or name == "geometry":
            continue
        hint = TYPES.get(name, hints[name])
        flags = (f"--{name.replace('_', '-')}",) if hint is bool else ()
        more = {"help": texts[name], "param_decls": flags} | MORE.get(name, {})
        info = typer.Option(*more.pop("param_decls"), **more)
        found[name] = (Device.auto if name == "device" else default, Annotated[hint, info])
    return inspect.Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (default, annotation) in (found | OF_RUNS).items()
        ]
    )


def descriptions(kind: type[Reconstructor]) -> dict[str, str]:
    """The descriptions of options, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        arguments = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", arguments, re.M | re.S):
            sentence = " ".join(text.replace("``", "").split())
            found[name] = sentence[0].upper() + sentence[1:]
    return found


def read_numbers(
    text: str | None, separator: str | None, kind: type[float] | type[int] = float
) -> Any:
    """One number, or several between separators; other text is left to the library to refuse."""
    try:
        parts = [text or ""] if separator is None else (text or "").split(separator)
        values = tuple(kind(part) for part in parts)
    except ValueError:
        return text
    return values[0] if len(values) == 1 else values


def read_window(text: str) -> Window | str:
    """The name of a window, or LEVEL,WIDTH."""
    values = read_numbers(text, ",")
    if text in WINDOWS or not isinstance(values, tuple) or len(values) != 2:
        return text
    return checked(Window, *values)


READERS: dict[str, Callable[[Any], Any]] = {
    "weight": lambda text: read_numbers(text, None),
    "batch": lambda text: read_numbers(text, None, int),
    "range": lambda text: read_numbers(text, ","),
    "rows": lambda text: read_numbers(text, ":", int),
    "window": read_window,
}
"""Parsers of option values, by the name of the option."""


def checked(
    make: Callable[Arguments, Made], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Made:
    """The result of the call; errors in options and files become messages for the user."""
    try:
        return make(*arguments, **options)
    except (ValueError, ImportError) as error:
        raise UserError(f"{error}.") from error
