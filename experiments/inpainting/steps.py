"""The computation of section 5.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convexlift.tasks import Inpainting
from experiments.common_steps import (
    Looks,
    average_objective,
    curve_step,
    data_step,
    reference_step,
    time_step,
)
from experiments.images import load_faces
from experiments.inpainting.settings import InpaintingSettings
from experiments.methods import Chosen, Competitor, proposed
from experiments.runner import Parts, Step, Study
from experiments.setups import Regularizer, Setup


def steps(study: Study, values: InpaintingSettings) -> Sequence[Step]:
    """Times and curves with the adversarial network, pictures with the bilevel one."""
    images = load_faces(study.data, values.images, values.size)
    # The paper's mask where it is there; missing pixels are 0 at first.
    task = Inpainting(missing=values.missing, noise=values.noise, mask=images.mask, fill="zero")
    keep = (values.early, values.iterations)
    regularizer = Regularizer.loaded(values.adversarial, task, values.weight)
    setup = Setup(task, regularizer, images, study)
    found = lineup(setup, values, Looks(values.iterations, values.every, keep, values.images))
    searched = Chosen("searched", "Searched", same_pair, ("curve-searched",))
    for each in values.competitors:
        limit = values.race.iterations if each.printed else values.iterations
        race = replace(values.race, iterations=limit)
        found.append(time_step(setup, each, race, cost=6.0 * values.images))
    found.append(time_step(setup, searched, values.race, cost=6.0 * values.images))
    if values.unbounded:
        looks = Looks(values.iterations, values.iterations)
        for each in values.competitors[:4]:
            name = f"unbounded-{each.key}"
            found.append(curve_step(setup, each, looks, name=name, cost=20.0, bounded=False))
    if values.pictures:
        regularizer = Regularizer.loaded(values.bilevel, task, values.weight)
        shown = Setup(task, regularizer, images, study, prefix="bilevel-")
        found += lineup(shown, values, Looks(values.iterations, values.early, keep, values.images))
    return found


def lineup(setup: Setup, values: InpaintingSettings, looks: Looks) -> list[Step]:
    """All methods on one network, and a search for step sizes of the proposed one."""
    search = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Looks(values.search_iterations, values.search_every),
            name=f"search-{c_1:g}-{c_2:g}",
            cost=0.2 * values.search_iterations,
        )
        for c_1 in values.more_c_1
        for c_2 in values.more_c_2
    ]
    searched = Chosen("searched", "Searched", best_pair, tuple(step.name for step in search))
    long = values.iterations * values.images
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=10.0 * values.images),
        *search,
        curve_step(setup, searched, looks, cost=0.25 * long),
        *(
            curve_step(setup, each, looks, cost=(0.25 if each.family == "paper" else 0.06) * long)
            for each in values.competitors
        ),
    ]


def best_pair(parts: Parts) -> Competitor:
    """The proposed method with the least average objective of a search."""
    best = min(parts.values(), key=average_objective)
    return with_pair(best.values["parameters"])


def same_pair(parts: Parts) -> Competitor:
    """The method of the curve with the best pair."""
    return with_pair(parts["curve-searched"].values["parameters"])


def with_pair(c: Sequence[float]) -> Competitor:
    """The proposed method with a pair that is not the paper's."""
    label = f"Proposed, c = ({', '.join(f'{value:g}' for value in c)})"
    return replace(proposed(c), key="searched", label=label, printed=False)
