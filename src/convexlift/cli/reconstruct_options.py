"""Options of ``convexlift reconstruct``: their help, and how their texts are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from convexlift.cli.app import Device, UserError
from convexlift.models.files import names
from convexlift.reconstruction.engine import WeightChoice
from convexlift.reconstruction.input_files import InputError, RangeChoice
from convexlift.reconstruction.masks import MaskChoice
from convexlift.reconstruction.noise import Kind
from convexlift.reconstruction.photographs import Photographs, PictureTask
from convexlift.scans.hounsfield import WINDOWS, Window
from convexlift.solvers.named_methods import METHODS
from convexlift.solvers.stopping import StopWhen

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


class NoiseModel(StrEnum):
    """Noise of pictures."""

    gaussian = "gaussian"
    salt_and_pepper = "salt-and-pepper"


class Quantities(StrEnum):
    """What numbers of a sinogram are."""

    counts = "counts"
    transmission = "transmission"
    line_integrals = "line integrals"


class AngleUnits(StrEnum):
    """Of HDF5 files that do not say it."""

    degrees = "degrees"
    radians = "radians"


Method = StrEnum("Method", {name.replace("-", "_"): name for name in METHODS})  # type: ignore[misc]
DEFAULT_METHOD = Method("default")


Inputs = Annotated[
    list[str], typer.Argument(help="Files, folders, or globs in quotes.", show_default=False)
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="A file for one input file, else a folder.", show_default=False
    ),
]
Regularizer = Annotated[
    str,
    typer.Option(
        help="A name (convexlift models), the path of a saved one, or tv.",
        autocompletion=lambda: [*names(), "tv"],
    ),
]
WeightOption = Annotated[
    str,
    typer.Option(
        help="card: of the regularizer's card, scaled to the noise. auto: that predicts data kept "
        "apart best. discrepancy: whose residual is as large as the noise. Or a number."
    ),
]
Tolerance = Annotated[float, typer.Option(help="Certified relative gap to stop at.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        help="Seconds for each file, or batch of files: half of them at most for its weight."
    ),
]
MaxIterations = Annotated[int, typer.Option(help="Iterations for each file.")]
MethodOption = Annotated[
    Method, typer.Option(help="How to solve; those with step sizes try some for a few iterations.")
]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
Batch = Annotated[
    str, typer.Option(help="Images of one size solved at once: auto, as many as fit, or a number.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="After a run that was killed: keep its finished results, do only what is missing.",
    ),
]
MaxMegapixels = Annotated[
    float | None,
    typer.Option(
        help="Largest file to read, in millions of numbers over all pages and channels; unless "
        "given, 500, and less for short files, which cannot hold so many."
    ),
]
GapMap = Annotated[
    bool, typer.Option("--gap-map", help="Also NAME.gap.npy and .png: where the gap is.")
]
ProofOption = Annotated[
    bool,
    typer.Option(
        "--proof", help="Also NAME.proof, which convexlift verify checks without the solver."
    ),
]
Json = Annotated[
    str | None,
    typer.Option("--json", help="Also write all results to this file; - for standard output."),
]
Truth = Annotated[
    Path | None,
    typer.Option(help="The clean image, or a folder of them with the inputs' names; gives PSNR."),
]
NoiseOption = Annotated[
    NoiseModel | None, typer.Option(help="Noise model; decided for each file unless given.")
]
Sigma = Annotated[
    float | None,
    typer.Option(
        help="Noise level for images in 0 ... 1 (25/255 is 0.098), or the fraction of pixels that "
        "are salt and pepper; estimated for each file unless given."
    ),
]
RangeOption = Annotated[
    str,
    typer.Option(
        "--range",
        help="Numbers that mean black and white, LOW,HIGH, or data: smallest and largest. "
        "auto: 0 and the largest of an integer type, 0,1 for floats that are about there; as data "
        "for other floats, and for integers of which some are negative.",
    ),
]


def photographs(
    task: PictureTask, noise: NoiseModel | None, sigma: float | None, mask: MaskChoice,
    numbers: str, truth: Path | None, max_megapixels: float | None,
) -> Photographs:  # fmt: skip
    """What ``denoise`` and ``inpaint`` do with each file."""
    kind: Kind | None = None
    if noise is not None:
        kind = "gaussian" if noise is NoiseModel.gaussian else "salt-and-pepper"
    return checked(Photographs, task, kind, sigma, mask, read_range(numbers), truth, max_megapixels)


def read_weight(text: str) -> WeightChoice:
    """A rule or a number."""
    rules: dict[str, WeightChoice] = {
        "card": "card", "auto": "auto", "discrepancy": "discrepancy",
    }  # fmt: skip
    if text in rules:
        return rules[text]
    return _number("--weight", text, "card, auto, discrepancy or a number > 0")


def stopping(tolerance: float, max_iterations: int, time_limit: float | None) -> StopWhen:
    """Of all solves; errors name the options, which the library calls otherwise."""
    if not tolerance >= 0:
        raise UserError(
            f"--tolerance is a relative gap from 0 on, such as 1e-3, got {tolerance:g}."
        )
    if max_iterations < 0:
        raise UserError(f"--max-iterations is a whole number from 0 on, got {max_iterations}.")
    if time_limit is not None and not time_limit > 0:
        raise UserError(
            f"--time-limit is a number of seconds > 0, got {time_limit:g}. Leave it out for none."
        )
    return StopWhen(gap=tolerance, max_iterations=max_iterations, seconds=time_limit)


def read_batch(text: str) -> int | None:
    """A number, or None for ``auto``."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--batch is auto or a whole number from 1 on, got {text}.")
    return int(text)


def read_range(text: str) -> RangeChoice:
    """``auto``, ``data`` or two numbers."""
    if text == "auto":
        return "auto"
    if text == "data":
        return "data"
    low, high = _pair("--range", text, "auto, data or LOW,HIGH, such as 0,4095")
    if not low < high:
        raise UserError(f"--range needs LOW < HIGH, got {text}.")
    return (low, high)


def read_window(text: str) -> Window:
    """A name or two numbers."""
    if text in WINDOWS:
        return WINDOWS[text]
    level, width = _pair("--window", text, f"one of {', '.join(WINDOWS)}, or LEVEL,WIDTH in HU")
    return checked(Window, level, width)


def read_rows(text: str | None) -> tuple[int, int] | None:
    """``FIRST:END``."""
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise UserError(f"--rows is FIRST:END, such as 500:510, got {text}.")
    first, end = int(parts[0]), int(parts[1])
    if not first < end:
        raise UserError(f"--rows needs FIRST < END, got {text}.")
    return (first, end)


def _pair(option: str, text: str, what: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise UserError(f"{option} is {what}, got {text}.")
    return _number(option, parts[0], what), _number(option, parts[1], what)


def _number(option: str, text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{option} is {what}, got {text}.")
    return value


def named_options(**options: Any) -> dict[str, Any]:
    """Those that were given, as JSON has them."""
    return {name: str(value) if isinstance(value, Path) else value
            for name, value in options.items() if value is not None}  # fmt: skip


def checked(
    make: Callable[Arguments, Made], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Made:
    """Whatever it makes; errors of options and files are sentences for the user."""
    try:
        return make(*arguments, **options)
    except (InputError, ValueError, ImportError) as error:
        raise UserError(f"{error}.") from error
