"""The record of a reconstruction: its numbers as plain values, as in the JSON file beside it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from convexlift.images import psnr
from convexlift.problems.claims import relative_gap
from convexlift.reconstruction.prepared import PreparedImage
from convexlift.solvers.solution import Solution


def record_of(
    prepared: PreparedImage, solution: Solution, settings: dict[str, Any]
) -> dict[str, Any]:
    """Objective, bound and gap of the image, and of each of its planes; and how they came about.

    Planes are problems of their own: the objective of the image is their sum, and so is its bound.
    By rounding, a bound can lie above its objective, which then is a bound as good.
    """
    objectives, lower, gaps = (
        values.double().cpu() for values in (solution.objective, solution.lower_bound, solution.gap)
    )
    bounds = torch.minimum(lower, objectives)
    objective, bound = objectives.sum(), bounds.sum()
    status = [each.name for each in solution.status]
    guarantee = [each.name for each in solution.guarantee]
    noise = prepared.noise
    record: dict[str, Any] = {
        "input": prepared.name,
        "output": None,
        "size": list(solution.x.shape[-2:]),
        "status": _summary(status),
        "guarantee": _summary(guarantee),
        "objective": float(objective),
        "lower_bound": _finite(float(bound)),
        "gap": _finite(float(relative_gap(objective, bound))),
        "iterations": int(solution.iterations.max()),
        "seconds": round(solution.seconds, 4),
        "weight": prepared.weight.to_json(),
        "noise": noise
        and {"model": noise.kind, "level": noise.level, "estimated": noise.estimated},
        **_quality(prepared, solution.x.cpu()),
        **prepared.about,
        "planes": [
            {
                "objective": float(objectives[i]),
                "lower_bound": _finite(float(bounds[i])),
                "gap": _finite(float(gaps[i])),
                "status": status[i],
                "guarantee": guarantee[i],
                "iterations": int(solution.iterations[i]),
            }
            for i in range(len(status))
        ],
        "settings": settings,
    }
    if prepared.notes:
        record["notes"] = list(prepared.notes)
    return record


def _quality(prepared: PreparedImage, x: Tensor) -> dict[str, Any]:
    if prepared.truth is None:
        return {}
    truth, given = prepared.truth.float(), prepared.given
    quality: dict[str, Any] = {}
    for suffix, image in (("", x), ("_before", given)):
        if image is not None and image.shape == truth.shape:
            quality[f"psnr{suffix}"] = _finite(joint_psnr(image, truth))
            if (similarity := _ssim(image, truth)) is not None:
                quality[f"ssim{suffix}"] = similarity
    return quality


def joint_psnr(x: Tensor, truth: Tensor) -> float:
    """Of all planes together, in dB."""
    return float(psnr(x.cpu().reshape(1, -1), truth.reshape(1, -1)))


def _ssim(x: Tensor, truth: Tensor) -> float | None:
    try:
        from convexlift.training.validation import ssim

        return _finite(float(ssim(x.float(), truth).mean()))
    except ImportError:  # torchmetrics is optional
        return None


def _summary(words: list[str]) -> str:
    """The word of all planes, or the first that is not the best."""
    return next((word for word in words if word not in ("CONVERGED", "GLOBAL")), words[0])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
