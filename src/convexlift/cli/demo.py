"""``convexlift demo``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from convexlift.cli.app import (
    Debug,
    Device,
    JsonFile,
    check_folder,
    check_json_file,
    choose_device,
    computes,
    console,
    one_sentence_errors,
    register,
    write_json,
)


@register("convexlift demo\nconvexlift demo --quick --output demo-quick")
@computes
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
    """Solve three tasks on a built-in picture; half a minute on one core.

    Writes clean, degraded and reconstructed pictures, proofs, convergence plots, a table and
    report.html.
    """
    from rich.progress import TimeElapsedColumn

    from convexlift import demo as work
    from convexlift.cli.terminal import progress, table

    screen = console()
    with one_sentence_errors(debug):
        place = choose_device(device)
        check_folder(output)
        check_json_file(json_file)
        with progress(screen, TimeElapsedColumn()) as update:
            result = work.run_demo(
                work.QUICK if quick else work.DemoOptions(),
                place,
                lambda text, done: update(description=text, completed=done),
            )
        page = work.write_report(result, output)[-1]
        write_json(json_file, work.as_json(result))
        screen.print(table(work.COLUMNS, work.rows(result), left=["Task"]))
        screen.print(work.regularizer_note(result))
        screen.print(f"Report: {page}")
        program = _program()
        commands = [(f"{program} {command}", purpose) for command, purpose in work.NEXT]
        width = max(len(command) for command, _ in commands)
        lines = [
            f"Proofs: check them without the solver by {program} verify {page.parent}/*.proof",
            "\nNext, try",
            *(f"  {command:<{width}}  # {purpose}" for command, purpose in commands),
        ]
        screen.print("\n".join(lines), markup=False, soft_wrap=True)


def _program() -> str:
    """The command to type for this program: its name, or its path if it is not on the PATH."""
    name, path = "convexlift", Path(sys.argv[0])
    if shutil.which(name):
        return name
    return os.path.relpath(path) if path.name == name else f"python -m {name}"
