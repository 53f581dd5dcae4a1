"""Options of ``convexlift train adversarial`` and ``convexlift train bilevel``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from convexlift.cli.app import Debug, Device, JsonFile

# The names in `training.presets`, repeated since importing it takes seconds.
ADVERSARIAL = (
    "paper-salt-and-pepper", "paper-inpainting", "paper-ct", "paper-ct-deep", "faces-denoising",
    "faces-inpainting-adversarial",
)  # fmt: skip
BILEVEL = (
    "paper-bilevel", "paper-bilevel-nmapg", "faces-inpainting-bilevel", "photo-any-size-first",
    "photo-any-size-second", "photo-any-size", "photo", "photo-colour", "ct-abdomen-chest-first",
    "ct-abdomen-chest", "ct-abdomen-chest-deep",
)  # fmt: skip


class Differentiation(StrEnum):
    """How bilevel training differentiates reconstructions."""

    implicit = "implicit"
    value_function = "value-function"
    jacobian_free = "jacobian-free"
    unrolled = "unrolled"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of both commands; None keeps the value of the preset's recipe."""

    presets: ClassVar[tuple[str, ...]]
    preset: str | None

    folders: Annotated[list[Path], Argument(metavar="FOLDER", help="Folders with clean pictures.")]
    output: Annotated[
        Path, Option("--output", "-o", help="Folder for model, log and checkpoint.")
    ] = Path("training-output")
    steps: Annotated[int | None, Option(help="Number of optimiser steps.")] = None
    batch_size: Annotated[int | None, Option(help="Images per step, over all processes.")] = None
    learning_rate: Annotated[float | None, Option(help="Adam's learning rate.")] = None
    crop: Annotated[int | None, Option(help="Train on random square crops of this side.")] = None
    channels: Annotated[int | None, Option(help="Number of filters of the network.")] = None
    kernel: Annotated[int | None, Option(help="Size of its filters.")] = None
    images: Annotated[int | None, Option(help="Number of images to train on.")] = None
    held_out: Annotated[int | None, Option(help="Images held out for validation; 0: none.")] = None
    validate_every: Annotated[int | None, Option(help="Steps between validations.")] = None
    seed: Annotated[int | None, Option(help="Seed of all random choices.")] = None
    # torchrun takes --start for an abbreviation of one of its own options, wherever it appears.
    start: Annotated[
        str | None,
        Option(
            "--start",
            "--start-from",
            help="A trained model to start from: a name or a path. Under torchrun, --start-from.",
        ),
    ] = None
    mask: Annotated[
        Path | None, Option(help="A fixed mask for inpainting; white pixels are kept.")
    ] = None
    resume: Annotated[
        bool, Option("--resume", help="Continue from the checkpoint in --output.")
    ] = False
    max_megapixels: Annotated[
        float | None,
        Option(
            help="Largest picture to read, in megapixels; by default 500, less for short files."
        ),
    ] = None
    device: Annotated[Device, Option(help="Where to compute.")] = Device.auto
    json_file: JsonFile = None
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class AdversarialOptions(TrainOptions):
    """Train R to be small on clean images and large on damaged ones."""

    presets = ADVERSARIAL

    preset: Annotated[str, Option(help=f"The recipe: {', '.join(ADVERSARIAL)}.")] = (
        "faces-denoising"
    )
    penalty: Annotated[float | None, Option(help="Penalty on slopes of R above 1.")] = None
    damaged: Annotated[
        Path | None,
        Option(help="Folder with a damaged version of each image, in the same order."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BilevelOptions(TrainOptions):
    """Train R so that reconstructions come close to the clean images."""

    presets = BILEVEL

    preset: Annotated[
        str | None,
        Option(
            help=f"The recipe: {', '.join(BILEVEL)}. By default photo-any-size-first; photo with "
            "--adaptive."
        ),
    ] = None
    adaptive: Annotated[
        bool,
        Option(
            "--adaptive",
            help="Train a regularizer that reads the data, for all noise levels. Its weight is 1.",
        ),
    ] = False
    widths: Annotated[
        str | None,
        Option(help="Channels of the guide of an adaptive network, the finest scale first: 48,64."),
    ] = None
    hypergradient: Annotated[
        Differentiation | None, Option(help="How to differentiate reconstructions.")
    ] = None
