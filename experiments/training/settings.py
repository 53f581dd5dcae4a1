"""Values of section 5.3.1, and how much of the experiment a run does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import convexlift as cl
from convexlift.training import PRESETS, AdversarialRecipe, BilevelRecipe
from experiments.paper import PaperInpainting

SCHEMES = {
    "adversarial": "Adversarial",
    "bilevel-nmapg": "Bilevel + NMAPG",
    "bilevel-proposed": "Bilevel + Proposed",
    "bilevel-default": "Bilevel + our default",
}
"""Rows of the table; the paper has the first three."""
SEARCHED = {"proposed": "Proposed", "sm-c": "SM-C", "sm-d": "SM-D"}
"""Solvers whose step sizes are searched for."""

ADVERSARIAL = cast(AdversarialRecipe, PRESETS["faces-inpainting-adversarial"])
BILEVEL = cast(BilevelRecipe, PRESETS["faces-inpainting-bilevel"])
LOWER_LEVEL = cl.StopWhen(gap=1e-3, max_iterations=60)
"""Ours; the paper stops where the gradient of the lower level has the norm 0.1."""


@dataclass(frozen=True)
class TrainingSettings(PaperInpainting):
    """Settings of the experiment."""

    c_training: tuple[float, float] = (0.3, 1e-3)  # ours: (0.01, 0.001) does not suit our network
    iterations: int = 300  # Figure "Inpainting: Visual comparison of reconstructions, with PSNR"
    every: int = 10
    images: int = 20  # section 5.3.1, Results
    size: int = 256
    training_images: int | None = None  # all 1000 faces, of which bilevel learning uses 160
    adversarial: AdversarialRecipe = ADVERSARIAL  # section 5.3, with our changes
    bilevel: BilevelRecipe = BILEVEL  # section 5.3.1, with our changes
    lower_level: cl.StopWhen = LOWER_LEVEL
    search_iterations: int = 150  # ours
    tries_c: int = 10  # ours
    tries_step: int = 6  # ours

    @classmethod
    def quick(cls) -> TrainingSettings:
        """Small images and short trainings."""
        stop = cl.StopWhen(gap=1e-2, max_iterations=60)
        return cls(
            iterations=150, images=2, size=64, training_images=72, search_iterations=100,
            tries_c=6, tries_step=5, lower_level=replace(LOWER_LEVEL, max_iterations=40),
            adversarial=replace(
                ADVERSARIAL, held_out=4, validation_stop=stop, options=replace(
                    ADVERSARIAL.options, steps=200, learning_rate=2e-3, validate_every=200),
            ),
            bilevel=replace(
                BILEVEL, held_out=4, images=32, batch_size=4, validation_stop=stop,
                options=replace(BILEVEL.options, steps=12, warm_up=2, validate_every=12),
            ),
        )  # fmt: skip
