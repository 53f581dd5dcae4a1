"""What is written beside a result: its numbers as JSON, and the map of its gap."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.images import atomic_path, psnr, save_image, ssim
from convexlift.problems.claims import relative_gap
from convexlift.proofs import Proof
from convexlift.reconstruction.engine import Solved
from convexlift.reconstruction.input_files import Source, naming
from convexlift.reconstruction.photographs import Case
from convexlift.reconstruction.resume import digest

DECADES = 4
"""That the picture of a gap map shows, below its largest value."""


def record_of(case: Case, solved: Solved, settings: dict[str, Any]) -> dict[str, Any]:
    """Objective, bound and gap of the file, and of each of its planes; and how they came about.

    Planes are problems of their own: the objective of the file is their sum, and so is its bound.
    By rounding, a bound can lie above its objective, which then is a bound as good.
    """
    bounds = torch.minimum(solved.lower_bound, solved.objective)
    objective, bound = solved.objective.sum(), bounds.sum()
    record: dict[str, Any] = {
        "input": str(case.source.path),
        "output": str(case.source.target),
        "size": list(solved.x.shape[-2:]),
        "status": _summary(solved.status),
        "guarantee": _summary(solved.guarantee),
        "objective": float(objective),
        "lower_bound": _finite(float(bound)),
        "gap": _finite(float(relative_gap(objective, bound))),
        "iterations": int(solved.iterations.max()),
        "seconds": round(solved.seconds, 4),
        "weight": case.weight.to_json(),
        "noise": None
        if case.noise is None
        else {
            "model": case.noise.kind,
            "level": case.noise.level,
            "estimated": case.noise.estimated,
        },
        **_quality(case, solved.x),
        **case.about,
        "planes": [
            {
                "objective": float(solved.objective[i]),
                "lower_bound": _finite(float(bounds[i])),
                "gap": _finite(float(solved.gap[i])),
                "status": solved.status[i],
                "guarantee": solved.guarantee[i],
                "iterations": int(solved.iterations[i]),
            }
            for i in range(len(solved.status))
        ],
        "settings": settings,
    }
    if case.notes:
        record["notes"] = list(case.notes)
    return record


def write_result(
    case: Case, solved: Solved, record: dict[str, Any], proof: Proof | None = None
) -> None:
    """The image, gap map and proof if there are any, and the record last: then the file is done.

    The record has its temporary name before the image is written. Should the process be killed in
    between, that is what tells ``--resume`` that the image is a result.
    """
    source = case.source
    with naming(source.record), atomic_path(source.record) as part:
        part.touch()
        with naming(source.target):
            case.write(solved.x)
        record["output_sha256"] = digest(source.target)
        _write_gap_map(source, solved, record)
        if proof is not None:
            with naming(source.proof):
                record["proof"] = str(proof.save(source.proof))
        part.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_gap_map(source: Source, solved: Solved, record: dict[str, Any]) -> None:
    if solved.gap_map is not None:
        values = solved.gap_map.float()
        with naming(source.gap_map), atomic_path(source.gap_map) as part, part.open("wb") as file:
            np.save(file, values[:, 0].numpy(), allow_pickle=False)
        with naming(source.gap_picture):
            save_image(source.gap_picture, _as_picture(values))
        record["gap_map"] = [str(source.gap_map), str(source.gap_picture)]


def _as_picture(values: Tensor) -> Tensor:
    """The sum over planes on a logarithmic scale: white is its largest value."""
    total = values.sum((0, 1)).clamp_min(0)
    largest = float(total.max())
    if largest == 0:
        return torch.zeros_like(total)
    return (1 + torch.log10((total / largest).clamp_min(10.0**-DECADES)) / DECADES).clamp(0, 1)


def _quality(case: Case, x: Tensor) -> dict[str, Any]:
    if case.truth is None:
        return {}
    truth = case.truth.float()
    quality: dict[str, Any] = {"psnr": _finite(_joint_psnr(x, truth))}
    if case.picture is not None and case.picture.shape == truth.shape:
        quality["psnr_before"] = _finite(_joint_psnr(case.picture, truth))
    return quality | {"ssim": _finite(float(ssim(x.float(), truth).mean()))}


def _joint_psnr(x: Tensor, truth: Tensor) -> float:
    """Of all planes together."""
    return float(psnr(x.reshape(1, -1), truth.reshape(1, -1)))


def _summary(words: tuple[str, ...]) -> str:
    """The word of all planes, or the first that is not the best."""
    return next((word for word in words if word not in ("CONVERGED", "GLOBAL")), words[0])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
