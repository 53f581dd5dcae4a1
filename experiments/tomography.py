"""What both experiments in tomography do:  min_x  D(A x, y) + gamma R(x)  over x >= 0.

D is the Kullback-Leibler divergence of Poisson data behind the paper's scanner. The paper's
weights do not exist, and those of its dense layer would be 17 MB: the regularizer is trained
first, with the paper's architecture, on the slices there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from convexlift.models.files import names as shipped_names
from convexlift.models.store import card, load
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.networks.total_variation import TotalVariation
from convexlift.operators.tomography.filtered_backprojection import Filter
from convexlift.solvers.stopping import StopWhen
from convexlift.tasks import SparseViewCT
from convexlift.training.presets import PRESETS
from convexlift.training.recipes import AdversarialRecipe
from experiments.benchmark.cases import Case
from experiments.competitors import (
    DEFAULT,
    L_BFGS,
    Competitor,
    constant,
    diminishing,
    proposed,
)
from experiments.learned import (
    LearnedSetup,
    Parts,
    Scoring,
    Training,
    training_values,
)
from experiments.measuring import (
    Accuracy,
    Looks,
    curve_step,
    data_step,
    reference_step,
)
from experiments.parts import Part
from experiments.searching import Make, Numbers, Search, search_step, searched
from experiments.setup import Setup
from experiments.slices import FULL_SIZE, Counts, Slices, load_slices, scanner
from experiments.steps import Step, Work
from experiments.study import Study

BOX = (0.0, 2.0)
"""The paper has x >= 0. An upper bound that no pixel comes near makes certificates sharper."""
COUNTS = Counts(training=None, validation=8, test=10)
VALIDATION_STOP = StopWhen(gap=1e-2, max_iterations=100)
TEST_STOP = StopWhen(gap=2e-3, max_iterations=300)
REFERENCE = Accuracy(gap=1e-5, iterations=2000)
TRAINING, AS_PRINTED = "training", "training-as-printed"


@dataclass(frozen=True)
class TomographySettings:
    """Values of the paper, and how much of them a run does."""

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
    # Ours: what made the paper's training work on these slices.
    steps: int = 600
    batch_size: int = 20
    learning_rate: float = 5e-4
    penalty: float = 5.0
    filters: float = 0.13  # strength of the cosine filters at the start, over the image size
    filter: Filter = "hann"  # of the filtered back projections that the critic sees
    as_printed: bool = True  # whether the paper's recipe is followed to the letter as well
    size: int = FULL_SIZE
    counts: Counts = COUNTS
    validation_stop: StopWhen = VALIDATION_STOP
    test_stop: StopWhen = TEST_STOP
    tv_weight: float = 4.0  # the best on the test slices, at full size
    reference: Accuracy = REFERENCE
    search_iterations: int = 100
    tries_c: int = 10
    tries_step: int = 6


def steps(study: Study, values: TomographySettings) -> Sequence[Step]:
    """Training, test, reference, a search for steps, and one run for each method."""
    slices = load_slices(study.data, values.size, values.counts)
    task = SparseViewCT(scanner=scanner(values.size), box=BOX, filter=values.filter)
    training = Training(
        TRAINING, changed_recipe(values, task), slices.training, slices.validation, study,
        cost=0.3 * values.steps, title="Training",
    )  # fmt: skip
    scoring = Scoring(task, slices.test, values.test_stop, study)
    setup = learned_setup(training, slices, task, study)
    return [
        training.step(),
        *(printed_training(values, slices, task, scoring, study) if values.as_printed else ()),
        *tests(values, training, scoring, slices),
        *methods(setup, values),
        halfline(training, slices, task, study, values),
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
    """The paper's, for as many epochs of our slices; the best weight is looked for at the end."""
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
    values: TomographySettings,
    slices: Slices,
    task: SparseViewCT,
    scoring: Scoring,
    study: Study,
) -> list[Step]:
    """The paper's recipe to the letter: how good it is; its weights are not kept."""
    recipe = printed_recipe(values, task, len(slices.training))
    training = Training(AS_PRINTED, recipe, slices.training, slices.validation, study)

    def compute(work: Work) -> Part:
        outcome = training.follow(work)
        found = training_values(outcome, recipe)
        network = outcome.trained.network
        return Part(
            {
                **found,
                "best": scoring.values(network, found["weight"]),
                "gamma": scoring.values(network, values.gamma),
            }
        )

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

    def known(make: Callable[[], InputConvexNetwork], weight: float, work: Work) -> Part:
        return Part({"best": scoring.values(make(), weight)})

    settings = {**scoring.settings, "gamma": values.gamma, "size": values.size}
    cost = 0.2 * len(slices.test) * values.test_stop.max_iterations * (values.size / 512) ** 2
    others: dict[str, tuple[Callable[[], InputConvexNetwork], float]] = {
        "test-tv": (TotalVariation, values.tv_weight)
    }
    if values.shipped in shipped_names():
        weights = card(values.shipped).weights
        others["test-shipped"] = (partial(load, values.shipped), weights[SparseViewCT.name])
    return [
        Step("test-learned", settings, learned, (TRAINING,), cost, "Test slices"),
        *(
            Step(name, {**settings, "weight": weight}, partial(known, make, weight), (), cost,
                 "Test slices, other regularizers")
            for name, (make, weight) in others.items()
        ),
    ]  # fmt: skip


