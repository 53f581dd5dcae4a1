"""Values of section 5.3, and how much of the experiment a run does."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.common_steps import Accuracy, TimeToError
from experiments.methods import (
    DEFAULT,
    DEFAULT_SAME_START,
    L_BFGS,
    Competitor,
    constant,
    diminishing,
    papers_four,
)
from experiments.paper import PaperInpainting

REFERENCE = Accuracy(gap=1e-5, iterations=2000)
RACE = TimeToError(error=1e-3, iterations=300, repeats=1)  # the error: section 5.3, Results


@dataclass(frozen=True)
class InpaintingSettings(PaperInpainting):
    """Settings of the experiment."""

    adversarial: str = "faces-inpainting-adversarial"  # ours, of the paper's architecture
    bilevel: str = "faces-inpainting-bilevel"  # ours; names or files
    weight: float | None = None  # None for the weights of their cards
    size: int = 256
    more_c_1: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)  # ours: what suits this network?
    more_c_2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)  # ours
    more_sm_c: tuple[float, ...] = (0.15, 0.3, 0.6)  # ours
    more_sm_d: tuple[float, ...] = (2.0, 5.0, 15.0)  # ours
    search_iterations: int = 100  # ours
    search_every: int = 5  # ours
    early: int = 60  # Figure "Inpainting: Visual comparison of reconstructions, with PSNR"
    iterations: int = 300  # the same figure
    every: int = 1
    images: int = 20  # section 5.3, Results
    pictures: bool = True  # with the bilevel network, whose pictures the paper shows
    unbounded: bool = True
    reference: Accuracy = REFERENCE
    race: TimeToError = RACE

    @classmethod
    def quick(cls) -> InpaintingSettings:
        """One image, one network, and fewer steps."""
        return cls(
            more_c_1=(0.1, 1.0), more_c_2=(1e-5,), more_sm_c=(0.3,), more_sm_d=(5.0,),
            search_iterations=40, iterations=150, every=5, images=1, pictures=False,
            unbounded=False, reference=Accuracy(gap=1e-5, iterations=300),
            race=TimeToError(error=1e-3, iterations=150, repeats=1),
        )  # fmt: skip

    @property
    def competitors(self) -> list[Competitor]:
        """The paper's four with its step sizes, three that need none, and other step sizes."""
        return [
            *papers_four(self),
            DEFAULT,
            DEFAULT_SAME_START,
            L_BFGS,
            *(constant(step, printed=False) for step in self.more_sm_c),
            *(diminishing(step, printed=False) for step in self.more_sm_d),
        ]
