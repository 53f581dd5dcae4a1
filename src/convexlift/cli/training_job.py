"""What ``convexlift train`` does once it has its recipe: read, train, write, show."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import convexlift
from convexlift.cli.app import (
    Device,
    Failed,
    Interrupted,
    UserError,
    check_folder,
    check_json_file,
    choose_device,
    console,
    one_sentence_errors,
    write_json,
)
from convexlift.files.limits import require_limit
from convexlift.models.cards import ModelCard
from convexlift.models.store import load, save
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.training import distributed
from convexlift.training.cards import training_card
from convexlift.training.data import ImageSet
from convexlift.training.disk_errors import FULL, WriteError
from convexlift.training.initialization import absorb_weight_
from convexlift.training.loop import CHECKPOINT, Callback, Report
from convexlift.training.recipes import (
    AdversarialRecipe,
    BilevelRecipe,
    Outcome,
    follow,
    validated_task,
)

AnyRecipe = AdversarialRecipe | BilevelRecipe
CONTINUE = "Go on with the same command and --resume"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where a training reads and writes."""

    folders: list[Path]
    output: Path
    damaged: Path | None
    start: str | None
    resume: bool
    device: Device
    json_file: Path | None
    max_megapixels: float | None = None


@contextlib.contextmanager
def one_process_tells(debug: bool) -> Iterator[None]:
    """What the library refuses is for the user to mend; one process of several says it."""
    quiet = os.environ.get("RANK", "0") != "0"
    with one_sentence_errors(debug, quiet=quiet):
        try:
            yield
        except (ValueError, ImportError) as error:
            raise UserError(f"{error}.") from error
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise Failed(_full_disk(error)) from error


def _full_disk(error: OSError) -> str:
    if isinstance(error, WriteError):
        return f"{error}. {CONTINUE} from the last checkpoint, if there is one."
    place = error.filename or "A result"
    return f"{place} cannot be written ({error.strerror}); make room there. {CONTINUE}."


def run_job(recipe: AnyRecipe, job: Job) -> None:
    """Train, write the model and show what came of it."""
    require_limit("--max-megapixels", job.max_megapixels)
    device = choose_device(job.device)
    check_json_file(job.json_file)
    _check_output(job)
    images = ImageSet.from_folders(job.folders, max_megapixels=job.max_megapixels)
    _check_held_out(recipe, len(images))
    damaged = None
    if job.damaged is not None:
        damaged = ImageSet.from_folder(job.damaged, max_megapixels=job.max_megapixels)
    network = None if job.start is None else _load_start(job.start, recipe)
    with distributed.process_group(device) as place:
        screen = console() if place.first else Console(quiet=True)
        if place.first:
            check_folder(job.output)
        if job.resume and not (job.output / CHECKPOINT).exists():
            screen.print(
                f"There is no checkpoint in {job.output} yet; starting from the beginning."
            )
        outcome = _follow(recipe, job, images, damaged, network, device, screen)
        if place.first:
            _finish(recipe, job, images, outcome, place.world, screen)


def _load_start(name: str, recipe: AnyRecipe) -> InputConvexNetwork:
    """A trained network; for bilevel learning, with the weight of its card absorbed."""
    network = load(name)
    if isinstance(recipe, BilevelRecipe) and network.card is not None:
        task, weight = recipe.tasks[0]
        if task.name in network.card.weights:
            absorb_weight_(network, network.card.weights[task.name] / weight)
    return network


def _check_output(job: Job) -> None:
    if not job.resume and (job.output / CHECKPOINT).exists():
        raise UserError(
            f"{job.output} holds the checkpoint of an earlier training. "
            "Go on with it by --resume, or name another folder with --output."
        )


def _check_held_out(recipe: AnyRecipe, count: int) -> None:
    """Whether there are images to train on and others to validate on; one alone is another case."""
    if validated_task(recipe) is None or count < 2 or 0 < recipe.held_out < count:
        return
    raise UserError(
        f"Holding out {recipe.held_out} of {count} images leaves none for "
        f"{'training' if recipe.held_out > 0 else 'validation'}. "
        f"Use --held-out with a number from 1 to {count - 1}"
        f"{', or more images' if recipe.held_out > 0 else ''}."
    )


