"""Jobs: the calls of ``cl.reconstruct`` that visitors ask for, with options that were checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from convexlift.models.files import Sheet, shipped_sheets
from convexlift.reconstruction import InputError, PreparedImage, reconstructor
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, SparseViewCT
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture

TV = "tv"
"""Total variation, the regularizer that is not learned."""

TOLERANCES = (1e-2, 1e-3, 1e-4)
STRENGTHS = (0.1, 10.0)
CT_SIZES, CT_VIEWS = (128, 256, 512), (10, 400)
MOST_MISSING = 0.95
MOST_ITERATIONS = 20_000

BOX: dict[str, tuple[float, float]] = {
    "denoise": (0.0, 1.0), "inpaint": (0.0, 1.0), "ct": (0.0, 2.0),
}  # fmt: skip
"""Bounds on images; the upper one of CT is 4024 HU."""

BOUNDS: dict[str, tuple[str, float, float]] = {
    "tolerance": ("The tolerance", 1e-6, 0.5),
    "strength": ("The strength", *STRENGTHS),
    "seed": ("The seed", 0, 2**31 - 1),
    "sigma": ("The noise level", 0.0, 0.9),
    "missing": ("The missing fraction", 0.01, MOST_MISSING),
    "views": ("The number of views", *CT_VIEWS),
}
"""Names and bounds of options that are numbers."""

HINTS = {
    "denoise": 'Choose "Gaussian" or "Salt & pepper" instead of "Detect", and its level.',
    "inpaint": "Mark fewer pixels as missing, or use convexlift reconstruct with --sigma.",
    "ct": "Choose other settings.",
}
"""What to do, in words of the page, where ``cl.reconstruct`` refuses a picture."""

FEW_PIXELS, MANY_PIXELS = 100_000, 500_000
"""Iterations take less than a tenth of a second below the first, and about one at the second."""


@dataclass(frozen=True, eq=False)
class PageJob:
    """``cl.reconstruct(picture.values, task, **options)``.

    Args:
        task: ``denoise``, ``inpaint`` or ``ct``.
        picture: clean if it is to be damaged first (``simulate``), else damaged.
        options: as the visitor chose them. The regularizer is the name of one that fits, never a
            path; a mask is (H, W).
    """

    task: str
    picture: InputPicture
    options: dict[str, Any]

    def __post_init__(self) -> None:
        for name, (label, low, high) in BOUNDS.items():
            if self.options.get(name) is not None:
                _require_number(label, self.options[name], low, high)
        regularizer = self.options["regularizer"]
        if regularizer not in fitting(self._card_task(), self.picture.size):
            raise PageError(f"{regularizer} does not fit this picture and task.", "Choose another.")
        if self.simulated and self.task != "ct" and self.options.get("sigma") is None:
            raise PageError("There is no noise to simulate.", "Choose its kind and its level.")
        if self.task == "inpaint":
            _check_mask(self.options.get("mask"), self.picture, self.simulated)

    @property
    def simulated(self) -> bool:
        """Whether the picture is damaged first; then the truth is known."""
        return bool(self.options.get("simulate"))

    def call(self) -> dict[str, Any]:
        """All options of the call, but those of the machine."""
        planes = self.picture.values
        count = planes.numel()  # large pictures have long iterations: check, and stop, more often
        check_every = 5 if count <= FEW_PIXELS else 2 if count <= MANY_PIXELS else 1
        scale = {} if self.task == "ct" else {"range": (0.0, 1.0)}
        return {
            **self.options, **scale, "box": BOX[self.task], "check_every": check_every,
            "max_iterations": MOST_ITERATIONS, "batch": len(planes),
        }  # fmt: skip

    def reconstructor(self, device: torch.device, seconds: float | None = None) -> Reconstructor:
        """The checked options, for a device and with a time limit."""
        with_limits = {"device": device, "time_limit": seconds, "gap_map": True}
        try:
            return reconstructor(self.task, **self.call(), **with_limits)
        except InputError as error:
            raise self._page_error(error) from None

    def prepared(self, options: Reconstructor, solver: PiecewiseSolver) -> PreparedImage:
        """The data, the noise, and the weight."""
        try:
            return options.prepare(self.picture.values, solver)
        except InputError as error:
            raise self._page_error(error) from None

    def _page_error(self, error: InputError) -> PageError:
        """What is wrong, without the second half of the message, which names options."""
        sentence = str(error).partition(";")[0]
        return PageError(f"{sentence[:1].upper()}{sentence[1:]}.", HINTS[self.task])

    def _card_task(self) -> str:
        """The task by the name that cards of regularizers use."""
        if self.task == "denoise":
            impulses = self.options.get("noise") == "salt-and-pepper"
            return SaltAndPepper.name if impulses else GaussianDenoising.name
        return {"inpaint": Inpainting.name, "ct": SparseViewCT.name}[self.task]


@cache
def shipped() -> dict[str, Sheet]:
    """The regularizers inside the package, without their weights."""
    return shipped_sheets()


def fitting(task: str, size: tuple[int, int]) -> tuple[str, ...]:
    """Regularizers for a task and a picture of this size, the recommended one first."""
    names = []
    for name, sheet in shipped().items():
        only = sheet.architecture.get("image_size")
        fits = only is None or tuple(only) == size
        if sheet.card is not None and task in sheet.card.weights and fits:
            names.append((only is not None, name))
    return (*(name for _, name in sorted(names)), TV)


def _require_number(label: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PageError(f"{label} is not a number.", f"Give one from {low:g} to {high:g}.")
    if not low <= value <= high or (isinstance(low, int) and value != int(value)):
        raise PageError(f"{label} is {value:g}.", f"Give a number from {low:g} to {high:g}.")


def _check_mask(mask: Tensor | None, picture: InputPicture, simulated: bool) -> None:
    if mask is None:
        if simulated:
            return
        raise PageError(
            "It is not known which pixels are missing.",
            "Paint over them with the brush, or upload a mask.",
        )
    if tuple(mask.shape) != picture.size:
        (height, width), (rows, columns) = picture.size, mask.shape
        raise PageError(
            f"The mask has {columns} x {rows} pixels and the picture {width} x {height}.",
            "They must have the same size.",
        )
    missing = float((mask == 0).double().mean())
    if missing == 0:
        raise PageError("No pixel is missing.", "Paint over the pixels to fill in.")
    if missing > MOST_MISSING:
        raise PageError(
            f"{missing:.0%} of the pixels are missing.", f"At most {MOST_MISSING:.0%} may be."
        )
