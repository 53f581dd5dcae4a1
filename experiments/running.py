"""Run an experiment: compute what is missing, then write the report from the parts.

OUTPUT/parts/     finished parts
OUTPUT/run.json   options of the run, its parts with their digests, whether all are there
OUTPUT/...        the report, see ``writing``
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import convexlift
from convexlift.images import atomic_path
from experiments.environment import describe_environment
from experiments.parts import Part, PartStore
from experiments.steps import Plan, Report
from experiments.study import Experiment, Study

OPTIONS = {
    "quick": "length (--quick)",
    "seed": "seed",
    "device": "device",
    "data": "source of images (--data)",
    "version": "version of convexlift",
}
"""Entries of ``run.json`` that a run must share with the one it goes on from."""


class NotComputed(Exception):
    """There is nothing, or not enough, to draw: a sentence and a hint."""


class OtherRun(Exception):
    """The folder has finished parts of another run: a sentence and a hint."""


def compute(
    experiment: Experiment,
    study: Study,
    folder: Path,
    report: Report = lambda progress: None,
    *,
    force: bool = False,
) -> Mapping[str, Part]:
    """All parts of an experiment; those in the folder that fit the study are not computed again.

    Raises:
        OtherRun: if the folder has finished parts of another experiment, of other options, or of
            other images or settings, unless ``force`` says that they may be replaced.
    """
    if not force:
        _refuse_other_options(experiment, study, folder)
    plan = Plan(experiment.steps(study), PartStore(folder / "parts"))
    if not force:
        _refuse_other_settings(folder, plan)
    try:
        _write_run(experiment, study, folder, plan)
        plan.run(describe_environment(study.device), report)
    finally:
        _write_run(experiment, study, folder, plan)
    return plan.finished


def finished_parts(experiment: Experiment, folder: Path) -> tuple[Mapping[str, Part], Any]:
    """The parts of a complete run, wherever it was computed, and what ``run.json`` says."""
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
    parts = {name: store.read(name, digest) for name, digest in digests.items()}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise NotComputed(
            f"{len(missing)} of the {len(parts)} parts in {folder} are missing. Run the command "
            "without --draw first."
        )
    return {name: part for name, part in parts.items() if part is not None}, run


def _options(study: Study) -> dict[str, Any]:
    return {
        "quick": study.quick,
        "seed": study.seed,
        "device": study.device.type,
        "data": study.data is not None,
        "version": convexlift.__version__,
    }


def _read_run(folder: Path) -> dict[str, Any] | None:
    """What ``run.json`` says, if it is there and says something."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(run, dict) and isinstance(run.get("parts"), dict) and "experiment" in run
    return run if whole else None


def _kept(run: Mapping[str, Any], folder: Path) -> list[str]:
    """Names of its parts that are finished."""
    return [name for name in run["parts"] if (folder / "parts" / f"{name}.json").exists()]


def _refuse_other_options(experiment: Experiment, study: Study, folder: Path) -> None:
    run = _read_run(folder)
    if run is None or not _kept(run, folder):
        return
    named, options = run["experiment"], _options(study)
    # Other versions are also told by digests, where an older file does not name its own.
    other = [name for name, value in options.items() if run.get(name, value) != value]
    if named != experiment.name:
        raise _refusal(run, folder, f"of the experiment {named}, not {experiment.name}")
    if not other:
        return
    complete = len(_kept(run, folder)) == len(run["parts"])
    # Perhaps it was computed elsewhere, and is only to be drawn here.
    elsewhere = complete and not {"quick", "seed"} & set(other)
    hint = "--draw to write its report, " if elsewhere else ""
    raise _refusal(run, folder, f"with another {' and '.join(OPTIONS[name] for name in other)}",
                   hint)  # fmt: skip


def _refuse_other_settings(folder: Path, plan: Plan) -> None:
    run = _read_run(folder)
    if run is None:
        return
    lost = [name for name in _kept(run, folder) if plan.digests.get(name) != run["parts"][name]]
    if lost:
        raise _refusal(run, folder, "with other images or settings")


def _refusal(run: Mapping[str, Any], folder: Path, what: str, hint: str = "") -> OtherRun:
    count = len(_kept(run, folder))
    return OtherRun(
        f"{folder} has {count} finished part{'s' if count > 1 else ''} of a run {what}. Use {hint}"
        "another --output, or --force to replace them."
    )


def _write_run(experiment: Experiment, study: Study, folder: Path, plan: Plan) -> None:
    content = {
        "experiment": experiment.name,
        **_options(study),
        "parts": plan.digests,
        "finished": len(plan.finished),
        "complete": not plan.missing,
    }
    with atomic_path(folder / "run.json") as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