def _follow(
    recipe: AnyRecipe,
    job: Job,
    images: ImageSet,
    damaged: ImageSet | None,
    network: InputConvexNetwork | None,
    device: torch.device,
    screen: Console,
) -> Outcome:
    try:
        with _progress(recipe.options.steps, screen) as callback:
            outcome = follow(
                recipe, images, network=network, damaged=damaged, device=device,
                folder=job.output, resume=job.resume, callback=callback,
            )  # fmt: skip
    except KeyboardInterrupt:
        if (job.output / CHECKPOINT).exists():
            raise Interrupted(f"Interrupted. {CONTINUE} from the last checkpoint.") from None
        raise Interrupted("Interrupted before the first checkpoint; start again.") from None
    if outcome.trained.interrupted:
        step = int(outcome.trained.rows[-1]["step"])
        raise Interrupted(
            f"Interrupted after step {step} of {recipe.options.steps}; {job.output / CHECKPOINT} "
            f"holds its state. {CONTINUE}."
        )
    return outcome


@contextlib.contextmanager
def _progress(steps: int, screen: Console) -> Iterator[Callback]:
    """A bar on a terminal; in a pipe, a line for each validation."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("Training", total=steps)
        validated = ""

        def show(report: Report) -> None:
            nonlocal validated
            loss = f"loss {report.row['loss']:.4g}" if "loss" in report.row else "start"
            if report.score is not None:
                validated = f", PSNR {report.row['psnr']:.2f} dB"
                if not screen.is_terminal:
                    screen.print(
                        f"step {report.step} of {steps}: {loss}{validated}, "
                        f"SSIM {report.row['ssim']:.3f}, weight {report.row['weight']:.4g}",
                        highlight=False,
                    )
            bar.update(task, completed=report.step, description=f"{loss}{validated}")

        yield show


def _finish(
    recipe: AnyRecipe,
    job: Job,
    images: ImageSet,
    outcome: Outcome,
    processes: int,
    screen: Console,
) -> None:
    sources = [*job.folders] if job.damaged is None else [*job.folders, job.damaged]
    card = training_card(
        recipe,
        outcome,
        images,
        name=job.output.resolve().name,
        source=[str(folder) for folder in sources],
        command=_command(processes),
        version=f"convexlift {convexlift.__version__}",
        processes=processes,
    )
    model = save(outcome.trained.network, job.output / "model", card)
    write_json(job.json_file, as_json(card, outcome, model))
    _show(card, outcome, model, screen)


def as_json(card: ModelCard, outcome: Outcome, model: Path) -> dict[str, Any]:
    """The result, for other programs."""
    trained = outcome.trained
    return {
        "version": convexlift.__version__,
        "model": str(model),
        "best_step": trained.step,
        "steps": int(trained.rows[-1]["step"]),
        "seconds": trained.seconds,
        "validations": [
            {name: value if math.isfinite(value) else None for name, value in row.items()}
            for row in _validations(outcome)
        ],
        "card": card.to_json(),
    }


def _validations(outcome: Outcome) -> list[dict[str, float]]:
    return [row for row in outcome.trained.rows if "psnr" in row]


def _show(card: ModelCard, outcome: Outcome, model: Path, screen: Console) -> None:
    rows, trained = _validations(outcome), outcome.trained
    if rows and trained.score is not None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("Validation", "PSNR", "SSIM", "Weight"):
            table.add_column(name, justify="left" if name == "Validation" else "right")
        best = {**trained.score, "step": trained.step}
        for label, row in (("at the start", rows[0]), (f"best (step {best['step']})", best)):
            table.add_row(label, f"{row['psnr']:.2f}", f"{row['ssim']:.3f}", f"{row['weight']:.4g}")
        screen.print(table)
    text = (
        f"{trained.seconds:.0f} s. Model: {model}\n"
        f"In Python: regularizer = cl.load({str(model.with_suffix(''))!r})"
        f"  # weight {card.weight:.4g} for {card.task}"
    )
    screen.print(text, highlight=False, markup=False, soft_wrap=True)


def _command(processes: int) -> str:
    launcher = f"torchrun --nproc-per-node {processes} -m " if processes > 1 else ""
    return f"{launcher}convexlift {shlex.join(sys.argv[1:])}"
