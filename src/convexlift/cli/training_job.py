"""``convexlift train`` once its options are read: recipe, images, training, model, summary."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
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
from convexlift.cli.terminal import progress, table
from convexlift.cli.training_options import AdversarialOptions, BilevelOptions, TrainOptions
from convexlift.files.formats import require_limit
from convexlift.images import load_image
from convexlift.models.files import ModelCard
from convexlift.models.store import load, save
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.tasks import Inpainting, Task
from convexlift.training import (
    PRESETS,
    AdversarialRecipe,
    AnyRecipe,
    BilevelRecipe,
    Hypergradient,
    ImageSet,
    Implicit,
    JacobianFree,
    NetworkSettings,
    RecipeResult,
    Unrolled,
    ValueFunction,
    absorb_weight_,
    follow,
)
from convexlift.training.loop import CHECKPOINT, StepCallback, StepReport, step_taken
from convexlift.training.processes import process_group
from convexlift.training.recipes import training_card, validated_task
from convexlift.training.run_files import FULL, WriteError

CONTINUE = "Continue with the same command and --resume"
HYPERGRADIENTS: dict[str, Hypergradient] = {
    "implicit": Implicit(damping=1e-2, iterations=20, tolerance=1e-2),
    "value-function": ValueFunction(),
    "jacobian-free": JacobianFree(),
    "unrolled": Unrolled(steps=20),
}


def changed_recipe(job: TrainOptions) -> AnyRecipe:
    """The recipe of the preset, changed by the options."""
    recipe = _preset(job)
    recipe = replace(recipe, network=_network(job, recipe.network))
    options = replace(recipe.options, **_given(job, "steps", "learning_rate", "validate_every"))
    changes = _given(job, "batch_size", "crop", "images", "held_out", "seed", "penalty")
    if isinstance(job, BilevelOptions) and job.hypergradient is not None:
        changes["hypergradient"] = HYPERGRADIENTS[job.hypergradient]
    if _damaged(job) is not None:
        changes.update(task=None, flips=False)
    if job.mask is not None:
        recipe = _with_mask(recipe, job.mask)
    return replace(recipe, options=options, **changes)


def _preset(job: TrainOptions) -> AnyRecipe:
    kind, other = "adversarial", "bilevel"
    if isinstance(job, BilevelOptions):
        kind, other = other, kind
    name = job.preset or ("photo" if _adaptive(job) else "photo-any-size-first")
    if name in job.presets:
        return PRESETS[name]
    if name in PRESETS:
        raise UserError(f"{name} is a preset of `convexlift train {other}`. Use that command.")
    known = ", ".join(job.presets)
    raise UserError(f"There is no {kind} preset {name!r}. Choose one of {known}.")


def _adaptive(job: TrainOptions) -> bool:
    return isinstance(job, BilevelOptions) and job.adaptive


def _network(job: TrainOptions, settings: NetworkSettings) -> NetworkSettings:
    """The network of the recipe, changed by the options."""
    changes = _given(job, "channels", "kernel", "widths")
    adaptive = settings.architecture == "adaptive"
    if _adaptive(job) and not adaptive:
        raise UserError(
            f"--adaptive needs a recipe for networks that read the data, and {job.preset} is for "
            "others. Leave out one of the two."
        )
    if changes and job.start is not None:
        raise UserError(
            f"--{next(iter(changes))} is for a new network, and --start names a trained one. "
            "Leave out one of the two."
        )
    if "widths" in changes:
        if not adaptive:
            raise UserError("--widths is for networks that read the data. Add --adaptive.")
        try:
            changes["widths"] = tuple(int(width) for width in changes["widths"].split(","))
        except ValueError:
            raise UserError(
                f"--widths is whole numbers and commas, such as 48,64,80, got {changes['widths']!r}"
            ) from None
    return replace(settings, **changes)


def _given(job: TrainOptions, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(job, name, None)) is not None}


def _damaged(job: TrainOptions) -> Path | None:
    return job.damaged if isinstance(job, AdversarialOptions) else None


def _with_mask(recipe: AnyRecipe, path: Path) -> AnyRecipe:
    """The recipe with one mask for all images in place of random ones."""
    mask = (load_image(path)[0, 0] >= 0.5).float()

    def fixed(task: Task | None) -> Task | None:
        return replace(task, mask=mask) if isinstance(task, Inpainting) else task

    tasks = [recipe.task] if isinstance(recipe, AdversarialRecipe) else [t for t, _ in recipe.tasks]
    if not any(isinstance(task, Inpainting) for task in tasks):
        raise UserError("--mask is for inpainting, which this preset does not do. Leave it out.")
    if isinstance(recipe, AdversarialRecipe):
        return replace(recipe, task=fixed(recipe.task))
    return replace(recipe, tasks=tuple((fixed(task) or task, w) for task, w in recipe.tasks))


@contextlib.contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """Errors of the library as advice to the user, printed by one process only."""
    quiet = os.environ.get("RANK", "0") != "0"
    with one_sentence_errors(debug, quiet=quiet):
        try:
            with explained():
                yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise Failed(_full_disk(error)) from error


def _full_disk(error: OSError) -> str:
    if isinstance(error, WriteError):
        return f"{error}. {CONTINUE} from the last checkpoint, if there is one."
    place = error.filename or "A result"
    return f"{place} cannot be written ({error.strerror}); make room there. {CONTINUE}."


def run_job(job: TrainOptions) -> None:
    """Train, write the model and show how good it is."""
    with _errors(job.debug):
        _run(changed_recipe(job), job)


def _run(recipe: AnyRecipe, job: TrainOptions) -> None:
    require_limit("--max-megapixels", job.max_megapixels)
    device = choose_device(job.device)
    check_json_file(job.json_file)
    _check_output(job)
    colour = recipe.network.in_channels == 3
    images = ImageSet.from_folders(job.folders, max_megapixels=job.max_megapixels, colour=colour)
    _check_held_out(recipe, len(images))
    damaged = None
    if (folder := _damaged(job)) is not None:
        damaged = ImageSet.from_folder(folder, max_megapixels=job.max_megapixels, colour=colour)
    network = None if job.start is None else _load_start(job.start, recipe)
    if network is not None and _adaptive(job) and not network.reads_data:
        raise UserError(f"{job.start} does not read the data. Leave out --start or --adaptive.")
    with process_group(device) as process:
        screen = console() if process.first else Console(quiet=True)
        if process.first:
            check_folder(job.output)
        if job.resume and not (job.output / CHECKPOINT).exists():
            screen.print(
                f"There is no checkpoint in {job.output} yet; starting from the beginning."
            )
        with _interruptions(job), _progress(recipe.options.steps, screen) as callback:
            result = follow(
                recipe, images, network=network, damaged=damaged, device=device,
                folder=job.output, resume=job.resume, callback=callback,
            )  # fmt: skip
        if result.trained.interrupted:
            step = int(result.trained.rows[-1]["step"])
            raise Interrupted(
                f"Interrupted after step {step} of {recipe.options.steps}; "
                f"{job.output / CHECKPOINT} holds its state. {CONTINUE}."
            )
        if not process.first:
            return
    card = training_card(
        recipe,
        result,
        images,
        name=job.output.resolve().name,
        source=[str(folder) for folder in (*job.folders, _damaged(job)) if folder is not None],
        command=_command(process.world),
        version=f"convexlift {convexlift.__version__}",
        processes=process.world,
    )
    model = save(result.trained.network, job.output / "model", card)
    write_json(job.json_file, as_json(card, result, model))
    _show(card, result, model, screen)


@contextlib.contextmanager
def _interruptions(job: TrainOptions) -> Iterator[None]:
    """Say how to continue after a second Ctrl-C, which aborts the current step."""
    try:
        yield
    except KeyboardInterrupt:
        if (job.output / CHECKPOINT).exists():
            raise Interrupted(f"Interrupted. {CONTINUE} from the last checkpoint.") from None
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
    if not job.resume and (job.output / CHECKPOINT).exists():
        raise UserError(
            f"{job.output} holds the checkpoint of an earlier training. "
            "Continue it with --resume, or name another folder with --output."
        )


def _check_held_out(recipe: AnyRecipe, count: int) -> None:
    """Raise unless images remain for training; a single image is handled later."""
    if validated_task(recipe) is None or count < 2 or 0 <= recipe.held_out < count:
        return
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


def as_json(card: ModelCard, result: RecipeResult, model: Path) -> dict[str, Any]:
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
        "card": card.to_json(),
    }


def _validations(result: RecipeResult) -> list[dict[str, float]]:
    return [row for row in result.trained.rows if "psnr" in row]


def _show(card: ModelCard, result: RecipeResult, model: Path, screen: Console) -> None:
    rows, trained = _validations(result), result.trained
    if rows and trained.score is not None:
        shown = {"at the start": rows[0], f"best (step {trained.step})": trained.score}
        cells = [
            (label, f"{row['psnr']:.2f}", f"{row['ssim']:.3f}", f"{row['weight']:.4g}")
            for label, row in shown.items()
        ]
        header = ("Validation", "PSNR", "SSIM", "Weight")
        screen.print(table(header, cells, left=["Validation"]))
    if trained.skipped:
        screen.print(
            f"{trained.skipped} of {int(trained.rows[-1]['step'])} steps were "
            "not taken: reconstructions missed the gap of the recipe.", soft_wrap=True
        )  # fmt: skip
    text = (
        f"{trained.seconds:.0f} s. Model: {model}\n"
        f"In Python: regularizer = cl.load({str(model.with_suffix(''))!r})"
        f"  # weight {card.weight:.4g} for {card.task}"
    )
    screen.print(text, markup=False, soft_wrap=True)


def _command(processes: int) -> str:
    launcher = f"torchrun --nproc-per-node {processes} -m " if processes > 1 else ""
    return f"{launcher}convexlift {shlex.join(sys.argv[1:])}"
