"""``convexlift train adversarial`` and ``convexlift train bilevel``: their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from convexlift.cli.app import Debug, Device, JsonFile, app

train_app = typer.Typer(
    help="Train a regularizer on your own images.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train_app, name="train")

# The names in `training.presets`, whose import takes seconds.
ADVERSARIAL = (
    "paper-salt-and-pepper", "paper-inpainting", "paper-ct", "paper-ct-deep", "faces-denoising",
    "faces-inpainting-adversarial",
)  # fmt: skip
BILEVEL = (
    "paper-bilevel", "faces-inpainting-bilevel", "photo-any-size-first", "photo-any-size-second",
    "photo-any-size", "ct-abdomen-chest-first", "ct-abdomen-chest", "ct-abdomen-chest-deep",
)  # fmt: skip


class Differentiation(StrEnum):
    """How bilevel training differentiates reconstructions."""

    implicit = "implicit"
    value_function = "value-function"
    jacobian_free = "jacobian-free"
    unrolled = "unrolled"


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
DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]


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
    device: DeviceOption = Device.auto,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """R small on clean images and large on damaged ones.

    Options that are not given are as in the recipe of --preset.
    Writes model.safetensors, model.json, log.csv and checkpoint.pt to the folder of --output.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    from convexlift.cli.training_job import TrainingJob, run_job

    job = TrainingJob(
        kind="adversarial", preset=preset, folders=folders, output=output, steps=steps,
        batch_size=batch_size, learning_rate=learning_rate, crop=crop, images=images,
        held_out=held_out, validate_every=validate_every, penalty=penalty, damaged=damaged,
        seed=seed, start=start, mask=mask, resume=resume, max_megapixels=max_megapixels,
        device=device, json_file=json_file,
    )  # fmt: skip
    run_job(job, debug)


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
    device: DeviceOption = Device.auto,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """R whose reconstructions are near the clean images.

    Options that are not given are as in the recipe of --preset.
    Writes model.safetensors, model.json, log.csv and checkpoint.pt to the folder of --output.
    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    from convexlift.cli.training_job import TrainingJob, run_job

    job = TrainingJob(
        kind="bilevel", preset=preset, folders=folders, output=output, steps=steps,
        batch_size=batch_size, learning_rate=learning_rate, crop=crop, images=images,
        held_out=held_out, validate_every=validate_every, hypergradient=hypergradient,
        seed=seed, start=start, mask=mask, resume=resume, max_megapixels=max_megapixels,
        device=device, json_file=json_file,
    )  # fmt: skip
    run_job(job, debug)
