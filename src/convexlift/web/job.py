"""What a visitor asks for: a picture, its damage, a regularizer, and how sure to be.

A job states its problem from these alone, seeds included, so that a script can state it again.
Damage is that of ``convexlift.tasks``; a picture that is damaged already is measured without any.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from convexlift.images import random_mask
from convexlift.models.sheets import Sheet
from convexlift.models.store import load, shipped_sheets
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.networks.total_variation import TotalVariation
from convexlift.operators.linear import LinearOperator
from convexlift.operators.tomography.beams import ParallelBeam
from convexlift.problems.variational import VariationalProblem
from convexlift.reconstruction.noise import Kind, Noise, TooFewPixels, estimate_noise, is_line_art
from convexlift.reconstruction.weight import card_weight, known_weights
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper, SparseViewCT
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture

TV = "total-variation"
"""The regularizer without anything to train."""

TOLERANCES = (1e-2, 1e-3, 1e-4)
STRENGTHS = (0.1, 10.0)
MOST_MISSING = 0.95
LEAST_NOISE = 0.005
"""Data are never trusted more than this: about one grey level of 8 bits."""

CT_BINS, CT_EXTENT, CT_FACTOR = 400, 256.0, 10.0
"""The paper's detector, square and unit of counts."""
CT_SIZES, CT_VIEWS = (128, 256, 512), (10, 400)
BOX = (0.0, 2.0)
"""Bounds on images of CT: air, and 4024 HU."""

FEW_PIXELS, MANY_PIXELS = 100_000, 500_000
"""Iterations take less than a tenth of a second up to the first, and about one from the second."""


@dataclass(frozen=True, eq=False)
class Stated:
    """A job as a problem, and what is shown of it.

    Attributes:
        measurement: data, operator and bounds.
        problem: to solve.
        given: the data as a picture, (planes, 1, H, W).
        truth: where it is known.
        facts: settings for the record, in plain values.
        counts: the sinogram of a scan.
    """

    measurement: Measurement
    problem: VariationalProblem
    given: Tensor
    truth: Tensor | None
    facts: dict[str, Any]
    counts: Tensor | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class PageJob(ABC):
    """One run.

    Args:
        picture: clean if ``simulated``, and else the damaged one.
        regularizer: the name of a shipped one, or ``TV``.
        simulated: whether to damage the picture first; then the truth is known.
        tolerance: the certified relative gap at which the run ends.
        strength: a factor of the recommended regularization weight.
        seed: of the noise and of random masks.
    """

    picture: InputPicture
    regularizer: str
    simulated: bool = True
    tolerance: float = 1e-3
    strength: float = 1.0
    seed: int = 0

    name: ClassVar[str]

    def __post_init__(self) -> None:
        require_number("The tolerance", self.tolerance, 1e-6, 0.5)
        require_number("The strength", self.strength, *STRENGTHS)
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**31):
            raise PageError(f"The seed is {self.seed}.", "Give a whole number from 0 up.")
        if self.regularizer not in fitting(self.task_name(), self.picture.size):
            raise PageError(
                f"{self.regularizer} does not fit this picture and task.", "Choose another one."
            )

    @property
    def check_every(self) -> int:
        """Iterations between two looks; large pictures have long ones, and want to be stopped."""
        count = self.picture.values.numel()
        return 5 if count <= FEW_PIXELS else 2 if count <= MANY_PIXELS else 1

    @abstractmethod
    def task_name(self) -> str:
        """As cards of regularizers call it."""

    @abstractmethod
    def damaged(self) -> tuple[Measurement, Noise | None, dict[str, Any]]:
        """The data, the noise they are taken to have, and facts for the record."""

    def stated(self) -> Stated:
        """The problem: min D(A x, y) + weight R(x) over the box."""
        measurement, noise, facts = self.damaged()
        network = load_regularizer(self.regularizer)
        card = None if self.regularizer == TV else network.card
        weights = known_weights(card, self.regularizer == TV)
        recommended = card_weight(weights, self.task_name(), noise)
        if recommended is None:
            raise PageError(f"{self.regularizer} has no weight for this task.", "Choose another.")
        weight = self.strength * recommended
        problem = measurement.problem(network, weight)
        if noise is not None:
            facts |= {"noise": noise.kind, "noise_level": noise.level}
        return Stated(
            measurement,
            problem,
            measurement.picture,
            self.picture.values if self.simulated else None,
            {
                "task": self.name,
                "picture": self.picture.name,
                "size": list(self.picture.size),
                "planes": len(self.picture.values),
                "simulated": self.simulated,
                **facts,
                "regularizer": self.regularizer,
                "weights_sha256": None if card is None else shipped()[self.regularizer].sha256,
                "weight": weight,
                "strength": self.strength,
                "tolerance": self.tolerance,
                "seed": self.seed,
                "check_every": self.check_every,
            },
            measurement.fidelity.y if self.task_name() == SparseViewCT.name else None,
        )

    def generators(self) -> list[torch.Generator]:
        """One for each plane."""
        return [
            torch.Generator().manual_seed(self.seed + i) for i in range(len(self.picture.values))
        ]


