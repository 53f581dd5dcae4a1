"""Options of ``convexlift reconstruct``: their help, and how their texts are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import typer

from convexlift.cli.app import Debug, Device, UserError
from convexlift.models.files import names
from convexlift.reconstruction.contents import RangeChoice
from convexlift.reconstruction.noise import Kind
from convexlift.reconstruction.weight import WeightChoice
from convexlift.scans.data_exchange import AngleUnit
from convexlift.scans.sinograms import Quantity
from convexlift.scans.windows import WINDOWS, Window
from convexlift.solvers.named_methods import METHODS

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")
Method = Literal[tuple(METHODS)]  # type: ignore[valid-type]


def _option(kind: Any, help_text: str, *flags: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*flags, help=help_text, **more)]


PLACES: dict[str, Any] = {
    "inputs": Annotated[
        list[str], typer.Argument(help="Files, folders, or globs in quotes.", show_default=False)
    ],
    "output": _option(
        Path, "A file for one input file, else a folder.", "--output", "-o", show_default=False
    ),
}
"""Inputs and outputs."""

OF_FILES: dict[str, Any] = {
    "proof": _option(
        bool, "Also NAME.proof, which convexlift verify checks without the solver.", "--proof"
    ),
    "force": _option(bool, "Overwrite earlier results.", "--force"),
    "resume": _option(
        bool,
        "After a run that was killed: keep its finished results, do only what is missing.",
        "--resume",
    ),
    "json_file": _option(
        str | None, "Also write all results to this file; - for standard output.", "--json"
    ),
    "debug": Debug,
}
"""Options of the command line alone."""

FILE_DEFAULTS = {
    "proof": False, "force": False, "resume": False, "json_file": None, "debug": False,
}  # fmt: skip

OPTIONS: dict[str, Any] = {
    "mask": _option(
        Path | None, "An image, or a folder of them with the inputs' names; white is seen."
    ),
    "invert_mask": _option(bool, "White is missing.", "--invert-mask"),
    "mask_colour": _option(
        str | None, "Pixels of this colour are missing: '#ff00ff'.", "--mask-colour", "--mask-color"
    ),
    "colour_tolerance": _option(
        int, "Levels (of 255) it may differ by.", "--colour-tolerance", "--color-tolerance"
    ),
    "noise": _option(Kind | None, "Noise model; decided for each file unless given."),
    "sigma": _option(
        float | None,
        "Noise level for images in 0 ... 1 (25/255 is 0.098), or the fraction of pixels that are "
        "salt and pepper; estimated for each file unless given.",
    ),
    "range": _option(
        str,
        "Numbers that mean black and white, LOW,HIGH, or data: smallest and largest. auto: 0 and "
        "the largest of an integer type, 0,1 for floats that are about there; as data for other "
        "floats, and for integers of which some are negative.",
    ),
    "truth": _option(
        Path | None,
        "The clean image, or a folder of them with the inputs' names; gives PSNR.",
    ),
    "regularizer": _option(
        str,
        "A name (convexlift models), the path of a saved one, or tv.",
        autocompletion=lambda: [*names(), "tv"],
    ),
    "weight": _option(
        str,
        "card: of the regularizer's card, scaled to the noise. auto: chosen by prediction of "
        "held-out data. discrepancy: whose residual is as large as the noise. Or a number.",
    ),
    "tolerance": _option(float, "Certified relative gap to stop at."),
    "time_limit": _option(
        float | None,
        "Seconds for each file, or batch of files: half of them at most for its weight.",
    ),
    "max_iterations": _option(int, "Iterations for each file."),
    "method": _option(Method, "How to solve; those with step sizes try some for a few iterations."),
    "device": _option(Device, "Where to compute."),
    "batch": _option(str, "Images of one size solved at once: auto, as many as fit, or a number."),
    "gap_map": _option(bool, "Also NAME.gap.npy and .png: where the gap is.", "--gap-map"),
    "max_megapixels": _option(
        float | None,
        "Largest file to read, in millions of numbers over all pages and channels; unless given, "
        "500, and less for short files, which cannot hold so many.",
    ),
}
"""Options of the library that the command line has, too."""

SCAN_OPTIONS: dict[str, Any] = {
    "quantity": _option(Quantity | None, "What the numbers are, if not as the file says."),
    "flat": _option(str | None, "Readings without object: a number, or an NPY file."),
    "dark": _option(str | None, "Readings without beam: a number, or an NPY file."),
    "photons": _option(
        float | None,
        "In a free ray, for transmissions and line integrals; estimated unless given.",
    ),
    "background": _option(float | None, "r of emission counts y ~ Poisson(A x + r)."),
    "size": _option(int | None, "Pixels of a side; as many as bins unless given."),
    "extent": _option(float | None, "Side in mm; the field of view unless given."),
    "water": _option(float, "Attenuation of water in 1/mm, for HU."),
    "angle_unit": _option(AngleUnit | None, "Of HDF5 files that do not say it."),
    "rows": _option(str | None, "Of the detector, FIRST:END; all unless given."),
    "window": _option(str, f"Of PNG results: {', '.join(WINDOWS)}, or LEVEL,WIDTH in HU."),
    "simulate": _option(bool, "Inputs are slices; simulate a scan with counts.", "--simulate"),
    "views": _option(int, "Of a simulated scan."),
    "bins": _option(int, "Of a simulated scan."),
    "seed": _option(int, "Of simulated noise."),
    "read_seconds": _option(
        float | None, "For reading an HDF5 file; unless given, 20 and 1 for every 10 MB."
    ),
    "sigma": _option(float | None, "Noise of line integrals, if the same in all rays."),
    "truth": _option(Path | None, "Slices in HU of the result's size; gives PSNR."),
    "weight": _option(
        str | None,
        "As for denoise; auto unless given, card (which is for the simulated scan) with "
        "--simulate.",
    ),
}
"""Options of ``ct``, in addition or in place of others."""


def read_weight(text: str | None) -> WeightChoice | None:
    """A rule or a number."""
    if text is None or text in ("card", "auto", "discrepancy"):
        return text  # type: ignore[return-value]
    return _number("--weight", text, "card, auto, discrepancy or a number > 0")


def read_batch(text: str) -> int | Literal["auto"]:
    """``auto`` or a number."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--batch is auto or a whole number from 1 on, got {text}.")
    return int(text)


def read_range(text: str) -> RangeChoice:
    """``auto``, ``data`` or two numbers."""
    if text in ("auto", "data"):
        return text  # type: ignore[return-value]
    return _pair("--range", text, "auto, data or LOW,HIGH, such as 0,4095")


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


READERS: dict[str, Callable[[Any], Any]] = {
    "weight": read_weight, "batch": read_batch, "range": read_range, "window": read_window,
    "rows": read_rows,
}  # fmt: skip
"""Of options that are texts, by name."""


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


def checked(
    make: Callable[Arguments, Made], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Made:
    """The result of the call; errors of options and files become sentences for the user."""
    try:
        return make(*arguments, **options)
    except (ValueError, ImportError) as error:
        raise UserError(f"{error}.") from error
