"""The result of a run: its record, and the files that a visitor may download."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convexlift.json_values import finite
from convexlift.web.pictures import deep_png, grey_or_colour, png, preview
from convexlift.web.run import RunResult


def record(result: RunResult) -> dict[str, Any]:
    """The record of the reconstruction, with the name of the picture and the history.

    PSNR and SSIM are left out unless the picture is known to be clean.
    """
    numbers = ("objective", "lower_bound", "gap")
    facts, quality = result.reconstruction.record, ("psnr", "ssim", "psnr_before", "ssim_before")
    return {
        **{k: v for k, v in facts.items() if result.job.compared or k not in quality},
        "input": result.job.picture.name,
        "torch": torch.__version__,
        "history": [
            {
                "iteration": point.iteration,
                "seconds": round(point.seconds, 4),
                **{name: finite(getattr(point, name)) for name in numbers},
            }
            for point in result.points
        ],
    }


def write_files(result: RunResult, numbers: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Write ``before`` and ``after``, which the page shows, and the files to download."""
    job, x, given = result.job, result.reconstruction.solution.x, result.prepared.given
    assert given is not None  # only measured sinograms have no picture
    names = {"image": "png", "json": "json", "zip": "zip"}
    files = {kind: folder / f"convexlift-{job.task}.{end}" for kind, end in names.items()}
    for kind, picture in {"before": given, "after": x}.items():
        files[kind] = folder / f"{kind}.png"
        shown = preview(picture) if job.picture.tiled else picture
        files[kind].write_bytes(png(grey_or_colour(shown, *job.picture.window)))
    files["image"].write_bytes(deep_png(x))
    files["json"].write_text(json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    with zipfile.ZipFile(files["zip"], "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for kind in ("image", "json"):
            archive.write(files[kind], files[kind].name)
        with archive.open("reconstruction.npy", "w", force_zip64=True) as file:
            np.save(file, x.cpu().numpy(), allow_pickle=False)
    return files
