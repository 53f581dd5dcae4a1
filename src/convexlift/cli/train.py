"""``convexlift train adversarial`` and ``convexlift train bilevel``: recipes from options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from convexlift.cli.app import Debug, Device, JsonFile, UserError, app
from convexlift.cli.training_job import AnyRecipe, Job, one_process_tells, run_job
from convexlift.images import load_image
from convexlift.tasks import Inpainting, Task
from convexlift.training.hypergradients import (
    Hypergradient,
    Implicit,
    JacobianFree,
    Unrolled,
    ValueFunction,
)
from convexlift.training.presets import PRESETS
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe

train_app = typer.Typer(
    help="Train a regularizer on your own images.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train_app, name="train")

ADVERSARIAL = [name for name, each in PRESETS.items() if isinstance(each, AdversarialRecipe)]
BILEVEL = [name for name, each in PRESETS.items() if isinstance(each, BilevelRecipe)]


class Differentiation(StrEnum):
    """How bilevel training differentiates reconstructions."""

    implicit = "implicit"
    value_function = "value-function"
    jacobian_free = "jacobian-free"
    unrolled = "unrolled"


HYPERGRADIENTS: dict[Differentiation, Hypergradient] = {
    Differentiation.implicit: Implicit(damping=1e-2, iterations=20, tolerance=1e-2),
    Differentiation.value_function: ValueFunction(),
    Differentiation.jacobian_free: JacobianFree(),
    Differentiation.unrolled: Unrolled(steps=20),
}

Folders = Annotated[
    list[Path], typer.Argument(metavar="FOLDER", help="Folders with clean pictures.")
]
AdversarialPreset = Annotated[
    str, typer.Option("--preset", help=f"The recipe: {', '.join(ADVERSARIAL)}.")
]
BilevelPreset = Annotated[str, typer.Option("--preset", help=f"The recipe: {', '.join(BILEVEL)}.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for model, log and checkpoint.")
]
Steps = Annotated[int | None, typer.Option(help="Steps of the optimiser.")]
BatchSize = Annotated[int | None, typer.Option(help="Images in a step, of all processes together.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="Of Adam.")]
Crop = Annotated[int | None, typer.Option(help="Train on random square crops of this side.")]
Count = Annotated[int | None, typer.Option("--images", help="Train on so many of the images.")]
HeldOut = Annotated[int | None, typer.Option(help="Images kept for validation.")]
ValidateEvery = Annotated[int | None, typer.Option(help="Steps between validations.")]
Seed = Annotated[int | None, typer.Option(help="Of all random choices.")]
# torchrun takes --start for an abbreviation of an option of its own, wherever it stands.
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        "--start-from",
        help="A trained model to start from: a name or a path. Under torchrun, --start-from.",
    ),
]
MaskFile = Annotated[
    Path | None, typer.Option("--mask", help="A fixed mask for inpainting; white pixels are kept.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --output.")]
MaxMegapixels = Annotated[
    float | None,
    typer.Option(help="Largest picture to read; unless given, 500, and less for short files."),
]
Place = Annotated[Device, typer.Option(help="Where to compute.")]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the command line changes in a recipe; None leaves it as it is."""

    steps: int | None
    batch_size: int | None
    learning_rate: float | None
    crop: int | None
    images: int | None
    held_out: int | None
    validate_every: int | None
    seed: int | None
    mask: Path | None

    def apply(self, recipe: AnyRecipe) -> AnyRecipe:
        """The recipe with the changes."""
        options = replace(recipe.options, **self._given("steps", "learning_rate", "validate_every"))
        changed = replace(
            recipe,
            options=options,
            **self._given("batch_size", "crop", "images", "held_out", "seed"),
        )
        return changed if self.mask is None else _with_mask(changed, self.mask)

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@train_app.command()
def adversarial(
    folders: Folders,
    preset: AdversarialPreset = "faces-denoising",
    output: Output = Path("training-output"),
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: Rate = None,
    crop: Crop = None,
    images: Count = None,
    held_out: HeldOut = None,
    validate_every: ValidateEvery = None,
    penalty: Annotated[float | None, typer.Option(help="On slopes of R above 1.")] = None,
    damaged: Annotated[
        Path | None,
        typer.Option(help="Folder with a damaged version of each image, in the same order."),
    ] = None,
    seed: Seed = None,
    start: Start = None,
    mask: MaskFile = None,
    resume: Resume = False,
    max_megapixels: MaxMegapixels = None,
    device: Place = Device.auto,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """R small on clean images and large on damaged ones.

    What is not given is as in the recipe of --preset.
    Writes model.safetensors, model.json, log.csv and checkpoint.pt to the folder of --output.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    changes = Changes(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, crop=crop, images=images,
        held_out=held_out, validate_every=validate_every, seed=seed, mask=mask,
    )  # fmt: skip
    job = Job(
        folders=folders, output=output, damaged=damaged, start=start, resume=resume,
        device=device, json_file=json_file, max_megapixels=max_megapixels,
    )  # fmt: skip
    with one_process_tells(debug):
        recipe = changes.apply(_preset(preset, ADVERSARIAL, "adversarial", "bilevel"))
        assert isinstance(recipe, AdversarialRecipe)
        if penalty is not None:
            recipe = replace(recipe, penalty=penalty)
        if damaged is not None:
            recipe = replace(recipe, task=None, flips=False)
        run_job(recipe, job)


@train_app.command()
def bilevel(
    folders: Folders,
    preset: BilevelPreset = "photo-any-size-first",
    output: Output = Path("training-output"),
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: Rate = None,
    crop: Crop = None,
    images: Count = None,
    held_out: HeldOut = None,
    validate_every: ValidateEvery = None,
    hypergradient: Annotated[
        Differentiation | None, typer.Option(help="How to differentiate reconstructions.")
    ] = None,
    seed: Seed = None,
    start: Start = None,
    mask: MaskFile = None,
    resume: Resume = False,
    max_megapixels: MaxMegapixels = None,
    device: Place = Device.auto,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """R whose reconstructions are near the clean images.

    What is not given is as in the recipe of --preset.
    Writes model.safetensors, model.json, log.csv and checkpoint.pt to the folder of --output.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    changes = Changes(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, crop=crop, images=images,
        held_out=held_out, validate_every=validate_every, seed=seed, mask=mask,
    )  # fmt: skip
    job = Job(
        folders=folders, output=output, damaged=None, start=start, resume=resume,
        device=device, json_file=json_file, max_megapixels=max_megapixels,
    )  # fmt: skip
    with one_process_tells(debug):
        recipe = changes.apply(_preset(preset, BILEVEL, "bilevel", "adversarial"))
        assert isinstance(recipe, BilevelRecipe)
        if hypergradient is not None:
            recipe = replace(recipe, hypergradient=HYPERGRADIENTS[hypergradient])
        run_job(recipe, job)


def _preset(name: str, known: list[str], kind: str, other: str) -> AnyRecipe:
    if name in known:
        return PRESETS[name]
    if name in PRESETS:
        raise UserError(f"{name} is a preset of `convexlift train {other}`. Use that command.")
    raise UserError(f"There is no {kind} preset {name!r}. Choose one of {', '.join(known)}.")


def _with_mask(recipe: AnyRecipe, path: Path) -> AnyRecipe:
    """One mask for all images in place of random ones."""
    mask = (load_image(path)[0, 0] >= 0.5).float()

    def fixed(task: Task | None) -> Task | None:
        return replace(task, mask=mask) if isinstance(task, Inpainting) else task

    tasks = [recipe.task] if isinstance(recipe, AdversarialRecipe) else [t for t, _ in recipe.tasks]
    if not any(isinstance(task, Inpainting) for task in tasks):
        raise UserError("--mask is for inpainting, which this preset does not do. Leave it out.")
    if isinstance(recipe, AdversarialRecipe):
        return replace(recipe, task=fixed(recipe.task))
    return replace(recipe, tasks=tuple((fixed(task) or task, w) for task, w in recipe.tasks))
