"""An image before and after it is solved, and its record, as in the JSON file beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convexlift.images import psnr, ssim
from convexlift.problems.claims import relative_gap
from convexlift.problems.variational import VariationalProblem
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.weight import Weight
from convexlift.solvers.solution import Solution
from convexlift.tasks import Measurement


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedImage:
    """An image or a scan, ready to be solved.

    Attributes:
        name: of the file, or "the image".
        data: data term, operator and bounds.
        weight: of the regularizer, and where it comes from.
        noise: estimated or given; None for scans whose rays differ in their noise.
        restored: planes of the solution in the numbers and the shape of the input.
        write: writes planes of the solution to a file.
        given: the data as planes, to compare with; None for a measured sinogram.
        truth: the clean planes, (planes, 1, H, W), if they are known.
        about: further facts for the record.
        notes: what the user should know.
    """

    name: str
    data: Measurement = field(repr=False)
    weight: Weight
    noise: Noise | None
    restored: Callable[[Tensor], Tensor] = field(repr=False)
    write: Callable[[Tensor, Path], None] = field(repr=False)
    given: Tensor | None = field(default=None, repr=False)
    truth: Tensor | None = field(default=None, repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def joinable(self, other: PreparedImage) -> bool:
        """Whether both can be solved as one batch."""
        return self.weight.value == other.weight.value and self.data.joinable(other.data)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstruction(PreparedImage):
    """A reconstructed image with its proof, and all that is known of a ``PreparedImage``.

    Attributes:
        x: the image, in the numbers and the shape of the input. Of a file: (H, W), or
            (planes, H, W) for colours and pages; CT in HU, where pixels have a size in mm.
        solution: objective, lower bound, gap, status, history, dual variables and ``proof`` of
            every plane; its ``x`` are the planes (planes, 1, H, W) on the scale of the regularizer.
        gap_map: the part of every pixel in the gap, (planes, 1, H, W), if it was asked for.
        record: everything as plain values: ``convexlift reconstruct --json`` writes the same.
    """

    x: Tensor = field(repr=False)
    solution: Solution = field(repr=False)
    gap_map: Tensor | None = field(default=None, repr=False)
    record: dict[str, Any] = field(repr=False)

    @property
    def problem(self) -> VariationalProblem:
        """The problem that was solved."""
        return self.solution.proof.problem

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the image, atomically: a file like the input, in the format of the name's ending.

        Arrays become NPY or TIFF; files keep bit depth, alpha channel and metadata.
        """
        self.write(self.solution.x, Path(path))
        return Path(path)


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
            quality[f"ssim{suffix}"] = _finite(float(ssim(image.float(), truth).mean()))
    return quality


def joint_psnr(x: Tensor, truth: Tensor) -> float:
    """Of all planes together, in dB."""
    return float(psnr(x.cpu().reshape(1, -1), truth.reshape(1, -1)))


def _summary(words: list[str]) -> str:
    """The word of all planes, or the first that is not the best."""
    return next((word for word in words if word not in ("CONVERGED", "GLOBAL")), words[0])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
