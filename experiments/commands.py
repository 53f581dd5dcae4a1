"""``convexlift reproduce``, and all commands that ``convexlift.cli.experiments`` registers.

Modules that take long to import are imported where they are used: help texts need none of them.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.benchmark.command import benchmark_command
from experiments.catalogue import ALL, CASES, HEADINGS, METHODS, Heading
from experiments.command_line import (
    BadInput,
    Debug,
    DeviceChoice,
    JsonFile,
    check_json_file,
    choose_device,
    console,
    make_folder,
    progress_bar,
    write_json,
)

if TYPE_CHECKING:
    from experiments.benchmark.command import Compared
    from experiments.document import Document
    from experiments.runner import Experiment, Study
    from experiments.runner.jobs import Load


def reproduce_command(headings: Mapping[str, Heading], load: "Load") -> Callable[..., None]:
    """The command for some experiments: their headings, and a function that imports them."""
    Name = StrEnum("Name", {name: name for name in (*headings, ALL)})  # type: ignore[misc]
    choices = "; ".join(f"{h.name}: {h.title} ({h.section})" for h in headings.values())
    choices += f"; {ALL}: all of them, and one page with every number of the paper"

    def reproduce(
        name: Annotated[Name, typer.Argument(help=f"{choices}.", metavar="NAME")],
        data: Annotated[
            Path | None,
            typer.Option(
                help="Folder with faces/test and ct/test. Unless given: the environment variable "
                "CONVEXLIFT_DATA, then images inside the package."
            ),
        ] = None,
        authors: Annotated[
            Path | None,
            typer.Option(
                help="Your copy of the authors' repository, github.com/hsw43/icnn_primal_dual: its "
                "slice is reconstructed, and its weights are used. Unless given: paper-ct in the "
                "data folder."
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
        device: Annotated[DeviceChoice, typer.Option(help="Where to compute.")] = DeviceChoice.auto,
        seed: Annotated[int, typer.Option(min=0, help="Seed of noise and masks.")] = 0,
        draw: Annotated[
            bool,
            typer.Option(
                "--draw", help="Compute nothing; write the report of the parts in --output again."
            ),
        ] = False,
        jobs: Annotated[
            int,
            typer.Option(
                min=1,
                help="Processes side by side, for a GPU that one does not keep busy. Times are "
                "measured alone, afterwards.",
            ),
        ] = 1,
        force: Annotated[
            bool,
            typer.Option(
                "--force",
                help="Replace finished parts of another run, which are kept unless given.",
            ),
        ] = False,
        json_file: JsonFile = None,
        debug: Debug = False,
    ) -> None:
        """Repeat experiments of the paper, its numbers beside ours.

        Writes report.html, with every figure as PNG and SVG and every table as CSV and Markdown.
        Finished parts are kept in the folder, so that an interrupted run resumes from them; those
        of a run with other options are not replaced without --force.
        """
        from experiments.authors import find_authors
        from experiments.images import find_data
        from experiments.overview import overview
        from experiments.runner import Study
        from experiments.runner.parts import finite
        from experiments.runner.report import results, write
        from experiments.runner.run import NotComputed, finished_parts

        screen = console()
        experiments = load()
        check_json_file(json_file)
        folder = output or Path(f"reproduce-{name}{'-quick' if quick else ''}")
        study = None
        if not draw:
            try:
                found = find_data(data)
                released = find_authors(authors, found)
            except ValueError as error:
                raise BadInput(f"{error}.") from None
            study = Study(quick, seed, choose_device(device), found, released)
        everything = str(name) == ALL
        names = list(experiments) if everything else [str(name)]
        folders = {each: folder / each if everything else folder for each in names}
        if study is not None and jobs > 1:
            _compute(load, folders, study, screen, jobs, force)
        documents, contents = {}, []
        for each, place in folders.items():
            experiment = experiments[each]
            if study is not None and jobs == 1:
                _compute(load, {each: place}, study, screen, jobs, force)
            try:
                parts, run = finished_parts(experiment, place)
            except NotComputed as error:
                raise BadInput(str(error)) from None
            document = documents[each] = experiment.report(parts, experiment.settings(run["quick"]))
            contents.append(content := results(document, run, parts))
            files = write(document, place, content)
            _show(experiment.title, document, files[-1], screen)
        if everything:
            page = overview(documents)
            seconds = sum(each["seconds"] for each in contents)
            content = {**content, "experiment": ALL, "seconds": seconds, "comparisons": []}
            content |= finite(page.results)
            screen.print(f"All experiments: {write(page, folder, content)[-1]}", highlight=False)
        write_json(json_file, content)

    return reproduce


def _compute(
    load: "Load",
    folders: Mapping[str, Path],
    study: "Study",
    screen: Console,
    jobs: int,
    force: bool,
) -> None:
    from experiments.runner.jobs import compute_all
    from experiments.runner.run import OtherRun

    for folder in folders.values():
        make_folder(folder)
    try:
        with progress_bar(screen) as show:
            compute_all(load, folders, study, jobs, show, force=force)
    except OtherRun as error:
        raise BadInput(str(error)) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "Interrupted; finished parts are kept, and the same command resumes from there."
        ) from None


def _show(title: str, document: "Document", page: Path, screen: Console) -> None:
    content = document.comparison_table
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [i for i, name in enumerate(content.columns) if name != "In the paper"]
    for i in shown:
        text = content.columns[i] in ("Quantity", "Remark")
        table.add_column(content.columns[i], justify="left" if text else "right")
    for row in content.rows:
        table.add_row(*(row[i] for i in shown))
    screen.print(table)
    for paragraph in document.summary:
        screen.print(f"{paragraph}\n", highlight=False, markup=False)
    screen.print(f"Report: {page}", highlight=False)


def _experiments() -> "Mapping[str, Experiment[Any]]":
    from experiments.registry import EXPERIMENTS

    return EXPERIMENTS


def _compared() -> "Compared":
    import convexlift as cl
    from experiments.benchmark import cases

    return cases.CASES, cl.METHODS


reproduce = reproduce_command(HEADINGS, _experiments)
benchmark = benchmark_command(CASES, METHODS, _compared)
