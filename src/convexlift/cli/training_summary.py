"""The end of ``convexlift train``: its record, its summary, and the command to train longer."""

from __future__ import annotations

import math
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

import convexlift
from convexlift.cli.terminal import table
from convexlift.cli.training_options import TrainOptions
from convexlift.models.files import TRAINED, ModelCard
from convexlift.tasks import Inpainting, SparseViewCT
from convexlift.training import RecipeResult
from convexlift.training.cards import best_is_start
from convexlift.training.validation import Score

OF_FIRST = (
    "folders", "output", "resume", "start", "steps", "json_file", "debug",
    "channels", "kernel", "widths",
)  # fmt: skip
"""Options of a training that are not for a longer one, which starts from its model."""
LONGER = 4
"""Steps of the longer training that the summary proposes, relative to this one."""


def longer_command(job: TrainOptions, steps: int) -> str:
    """The command that trains the model of a training further, into a new folder."""
    words = ["convexlift", "train", job.kind, *map(str, job.folders or ())]
    for each in fields(job):
        value = getattr(job, each.name)
        if each.name not in OF_FIRST and value != each.default:
            option = f"--{each.name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    words += ["--start", str(job.output / TRAINED), "--steps", str(steps)]
    return shlex.join([*words, "-o", f"{job.output}-longer"])


def as_json(card: ModelCard, result: RecipeResult, model: Path, tv: Score | None) -> dict[str, Any]:
    """The result, for other programs."""
    trained = result.trained
    return {
        "version": convexlift.__version__,
        "model": str(model),
        "best_step": trained.step,
        "steps": int(trained.rows[-1]["step"]),
        "steps_not_taken": trained.skipped,
        "seconds": trained.seconds,
        "validations": [
            {name: value if math.isfinite(value) else None for name, value in row.items()}
            for row in _validations(result)
        ],
        "total_variation": None if tv is None else tv.summary(),
        "card": card.to_json(),
    }


def _validations(result: RecipeResult) -> list[dict[str, float]]:
    return [row for row in result.trained.rows if "psnr" in row]


def show(
    job: TrainOptions,
    card: ModelCard,
    result: RecipeResult,
    model: Path,
    tv: Score | None,
    screen: Console,
) -> None:
    """Print the validation, advice, and how to use the model."""
    rows, trained = _validations(result), result.trained
    if rows and trained.score is not None:
        if best_is_start(result):
            shown = {"at the start (kept)": trained.score}
            if len(rows) > 1:
                shown[f"last (step {int(rows[-1]['step'])})"] = rows[-1]
        else:
            shown = {f"best (step {trained.step})": trained.score}
            if rows[0]["step"] == 0:
                shown = {"at the start": rows[0], **shown}
        if tv is not None:
            shown["total variation, its best weight"] = tv.summary()
        cells = [
            (label, f"{row['psnr']:.2f}", f"{row['ssim']:.3f}", f"{row['weight']:.4g}")
            for label, row in shown.items()
        ]
        count = len(result.validation.images) if result.validation else 0
        of = f"Mean of {count} held-out images" if count > 1 else "One held-out image"
        header = (of, "PSNR", "SSIM", "Weight")
        screen.print(table(header, cells, left=[header[0]]))
        advice = []
        if best_is_start(result):
            advice.append("No validated step was better than the start, which the model holds.")
        if tv is not None and (lost := tv.summary()["psnr"] - trained.score["psnr"]) > 0:
            advice.append(f"Total variation is {lost:.2g} dB better on these images.")
        if advice:
            command = longer_command(job, LONGER * int(trained.rows[-1]["step"]))
            advice.append(f"Train on more images or longer before you use this model:\n{command}")
            screen.print(" ".join(advice), markup=False, soft_wrap=True)
    if trained.skipped:
        screen.print(
            f"{trained.skipped} of {int(trained.rows[-1]['step'])} steps were "
            "not taken: reconstructions missed the gap of the recipe.", soft_wrap=True
        )  # fmt: skip
    task = "inpaint" if card.task == Inpainting.name else "denoise"
    saved = shlex.quote(str(model.with_suffix("")))
    use = f"convexlift reconstruct {task} PICTURE -o RESULT --regularizer {saved}\n"
    text = (
        f"{trained.seconds:.0f} s. Model: {model}\n"
        f"{use if card.task != SparseViewCT.name else ''}"
        f"In Python: regularizer = cl.load({str(model.with_suffix(''))!r})"
        f"  # weight {card.weight:.4g} for {card.task}"
    )
    screen.print(text, markup=False, soft_wrap=True)