@dataclass(frozen=True, eq=False, kw_only=True)
class DenoisingJob(PageJob):
    """Noise on every pixel.

    Args:
        kind: of the noise; None to find out, for a picture that is damaged already.
        level: sigma, or the fraction of hit pixels; None to estimate it, likewise.
    """

    name: ClassVar[str] = "denoise"
    kind: Kind | None = "gaussian"
    level: float | None = 0.1

    def __post_init__(self) -> None:
        if self.level is not None:
            require_number("The noise level", self.level, LEAST_NOISE, 0.9)
        if self.simulated and (self.kind is None or self.level is None):
            raise PageError("There is no noise to simulate.", "Choose its kind and its level.")
        if self.kind is None and is_line_art(self.picture.values):
            raise PageError(
                "Most pixels are black or white, as in text, and strokes look like noise.",
                'Choose "Gaussian" or "Salt & pepper" instead of "Detect", and its level.',
            )
        super().__post_init__()

    def task_name(self) -> str:
        """By the noise; of unknown noise it is seen later."""
        impulses = self.noise().kind == "salt-and-pepper"
        return SaltAndPepper.name if impulses else GaussianDenoising.name

    def noise(self) -> Noise:
        """Given, or estimated."""
        if self.level is None or self.kind is None:
            return _estimated(
                self.picture.values, None, self.kind, "Choose its kind and its level."
            )
        return Noise(self.kind, self.level, estimated=False)

    def damaged(self) -> tuple[Measurement, Noise | None, dict[str, Any]]:
        """See ``PageJob``."""
        noise = self.noise()
        level = noise.level if self.simulated else 0.0
        task = SaltAndPepper(level) if noise.kind == "salt-and-pepper" else GaussianDenoising(level)
        return task.measure(self.picture.values, self.generators()), noise, {}


@dataclass(frozen=True, eq=False, kw_only=True)
class InpaintingJob(PageJob):
    """Missing pixels.

    Args:
        missing: the fraction of random pixels that are not seen, unless there is a mask.
        mask: 1 where a pixel was seen and 0 where it is missing, (H, W).
        level: sigma of the noise on the others; None to estimate it, for a damaged picture.
    """

    name: ClassVar[str] = "inpaint"
    missing: float = 0.3
    mask: Tensor | None = None
    level: float | None = 0.03

    def __post_init__(self) -> None:
        require_number("The missing part", self.missing, 0.01, MOST_MISSING)
        if self.level is not None:
            require_number("The noise level", self.level, 0.0, 0.5)
        if self.simulated and self.level is None:
            raise PageError("There is no noise level to simulate.", "Choose one, or 0.")
        if not self.simulated and self.mask is None:
            raise PageError(
                "Nothing says which pixels are missing.",
                "Paint over them with the brush, or upload a mask.",
            )
        if self.mask is not None:
            _check_mask(self.mask, self.picture)
        super().__post_init__()

    def task_name(self) -> str:
        """See ``PageJob``."""
        return Inpainting.name

    def seen(self) -> Tensor:
        """The mask, (H, W): the same for all planes."""
        if self.mask is not None:
            return self.mask.to(torch.float32)
        generator = torch.Generator().manual_seed(self.seed)
        return random_mask(self.picture.values, self.missing, generator)[0, 0]

    def damaged(self) -> tuple[Measurement, Noise | None, dict[str, Any]]:
        """See ``PageJob``."""
        values, seen = self.picture.values, self.seen()
        level = self.level
        if level is None:
            hint = "Mark fewer pixels as missing, or use convexlift reconstruct with --sigma."
            level = _estimated(values, seen[None, None], "gaussian", hint).level
        added = level if self.simulated else 0.0
        task = Inpainting(noise=added, mask=seen, fill="zero")
        noise = Noise("gaussian", max(level, LEAST_NOISE), estimated=self.level is None)
        facts = {"missing": float((seen == 0).double().mean()), "mask": self._mask_name()}
        return task.measure(values, self.generators()), noise, facts

    def _mask_name(self) -> str:
        return "random" if self.mask is None else "given"


