"""Values of section 5.1, and how much of the experiment a run does."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.common_steps import Accuracy

REFERENCE = Accuracy(gap=1e-4, iterations=3000)


@dataclass(frozen=True)
class DenoisingSettings:
    """Settings of the experiment."""

    model: str = "faces-denoising"  # ours, with the paper's architecture; a name or a file
    weight: float = 1.0
    size: int = 256
    scale: float = 0.02  # lambda: section 5.1, Parameters
    fraction: float = 0.25  # salt and pepper together: the authors' released script
    c_1: tuple[float, ...] = (5e-3, 1e-2, 5e-2, 1e-1, 5e-1, 1.0, 5.0)  # section 5.1, Parameters
    c_2: tuple[float, ...] = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3)  # section 5.1, Parameters
    sm_c: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)  # section 5.1, Parameters
    sm_d: tuple[float, ...] = (1.0, 3.0, 5.0, 10.0)  # section 5.1, Parameters
    more_sm_c: tuple[float, ...] = (0.2, 4.0)  # ours: does another step suit this network better?
    more_sm_d: tuple[float, ...] = (30.0, 100.0, 300.0)  # ours
    ablation_iterations: int = 200  # section 5.1, Ablation study
    ablation_every: int = 1  # the average objective is over all iterations
    iterations: int = 200  # Figure "Denoising: Comparison to subgradient methods"
    every: int = 1
    early: int = 15  # Figure "Denoising: Visual comparison"
    images: int = 20  # the released test set; the paper shows one image
    reference: Accuracy = REFERENCE  # ours

    @classmethod
    def quick(cls) -> DenoisingSettings:
        """One image and fewer steps; every pair that the paper's figure marks is still there."""
        return cls(
            c_1=(5e-3, 5e-2, 1.0, 5.0), c_2=(5e-6, 1e-4, 5e-3),
            sm_c=(0.5, 2.0), sm_d=(3.0, 10.0), more_sm_c=(), more_sm_d=(30.0,),
            ablation_iterations=60, ablation_every=5, every=5, images=1,
            reference=Accuracy(gap=1e-4, iterations=400),
        )  # fmt: skip
