"""The computation of both experiments in tomography."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import convexlift as cl
from convexlift.tasks import SparseViewCT
from convexlift.training import PRESETS, AdversarialRecipe
from experiments.common_steps import (
    Looks,
    Search,
    curve_step,
    data_step,
    reference_step,
    searched_curve_steps,
)
from experiments.learned import Scoring, Training, training_values
from experiments.methods import (
    DEFAULT,
    L_BFGS,
    Competitor,
    Numbers,
    constant,
    diminishing,
    proposed,
)
from experiments.runner import Part, Step, Study, Work
from experiments.setups import Setup
from experiments.tomography.settings import TomographySettings
from experiments.tomography.slices import Slices, load_slices, scanner

BOX = (0.0, 2.0)
"""The paper has x >= 0. An upper bound that no pixel comes near makes certificates sharper."""
TRAINING, AS_PRINTED = "training", "training-as-printed"


def steps(study: Study, values: TomographySettings) -> Sequence[Step]:
    """Training, test, reference, a search for steps, and one run for each method."""
    slices = load_slices(study.data, values.size, values.counts)
    task = SparseViewCT(scanner=scanner(values.size), box=BOX, filter=values.filter)
    training = Training(
        TRAINING, changed_recipe(values, task), slices.training, slices.validation, study,
        cost=0.3 * values.steps, title="Training",
    )  # fmt: skip
    scoring = Scoring(task, slices.test, values.test_stop, study)
    regularizer = training.regularizer("trained here")
    setup = Setup(task, regularizer, slices.shown, study)
    # The proposed method for x >= 0 alone, as the paper states it: does the box matter?
    halfline = Setup(replace(task, box=(0.0, None)), regularizer, slices.shown, study, "halfline-")
    looks = looks_of(values)
    return [
        training.step(),
        *(printed_training(values, slices, task, scoring, study) if values.as_printed else ()),
        *tests(values, training, scoring, slices),
        *methods(setup, values, looks),
        curve_step(halfline, proposed(values.c), looks, cost=values.iterations * 0.1),
    ]


def changed_recipe(values: TomographySettings, task: SparseViewCT) -> AdversarialRecipe:
    """The paper's recipe with filters of mean zero, a larger learning rate and a weaker penalty.

    It starts from cosine filters, as steep as the penalty wants a critic to be: |grad R| of such
    a total variation grows with the image size, hence the division by it.
    """
    recipe = printed_recipe(values, task)
    network = replace(recipe.network, filters=values.filters / values.size)
    options = replace(
        recipe.options, steps=values.steps, learning_rate=values.learning_rate, schedule="cosine",
        zero_mean=True, validate_every=values.steps,
    )  # fmt: skip
    return replace(
        recipe, network=network, batch_size=values.batch_size, penalty=values.penalty,
        options=options,
    )  # fmt: skip


def printed_recipe(
    values: TomographySettings, task: SparseViewCT, slices: int | None = None
) -> AdversarialRecipe:
    """The paper's, for as many epochs of our slices; the best weight is searched for at the end."""
    recipe = PRESETS[values.preset]
    assert isinstance(recipe, AdversarialRecipe)
    count = recipe.options.steps if slices is None else 20 * slices // recipe.batch_size
    return replace(
        recipe, task=task, weight=values.gamma, search=True,
        network=replace(recipe.network, image_size=values.size),
        validation_stop=values.validation_stop,
        options=replace(recipe.options, steps=count, validate_every=count, validate_start=False),
    )  # fmt: skip


def printed_training(
    values: TomographySettings, slices: Slices, task: SparseViewCT, scoring: Scoring, study: Study
) -> list[Step]:
    """The scores of the paper's recipe, followed to the letter; its weights are not kept."""
    recipe = printed_recipe(values, task, len(slices.training))
    training = Training(AS_PRINTED, recipe, slices.training, slices.validation, study)

    def compute(work: Work) -> Part:
        outcome = training.follow(work)
        found, network = training_values(outcome, recipe), outcome.trained.network
        best, printed = (scoring.values(network, w) for w in (found["weight"], values.gamma))
        return Part({**found, "best": best, "gamma": printed})

    settings = {**training.settings, "scoring": scoring.settings, "gamma": values.gamma}
    title = "Training as printed"
    return [Step(AS_PRINTED, settings, compute, cost=0.2 * values.steps, title=title)]


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


def methods(setup: Setup, values: TomographySettings, looks: Looks) -> list[Step]:
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
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=2 * cost),
        *(curve_step(setup, each, looks, cost=cost) for each in fixed),
        *(
            step
            for search in searches(values)
            for step in searched_curve_steps(setup, search, looks, on=setup, cost=iteration)
        ),
    ]


def looks_of(values: TomographySettings) -> Looks:
    """The checks of each curve."""
    return Looks(values.iterations, values.every, (values.early, values.iterations))


def subgradient_methods(
    values: TomographySettings, make: Callable[[float], Competitor], steps: Numbers
) -> list[Competitor]:
    """With the printed steps, and with those of the released script."""
    released = [make(float(f"{values.released * step:.2g}")) for step in steps]
    return [
        *(make(step) for step in steps),
        *(replace(each, label=f"{each.label}, released") for each in released),
    ]


def searches(values: TomographySettings) -> list[Search]:
    """Searches for better steps, from the paper's c and from released steps."""
    iterations, tries = values.search_iterations, values.tries_step
    sm_c, sm_d = (
        float(f"{steps[len(steps) // 2] * values.released:.2g}")
        for steps in (values.sm_c, values.sm_d)
    )
    return [
        Search("proposed", "Proposed", proposed, values.c, 10.0, values.tries_c, iterations),
        Search("sm-c", "SM-C", lambda steps: constant(*steps), (sm_c,), 2.0, tries, iterations),
        Search("sm-d", "SM-D", lambda steps: diminishing(*steps), (sm_d,), 2.0, tries, iterations),
    ]
