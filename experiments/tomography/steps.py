"""The settings and the computation of sections 5.2 and 5.2.1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import convexlift as cl
from convexlift.tasks import SparseViewCT
from convexlift.training import PRESETS, AdversarialRecipe
from experiments.authors import ReleasedCounts, ReleasedSlice
from experiments.common_steps import (
    DEFAULT,
    L_BFGS,
    Checks,
    Competitor,
    Numbers,
    constant,
    curve_step,
    data_step,
    diminishing,
    proposed,
    reference_step,
    searched_curve_steps,
    searches,
)
from experiments.document import Printed
from experiments.runner import Part, Parts, Step, Study, Work
from experiments.setups import Regularizer, Scoring, Setup, Training
from experiments.tomography.slices import FULL_SIZE, SliceCounts, Slices, load_slices, scanner

COUNTS = SliceCounts(training=None, validation=8, test=10)
VALIDATION_STOP = cl.StopWhen(gap=1e-2, max_iterations=100)
TEST_STOP = cl.StopWhen(gap=2e-3, max_iterations=300)
REFERENCE = cl.StopWhen(gap=1e-5, max_iterations=2000)


@dataclass(frozen=True)
class Story:
    """The paper's side of the report."""

    title: str  # of the report
    paper_data: Printed  # the paper's PSNR of filtered back projection
    # PSNR after few and after many iterations, by method
    paper: Mapping[str, tuple[Printed, Printed]]
    network: str  # a short description
    remark: str = ""  # a further paragraph
    other: str = ""  # see ``Comparison``


@dataclass(frozen=True)
class TomographySettings:
    """Settings of an experiment in tomography."""

    story: Story
    preset: str  # the paper's training as a record
    gamma: float  # Parameters
    c: Numbers  # Parameters
    shipped: str  # ours: the regularizer inside the package that is shown beside it
    sm_c: Numbers = (1e-3, 2e-3, 4e-3, 5e-3)  # section 5.2, Parameters
    sm_d: Numbers = (1e-2, 3e-2, 5e-2, 7e-2)  # section 5.2, Parameters
    released: float = 0.1  # the steps of the authors' released script are so many times these
    early: int = 50  # Figure "CT: Visual comparison of reconstructions"
    iterations: int = 500  # the same figure
    every: int = 5
    # Ours: with these the paper's training works on our slices.
    steps: int = 600
    batch_size: int = 20
    learning_rate: float = 5e-4
    penalty: float = 5.0
    filters: float = 0.13  # strength of the cosine filters at the start, over the image size
    filter: Literal["ram-lak", "shepp-logan", "cosine", "hann"] = "hann"  # of our critic's images
    as_printed: bool = True  # whether the paper's recipe is followed to the letter as well
    printed_epochs: int | None = None  # of our slices; None for its steps, 20 epochs of 2240 slices
    size: int = FULL_SIZE
    counts: SliceCounts = COUNTS
    validation_stop: cl.StopWhen = VALIDATION_STOP
    test_stop: cl.StopWhen = TEST_STOP
    tv_weight: float = 4.0  # the best on the test slices, at full size
    reference: cl.StopWhen = REFERENCE
    search_iterations: int = 100
    tries_c: int = 10
    tries_step: int = 6
    # The slice of the paper's figure, with the choices of the authors' script.
    authors_early: int = 51  # "50 iterations": the released script counts from 0
    authors_sm_c: float = 4e-4  # of the pictures: the released script
    authors_sm_d: float = 5e-3  # of the pictures: the released script
    released_method: Competitor = DEFAULT  # ours: what ``cl.solve`` takes for the shipped network
    released_iterations: int = 500  # of our method on that slice
    released_every: int = 10


PRINTED_UNITS = 256
"""Hidden units that the paper prints; the released network has as many as the image has rows."""
BOX = (0.0, 2.0)
"""The paper has x >= 0. An upper bound that no pixel comes near makes certificates sharper."""
TRAINING, AS_PRINTED, TEST_AS_PRINTED = "training", "training-as-printed", "test-as-printed"
AUTHORS, OURS = "authors-", "ours-"
"""Prefixes of parts on the slice of the paper's figure: the authors' choices, and ours."""


