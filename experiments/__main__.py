"""Compute the parts of an experiment with torch, numpy and safetensors alone, and draw nothing.

python -m experiments denoising --output DIR --device cuda
convexlift reproduce denoising --output DIR --draw        # elsewhere, with matplotlib
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from experiments.data import find_data
from experiments.experiments import EXPERIMENTS
from experiments.running import OtherRun, compute
from experiments.steps import Progress
from experiments.study import Study


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--force", action="store_true", help="replace parts of another run")
    given = parser.parse_args(arguments)
    try:
        study = Study(given.quick, given.seed, torch.device(given.device), find_data(given.data))
    except ValueError as error:
        parser.error(str(error))
    began = time.perf_counter()
    last = ""

    def report(progress: Progress) -> None:
        nonlocal last
        if progress.title != last:
            last = progress.title
            print(f"{time.perf_counter() - began:7.1f} s  {last}", flush=True)

    try:
        compute(EXPERIMENTS[given.experiment], study, given.output, report, force=given.force)
    except OtherRun as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; finished parts are kept, and the same command goes on.")


if __name__ == "__main__":
    main()
