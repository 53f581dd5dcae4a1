"""``convexlift benchmark``. Modules that take long to import are imported where they are used."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import convexlift as cl
from experiments.catalogue import QUICK_CASES, QUICK_SIZE, SIZE, BenchmarkSettings
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
    from experiments.benchmark.bench import Request
    from experiments.benchmark.cases import Case
    from experiments.benchmark.results import Results, Row

    Compared = tuple[Mapping[str, Case], Mapping[str, cl.NamedMethod]]


def _unless_given(name: str) -> str:
    """The value of an option that is left out, for its help."""
    values = []
    for settings in (BenchmarkSettings(), BenchmarkSettings.quick()):
        value = getattr(settings, name)
        each = value if isinstance(value, tuple) else (value,)
        values.append(",".join(f"{number:g}" for number in each))
    usual, quick = values
    return f"{usual} unless given" + (f", {quick} with --quick." if quick != usual else ".")


def benchmark_command(
    case_names: Sequence[str], method_names: Sequence[str], load: "Callable[[], Compared]"
) -> Callable[..., None]:
    """The command for some cases and methods: their names, and a function that imports them."""

    def benchmark(
        tasks: Annotated[
            str | None,
            typer.Option(
                help=f"Some of {', '.join(case_names)}; all unless given, "
                f"{len(QUICK_CASES)} with --quick."
            ),
        ] = None,
        methods: Annotated[
            str | None, typer.Option(help=f"Some of {', '.join(method_names)}; all unless given.")
        ] = None,
        images: Annotated[
            Path | None, typer.Option(help="Folder of clean pictures; else those in the package.")
        ] = None,
        mask: Annotated[
            Path | None, typer.Option(help="A mask for inpainting; white pixels are kept.")
        ] = None,
        count: Annotated[
            int | None, typer.Option(help=f"Images to measure; {_unless_given('count')}")
        ] = None,
        batch: Annotated[
            str | None, typer.Option(help=f"Batch sizes, such as 1,4; {_unless_given('batches')}")
        ] = None,
        tolerances: Annotated[
            str | None,
            typer.Option(help=f"Accuracies of objective and gap; {_unless_given('tolerances')}"),
        ] = None,
        repeats: Annotated[
            int | None,
            typer.Option(help=f"Timed runs of each measurement; {_unless_given('repeats')}"),
        ] = None,
        max_iterations: Annotated[
            int | None, typer.Option(help=f"Limit of each run; {_unless_given('max_iterations')}")
        ] = None,
        seconds: Annotated[
            float | None, typer.Option(help=f"Limit of each run; {_unless_given('seconds')}")
        ] = None,
        size: Annotated[
            int | None,
            typer.Option(
                help="Side of the pictures, where the regularizer allows it; "
                f"{SIZE} unless given, {QUICK_SIZE} with --quick."
            ),
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of noise, masks and untrained networks.")] = 0,
        output: Annotated[
            Path, typer.Option("--output", "-o", help="Folder for results and plots.")
        ] = Path("benchmark-output"),
        quick: Annotated[
            bool, typer.Option("--quick", help="Small pictures and few tolerances; minutes.")
        ] = False,
        device: Annotated[DeviceChoice, typer.Option(help="Where to compute.")] = DeviceChoice.auto,
        json_file: JsonFile = None,
        debug: Debug = False,
    ) -> None:
        """Compare methods: iterations and seconds to each accuracy.

        Lists are separated by commas. Writes benchmark.json and benchmark.csv whenever a method is
        done, and a plot for each task at the end.
        """
        from experiments.benchmark.bench import Request
        from experiments.benchmark.cases import choose_images, example_images, folder_images

        screen = console()
        check_json_file(json_file)
        all_cases, all_methods = load()
        changes: dict[str, Any] = {
            "count": count, "repeats": repeats, "max_iterations": max_iterations,
            "seconds": seconds, "seed": seed,
            "batches": _numbers("--batch", batch, int),
            "tolerances": _numbers("--tolerances", tolerances, float),
        }  # fmt: skip
        quick_tasks = [name for name in all_cases if name in QUICK_CASES]
        names = _choice("--methods", methods, all_methods, all_methods)
        chosen = _choice("--tasks", tasks, all_cases, quick_tasks if quick else list(all_cases))
        try:
            settings = replace(
                BenchmarkSettings.quick() if quick else BenchmarkSettings(),
                **{name: value for name, value in changes.items() if value is not None},
            )
            pictures = example_images() if images is None else folder_images(images, settings.count)
            choose_images(pictures, settings.count, 16)  # are there enough?
            cases = _checked_cases([all_cases[name] for name in chosen], size, mask, quick)
        except (ValueError, ImportError) as error:
            raise BadInput(f"{error}.") from error
        request = Request(
            cases, [all_methods[name] for name in names],
            partial(choose_images, pictures, settings.count), settings, choose_device(device),
            _side(size, quick),
        )  # fmt: skip
        make_folder(output)
        _finish(_run(request, output, json_file, screen), output, json_file, screen)

    return benchmark


def _side(size: int | None, quick: bool) -> int:
    return size if size is not None else QUICK_SIZE if quick else SIZE


def _checked_cases(
    cases: "list[Case]", size: int | None, mask: Path | None, quick: bool
) -> "list[Case]":
    """The cases with their mask, if their sizes fit ``--size`` and ``--mask``."""
    side = _side(size, quick)
    if side < 16 or side % 16:
        raise BadInput(f"--size must be a multiple of 16, got {side}.")
    for case in cases:
        only = case.only_size
        if size is not None and only not in (None, size):
            raise BadInput(
                f"{case.name} is for pictures of {only} x {only} only: leave --size out."
            )
    return cases if mask is None else _with_mask(cases, mask, side)


def _run(request: "Request", output: Path, json_file: Path | None, screen: Console) -> "Results":
    from experiments.benchmark.bench import run_benchmark
    from experiments.benchmark.results import Results

    command = f"convexlift {shlex.join(sys.argv[1:])}"
    results = Results(request.about(version=cl.__version__, command=command))
    try:
        with progress_bar(screen) as show:
            return run_benchmark(
                request, results, lambda text, done: show(text, done, 1.0),
                keep=lambda now: now.write(output),
            )  # fmt: skip
    except KeyboardInterrupt:
        if not results.rows:
            raise
        _finish(results, output, json_file, screen)
        raise KeyboardInterrupt(
            f"Interrupted; the {len(results.rows)} rows measured so far are in {output}."
        ) from None


def _finish(results: "Results", output: Path, json_file: Path | None, screen: Console) -> None:
    from experiments.benchmark.results import write_plots

    results.write(output)
    files = write_plots(results, output)
    write_json(json_file, results.as_plain())
    for task in dict.fromkeys(row.task for row in results.rows):
        screen.print(table(task, [row for row in results.rows if row.task == task]))
    for choice in results.choices:
        edge = ", at the edge of the grid" if choice.at_edge else ""
        screen.print(
            f"{choice.task}: {choice.method} has {choice.steps}, the best of {choice.candidates} "
            f"on another picture{edge}.",
            highlight=False,
        )
    for sentence in results.notes:
        screen.print(sentence, highlight=False, markup=False)
    names = ["benchmark.csv", *(file.name for file in files)]
    screen.print(f"Results: {output / 'benchmark.json'}, {', '.join(names)}", highlight=False)


def table(task: str, rows: "Sequence[Row]") -> Table:
    """Iterations and seconds (least to largest) of every method; the fastest in bold."""
    from experiments.benchmark.results import ERROR

    result = Table(title=task, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("Accuracy")
    result.add_column("Batch", justify="right")
    names = list(dict.fromkeys(row.method for row in rows))
    for name in names:
        result.add_column(name, justify="right")
    lines: dict[tuple[str, float, int], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.measure, row.tolerance, row.batch), {})[row.method] = row
    for (measure, tolerance, batch), cells in sorted(
        lines.items(), key=lambda item: (item[0][0] != ERROR, -item[0][1], item[0][2])
    ):
        best = min((row.seconds for row in cells.values() if row.seconds is not None), default=None)
        short = "error" if measure == ERROR else "gap"
        result.add_row(
            f"{short} {tolerance:g}",
            str(batch),
            *(_cell(cells[name], best) if name in cells else "" for name in names),
        )
    return result


def _cell(row: "Row", best: float | None) -> str:
    if row.iterations is None or row.seconds is None:
        return "" if row.reached == 0 else f"{row.reached}/{row.images} images"
    high = "" if row.seconds_max is None else _short(row.seconds_max)
    text = f"{row.iterations:g} it.\n{_short(row.seconds)} s"
    if row.seconds_min is not None:
        text += f"\n{_short(row.seconds_min)}-{high}"
    return f"[bold]{text}[/bold]" if row.seconds == best else text


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"


def _choice(
    option: str, text: str | None, known: Mapping[str, Any], unless_given: Iterable[str]
) -> list[str]:
    if text is None:
        return list(unless_given)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for i, name in enumerate(names):
        if name not in known:
            raise BadInput(f"{option} knows no {name!r}. Choose among {', '.join(known)}.")
        if name in names[:i]:
            raise BadInput(f"{option} names {name} twice.")
    if not names:
        raise BadInput(f"{option} is empty. Choose among {', '.join(known)}.")
    return names


def _numbers(
    option: str, text: str | None, kind: Callable[[str], float]
) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadInput(f"{option} takes numbers with commas between them, got {text!r}.") from None


def _with_mask(cases: "list[Case]", path: Path, side: int) -> "list[Case]":
    from convexlift.images import load_image
    from convexlift.tasks import Inpainting

    about_masks = [case for case in cases if isinstance(case.task, Inpainting)]
    if not about_masks:
        raise BadInput("--mask is for inpainting, which none of the tasks does. Leave it out.")
    mask = (load_image(path)[0, 0] >= 0.5).float()
    for case in about_masks:
        size = case.size(side)
        if tuple(mask.shape) != (size, size):
            raise BadInput(
                f"--mask is {mask.shape[0]} x {mask.shape[1]}, but the pictures of {case.name} "
                f"are {size} x {size}. Give another mask, or another --size."
            )
    return [case.with_mask(mask) for case in cases]