def learned_setup(
    training: Training, slices: Slices, task: SparseViewCT, study: Study, prefix: str = ""
) -> LearnedSetup:
    """The shown slice with the trained regularizer and its best weight."""

    def make(parts: Parts) -> Setup:
        part = parts[TRAINING]
        network = training.network(part)
        case = Case("ct", "trained here", task, lambda size, seed: network,
                    weight=part.values["weight"])  # fmt: skip
        return Setup(case, slices.shown, study, prefix)

    settings = {
        "task": task, "size": slices.test.size(0), "images": slices.test.first(1),
        "seed": study.seed, "device": study.device.type,
    }  # fmt: skip
    return LearnedSetup(settings, (TRAINING,), make, prefix)


def methods(setup: LearnedSetup, values: TomographySettings) -> list[Step]:
    """Data, reference, and the curves of all methods."""
    looks = looks_of(values)
    cost = values.iterations * (values.size / 512) ** 2
    fixed = [
        proposed(values.c),
        *subgradient_methods(values, constant, values.sm_c),
        *subgradient_methods(values, diminishing, values.sm_d),
        DEFAULT,
        L_BFGS,
    ]
    found = [
        setup.step("data", lambda made, parts: data_step(made)),
        setup.step(
            "reference",
            lambda made, parts: reference_step(made, values.reference, cost),
            {"accuracy": values.reference},
            cost=2 * cost,
            title="Reference optimum",
        ),
        *(curve(setup, each, looks, cost) for each in fixed),
    ]
    for key, label, make, search in searches(values):
        found += searched_curve(setup, key, label, make, search, looks, cost)
    return found


def looks_of(values: TomographySettings) -> Looks:
    """Along each curve."""
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


def searches(values: TomographySettings) -> list[tuple[str, str, Make, Search]]:
    """Where a search for better steps begins: at the paper's c, and at released steps."""
    middle = [steps[len(steps) // 2] * values.released for steps in (values.sm_c, values.sm_d)]
    return [
        ("proposed", "Proposed, searched", proposed,
         Search(values.c, 10.0, values.tries_c, values.search_iterations)),
        ("sm-c", "SM-C, searched", lambda numbers: constant(*numbers),
         Search((float(f"{middle[0]:.2g}"),), 2.0, values.tries_step, values.search_iterations)),
        ("sm-d", "SM-D, searched", lambda numbers: diminishing(*numbers),
         Search((float(f"{middle[1]:.2g}"),), 2.0, values.tries_step, values.search_iterations)),
    ]  # fmt: skip


def curve(setup: LearnedSetup, competitor: Competitor, looks: Looks, cost: float) -> Step:
    """A run of one method."""
    return setup.step(
        f"curve-{competitor.key}",
        lambda made, parts: curve_step(made, competitor, looks),
        {"competitor": competitor, "looks": looks},
        cost=cost,
        title=competitor.label,
    )


def searched_curve(
    setup: LearnedSetup,
    key: str,
    label: str,
    make: Make,
    search: Search,
    looks: Looks,
    cost: float,
) -> list[Step]:
    """A search for steps, and a run with what it found."""
    name, chosen = f"search-{key}", f"{key}-searched"
    settings = {"search": search, "first": make(search.first)}
    effort = cost * search.tries * search.iterations / looks.iterations
    return [
        setup.step(
            name,
            lambda made, parts: search_step(made, name, make, search, cost=effort),
            settings,
            cost=effort,
            title=f"Search for steps: {label.split(',')[0]}",
        ),
        setup.step(
            f"curve-{chosen}",
            lambda made, parts: curve_step(made, searched(parts[name], make, chosen, label), looks),
            {"looks": looks},
            needs=(name,),
            cost=cost,
            title=label,
        ),
    ]


def halfline(
    training: Training,
    slices: Slices,
    task: SparseViewCT,
    study: Study,
    values: TomographySettings,
) -> Step:
    """The proposed method for x >= 0 alone, as the paper states it: does the box matter?"""
    setup = learned_setup(training, slices, replace(task, box=(0.0, None)), study, "halfline-")
    return curve(setup, proposed(values.c), looks_of(values), values.iterations * 0.1)
