"""``convexlift reproduce``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from convexlift.cli.app import (
    Debug,
    Device,
    Interrupted,
    JsonFile,
    check_folder,
    check_json_file,
    choose_device,
    console,
    one_sentence_errors,
    write_json,
)
from convexlift.cli.app import (
    UserError as BadInput,
)
from experiments.data import find_data
from experiments.document import Document
from experiments.experiments import EXPERIMENTS
from experiments.running import NotComputed, OtherRun, compute, finished_parts
from experiments.steps import Report
from experiments.study import Experiment, Study
from experiments.tables import comparison_table
from experiments.writing import results, write

Name = StrEnum("Name", {name: name for name in EXPERIMENTS})  # type: ignore[misc]

CHOICES = "; ".join(f"{each.name}: {each.title} ({each.section})" for each in EXPERIMENTS.values())


def reproduce(
    name: Annotated[Name, typer.Argument(help=f"{CHOICES}.", metavar="NAME")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with faces/test and ct/test. Unless given: the environment variable "
            "CONVEXLIFT_DATA, then ../shared/data, then images inside the package."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and iterations; minutes on two cores.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for parts and report; reproduce-NAME unless given."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    seed: Annotated[int, typer.Option(min=0, help="Of noise and masks.")] = 0,
    draw: Annotated[
        bool,
        typer.Option(
            "--draw", help="Compute nothing; write the report of the parts in --output again."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace finished parts of another run, which are kept unless given."
        ),
    ] = False,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """One experiment of the paper, its numbers beside the paper's.

    Writes report.html, with every figure as PNG and SVG and every table as CSV and Markdown.
    Finished parts are kept in the folder, so that an interrupted run goes on where it was; those
    of a run with other options are not replaced without --force.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    screen = console()
    experiment = EXPERIMENTS[str(name)]
    with one_sentence_errors(debug):
        check_json_file(json_file)
        folder = output or Path(f"reproduce-{experiment.name}{'-quick' if quick else ''}")
        if not draw:
            try:
                found = find_data(data)
            except ValueError as error:
                raise BadInput(f"{error}.") from None
            study = Study(quick, seed, choose_device(device), found)
            check_folder(folder)
            _compute(experiment, study, folder, screen, force)
        try:
            parts, run = finished_parts(experiment, folder)
        except NotComputed as error:
            raise BadInput(str(error)) from None
        document = experiment.report(parts)
        content = results(document, run, parts)
        files = write(document, folder, content)
        write_json(json_file, content)
        _show(experiment, document, files[-1], screen)


def _compute(
    experiment: Experiment, study: Study, folder: Path, screen: Console, force: bool
) -> None:
    try:
        with _progress(screen) as report:
            compute(experiment, study, folder, report, force=force)
    except OtherRun as error:
        raise BadInput(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted; finished parts are kept in {folder / 'parts'}, and the same command "
            "goes on from there."
        ) from None


@contextmanager
def _progress(screen: Console) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=screen, disable=not screen.is_terminal, speed_estimate_period=600
    ) as bar:
        task = bar.add_task("Starting", total=None)

        yield lambda now: bar.update(
            task, description=now.title, completed=now.done, total=now.total
        )


def _show(experiment: Experiment, document: Document, page: Path, screen: Console) -> None:
    content = comparison_table(document.comparisons)
    table = Table(title=experiment.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [i for i, name in enumerate(content.columns) if name != "In the paper"]
    for i in shown:
        text = content.columns[i] in ("Quantity", "Verdict")
        table.add_column(content.columns[i], justify="left" if text else "right")
    for row in content.rows:
        table.add_row(*(row[i] for i in shown))
    screen.print(table)
    for paragraph in document.summary:
        screen.print(f"{paragraph}\n", highlight=False, markup=False)
    screen.print(f"Report: {page}", highlight=False)
