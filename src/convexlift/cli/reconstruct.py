"""``convexlift reconstruct denoise|inpaint|ct``, with the library's options and defaults.

Nothing here imports torch, so that help texts appear at once.
"""

from __future__ import annotations

import glob
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from convexlift.cli.app import (
    Debug,
    Device,
    computes,
    fraction,
    group_of_commands,
    one_sentence_errors,
    with_options,
)
from convexlift.cli.help_text import Command, Group, epilog
from convexlift.models.files import names
from convexlift.reconstruction.options import OPTIONS, Options

EXAMPLES = {
    "denoise": """\
convexlift reconstruct denoise noisy.jpg -o clean.jpg
convexlift reconstruct denoise photos -o denoised --sigma 0.1 --json all.json
convexlift reconstruct denoise photos -o denoised --scheduler 'local[4]' --table all.parquet
convexlift reconstruct denoise scan.dcm -o clean.dcm --dry-run""",
    "inpaint": """\
convexlift reconstruct inpaint scratched.png -o whole.png --mask-colour '#ff00ff'
convexlift reconstruct inpaint photo.png -o whole.png --mask mask.png --invert-mask
convexlift reconstruct inpaint cells.tif -o filled.tif --weight auto""",
    "ct": """\
convexlift reconstruct ct scan.h5 -o slice.dcm
convexlift reconstruct ct scan.npy -o slice.tif --beam parallel --quantity counts --flat flat.npy
convexlift reconstruct ct slice.dcm -o again.tif --simulate""",
}
ABOUT = """\
Reconstruct your own files, with a proof beside each result.

Without a task, it examines the files and prints the command for them; nothing is written."""

FILES: dict[str, tuple[Any, Any]] = {
    "inputs": (Parameter.empty, Annotated[list[str], typer.Argument(
        help="Files, folders, or globs in quotes.", show_default=False)]),
    "output": (Parameter.empty, Annotated[Path, typer.Option(
        "--output", "-o", help="A file for one input file, else a folder.",
        show_default=False)]),
}  # fmt: skip
RUN: dict[str, tuple[Any, Any]] = {
    "proof": (False, Annotated[bool, typer.Option(
        "--proof", help="Also write NAME.proof, for convexlift verify.")]),
    "dry_run": (False, Annotated[bool, typer.Option(
        "--dry-run", help="Say what would be done, and write nothing.")]),
    "force": (False, Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]),
    "resume": (False, Annotated[bool, typer.Option(
        "--resume",
        help="After a killed run: keep its finished results, and do only the others.")]),
    "scheduler": (None, Annotated[str | None, typer.Option(
        "--scheduler",
        help="Reconstruct on the workers of this Dask scheduler, tcp://HOST:8786, or on local[N]: "
        "N processes of this machine.")]),
    "table": (None, Annotated[Path | None, typer.Option(
        "--table",
        help="Also write gap, status, time and error of every file to this .parquet or .csv.")]),
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
"""Types on the command line, where the library accepts more."""

MORE: dict[str, dict[str, Any]] = {
    "regularizer": {"autocompletion": lambda: [*names(), "tv"]},
    "mask_colour": {"param_decls": ("--mask-colour", "--mask-color")},
    "colour_tolerance": {"param_decls": ("--colour-tolerance", "--color-tolerance")},
    "sigma": {"parser": fraction, "metavar": "FLOAT"},
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
            # Typer would add a flag --no-... to a boolean option without an explicit name.
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

    return computes(with_options(command, FILES | task_options(OPTIONS[task]) | RUN))


class Tasks(Group):
    """The tasks; files in place of a task are examined."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--dry-run`` before the files, too."""
        return super().parse_args(ctx, [*args[1:], *args[:1]] if args[:1] == [DRY_RUN] else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the task, or the hidden one that examines files."""
        first = Path(args[0] if args else "")
        # A name with an ending is a file, even if it does not exist: then the error says so.
        named = first.exists() or glob.glob(str(first)) or first.suffix
        if str(first) not in self.commands and named:
            return LOOK, self.commands[LOOK], args
        return super().resolve_command(ctx, args)


LOOK, DRY_RUN = "look", "--dry-run"
group = group_of_commands(
    "reconstruct",
    ABOUT,
    "convexlift reconstruct noisy.jpg\n"
    + "\n".join(text.splitlines()[0] for text in EXAMPLES.values()),
    Tasks,
)


@group.command(LOOK, hidden=True, cls=Command)
def look_at(
    inputs: list[str],
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    dry_run: Annotated[bool, typer.Option(DRY_RUN)] = False,
    debug: Debug = False,
) -> None:
    """Examine files, and print the command for them."""
    from convexlift.cli.look import look

    with one_sentence_errors(debug):
        look(inputs, None if dry_run else output)


for _task, _kind in OPTIONS.items():
    _about = inspect.cleandoc(_kind.__doc__ or "").partition("\n\nArgs:")[0]
    group.command(_task, cls=Command, help=_about, epilog=epilog(EXAMPLES[_task]))(_command(_task))
