"""The settings and the computation of section 5.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import convexlift as cl
from convexlift.tasks import Inpainting
from convexlift.training import PRESETS, AdversarialRecipe
from experiments.authors import GAMMA, SeedZero, find_weights, one_face
from experiments.common_steps import (
    DEFAULT,
    DEFAULT_SAME_START,
    L_BFGS,
    Checks,
    Chosen,
    Competitor,
    PaperInpainting,
    TimeToError,
    average_objective,
    constant,
    curve_step,
    data_step,
    diminishing,
    our_nmapg,
    papers_four,
    proposed,
    reference_step,
    time_steps,
)
from experiments.images import Images, load_faces, training_faces
from experiments.runner import Parts, Step, Study
from experiments.setups import Regularizer, Setup, Training

REFERENCE = cl.StopWhen(gap=1e-5, max_iterations=2000)
RACE = TimeToError(error=1e-3, iterations=3000, repeats=1, every=10)  # section 5.3, Results
RECIPE = cast(AdversarialRecipe, PRESETS["paper-inpainting"])
TRAINING, TIMED = "authors-training", "table-"
"""Parts of Table 1 with a network trained as the authors did."""
AUTHORS, OURS = "authors-", "ours-"
"""Prefixes of parts on the face of the paper's pictures: the authors' choices, and ours."""


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
    reference: cl.StopWhen = REFERENCE
    race: TimeToError = RACE  # its limit is for the printed steps; others have ``iterations``
    face: int = 19  # of the paper's pictures: with it, the released script has the printed 11.91 dB
    authors_early: int = 61  # "60 iterations": the released script counts from 0
    authors_iterations: int = 300
    authors_every: int = 1
    recipe: AdversarialRecipe | None = RECIPE  # of Table 1 as the authors ran it; None without

    @classmethod
    def quick(cls) -> InpaintingSettings:
        """One image, one network, and fewer steps."""
        return cls(
            more_c_1=(0.1, 1.0), more_c_2=(1e-5,), more_sm_c=(0.3,), more_sm_d=(5.0,),
            search_iterations=30, iterations=100, every=10, images=1, pictures=False,
            unbounded=False, reference=cl.StopWhen(gap=1e-5, max_iterations=300),
            race=TimeToError(error=1e-3, iterations=150, repeats=1, every=10),
            authors_iterations=122, authors_every=61, recipe=None,
        )  # fmt: skip

    @property
    def competitors(self) -> list[Competitor]:
        """The paper's four with its step sizes, three that need none, and other step sizes."""
        return [
            *papers_four(self),
            our_nmapg(self),
            DEFAULT,
            DEFAULT_SAME_START,
            L_BFGS,
            *(constant(step, printed=False) for step in self.more_sm_c),
            *(diminishing(step, printed=False) for step in self.more_sm_d),
        ]


def steps(study: Study, values: InpaintingSettings) -> Sequence[Step]:
    """Times and curves with the adversarial network, pictures with the bilevel one."""
    images = load_faces(study.data, values.images, values.size)
    # The paper's mask where it is there; missing pixels are 0 at first.
    task = Inpainting(missing=values.missing, noise=values.noise, mask=images.mask, fill="zero")
    keep = (values.early, values.iterations)
    regularizer = Regularizer.loaded(values.adversarial, task, values.weight)
    setup = Setup(task, regularizer, images, study)
    found = lineup(setup, values, Checks(values.iterations, values.every, keep, values.images))
    searched = Chosen("searched", "Searched", same_pair, ("curve-searched",))
    short = replace(values.race, iterations=values.iterations)
    for each in values.competitors:
        race = values.race if each.printed else short
        found += time_steps(setup, each, race, cost=6.0 * values.images)
    found += time_steps(setup, searched, short, cost=6.0 * values.images)
    if values.unbounded:
        checks = Checks(values.iterations, values.iterations)
        for each in values.competitors[:4]:
            name = f"unbounded-{each.key}"
            found.append(curve_step(setup, each, checks, name=name, cost=20.0, bounded=False))
    if values.pictures:
        regularizer = Regularizer.loaded(values.bilevel, task, values.weight)
        shown = Setup(task, regularizer, images, study, prefix="bilevel-")
        found += lineup(shown, values, Checks(values.iterations, values.early, keep, values.images))
    return [*found, *table_steps(study, values, images), *face_steps(study, values)]


def table_steps(study: Study, values: InpaintingSettings, images: Images) -> list[Step]:
    """Table 1 as the authors ran it: their recipe, gamma = 0.1, no box, the paper's four."""
    learned_from = training_faces(study.data, values.size)
    if values.recipe is None or learned_from is None:
        return []
    task = replace(cast(Inpainting, values.recipe.task), mask=images.mask)
    training = Training(
        TRAINING, replace(values.recipe, task=task), learned_from, None, study,
        cost=60.0, title="Training as the authors did",
    )  # fmt: skip
    task = Inpainting(values.missing, values.noise, images.mask, fill="zero", box=None)
    regularizer = training.regularizer("trained as the authors did")
    setup = Setup(task, regularizer, images, study, TIMED)
    checks = Checks(values.iterations, values.every, (), values.images)
    long = values.iterations * values.images
    return [
        training.step(),
        data_step(setup),
        reference_step(setup, values.reference, cost=10.0 * values.images),
        *(curve_step(setup, each, checks, cost=0.1 * long) for each in papers_four(values)),
        *(step for each in papers_four(values)
          for step in time_steps(setup, each, values.race, cost=6.0 * values.images)),
    ]  # fmt: skip


def face_steps(study: Study, values: InpaintingSettings) -> list[Step]:
    """The face of the paper's pictures, with the authors' noise: their choices, and ours."""
    face = one_face(study.data, values.face, values.size)
    task = Inpainting(values.missing, values.noise, face.mask, fill="zero", box=None)
    shipped = Regularizer.loaded(values.bilevel, task, values.weight)
    weights = find_weights(study.authors)
    released = None if weights is None else Regularizer.loaded(str(weights), task, GAMMA)
    theirs = Setup(SeedZero(task), released or shipped, face, study, AUTHORS)
    ours = Setup(SeedZero(replace(task, box=(0.0, 1.0))), shipped, face, study, OURS)
    kept = (values.authors_early, values.authors_iterations)
    their_checks = Checks(values.authors_iterations, values.authors_every, kept)
    our_checks = Checks(values.iterations, values.early, (values.early, values.iterations))
    our_methods = (
        DEFAULT,
        constant(values.more_sm_c[0], printed=False),
        diminishing(values.more_sm_d[-1], printed=False),
        our_nmapg(values),
    )
    cost = 0.1 * values.iterations
    return [
        data_step(theirs),
        *(curve_step(theirs, each, their_checks, cost=cost) for each in papers_four(values)),
        data_step(ours),
        *(curve_step(ours, each, our_checks, cost=cost) for each in our_methods),
    ]


def lineup(setup: Setup, values: InpaintingSettings, checks: Checks) -> list[Step]:
    """All methods on one network, and a search for step sizes of the proposed one."""
    search = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Checks(values.search_iterations, values.search_every),
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
        curve_step(setup, searched, checks, cost=0.25 * long),
        *(
            curve_step(setup, each, checks, cost=(0.25 if each.family == "paper" else 0.06) * long)
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
