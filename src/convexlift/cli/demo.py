"""``convexlift demo``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import convexlift
from convexlift.cli.app import (
    Debug,
    Device,
    JsonFile,
    app,
    check_folder,
    check_json_file,
    choose_device,
    console,
    one_sentence_errors,
    write_json,
)
from convexlift.demo import NEXT, QUICK, Demo, DemoOptions, run_demo
from convexlift.report import COLUMNS, as_json, regularizer_note, rows, write_report


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for pictures and report.")
    ] = Path("demo-output"),
    json_file: JsonFile = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny pictures and a coarser gap.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Three tasks on a picture inside the package; half a minute on one core.

    Writes clean, degraded and reconstructed pictures, proofs, convergence plots, a table and
    report.html.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    screen = console()
    with one_sentence_errors(debug):
        place = choose_device(device)
        check_folder(output)
        check_json_file(json_file)
        result = _run(QUICK if quick else DemoOptions(), place, screen)
        files = write_report(result, output, convexlift.__version__)
        write_json(json_file, as_json(result, convexlift.__version__))
        _show(result, files[-1], screen)


def _run(options: DemoOptions, place: torch.device, screen: Console) -> Demo:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("Starting", total=1.0)
        return run_demo(
            options, place, lambda text, done: bar.update(task, description=text, completed=done)
        )


def _show(result: Demo, page: Path, screen: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "Task" else "right")
    for row in rows(result):
        table.add_row(*row)
    screen.print(table)
    screen.print(regularizer_note(result), highlight=False)
    program = _program()
    screen.print(f"Report: {page}", highlight=False)
    check = f"Proofs: checked, without the solver, by {program} verify {page.parent}/*.proof"
    screen.print(check, highlight=False, markup=False, soft_wrap=True)
    screen.print("\nNext, try", highlight=False)
    width = max(len(command) for command, _ in NEXT)
    for command, purpose in NEXT:
        line = f"  {program} {command:<{width}}  # {purpose}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)


def _program() -> str:
    """What to type for this program: its name, or where it is if no shell would find it."""
    name, path = "convexlift", Path(sys.argv[0])
    if shutil.which(name):
        return name
    return os.path.relpath(path) if path.name == name else f"python -m {name}"
