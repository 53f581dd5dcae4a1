"""Compute the parts of an experiment with torch, numpy and safetensors alone, and draw nothing.

python -m experiments denoising --output DIR --device cuda
convexlift reproduce denoising --output DIR --draw        # elsewhere, with matplotlib
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.authors import find_authors
from experiments.catalogue import ALL
from experiments.images import find_data
from experiments.registry import registered
from experiments.runner import Study
from experiments.runner.jobs import Load, compute_all
from experiments.runner.run import OtherRun


def main(
    arguments: Sequence[str] | None = None,
    load: Load = registered,
) -> None:
    """Parse the arguments and compute."""
    experiments = load()
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("experiment", choices=[*sorted(experiments), ALL])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--authors", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--force", action="store_true", help="replace parts of another run")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs is at least 1, got {given.jobs}")
    began, last = time.perf_counter(), ""

    def show(title: str, done: float, total: float) -> None:
        nonlocal last
        if title != last:
            last = title
            print(f"{time.perf_counter() - began:7.1f} s  {last}", flush=True)

    try:
        data = find_data(given.data)
        authors = find_authors(given.authors, data)
        study = Study(given.quick, given.seed, torch.device(given.device), data, authors)
    except ValueError as error:
        parser.error(str(error))
    everything = given.experiment == ALL
    names = sorted(experiments) if everything else [given.experiment]
    folders = {name: given.output / name if everything else given.output for name in names}
    try:
        compute_all(load, folders, study, given.jobs, show, force=given.force)
    except OtherRun as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; finished parts are kept, and the same command resumes.")


if __name__ == "__main__":
    main()
