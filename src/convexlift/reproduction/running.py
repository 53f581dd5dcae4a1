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

from convexlift.images import atomic_path
from convexlift.reproduction.environment import describe_environment
from convexlift.reproduction.parts import Part, PartStore
from convexlift.reproduction.steps import Plan, Report
from convexlift.reproduction.study import Experiment, Study


class NotComputed(Exception):
    """There is nothing, or not enough, to draw."""


def compute(
    experiment: Experiment,
    study: Study,
    folder: Path,
    report: Report = lambda progress: None,
) -> Mapping[str, Part]:
    """All parts of an experiment; those in the folder that fit the study are not computed again."""
    plan = Plan(experiment.steps(study), PartStore(folder / "parts"))
    try:
        _write_run(experiment, study, folder, plan)
        plan.run(describe_environment(study.device), report)
    finally:
        _write_run(experiment, study, folder, plan)
    return plan.finished


def finished_parts(experiment: Experiment, folder: Path) -> tuple[Mapping[str, Part], Any]:
    """The parts of a complete run, wherever it was computed, and what ``run.json`` says."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        named, digests = run["experiment"], run["parts"]
    except (OSError, ValueError, KeyError):
        raise NotComputed(f"{folder} holds no finished run") from None
    if named != experiment.name:
        raise NotComputed(f"{folder} holds the experiment {named}, not {experiment.name}")
    store = PartStore(folder / "parts")
    parts = {name: store.read(name, digest) for name, digest in digests.items()}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise NotComputed(f"{len(missing)} of the {len(parts)} parts in {folder} are missing")
    return {name: part for name, part in parts.items() if part is not None}, run


def _write_run(experiment: Experiment, study: Study, folder: Path, plan: Plan) -> None:
    content = {
        "experiment": experiment.name,
        "quick": study.quick,
        "seed": study.seed,
        "device": study.device.type,
        "data": study.data is not None,
        "parts": plan.digests,
        "finished": len(plan.finished),
        "complete": not plan.missing,
    }
    with atomic_path(folder / "run.json") as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
