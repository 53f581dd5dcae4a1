"""``convexlift reconstruct denoise|inpaint|ct|mri``, with the library's options and defaults.

Nothing here imports torch, so that help texts appear at once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from convexlift.cli.app import Debug, Device, app, with_options
from convexlift.models.files import names
from convexlift.reconstruction.options import OPTIONS, Options

STATUSES = (
    "Exit status: 0 all files done, 1 some files failed (they are listed, the others are done), "
    "2 bad usage (nothing was done), 130 interrupted (finished files, and the best image of the "
    "current one, are kept)."
)

FILES: dict[str, tuple[Any, Any]] = {
    "inputs": (Parameter.empty, Annotated[list[str], typer.Argument(
        help="Files, folders, or globs in quotes.", show_default=False)]),
    "output": (Parameter.empty, Annotated[Path, typer.Option(
        "--output", "-o", help="A file for one input file, else a folder.", show_default=False)]),
}  # fmt: skip
RUN: dict[str, tuple[Any, Any]] = {
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
"""Defaults and annotations of the options that only the command line has."""

TYPES: dict[str, Any] = {
    "regularizer": str, "weight": str | None, "batch": str, "range": str, "rows": str | None,
    "slices": str | None, "window": str, "tiles": str, "device": Device, "truth": Path | None,
    "mask": Path | None, "flat": str | None, "dark": str | None,
}  # fmt: skip
"""Types on the command line, where the library's are richer."""

MORE: dict[str, dict[str, Any]] = {
    "regularizer": {"autocompletion": lambda: [*names(), "tv"]},
    "mask_colour": {"param_decls": ("--mask-colour", "--mask-color")},
    "colour_tolerance": {"param_decls": ("--colour-tolerance", "--color-tolerance")},
    "gap_map": {"help": "Also write NAME.gap.npy and .png: a map of the gap."},
    "weight_map": {
        "help": "Also write NAME.weights.npy and .png: how strongly a regularizer that reads the "
        "data smooths at each pixel; bright: smoothed strongly, dark: detail kept."
    },
}
"""Further arguments of ``typer.Option``."""


def task_options(kind: type[Options]) -> dict[str, tuple[Any, Any]]:
    """Defaults and annotations of the library's options, for Typer."""
    found: dict[str, tuple[Any, Any]] = {}
    texts = descriptions(kind)
    for option in fields(kind):
        name = option.name
        if name not in kind.python_only:
            hint = TYPES.get(name, option.type)
            # Typer would add a flag --no-... to a boolean option without a name of its own.
            flags = (f"--{name.replace('_', '-')}",) if hint is bool else ()
            more = {"help": texts[name], "param_decls": flags} | MORE.get(name, {})
            info = typer.Option(*more.pop("param_decls"), **more)
            default = Device.auto if name == "device" else option.default
            found[name] = default, Annotated[hint, info]
    return found


def descriptions(kind: type[Options]) -> dict[str, str]:
    """The descriptions of options, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        arguments = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", arguments, re.M | re.S):
            sentence = " ".join(text.replace("``", "").split())
            found[name] = sentence[0].upper() + sentence[1:]
    return found


def _command(task: str) -> Callable[..., None]:
    def command(**given: Any) -> None:
        from convexlift.cli.reconstruct_job import run_job

        own = {name: given.pop(name) for name in (*FILES, *RUN)}
        run_job(task, given, **own)

    return with_options(command, FILES | task_options(OPTIONS[task]) | RUN)


group = typer.Typer(
    help=f"Reconstruct your own files, with a proof beside each result.\n\n{STATUSES}",
    no_args_is_help=True,
)
app.add_typer(group, name="reconstruct")
for _task, _kind in OPTIONS.items():
    _about = inspect.cleandoc(_kind.__doc__ or "").partition("\n\nArgs:")[0]
    group.command(_task, help=_about, epilog=STATUSES)(_command(_task))
