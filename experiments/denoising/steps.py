"""The computation of section 5.1."""

from __future__ import annotations

from collections.abc import Sequence

from convexlift.tasks import SaltAndPepper
from experiments.common_steps import Looks, average_objective, curve_step, data_step, reference_step
from experiments.denoising.settings import DenoisingSettings
from experiments.images import load_faces
from experiments.methods import (
    DEFAULT,
    L_BFGS,
    Chosen,
    Competitor,
    constant,
    diminishing,
    proposed,
)
from experiments.runner import Parts, Step, Study
from experiments.setups import Regularizer, Setup


def steps(study: Study, values: DenoisingSettings) -> Sequence[Step]:
    """Data, reference, the ablation, one run for each method, and some without the box."""
    task = SaltAndPepper(fraction=values.fraction, scale=values.scale)
    regularizer = Regularizer.loaded(values.model, task, values.weight)
    setup = Setup(task, regularizer, load_faces(study.data, values.images, values.size), study)
    ablation = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Looks(values.ablation_iterations, values.ablation_every),
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
    looks = Looks(values.iterations, values.every, (values.early, values.iterations), values.images)
    long = values.images * values.iterations
    # The paper states no box: its methods once more without one, on the first image.
    unbounded: list[Competitor | Chosen] = [
        best, constant(values.sm_c[-1]), diminishing(values.sm_d[-1])
    ]  # fmt: skip
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=15.0 * values.images),
        *ablation,
        curve_step(setup, best, looks, cost=0.12 * long),
        *(curve_step(setup, other, looks, cost=0.05 * long) for other in others),
        *(
            curve_step(setup, each, Looks(values.iterations, values.iterations), bounded=False,
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