@dataclass(frozen=True, eq=False, kw_only=True)
class CTJob(PageJob):
    """Counts behind an object, from few views.

    Args:
        views: of the scanner, spread over half a turn.
    """

    name: ClassVar[str] = "ct"
    views: int = 120

    def __post_init__(self) -> None:
        require_number("The number of views", self.views, *CT_VIEWS)
        if not self.simulated:
            raise PageError("A scan is simulated here.", "Real sinograms: convexlift reconstruct.")
        super().__post_init__()

    def task_name(self) -> str:
        """See ``PageJob``."""
        return SparseViewCT.name

    def damaged(self) -> tuple[Measurement, Noise | None, dict[str, Any]]:
        """See ``PageJob``."""
        task = SparseViewCT(scanner=scanner(self.picture.size[0], self.views), box=BOX)
        measurement = task.measure(self.picture.values, self.generators())
        facts = {"views": self.views, "bins": CT_BINS, "background": task.background}
        return measurement, None, facts


@cache
def shipped() -> dict[str, Sheet]:
    """What is known of the regularizers inside the package."""
    return shipped_sheets()


@lru_cache(maxsize=2)
def scanner(size: int, views: int) -> LinearOperator:
    """The paper's, with other sizes. The last two are kept: their tables take a while to make."""
    return ParallelBeam(size, views, CT_BINS, CT_EXTENT) * CT_FACTOR


def fitting(task: str, size: tuple[int, int]) -> tuple[str, ...]:
    """Regularizers for a task and a picture of this size, the recommended one first."""
    names = []
    for name, sheet in shipped().items():
        only = sheet.architecture.get("image_size")
        fits = only is None or tuple(only) == size
        if sheet.card is not None and task in sheet.card.weights and fits:
            names.append((only is not None, name))
    return (*(name for _, name in sorted(names)), TV)


def load_regularizer(name: str) -> InputConvexNetwork:
    """A shipped one, or total variation; a new object each time, for threads of their own."""
    return TotalVariation() if name == TV else load(name)


def require_number(what: str, value: object, low: float, high: float) -> None:
    """Refuse what is no number between the two."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PageError(f"{what} is not a number.", f"Give one from {low:g} to {high:g}.")
    if not low <= value <= high:
        raise PageError(f"{what} is {value:g}.", f"Give a number from {low:g} to {high:g}.")


def _estimated(values: Tensor, seen: Tensor | None, kind: Kind | None, hint: str) -> Noise:
    try:
        return estimate_noise(values, seen, kind)
    except TooFewPixels:
        raise PageError(
            "Too few pixels that were seen have neighbours to estimate the noise from.", hint
        ) from None


def _check_mask(mask: Tensor, picture: InputPicture) -> None:
    if tuple(mask.shape) != picture.size:
        (height, width), (rows, columns) = picture.size, mask.shape
        raise PageError(
            f"The mask has {columns} x {rows} pixels and the picture {width} x {height}.",
            "They must be of one size.",
        )
    missing = float((mask == 0).double().mean())
    if missing == 0:
        raise PageError("No pixel is missing.", "Paint over what is to be filled in.")
    if missing > MOST_MISSING:
        raise PageError(
            f"{missing:.0%} of the pixels are missing.", f"At most {MOST_MISSING:.0%} may be."
        )
