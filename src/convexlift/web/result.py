"""The result of a run: its record, and the files that a visitor may download."""

from __future__ import annotations

import io
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import convexlift
from convexlift.training.validation import ssim
from convexlift.web.html import TEMPLATES
from convexlift.web.job import (
    BOX,
    CT_BINS,
    CT_EXTENT,
    CT_FACTOR,
    TV,
    CTJob,
    InpaintingJob,
    PageJob,
)
from convexlift.web.pictures import deep_png, grey_or_colour, png
from convexlift.web.run import Ending, RunResult, picture_psnr

INPUT, MASK = "input.npy", "seen.npy"
"""Arrays that a script reads, where they do not come with the package."""


@dataclass(frozen=True)
class ResultFiles:
    """Paths of one result; ``before`` and ``after`` are shown on the page."""

    before: Path
    after: Path
    image: Path
    json: Path
    script: Path
    zip: Path


def record(result: RunResult) -> dict[str, Any]:
    """The run as JSON: settings, results and the proof."""
    solution, given, truth = result.solution, result.stated.given, result.stated.truth
    quality: dict[str, Any] = {}
    if truth is not None:
        quality = {
            "psnr_before": picture_psnr(given, truth),
            "psnr_after": picture_psnr(solution.x, truth),
            "ssim_before": picture_ssim(given, truth),
            "ssim_after": picture_ssim(solution.x, truth),
        }
    return {
        "version": convexlift.__version__,
        "torch": torch.__version__,
        "device": solution.x.device.type,
        **result.stated.facts,
        "ending": result.ending.name.lower(),
        "iterations": result.iterations,
        "seconds": solution.seconds,
        "objective": result.objective,
        "lower_bound": result.lower_bound,
        "gap": result.gap,
        "guarantee": [guarantee.name for guarantee in solution.guarantee],
        **quality,
        "history": [
            {
                "iteration": point.iteration,
                "seconds": round(point.seconds, 4),
                "objective": _finite(point.objective),
                "lower_bound": _finite(point.lower_bound),
                "gap": _finite(point.gap),
            }
            for point in result.points
        ],
    }


def picture_ssim(x: Tensor, truth: Tensor) -> float | None:
    """The mean over the planes; None where torchmetrics is not installed."""
    try:
        return float(ssim(x.cpu(), truth).mean())
    except ImportError:
        return None


def write_files(result: RunResult, numbers: dict[str, Any], folder: Path) -> ResultFiles:
    """Write the pictures, the record, the script, and a ZIP file of everything."""
    job, x = result.job, result.solution.x
    files = ResultFiles(
        before=folder / "before.png",
        after=folder / "after.png",
        image=folder / f"convexlift-{job.name}.png",
        json=folder / f"convexlift-{job.name}.json",
        script=folder / f"convexlift-{job.name}.py",
        zip=folder / f"convexlift-{job.name}.zip",
    )
    files.before.write_bytes(png(grey_or_colour(result.stated.given, *job.picture.window)))
    files.after.write_bytes(png(grey_or_colour(x, *job.picture.window)))
    files.image.write_bytes(deep_png(x))
    files.json.write_text(json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    files.script.write_text(script(result, convexlift.__version__))
    with zipfile.ZipFile(files.zip, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in (files.image, files.json, files.script):
            archive.write(file, file.name)
        for name, values in {"reconstruction.npy": x.cpu(), **needed_arrays(job)}.items():
            archive.writestr(name, _npy(values))
    return files


def script(result: RunResult, version: str) -> str:
    """A program that repeats the run and writes its image to ``repeated.npy``."""
    job, device = result.job, result.solution.x.device.type
    stop = [f"gap={job.tolerance!r}", f"check_every={job.check_every}"]
    if result.ending is not Ending.CERTIFIED:  # end where the run ended
        stop.insert(1, f"max_iterations={result.iterations}")
    given, needed = "clean" if job.simulated else "damaged", needed_arrays(job)
    task, mask = _task(job, result.stated.facts), ""
    functions = ["psnr"] if job.simulated else []
    if isinstance(job, InpaintingJob) and job.mask is None:
        functions.append("random_mask")
        generator = f"torch.Generator().manual_seed({job.seed})"
        mask = f"random_mask({given}, {job.missing!r}, {generator})[0, 0]"
    elif isinstance(job, InpaintingJob):
        mask = f'torch.from_numpy(np.load(here / "{MASK}"))'
    imports = [f"from convexlift.tasks import {task.partition('(')[0]}"]
    picture = f'torch.from_numpy(np.load(here / "{INPUT}"))'
    if job.picture.example and isinstance(job, CTJob):
        imports.insert(0, "from convexlift.phantoms import shepp_logan")
        picture = f"shepp_logan({job.picture.size[0]})"
    elif job.picture.example:
        functions.append("load_example")
        picture = f"load_example({job.picture.name!r})"
    if functions:
        imports.insert(0, f"from convexlift.images import {', '.join(sorted(functions))}")
    return TEMPLATES.get_template("script.py.jinja").render(
        version=version,
        job=job,
        needed=needed,
        imports=imports,
        given=given,
        picture=picture,
        mask=mask,
        task=task,
        total_variation=job.regularizer == TV,
        weight=repr(result.stated.facts["weight"]),
        device="" if device == "cpu" else f".to(device={device!r})",
        stop=", ".join(stop),
    )


def needed_arrays(job: PageJob) -> dict[str, Tensor]:
    """The arrays that must be in the folder of the script."""
    arrays = {} if job.picture.example else {INPUT: job.picture.values}
    if isinstance(job, InpaintingJob) and job.mask is not None:
        arrays[MASK] = job.seen()
    return arrays


def _task(job: PageJob, facts: dict[str, Any]) -> str:
    """The constructor of the task, as Python code."""
    if isinstance(job, InpaintingJob):
        noise = job.level if job.simulated else 0.0
        return f'Inpainting(noise={noise!r}, mask=seen, fill="zero")'
    if isinstance(job, CTJob):
        beams = f"cl.ParallelBeam({job.picture.size[0]}, {job.views}, {CT_BINS}, {CT_EXTENT!r})"
        return f"SparseViewCT(scanner={beams} * {CT_FACTOR!r}, box={BOX!r})"
    name = "SaltAndPepper" if facts["noise"] == "salt-and-pepper" else "GaussianDenoising"
    return f"{name}({facts['noise_level'] if job.simulated else 0.0!r})"


def _npy(x: Tensor) -> bytes:
    file = io.BytesIO()
    np.save(file, x.numpy(), allow_pickle=False)
    return file.getvalue()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
