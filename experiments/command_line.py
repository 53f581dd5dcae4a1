"""Tools of the commands: options, errors that one sentence explains, progress, JSON files.

The launcher, ``convexlift.cli.experiments``, turns the errors into messages and exit codes.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import torch

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write the results to this file.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


class DeviceChoice(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class BadInput(Exception):
    """Something the user can mend: one sentence and a hint."""


def choose_device(choice: DeviceChoice) -> "torch.device":
    """The device asked for, or the best one available."""
    import torch

    if choice is DeviceChoice.cuda and not torch.cuda.is_available():
        raise BadInput("No CUDA device is available here. Use --device cpu or --device auto.")
    if choice is DeviceChoice.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(choice.value)


def make_folder(folder: Path) -> None:
    """Make the folder of ``--output``, or say why it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"--output {folder} cannot be used as a folder ({error.strerror}). Name another one."
        ) from None


def check_json_file(path: Path | None) -> None:
    """Refuse a folder as the file of ``--json``, before any work."""
    if path is not None and path.is_dir():
        raise BadInput(f"--json {path} is a folder. Name a file in it.")


def write_json(path: Path | None, content: Any) -> None:
    """Write the file of ``--json``, if there is one, atomically."""
    if path is not None:
        from convexlift.images import atomic_path  # which imports torch

        with atomic_path(path) as part:
            part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def console() -> Console:
    """Standard output; in a pipe, lines are as long as they need to be."""
    return Console(width=None if sys.stdout.isatty() else 120)


@contextmanager
def progress_bar(screen: Console) -> Iterator[Callable[[str, float, float], None]]:
    """A bar on a terminal, moved by (title, done, total); nothing in a pipe."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=screen, disable=not screen.is_terminal, speed_estimate_period=600
    ) as bar:
        task = bar.add_task("Starting", total=None)
        yield lambda title, done, total: bar.update(
            task, description=title, completed=done, total=total
        )
