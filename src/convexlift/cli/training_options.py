"""Options of ``convexlift train adversarial`` and ``convexlift train bilevel``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from convexlift.cli.app import Debug, Device, JsonFile, fraction

# Recipes of `training.presets` and their purpose, repeated since importing them takes seconds.
ADVERSARIAL = {
    "photo-adversarial": "photographs of any size, Gaussian noise of 0.1",
    "faces-denoising": "images of one size, salt and pepper",
    "faces-inpainting-adversarial": "images of one size, 30 % of the pixels missing",
    "paper-salt-and-pepper": "the paper's section 5.1, images of one size",
    "paper-inpainting": "the paper's section 5.3, images of one size",
    "paper-ct": "the paper's section 5.2, slices of 512 x 512",
    "paper-ct-deep": "the same with its deeper network",
}
BILEVEL = {
    "photo-any-size-first": "photographs of any size, Gaussian noise of 0.1 and inpainting",
    "photo-any-size-second": "continues the first, for both tasks alike",
    "photo-any-size": "continues the second, on larger crops",
    "photo": "reads the data: photographs, all noise levels, inpainting, salt and pepper",
    "photo-colour": "the same in colour",
    "faces-inpainting-bilevel": "images of one size, 30 % of the pixels missing",
    "ct-abdomen-chest-first": "CT slices of any size, Gaussian noise of 0.05",
    "ct-abdomen-chest": "continues it behind the paper's scanner, slices of 512 x 512",
    "ct-abdomen-chest-deep": "the same with three layers",
    "paper-bilevel": "the paper's section 5.3.1, images of one size",
    "paper-bilevel-nmapg": "the same with NMAPG",
}


def _adversarial() -> list[str]:
    return list(ADVERSARIAL)


def _bilevel() -> list[str]:
    return list(BILEVEL)


class TrainingTask(StrEnum):
    """The task that the regularizer is trained for."""

    denoise = "denoise"
    inpaint = "inpaint"
    salt_and_pepper = "salt-and-pepper"


class Differentiation(StrEnum):
    """The hypergradient of bilevel training."""

    implicit = "implicit"
    value_function = "value-function"
    jacobian_free = "jacobian-free"
    unrolled = "unrolled"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of both commands; None keeps the value of the preset's recipe."""

    kind: ClassVar[str]
    presets: ClassVar[dict[str, str]]
    defaults: ClassVar[dict[str, float]]
    """Numbers in the recipe of the default preset, for help texts."""
    preset: str | None

    folders: Annotated[
        list[Path] | None,
        Argument(metavar="FOLDER", help="Folders with clean pictures.", show_default=False),
    ] = None
    task: Annotated[
        TrainingTask | None, Option(help="What to train for; by default the tasks of the preset.")
    ] = None
    sigma: Annotated[
        float | None,
        Option(
            help="Noise level of the training data, where white is 1 (0.1, or 25/255); for "
            "salt-and-pepper, the fraction of pixels. By default 0.1 for denoise, 0.03 for "
            "inpaint, 0.25 for salt-and-pepper.",
            parser=fraction,
            metavar="FLOAT",
        ),
    ] = None
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
    held_out: Annotated[
        int | None,
        Option(help="Images held out for validation; 0: none. If images are few, a fifth."),
    ] = None
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
        Path | None,
        Option(
            metavar="DIR",
            help="Continue the training in this folder, with its options: give no others.",
        ),
    ] = None
    device: Annotated[Device, Option(help="Where to compute.")] = Device.auto
    json_file: JsonFile = None
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class AdversarialOptions(TrainOptions):
    """Train R to be small on clean images and large on damaged ones."""

    kind = "adversarial"
    presets = ADVERSARIAL

    defaults: ClassVar[dict[str, float]] = {
        "steps": 600, "batch_size": 16, "learning_rate": 0.002, "crop": 64, "channels": 32,
        "kernel": 7, "held_out": 16, "validate_every": 300, "seed": 0, "penalty": 5.0,
    }  # fmt: skip

    preset: Annotated[
        str,
        Option(help="The recipe; all are listed above.", autocompletion=_adversarial),
    ] = "photo-adversarial"
    penalty: Annotated[float | None, Option(help="Penalty on slopes of R above 1.")] = None
    damaged: Annotated[
        Path | None,
        Option(help="Folder with a damaged version of each image, in the same order."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BilevelOptions(TrainOptions):
    """Train R so that reconstructions come close to the clean images."""

    kind = "bilevel"
    presets = BILEVEL

    defaults: ClassVar[dict[str, float]] = {
        "steps": 1300, "batch_size": 8, "learning_rate": 0.03, "crop": 48, "channels": 48,
        "kernel": 7, "held_out": 16, "validate_every": 325, "seed": 0,
    }  # fmt: skip

    preset: Annotated[
        str | None,
        Option(
            help="The recipe; all are listed above. By default photo-any-size-first; photo with "
            "--adaptive.",
            autocompletion=_bilevel,
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