def steps(study: Study, values: TomographySettings) -> Sequence[Step]:
    """Training, test, reference, a search for steps, and one run for each method."""
    slices = load_slices(study.data, values.size, values.counts)
    task = printed_task(values)
    training = Training(
        TRAINING, changed_recipe(values, task), slices.training, slices.validation, study,
        cost=0.3 * values.steps, title="Training",
    )  # fmt: skip
    scoring = Scoring(task, slices.test, values.test_stop, study)
    regularizer = training.regularizer("trained here")
    setup = Setup(task, regularizer, slices.shown, study)
    # The proposed method for x >= 0 alone, as the paper states it: does the box matter?
    halfline = Setup(replace(task, box=(0.0, None)), regularizer, slices.shown, study, "halfline-")
    checks = checks_of(values)
    printed = printed_training(values, slices, task, study) if values.as_printed else None
    return [
        training.step(),
        *(() if printed is None else (printed.step(), printed_test(values, printed, scoring))),
        *tests(values, training, scoring, slices),
        *methods(setup, values, checks),
        curve_step(halfline, proposed(values.c), checks, cost=values.iterations * 0.1),
        *released_steps(values, study, printed),
    ]


def printed_task(values: TomographySettings) -> SparseViewCT:
    """The paper's, back projections included, with the scanner for this size and our box."""
    recipe = PRESETS[values.preset]
    assert isinstance(recipe, AdversarialRecipe)
    assert isinstance(recipe.task, SparseViewCT)
    return replace(recipe.task, scanner=scanner(values.size), box=BOX)


def changed_recipe(values: TomographySettings, task: SparseViewCT) -> AdversarialRecipe:
    """The paper's recipe with filters of mean zero, a larger learning rate and a weaker penalty.

    Its critic sees back projections with ``values.filter``. It starts from cosine filters, as
    steep as the penalty wants a critic to be: |grad R| of such a total variation grows with the
    image size, hence the division by it.
    """
    recipe = printed_recipe(values, task)
    network = replace(
        recipe.network, filters=values.filters / values.size, uniform=None, hidden=PRINTED_UNITS
    )
    options = replace(
        recipe.options, steps=values.steps, learning_rate=values.learning_rate, schedule="cosine",
        zero_mean=True, validate_every=values.steps,
    )  # fmt: skip
    return replace(
        recipe, network=network, batch_size=values.batch_size, penalty=values.penalty, fixed=False,
        options=options, task=replace(task, filter=values.filter, clamp=None),
    )  # fmt: skip


def printed_recipe(
    values: TomographySettings, task: SparseViewCT, slices: int | None = None
) -> AdversarialRecipe:
    """The paper's, for as many steps, or so many epochs of our slices.

    The best weight is searched for at the end.
    """
    recipe = PRESETS[values.preset]
    assert isinstance(recipe, AdversarialRecipe)
    count, epochs = recipe.options.steps, values.printed_epochs
    if slices is not None and epochs is not None:
        count = epochs * slices // recipe.batch_size
    return replace(
        recipe, task=task, weight=values.gamma, search=True,
        network=replace(recipe.network, image_size=values.size, hidden=values.size),
        validation_stop=values.validation_stop,
        options=replace(recipe.options, steps=count, validate_every=count, validate_start=False),
    )  # fmt: skip


def printed_training(
    values: TomographySettings, slices: Slices, task: SparseViewCT, study: Study
) -> Training:
    """The training by the paper's recipe, followed to the letter."""
    recipe = printed_recipe(values, task, len(slices.training))
    return Training(
        AS_PRINTED, recipe, slices.training, slices.validation, study,
        cost=values.steps, title="Training as printed",
    )  # fmt: skip


def printed_test(values: TomographySettings, training: Training, scoring: Scoring) -> Step:
    """The scores of that training, with the best gamma and with the printed one."""

    def compute(work: Work) -> Part:
        part = work.parts[AS_PRINTED]
        network = training.network(part)
        best, printed = (scoring.values(network, w) for w in (part.values["weight"], values.gamma))
        return Part({"best": best, "gamma": printed})

    settings = {**scoring.settings, "gamma": values.gamma}
    return Step(TEST_AS_PRINTED, settings, compute, (AS_PRINTED,), title="Test slices, as printed")


