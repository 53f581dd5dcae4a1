"""The settings and the computation of section 5.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import convexlift as cl
from convexlift.tasks import SaltAndPepper
from experiments.common_steps import (
    DEFAULT,
    L_BFGS,
    Checks,
    Chosen,
    Competitor,
    average_objective,
    constant,
    curve_step,
    data_step,
    diminishing,
    proposed,
    reference_step,
)
from experiments.images import load_faces
from experiments.runner import Parts, Step, Study
from experiments.setups import Regularizer, Setup

REFERENCE = cl.StopWhen(gap=1e-4, max_iterations=3000)


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
    reference: cl.StopWhen = REFERENCE  # ours

    @classmethod
    def quick(cls) -> DenoisingSettings:
        """One image and fewer steps; every pair that the paper's figure marks is still there."""
        return cls(
            c_1=(5e-3, 5e-2, 1.0, 5.0), c_2=(5e-6, 1e-4, 5e-3),
            sm_c=(0.5, 2.0), sm_d=(3.0, 10.0), more_sm_c=(), more_sm_d=(30.0,),
            ablation_iterations=60, ablation_every=5, every=5, images=1,
            reference=cl.StopWhen(gap=1e-4, max_iterations=400),
        )  # fmt: skip


def steps(study: Study, values: DenoisingSettings) -> Sequence[Step]:
    """Data, reference, the ablation, one run for each method, and some without the box."""
    task = SaltAndPepper(fraction=values.fraction, scale=values.scale)
    regularizer = Regularizer.loaded(values.model, task, values.weight)
    setup = Setup(task, regularizer, load_faces(study.data, values.images, values.size), study)
    ablation = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Checks(values.ablation_iterations, values.ablation_every),
            name=ablation_name(c_1, c_2),
            cost=0.1 * values.ablation_iterations,
        )
        for c_1 in values.c_1
        for c_2 in values.c_2
    ]
    best = Chosen("proposed", "Proposed", best_pair, tuple(step.name for step in ablation))
    others = [
        *map(constant, values.sm_c),
        *(constant(step, printed=False) for step in values.more_sm_c),
        *map(diminishing, values.sm_d),
        *(diminishing(step, printed=False) for step in values.more_sm_d),
        DEFAULT,
        L_BFGS,
    ]
    checks = Checks(
        values.iterations, values.every, (values.early, values.iterations), values.images
    )
    long = values.images * values.iterations
    # The paper states no box: its methods once more without one, on the first image.
    unbounded: list[Competitor | Chosen] = [
        best, constant(values.sm_c[-1]), diminishing(values.sm_d[-1])
    ]  # fmt: skip
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=15.0 * values.images),
        *ablation,
        curve_step(setup, best, checks, cost=0.12 * long),
        *(curve_step(setup, other, checks, cost=0.05 * long) for other in others),
        *(
            curve_step(setup, each, Checks(values.iterations, values.iterations), bounded=False,
                       name=f"unbounded-{each.key}", cost=0.05 * values.iterations)
            for each in unbounded
        ),
    ]  # fmt: skip


def ablation_name(c_1: float, c_2: float) -> str:
    """The name of the part of one pair."""
    return f"ablation-{c_1:g}-{c_2:g}"


def best_pair(parts: Parts) -> Competitor:
    """The pair with the least average objective, as the paper chooses."""
    best = min(parts.values(), key=average_objective)
    return proposed(best.values["parameters"])
