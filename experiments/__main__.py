"""Repeat experiments of the paper, and write reports with its numbers beside ours.

    python -m experiments denoising --quick
    python -m experiments all --data DIR --output DIR --jobs 12

Every report.html has its figures as PNG and SVG and its tables as CSV and Markdown beside it.
Finished parts are kept in the folder: an interrupted run resumes from them. Computing needs torch,
numpy and safetensors alone; where matplotlib is missing, compute, and draw elsewhere:

    python -m experiments all --output DIR --compute
    python -m experiments all --output DIR --draw
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.authors import find_authors
from experiments.catalogue import ALL, HEADINGS
from experiments.images import find_data
from experiments.registry import registered
from experiments.runner import Experiment, Study
from experiments.runner.jobs import Load, compute_all
from experiments.runner.run import NotComputed, OtherRun, finished_parts

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, load: Load = registered) -> None:
    """Parse the arguments, compute, and write the reports."""
    experiments = load()
    parser = _parser(list(experiments))
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs is at least 1, got {given.jobs}")
    if given.seed < 0:
        parser.error(f"--seed is at least 0, got {given.seed}")
    everything = given.experiment == ALL
    names = list(experiments) if everything else [given.experiment]
    default = Path(f"reproduce-{given.experiment}{'-quick' * given.quick}")
    output: Path = default if given.output is None else given.output
    folders = {name: output / name if everything else output for name in names}
    began, last = time.perf_counter(), ""

    def show(title: str, done: float, total: float) -> None:
        nonlocal last
        if title != last:
            last = title
            print(f"{time.perf_counter() - began:7.1f} s  {last}", flush=True)

    try:
        data = None if given.draw else find_data(given.data)
        authors = None if given.draw else find_authors(given.authors, data)
    except ValueError as error:
        parser.error(str(error))
    try:
        if not given.draw:
            study = Study(given.quick, given.seed, torch.device(given.device), data, authors)
            compute_all(load, folders, study, given.jobs, show, force=given.force)
        if not given.compute:
            write_reports(experiments, folders, output if everything else None)
    except (NotComputed, OtherRun) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        message = "Interrupted; finished parts are kept, and the same command resumes from there."
        print(message, file=sys.stderr)
        sys.exit(INTERRUPTED)


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{each.name:12}{each.title} ({each.section})"
                         for each in HEADINGS.values()),
    )  # fmt: skip
    add = parser.add_argument
    add("experiment", choices=[*names, ALL], help="its name, or all of them and one page")
    add("--data", type=Path, help="folder with faces/test and ct/test; else the environment "
        "variable CONVEXLIFT_DATA, then images inside the package")  # fmt: skip
    add("--authors", type=Path, help="your copy of github.com/hsw43/icnn_primal_dual; else "
        "paper-ct in the data folder")  # fmt: skip
    add("--output", "-o", type=Path, help="folder of parts and report; else reproduce-NAME")
    add("--quick", action="store_true", help="fewer images and iterations; minutes on two cores")
    add("--seed", type=int, default=0, help="seed of noise and masks")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--force", action="store_true", help="replace parts of another run")
    add("--jobs", type=int, default=1, help="processes side by side; times are measured alone")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--compute", action="store_true", help="write no report")
    only.add_argument("--draw", action="store_true", help="write the report of finished parts only")
    return parser


def write_reports(
    experiments: Mapping[str, Experiment[Any]], folders: Mapping[str, Path], whole: Path | None
) -> None:
    """The report of each folder, and in the folder ``whole`` one page of all."""
    from experiments.overview import overview
    from experiments.runner.parts import finite
    from experiments.runner.report import results, write

    documents, contents = {}, []
    for name, folder in folders.items():
        parts, run = finished_parts(experiments[name], folder)
        document = experiments[name].report(parts, experiments[name].settings(run["quick"]))
        documents[name], content = document, results(document, run, parts)
        contents.append(content)
        print("", *document.summary, f"Report: {write(document, folder, content)[-1]}", sep="\n")
    if whole is not None:
        page = overview(documents)
        seconds = sum(each["seconds"] for each in contents)
        content = {**contents[-1], "experiment": ALL, "seconds": seconds, "comparisons": []}
        print(f"All experiments: {write(page, whole, content | finite(page.results))[-1]}")


if __name__ == "__main__":
    main()