def released_steps(
    values: TomographySettings, study: Study, printed: Training | None
) -> list[Step]:
    """The slice of the paper's figure from its released counts: the authors' choices, and ours.

    The network of the former has the size of the images, so that small versions do without.
    """
    released = ReleasedSlice.of(study.authors)
    if released is None:
        return []
    task = printed_task(replace(values, size=FULL_SIZE))
    # As the authors: x >= 0 alone, from their filtered back projection.
    data = ReleasedCounts(released.counts, released.fbp, replace(task, box=(0.0, None)))
    shipped = Regularizer.loaded(values.shipped, task)
    found: list[Step] = []
    if printed is not None and values.size == FULL_SIZE:

        def make(parts: Parts) -> tuple[cl.InputConvexNetwork, float]:
            return printed.network(parts[AS_PRINTED]), values.gamma

        regularizer = Regularizer("trained as the authors did", make, (AS_PRINTED,))
        theirs = Setup(data, regularizer, released.images, study, AUTHORS)
        checks = Checks(values.iterations, 1, (values.authors_early, values.iterations))
        found += [
            data_step(theirs),
            *(curve_step(theirs, each, checks, cost=values.iterations)
              for each in (proposed(values.c), constant(values.authors_sm_c),
                           diminishing(values.authors_sm_d))),
        ]  # fmt: skip
    elif values.shipped in cl.models.names():
        found.append(data_step(Setup(data, shipped, released.images, study, AUTHORS)))
    if values.shipped in cl.models.names():
        smooth = cl.fbp(task.scanner, released.counts - task.background, "hann")
        ours = Setup(
            ReleasedCounts(released.counts, smooth, task), shipped, released.images, study, OURS
        )
        kept = (values.early, values.released_iterations)
        checks = Checks(values.released_iterations, values.released_every, kept)
        found += [data_step(ours), curve_step(ours, values.released_method, checks, cost=kept[1])]
    return found


def tests(
    values: TomographySettings, training: Training, scoring: Scoring, slices: Slices
) -> list[Step]:
    """Test slices with the learned regularizer, a shipped one if it is there, and TV."""

    def learned(work: Work) -> Part:
        part = work.parts[TRAINING]
        network = training.network(part)
        best = scoring.values(network, part.values["weight"])
        return Part({"best": best, "gamma": scoring.values(network, values.gamma)})

    def known(make: Callable[[], cl.InputConvexNetwork], weight: float, work: Work) -> Part:
        return Part({"best": scoring.values(make(), weight)})

    settings = {**scoring.settings, "gamma": values.gamma, "size": values.size}
    cost = 0.2 * len(slices.test) * values.test_stop.max_iterations * (values.size / 512) ** 2
    others: dict[str, tuple[Callable[[], cl.InputConvexNetwork], float]] = {
        "test-tv": (cl.TotalVariation, values.tv_weight)
    }
    if values.shipped in cl.models.names():
        weights = cl.models.card(values.shipped).weights
        others["test-shipped"] = (partial(cl.load, values.shipped), weights[SparseViewCT.name])
    return [
        Step("test-learned", settings, learned, (TRAINING,), cost, "Test slices"),
        *(
            Step(name, {**settings, "weight": weight}, partial(known, make, weight), (), cost,
                 "Test slices, other regularizers")
            for name, (make, weight) in others.items()
        ),
    ]  # fmt: skip


def methods(setup: Setup, values: TomographySettings, checks: Checks) -> list[Step]:
    """Data, reference, and the curves of all methods."""
    iteration = (values.size / 512) ** 2
    cost = values.iterations * iteration
    fixed = [
        proposed(values.c),
        *subgradient_methods(values, constant, values.sm_c),
        *subgradient_methods(values, diminishing, values.sm_d),
        DEFAULT,
        L_BFGS,
    ]
    released = (values.released * steps[len(steps) // 2] for steps in (values.sm_c, values.sm_d))
    sm_c, sm_d = (float(f"{step:.2g}") for step in released)
    tried = searches(
        values.c, sm_c, sm_d, tries_c=values.tries_c, tries_step=values.tries_step,
        iterations=values.search_iterations,
    )  # fmt: skip
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=2 * cost),
        *(curve_step(setup, each, checks, cost=cost) for each in fixed),
        *(
            step
            for search in tried
            for step in searched_curve_steps(setup, search, checks, on=setup, cost=iteration)
        ),
    ]


def checks_of(values: TomographySettings) -> Checks:
    """The checks of each curve."""
    return Checks(values.iterations, values.every, (values.early, values.iterations))


def subgradient_methods(
    values: TomographySettings, make: Callable[[float], Competitor], steps: Numbers
) -> list[Competitor]:
    """With the printed steps, and with the steps of the released script."""
    released = [make(float(f"{values.released * step:.2g}")) for step in steps]
    return [
        *(make(step) for step in steps),
        *(replace(each, label=f"{each.label}, released") for each in released),
    ]
