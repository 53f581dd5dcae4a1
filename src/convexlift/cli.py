"""The command line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import convexlift
from convexlift.demo import QUICK, Demo, DemoOptions, run_demo
from convexlift.images import atomic_path
from convexlift.report import COLUMNS, as_json, rows, training_note, write_report

app = typer.Typer(
    help="Image reconstruction with learned convex regularizers, and a proof with every image.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class UserError(Exception):
    """Something the user can mend: one sentence and a hint."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convexlift {convexlift.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Image reconstruction with learned convex regularizers, and a proof with every image."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for pictures and report.")] = Path(
        "demo-output"
    ),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the results to this file.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny pictures and hardly any training.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Three tasks on a picture inside the package; about a minute on two cores.

    Writes clean, degraded and reconstructed pictures, convergence plots, a table and report.html.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    # In a pipe, lines are as long as they need to be.
    console = Console(width=None if sys.stdout.isatty() else 120)
    with one_sentence_errors(debug):
        place = _device(device)
        _check_folder(output)
        if json_file is not None and json_file.is_dir():
            raise UserError(f"--json {json_file} is a folder. Name a file in it.")
        result = _run(QUICK if quick else DemoOptions(), place, console)
        files = write_report(result, output, convexlift.__version__)
        if json_file is not None:
            with atomic_path(json_file) as part:
                text = json.dumps(as_json(result, convexlift.__version__), indent=2)
                part.write_text(text + "\n", encoding="utf-8")
        _show(result, files[-1], console)


@contextlib.contextmanager
def one_sentence_errors(debug: bool) -> Iterator[None]:
    """A sentence and an exit status instead of a traceback, unless ``debug``."""
    try:
        yield
    except BaseException as error:
        if debug:
            raise
        if isinstance(error, UserError):
            message, status = str(error), BAD_INPUT
        elif isinstance(error, KeyboardInterrupt):
            message, status = "Interrupted; nothing was written.", INTERRUPTED
        else:
            message = f"{type(error).__name__}: {error}. Use --debug for details."
            status = FAILURE
        typer.echo(f"convexlift: {message}", err=True)
        raise typer.Exit(status) from None


def _run(options: DemoOptions, place: torch.device, console: Console) -> Demo:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Starting", total=1.0)
        return run_demo(
            options, place, lambda text, done: bar.update(task, description=text, completed=done)
        )


def _show(result: Demo, page: Path, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "Task" else "right")
    for row in rows(result):
        table.add_row(*row)
    console.print(table)
    console.print(training_note(result), highlight=False)
    console.print(f"Report: {page}", highlight=False)


def _device(choice: Device) -> torch.device:
    if choice is Device.cuda and not torch.cuda.is_available():
        raise UserError("No CUDA device is available here. Use --device cpu or --device auto.")
    if choice is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(choice.value)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output {folder} cannot be used as a folder ({error.strerror}). Name another one."
        ) from None
