"""``convexlift train`` after its options are parsed: recipe, images, training, model, summary."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

import convexlift
from convexlift.cli.app import (
    Failed,
    Interrupted,
    UserError,
    check_folder,
    check_json_file,
    choose_device,
    console,
    explained,
    one_sentence_errors,
    write_json,
)
from convexlift.cli.terminal import progress
from convexlift.cli.training_options import Differentiation, TrainingTask, TrainOptions
from convexlift.cli.training_recipe import changed_recipe, damaged_folder, is_adaptive
from convexlift.cli.training_summary import as_json, longer_command, show
from convexlift.models.files import TRAINED, pair
from convexlift.models.recipe_words import recipe_words
from convexlift.models.store import load, save
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.training import (
    AnyRecipe,
    BilevelRecipe,
    ImageSet,
    RecipeResult,
    absorb_weight_,
    follow,
    plain_settings,
)
from convexlift.training.cards import training_card
from convexlift.training.loop import CHECKPOINT, StepCallback, StepReport, step_taken
from convexlift.training.processes import process_group
from convexlift.training.recipes import validated_task
from convexlift.training.run_files import FULL, WriteError
from convexlift.training.validation import Score

OPTIONS = "options.json"
"""The file of options in the folder of a training, which ``--resume DIR`` reads."""
FREE = ("folders", "resume", "device", "json_file", "debug")
"""Options that may be given with ``--resume``."""


@contextlib.contextmanager
def _errors(job: TrainOptions) -> Iterator[None]:
    """Turn errors of the library into advice to the user, printed by one process only."""
    debug, quiet = job.debug, os.environ.get("RANK", "0") != "0"
    with one_sentence_errors(debug, quiet=quiet):
        try:
            with explained():
                yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise Failed(_full_disk(error, job)) from error


def _full_disk(error: OSError, job: TrainOptions) -> str:
    if isinstance(error, WriteError):
        return f"{error}. {_continue(job)} from the last checkpoint, if there is one."
    place = error.filename or "A result"
    return f"{place} cannot be written ({error.strerror}); make room there. {_continue(job)}."


def _continue(job: TrainOptions) -> str:
    folder = shlex.quote(str(job.resume or job.output))
    return f"Continue with convexlift train {job.kind} --resume {folder}"


def run_job(job: TrainOptions) -> None:
    """Train, write the model and show its quality."""
    with _errors(job):
        job = earlier_options(job) if job.resume else job
        _run(changed_recipe(job), job)


def earlier_options(job: TrainOptions) -> TrainOptions:
    """The options of the training in the folder of ``--resume``."""
    assert job.resume is not None
    file = job.resume / OPTIONS
    defaults = {each.name: each.default for each in fields(job)}
    given = [name for name in defaults if getattr(job, name) != defaults[name]]
    try:
        content = json.loads(file.read_text("utf-8"))
        kind = content["train"]
        saved = {name: READ.get(name, _plain)(value) for name, value in content["options"].items()}
    except FileNotFoundError:
        raise UserError(
            f"{job.resume} holds no training: {file} does not exist. Name the folder that was "
            "--output."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} does not hold the options of a training ({error}).") from None
    if kind != job.kind:
        raise UserError(
            f"{job.resume} holds a training of another kind. Write convexlift train {kind} "
            f"--resume {shlex.quote(str(job.resume))}."
        )
    earlier = type(job)(**{**saved, "output": job.resume})
    for name in given:
        if name not in FREE:
            more = f" {_longer(earlier, job.steps)}" if name == "steps" and job.steps else ""
            option = name.replace("_", "-")
            raise UserError(f"--resume takes all options from {file}. Leave out --{option}.{more}")
    return replace(earlier, **{name: getattr(job, name) for name in given})


def _longer(earlier: TrainOptions, steps: int) -> str:
    """How to train longer than a training was meant to take."""
    if not all(file.is_file() for file in pair(earlier.output / TRAINED)):
        return "To train longer, finish this training first; its model is the start of another."
    return f"To train longer, start from its model: {longer_command(earlier, steps)}"


def _continues(job: TrainOptions) -> bool:
    """Whether to continue from a checkpoint: on request, or after torchrun lost a process.

    Torchrun then restarts all processes with the same options.
    """
    if job.resume is not None:
        return True
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    try:
        there = json.loads((job.output / OPTIONS).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return restarted and there == _options_of(job)


def save_options(job: TrainOptions) -> None:
    """Write the options that differ from their defaults, with absolute paths."""
    write_json(job.output / OPTIONS, _options_of(job))


def _options_of(job: TrainOptions) -> dict[str, Any]:
    chosen = {
        each.name: _written(getattr(job, each.name))
        for each in fields(job)
        if each.name not in ("output", "resume", "device", "json_file", "debug")
        and getattr(job, each.name) != each.default
    }
    return {"version": convexlift.__version__, "train": job.kind, "options": chosen}


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return [_written(each) for each in value]
    return str(value.resolve()) if isinstance(value, Path) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is no value of an option")


READ: dict[str, Callable[[Any], Any]] = {
    "folders": lambda names: [Path(name) for name in names], "mask": Path, "damaged": Path,
    "task": TrainingTask, "hypergradient": Differentiation,
}  # fmt: skip


def _run(recipe: AnyRecipe, job: TrainOptions) -> None:
    if not job.folders:
        raise UserError("Name a folder with clean pictures, or a training to --resume.")
    device = choose_device(job.device)
    check_json_file(job.json_file)
    _check_output(job)
    colour = recipe.network.in_channels == 3
    images = ImageSet.from_folders(job.folders, colour=colour)
    recipe = _holding_out(recipe, job, len(images))
    damaged = None
    if (folder := damaged_folder(job)) is not None:
        damaged = ImageSet.from_folder(folder, colour=colour)
    network = None if job.start is None else _load_start(job.start, recipe)
    if network is not None and is_adaptive(job) and not network.reads_data:
        raise UserError(f"{job.start} does not read the data. Leave out --start or --adaptive.")
    with process_group(device) as process:
        screen = console() if process.first else Console(quiet=True)
        if process.first:
            check_folder(job.output)
            save_options(job)
        for line in plan(recipe, images, network):
            screen.print(line, markup=False, soft_wrap=True)
        if job.resume and not (job.output / CHECKPOINT).exists():
            screen.print(
                f"There is no checkpoint in {job.output} yet; starting from the beginning."
            )
        with _interruptions(job), _progress(recipe.options.steps, screen) as callback:
            result = follow(
                recipe, images, network=network, damaged=damaged, device=device,
                folder=job.output, resume=_continues(job), callback=callback,
            )  # fmt: skip
        if result.trained.interrupted:
            step = int(result.trained.rows[-1]["step"])
            raise Interrupted(
                f"Interrupted after step {step} of {recipe.options.steps}; "
                f"{job.output / CHECKPOINT} holds its state. {_continue(job)}."
            )
        if not process.first:
            return
    tv = _total_variation(result, screen)
    card = training_card(
        recipe,
        result,
        images,
        name=job.output.resolve().name,
        source=[
            str(folder) for folder in (*job.folders, damaged_folder(job)) if folder is not None
        ],
        command=_command(process.world),
        version=f"convexlift {convexlift.__version__}",
        processes=process.world,
        total_variation=tv,
        start=network,
    )
    model = save(result.trained.network, job.output / "model", card)
    write_json(job.json_file, as_json(card, result, model, tv))
    show(job, card, result, model, tv, screen)


def plan(recipe: AnyRecipe, images: ImageSet, network: InputConvexNetwork | None) -> Iterator[str]:
    """Method, tasks, network, steps and images of a training, in a few lines."""
    rows = dict(recipe_words(plain_settings(recipe)))
    if network is not None:
        weights = sum(parameter.numel() for parameter in network.parameters())
        rows["Architecture"] = f"that of the network it starts from, with {weights:,} weights"
    held_out = recipe.held_out if validated_task(recipe) is not None else 0
    used = len(images) - held_out
    used = min(used, used if recipe.images is None else recipe.images)
    rows["Images"] = f"{used} to train on, {held_out or 'none'} held out for validation"
    if held_out:
        rows["Images"] += f" every {recipe.options.validate_every} steps"
    for label, text in rows.items():
        yield f"{label:<13} {text}"


def _total_variation(result: RecipeResult, screen: Console) -> Score | None:
    """Total variation with its best weight on the held-out images; None without any."""
    if result.validation is None or result.trained.score is None:
        return None
    with progress(screen, transient=True) as update:
        update(description="Total variation, for comparison", completed=0.0)
        try:
            return result.validation.total_variation(result.trained.network)
        except KeyboardInterrupt:  # the training is finished, and its model is written anyway
            return None


@contextlib.contextmanager
def _interruptions(job: TrainOptions) -> Iterator[None]:
    """Explain how to continue after a second Ctrl-C, which aborts the current step."""
    try:
        yield
    except KeyboardInterrupt:
        if (job.output / CHECKPOINT).exists():
            raise Interrupted(f"Interrupted. {_continue(job)} from the last checkpoint.") from None
        raise Interrupted("Interrupted before the first checkpoint; start again.") from None


def _load_start(name: str, recipe: AnyRecipe) -> InputConvexNetwork:
    """A trained network; for bilevel learning, with the weight of its card absorbed."""
    network = load(name)
    if isinstance(recipe, BilevelRecipe) and network.card is not None:
        task, weight = recipe.tasks[0]
        if task.name in network.card.weights:
            absorb_weight_(network, network.card.weights[task.name] / weight)
    return network


def _check_output(job: TrainOptions) -> None:
    if not _continues(job) and (job.output / CHECKPOINT).exists():
        raise UserError(
            f"{job.output} holds the checkpoint of an earlier training. {_continue(job)}, or name "
            "another folder with --output."
        )


def _holding_out(recipe: AnyRecipe, job: TrainOptions, count: int) -> AnyRecipe:
    """The recipe, with a fifth of few images held out unless the option gives a number.

    Raises unless images remain for training; a single image is handled later.
    """
    if validated_task(recipe) is None or count < 2:
        return recipe
    if job.held_out is None and 2 * recipe.held_out > count:
        return replace(recipe, held_out=max(1, count // 5))
    if 0 <= recipe.held_out < count:
        return recipe
    raise UserError(
        f"{recipe.held_out} of {count} images cannot be held out with some left for training. "
        f"Use --held-out with a number from 0 to {count - 1}, or more images."
    )


@contextlib.contextmanager
def _progress(steps: int, screen: Console) -> Iterator[StepCallback]:
    """A progress bar on a terminal; in a pipe, a line for each validation."""
    with progress(screen, MofNCompleteColumn(), TimeRemainingColumn(), total=steps) as update:
        validated, skipped = "", 0

        def show(report: StepReport) -> None:
            nonlocal validated, skipped
            skipped += not step_taken(report.row)
            not_taken = f", {skipped} step{'s' * (skipped > 1)} not taken" if skipped else ""
            loss = f"loss {report.row['loss']:.4g}" if "loss" in report.row else "start"
            if report.score is not None:
                validated = f", PSNR {report.row['psnr']:.2f} dB"
                if not screen.is_terminal:
                    screen.print(
                        f"step {report.step} of {steps}: {loss}{validated}, "
                        f"SSIM {report.row['ssim']:.3f}, weight {report.row['weight']:.4g}"
                        f"{not_taken}"
                    )
            update(completed=report.step, description=f"{loss}{validated}{not_taken}")

        yield show


def _command(processes: int) -> str:
    launcher = f"torchrun --nproc-per-node {processes} -m " if processes > 1 else ""
    return f"{launcher}convexlift {shlex.join(sys.argv[1:])}"
