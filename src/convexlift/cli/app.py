"""What all commands share: the application, errors in one sentence, devices, JSON files."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import convexlift
from convexlift.images import atomic_path

app = typer.Typer(
    help="Image reconstruction with learned convex regularizers, and a proof with every image.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write the results to this file.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class UserError(Exception):
    """Something the user can mend: one sentence and a hint."""


class Failed(Exception):
    """What was done could not be said or written in full: one sentence and a hint."""


class Interrupted(Exception):
    """The user ended it: what there is now, and how to go on."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convexlift {convexlift.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Image reconstruction with learned convex regularizers, and a proof with every image."""


@contextlib.contextmanager
def one_sentence_errors(debug: bool, *, quiet: bool = False) -> Iterator[None]:
    """A sentence and an exit status instead of a traceback, unless ``debug``.

    ``quiet`` leaves the sentence to another process, except for failures of this one.
    """
    try:
        yield
    except typer.Exit:
        raise  # a status that was decided on
    except BaseException as error:
        if debug and not isinstance(error, Interrupted | Failed):
            raise
        if isinstance(error, UserError):
            message, status = str(error), BAD_INPUT
        elif isinstance(error, Interrupted):
            message, status = str(error), INTERRUPTED
        elif isinstance(error, Failed):
            message, status = str(error), FAILURE
        elif isinstance(error, KeyboardInterrupt):
            message, status = "Interrupted; nothing was written.", INTERRUPTED
        else:
            message = f"{type(error).__name__}: {error}. Use --debug for details."
            status = FAILURE
        if not quiet or status == FAILURE:
            typer.echo(f"convexlift: {message}", err=True)
        raise typer.Exit(status) from None


def console() -> Console:
    """Standard output; in a pipe, lines are as long as they need to be."""
    return Console(width=None if sys.stdout.isatty() else 120)


def choose_device(choice: Device) -> torch.device:
    """The device asked for, or the best one there is."""
    if choice is Device.cuda and not torch.cuda.is_available():
        raise UserError("No CUDA device is available here. Use --device cpu or --device auto.")
    if choice is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(choice.value)


def check_folder(folder: Path) -> None:
    """Make the folder of ``--output``, or say why it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output {folder} cannot be used as a folder ({error.strerror}). Name another one."
        ) from None


def check_json_file(path: Path | None) -> None:
    """Refuse a folder as the file of ``--json``, before any work."""
    if path is not None and path.is_dir():
        raise UserError(f"--json {path} is a folder. Name a file in it.")


def write_json(path: Path | None, content: Any) -> None:
    """Write the file of ``--json``, if there is one; never half of it."""
    if path is not None:
        with atomic_path(path) as part:
            part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
