"""Compare methods: iterations and seconds to each accuracy.

    python -m experiments.benchmark --quick

Lists are separated by commas. Writes benchmark.json and benchmark.csv whenever a method is done,
and a plot for each task at the end.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import Inpainting
from experiments.benchmark.bench import Request, run_benchmark
from experiments.benchmark.cases import (
    CASES,
    QUICK_CASES,
    Case,
    choose_images,
    example_images,
    folder_images,
)
from experiments.benchmark.results import ERROR, Results, Row, write_plots
from experiments.catalogue import QUICK_SIZE, SIZE, BenchmarkSettings

INTERRUPTED = 130


def main(
    arguments: Sequence[str] | None = None,
    cases: Mapping[str, Case] = CASES,
    methods: Mapping[str, cl.NamedMethod] = cl.METHODS,
) -> None:
    """Parse the arguments, measure, and write the results."""
    parser = _parser(cases, methods)
    given = parser.parse_args(arguments)
    try:
        request = requested(given, cases, methods)
        given.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output {given.output} cannot be used as a folder ({error.strerror})")
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    words = sys.argv[1:] if arguments is None else arguments
    command = f"{parser.prog} {shlex.join(words)}"
    results = Results(request.about(version=cl.__version__, command=command))
    began = time.perf_counter()

    def tell(text: str, done: float) -> None:
        print(f"{time.perf_counter() - began:7.1f} s  {done:4.0%}  {text}", flush=True)

    try:
        run_benchmark(request, results, tell, keep=lambda now: now.write(given.output))
    except KeyboardInterrupt:
        if results.rows:
            _finish(results, given.output)
        kept = f"the {len(results.rows)} rows measured so far are in {given.output}"
        print(f"Interrupted; {kept if results.rows else 'nothing was written'}.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _finish(results, given.output)


def integers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Numbers between commas."""
    return tuple(float(part) for part in text.split(","))


def _parser(cases: Iterable[str], methods: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmark", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add, usual, quick = parser.add_argument, BenchmarkSettings(), BenchmarkSettings.quick()

    def limit(option: str, kind: type, text: str) -> None:
        name = option.removeprefix("--").replace("-", "_")
        a, b = getattr(usual, name), getattr(quick, name)
        add(option, type=kind, help=f"{text}; {a:g} unless given, {b:g} with --quick")

    add("--tasks", help=f"some of {', '.join(cases)}; all unless given, fewer with --quick")
    add("--methods", help=f"some of {', '.join(methods)}; all unless given")
    add("--images", type=Path, help="folder of clean pictures; else those in the package")
    add("--mask", type=Path, help="a mask for inpainting; white pixels are kept")
    add("--batch", dest="batches", type=integers, help="batch sizes, such as 1,4; 1 unless given")
    add("--tolerances", type=numbers, help="accuracies of objective and gap, such as 1e-2,1e-3")
    limit("--count", int, "images to measure")
    limit("--repeats", int, "timed runs of each measurement")
    limit("--max-iterations", int, "limit of each run")
    limit("--seconds", float, "limit of each run")
    add("--size", type=int, help="side of the pictures, where the regularizer allows it; "
        f"{SIZE} unless given, {QUICK_SIZE} with --quick")  # fmt: skip
    add("--seed", type=int, help="seed of noise, masks and untrained networks")
    add("--output", "-o", type=Path, default=Path("benchmark-output"),
        help="folder for results and plots")  # fmt: skip
    add("--quick", action="store_true", help="small pictures and few tolerances; minutes")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def requested(
    given: argparse.Namespace, cases: Mapping[str, Case], methods: Mapping[str, cl.NamedMethod]
) -> Request:
    """The input of the benchmark; ValueError for options that do not fit."""
    usual = [name for name in cases if name in QUICK_CASES] if given.quick else list(cases)
    chosen = [cases[name] for name in _choice("--tasks", given.tasks, cases, usual)]
    names = _choice("--methods", given.methods, methods, methods)
    options = ("count", "repeats", "max_iterations", "seconds", "seed", "batches", "tolerances")
    changes = {name: getattr(given, name) for name in options if getattr(given, name) is not None}
    settings = replace(BenchmarkSettings.quick() if given.quick else BenchmarkSettings(), **changes)
    pictures = (
        example_images() if given.images is None else folder_images(given.images, settings.count)
    )
    choose_images(pictures, settings.count, 16)  # are there enough?
    side = given.size if given.size is not None else QUICK_SIZE if given.quick else SIZE
    if side < 16 or side % 16:
        raise ValueError(f"--size must be a multiple of 16, got {side}")
    for case in chosen:
        if given.size is not None and case.only_size not in (None, given.size):
            only = f"{case.only_size} x {case.only_size}"
            raise ValueError(f"{case.name} is for pictures of {only} only: leave --size out")
    if given.mask is not None:
        chosen = _with_mask(chosen, given.mask, side)
    return Request(
        chosen, [methods[name] for name in names],
        partial(choose_images, pictures, settings.count), settings, torch.device(given.device),
        side,
    )  # fmt: skip


def _choice(
    option: str, text: str | None, known: Iterable[str], unless_given: Iterable[str]
) -> list[str]:
    if text is None:
        return list(unless_given)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for i, name in enumerate(names):
        if name not in known:
            raise ValueError(f"{option} knows no {name!r}; choose among {', '.join(known)}")
        if name in names[:i]:
            raise ValueError(f"{option} names {name} twice")
    if not names:
        raise ValueError(f"{option} is empty; choose among {', '.join(known)}")
    return names


def _with_mask(cases: Sequence[Case], path: Path, side: int) -> list[Case]:
    about_masks = [case for case in cases if isinstance(case.task, Inpainting)]
    if not about_masks:
        raise ValueError("--mask is for inpainting, which none of the tasks does; leave it out")
    mask = (load_image(path)[0, 0] >= 0.5).float()
    for case in about_masks:
        size = case.size(side)
        if tuple(mask.shape) != (size, size):
            raise ValueError(
                f"--mask is {mask.shape[0]} x {mask.shape[1]}, but the pictures of {case.name} "
                f"are {size} x {size}; give another mask, or another --size"
            )
    return [case.with_mask(mask) for case in cases]


def _finish(results: Results, output: Path) -> None:
    results.write(output)
    files = write_plots(results, output)
    screen = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for task in dict.fromkeys(row.task for row in results.rows):
        screen.print(table(task, [row for row in results.rows if row.task == task]))
    for choice in results.choices:
        edge = ", at the edge of the grid" if choice.at_edge else ""
        print(
            f"{choice.task}: {choice.method} has {choice.steps}, the best of {choice.candidates} "
            f"on another picture{edge}."
        )
    print(*results.notes, sep="\n", end="\n" if results.notes else "")
    names = ["benchmark.csv", *(file.name for file in files)]
    print(f"Results: {output / 'benchmark.json'}, {', '.join(names)}")


def table(task: str, rows: Sequence[Row]) -> Table:
    """Iterations and seconds (least to largest) of every method; the fastest in bold."""
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


def _cell(row: Row, best: float | None) -> str:
    if row.iterations is None or row.seconds is None:
        return "" if row.reached == 0 else f"{row.reached}/{row.images} images"
    high = "" if row.seconds_max is None else _short(row.seconds_max)
    text = f"{row.iterations:g} it.\n{_short(row.seconds)} s"
    if row.seconds_min is not None:
        text += f"\n{_short(row.seconds_min)}-{high}"
    return f"[bold]{text}[/bold]" if row.seconds == best else text


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"


if __name__ == "__main__":
    main()
