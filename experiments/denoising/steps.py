"""The settings and the computation of section 5.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import convexlift as cl
from convexlift.tasks import SaltAndPepper
from convexlift.training import PRESETS, AdversarialRecipe
from experiments.authors import AuthorsSaltAndPepper, one_face
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
    with_our_duals,
)
from experiments.images import load_faces, training_faces
from experiments.runner import Parts, Step, Study
from experiments.setups import Regularizer, Setup, Training

REFERENCE = cl.StopWhen(gap=1e-4, max_iterations=3000)
RECIPE = cast(AdversarialRecipe, PRESETS["paper-salt-and-pepper"])
AUTHORS, OURS = "authors-", "ours-"
"""Prefixes of parts on the face of the paper's pictures: the authors' choices, and ours."""
TRAINING = "authors-training"


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
    unbounded: bool = True  # ours: whether the paper's methods also run without our box
    reference: cl.StopWhen = REFERENCE  # ours
    face: int = 11  # of the paper's pictures: with it, the released script has the printed 10.90 dB
    authors_c: tuple[float, float] = (0.1, 5e-5)  # of the pictures: the released script
    authors_sm_c: float = 0.5  # the released script
    authors_sm_d: float = 10.0  # the released script
    authors_early: int = 16  # "15 iterations": the released script counts from 0
    authors_every: int = 1
    recipe: AdversarialRecipe | None = RECIPE  # of the authors' network; None takes ``model``

    @classmethod
    def quick(cls) -> DenoisingSettings:
        """One image and fewer steps; every pair that the paper's figure marks is still there."""
        return cls(
            c_1=(5e-3, 1e-1, 5.0), c_2=(5e-6, 5e-5, 5e-3),
            sm_c=(0.5, 2.0), sm_d=(3.0, 10.0), more_sm_c=(), more_sm_d=(), unbounded=False,
            ablation_iterations=30, ablation_every=10, every=5, images=1,
            reference=cl.StopWhen(gap=1e-4, max_iterations=400), authors_every=8, recipe=None,
        )  # fmt: skip


def steps(study: Study, values: DenoisingSettings) -> Sequence[Step]:
    """Data, reference, the ablation, one run for each method, some without the box, one face."""
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
    pairs = tuple(step.name for step in ablation)
    best = Chosen("proposed", "Proposed", best_pair, pairs)
    ours = Chosen("proposed-our-duals", "Proposed, our duals",
                  lambda parts: with_our_duals(best_pair(parts)), pairs)  # fmt: skip
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
        curve_step(setup, ours, checks, cost=0.12 * long),
        *(curve_step(setup, other, checks, cost=0.05 * long) for other in others),
        *(
            curve_step(setup, each, Checks(values.iterations, values.iterations), bounded=False,
                       name=f"unbounded-{each.key}", cost=0.05 * values.iterations)
            for each in (unbounded if values.unbounded else ())
        ),
        *face_steps(study, values, regularizer),
    ]  # fmt: skip


def face_steps(study: Study, values: DenoisingSettings, shipped: Regularizer) -> list[Step]:
    """The face of the paper's pictures, with the authors' noise: their choices, and ours."""
    face = one_face(study.data, values.face, values.size)
    task = AuthorsSaltAndPepper(fraction=values.fraction, scale=values.scale, box=None)
    learned_from = training_faces(study.data, values.size)
    found: list[Step] = []
    regularizer = shipped
    if values.recipe is not None and learned_from is not None:
        training = Training(
            TRAINING, values.recipe, learned_from, None, study, cost=60.0, title="Training"
        )
        found.append(training.step())
        regularizer = training.regularizer("trained as the authors did")
    theirs = Setup(task, regularizer, face, study, AUTHORS)
    ours = Setup(replace(task, box=(0.0, 1.0)), shipped, face, study, OURS)
    pdhg = proposed(values.authors_c)
    others = [constant(values.authors_sm_c), diminishing(values.authors_sm_d)]
    kept = (values.authors_early, values.iterations)
    their_checks = Checks(values.iterations, values.authors_every, kept)
    our_checks = Checks(values.iterations, values.every, (values.early, values.iterations))
    cost = 0.1 * values.iterations
    return [
        *found,
        data_step(theirs),
        *(curve_step(theirs, each, their_checks, cost=cost)
          for each in (pdhg, with_our_duals(pdhg), *others)),
        data_step(ours),
        *(curve_step(ours, each, our_checks, cost=cost) for each in (DEFAULT, *others)),
    ]  # fmt: skip


def ablation_name(c_1: float, c_2: float) -> str:
    """The name of the part of one pair."""
    return f"ablation-{c_1:g}-{c_2:g}"


def best_pair(parts: Parts) -> Competitor:
    """The pair with the least average objective, as the paper chooses."""
    best = min(parts.values(), key=average_objective)
    return proposed(best.values["parameters"])
