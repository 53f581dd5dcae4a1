"""What is left of a run: numbers, maps, and the files a visitor may take home."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import convexlift
from convexlift.images import ssim
from convexlift.web.jobs import InpaintingJob
from convexlift.web.pictures import deep_png, grey_or_colour, png
from convexlift.web.running import Outcome, picture_psnr
from convexlift.web.scripts import INPUT, MASK, needed_arrays, script


@dataclass(frozen=True)
class ResultFiles:
    """Paths of one result; ``before`` and ``after`` are what the page shows."""

    before: Path
    after: Path
    image: Path
    numbers: Path
    script: Path
    everything: Path


def record(outcome: Outcome) -> dict[str, Any]:
    """The run as JSON: settings, results and the proof."""
    solution = outcome.solution
    quality: dict[str, Any] = {}
    if outcome.stated.truth is not None:
        given = shown_given(outcome)
        quality = {
            "psnr_before": picture_psnr(given, outcome.stated.truth),
            "psnr_after": picture_psnr(solution.x, outcome.stated.truth),
            "ssim_before": float(ssim(given.cpu(), outcome.stated.truth).mean()),
            "ssim_after": float(ssim(solution.x.cpu(), outcome.stated.truth).mean()),
        }
    return {
        "version": convexlift.__version__,
        "torch": torch.__version__,
        "device": solution.x.device.type,
        **outcome.stated.facts,
        "ending": outcome.ending.name.lower(),
        "iterations": outcome.iterations,
        "seconds": solution.seconds,
        "objective": outcome.objective,
        "lower_bound": outcome.lower_bound,
        "gap": outcome.gap,
        "guarantee": [guarantee.name for guarantee in solution.guarantee],
        **quality,
        "history": [
            {
                "iteration": point.iteration,
                "seconds": round(point.seconds, 4),
                "objective": _number(point.objective),
                "lower_bound": _number(point.lower_bound),
                "gap": _number(point.gap),
            }
            for point in outcome.points
        ],
    }


def shown_given(outcome: Outcome) -> Tensor:
    """The picture before: the data, or what a filtered back projection makes of them."""
    return outcome.stated.given


def error_map(outcome: Outcome) -> Tensor | None:
    """|x - truth|, the mean over the planes, (H, W)."""
    truth = outcome.stated.truth
    return None if truth is None else (outcome.solution.x.cpu() - truth).abs().mean((0, 1))


def write_files(outcome: Outcome, numbers: dict[str, Any], folder: Path) -> ResultFiles:
    """Write them all."""
    job = outcome.job
    files = ResultFiles(
        before=folder / "before.png",
        after=folder / "after.png",
        image=folder / f"convexlift-{job.name}.png",
        numbers=folder / f"convexlift-{job.name}.json",
        script=folder / f"convexlift-{job.name}.py",
        everything=folder / f"convexlift-{job.name}.zip",
    )
    files.before.write_bytes(png(grey_or_colour(shown_given(outcome), *job.window)))
    files.after.write_bytes(png(grey_or_colour(outcome.solution.x, *job.window)))
    files.image.write_bytes(deep_png(outcome.solution.x))
    files.numbers.write_text(json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    files.script.write_text(script(outcome, convexlift.__version__))
    with zipfile.ZipFile(files.everything, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in (files.image, files.numbers, files.script):
            archive.write(file, file.name)
        archive.writestr("reconstruction.npy", _npy(outcome.solution.x.cpu()))
        for name in needed_arrays(job):
            archive.writestr(name, _npy(_array(outcome, name)))
    return files


def _array(outcome: Outcome, name: str) -> Tensor:
    job = outcome.job
    if name == INPUT:
        return job.picture.values
    assert name == MASK
    assert isinstance(job, InpaintingJob)
    return job.seen()


def _npy(x: Tensor) -> bytes:
    file = io.BytesIO()
    np.save(file, x.numpy(), allow_pickle=False)
    return file.getvalue()


def _number(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
