"""Run an experiment: compute the missing parts, and never destroy those of another run."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy
import torch

import convexlift as cl
from convexlift.images import atomic_path
from experiments.document import Document
from experiments.runner.parts import Listener, Part, Parts, PartStore, Plan, Step

S = TypeVar("S")

OPTIONS = {
    "quick": "length (--quick)",
    "seed": "seed",
    "device": "device",
    "data": "source of images (--data)",
    "authors": "set of authors' files (--authors)",
    "version": "version of convexlift",
}
"""Entries of ``run.json`` that a run must share with the one it resumes."""


@dataclass(frozen=True)
class Study:
    """The options of a run."""

    quick: bool = False  # fewer images and iterations, for minutes on two cores
    seed: int = 0  # of noise and masks
    # where to compute; noise is drawn on the CPU, the same for all devices
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data: Path | None = None  # the data folder, or None for the images inside the package
    authors: Path | None = None  # the folder of the authors' files, or None without them


@dataclass(frozen=True, eq=False)
class Experiment(Generic[S]):
    """One experiment of the paper."""

    name: str  # of the command
    title: str  # a line
    section: str  # of the paper
    # settings of both lengths
    full: S
    quick: S
    steps: Callable[[Study, S], Sequence[Step]]  # the computation, in order
    # the report of finished parts, which needs neither data nor the device
    report: Callable[[Parts, S], Document]

    def settings(self, quick: bool) -> S:
        """The settings of one length."""
        return self.quick if quick else self.full


class NotComputed(Exception):
    """There is no complete run to draw: a sentence and a hint."""


class OtherRun(Exception):
    """The folder has finished parts of another run: a sentence and a hint."""


def compute(
    experiment: Experiment[S],
    study: Study,
    folder: Path,
    listener: Listener = lambda title, done, total: None,
    *,
    force: bool = False,
) -> Parts:
    """All parts of an experiment; finished parts that fit the study are not computed again.

    Raises:
        OtherRun: if the folder has finished parts of another experiment, of other options, or of
            other images or settings, unless ``force`` says that they may be replaced.
    """
    with prepared(experiment, study, folder, force=force) as plan:
        plan.run(environment(study.device), listener)
    return plan.finished


@contextmanager
def prepared(
    experiment: Experiment[S], study: Study, folder: Path, *, force: bool = False
) -> Iterator[Plan]:
    """The plan of an experiment, whose ``run.json`` is written before and after it is run."""
    run = None if force else _read_run(folder)
    kept = [] if run is None else _kept(run, folder)
    if run is not None and kept:
        _refuse_other_options(run, kept, experiment, study, folder)
    steps = experiment.steps(study, experiment.settings(study.quick))
    plan = Plan(steps, PartStore(folder / "parts"))
    if run is not None and any(plan.digests.get(name) != run["parts"][name] for name in kept):
        raise _refusal(kept, folder, "with other images or settings")
    try:
        _write_run(experiment, study, folder, plan)
        yield plan
    finally:
        _write_run(experiment, study, folder, plan)


def finished_parts(experiment: Experiment[S], folder: Path) -> tuple[Parts, Any]:
    """The parts of a complete run, wherever it was computed, and the content of ``run.json``."""
    run = _read_run(folder)
    if run is None:
        raise NotComputed(f"{folder} holds no finished run. Run the command without --draw first.")
    named, digests = run["experiment"], run["parts"]
    if named != experiment.name:
        raise NotComputed(
            f"{folder} holds the experiment {named}, not {experiment.name}. Name another --output, "
            f"or draw {named}."
        )
    store = PartStore(folder / "parts")
    found = {name: store.read(name, digest) for name, digest in digests.items()}
    parts: dict[str, Part] = {name: part for name, part in found.items() if part is not None}
    if missing := len(found) - len(parts):
        raise NotComputed(
            f"{missing} of the {len(found)} parts in {folder} are missing. Run the command "
            "without --draw first."
        )
    return parts, run


def _options(study: Study) -> dict[str, Any]:
    return {
        "quick": study.quick,
        "seed": study.seed,
        "device": study.device.type,
        "data": study.data is not None,
        "authors": study.authors is not None,
        "version": cl.__version__,
    }


def _read_run(folder: Path) -> dict[str, Any] | None:
    """The content of ``run.json``, if it is there and complete."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(run, dict) and isinstance(run.get("parts"), dict) and "experiment" in run
    return run if whole else None


def _kept(run: Mapping[str, Any], folder: Path) -> list[str]:
    """Names of its finished parts."""
    return [name for name in run["parts"] if (folder / "parts" / f"{name}.json").exists()]


def _refuse_other_options(
    run: Mapping[str, Any], kept: list[str], experiment: Experiment[S], study: Study, folder: Path
) -> None:
    named = run["experiment"]
    if named != experiment.name:
        raise _refusal(kept, folder, f"of the experiment {named}, not {experiment.name}")
    # Files of old versions do not name theirs; the digests of their parts differ anyway.
    other = [name for name, value in _options(study).items() if run.get(name, value) != value]
    if other:
        # Perhaps it was computed elsewhere, and is only to be drawn here.
        elsewhere = len(kept) == len(run["parts"]) and not {"quick", "seed"} & set(other)
        what = f"with another {' and '.join(OPTIONS[name] for name in other)}"
        raise _refusal(kept, folder, what, "--draw to write its report, " if elsewhere else "")


def _refusal(kept: list[str], folder: Path, what: str, hint: str = "") -> OtherRun:
    count = len(kept)
    return OtherRun(
        f"{folder} has {count} finished part{'s' if count > 1 else ''} of a run {what}. Use {hint}"
        "another --output, or --force to replace them."
    )


def _write_run(experiment: Experiment[S], study: Study, folder: Path, plan: Plan) -> None:
    content = {
        "experiment": experiment.name,
        **_options(study),
        "parts": plan.digests,
        "finished": len(plan.finished),
        "complete": not plan.missing,
    }
    with atomic_path(folder / "run.json") as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def environment(device: torch.device) -> dict[str, Any]:
    """Date, versions, machine, device, and the commit of a git checkout."""
    return {
        "date": now(),
        "convexlift": cl.__version__,
        "commit": commit(),
        "numpy": numpy.__version__,
        "device": device.type,
        "machine": machine(device),
    }


def now() -> str:
    """The date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of this checkout, with a + after local changes; None without git."""
    folder = Path(__file__).parents[1]

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A copy of this folder may be inside the checkout of another project.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    short = git("rev-parse", "--short", "HEAD")
    return short and short + ("+" if git("status", "--porcelain", "--", "..") else "")


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, threads and versions, on which times depend."""
    cuda = device.type == "cuda"
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
