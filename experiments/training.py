"""Section 5.3.1: how a regularizer is trained, against how it is used; Table 2 of the paper.

    adversarial:  min_theta  R(clean) - R(damaged) + penalty
    bilevel:      min_theta  1/2 ||x(theta) - truth||^2,   x(theta) minimises the problem with R

The same smooth network for inpainting, trained adversarially and by bilevel learning with several
solvers for x(theta); each is then used with every solver. The paper's comparison of crops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.solvers.method import Method
from convexlift.solvers.nmapg import NMAPG
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.step_sizes import PaperSteps
from convexlift.solvers.stopping import StopWhen
from convexlift.tasks import Inpainting
from convexlift.training.initialization import absorb_weight_
from convexlift.training.presets import FACES_INPAINTING_ADVERSARIAL, FACES_INPAINTING_BILEVEL
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe
from experiments.benchmark.cases import Case
from experiments.competitors import (
    DEFAULT,
    L_BFGS,
    Competitor,
    constant,
    diminishing,
    papers_four,
    proposed,
)
from experiments.data import Images, load_faces
from experiments.document import Document
from experiments.learned import LearnedSetup, Parts, Training
from experiments.measuring import Looks, curve_step, data_step
from experiments.paper import PaperInpainting
from experiments.parts import Part
from experiments.searching import Make, Numbers, Search, search_step, searched
from experiments.setup import Setup
from experiments.steps import Step
from experiments.study import Experiment, Study
from experiments.training_images import training_images
from experiments.training_report import SCHEMES, SEARCHED, training_report

LOWER_LEVEL = StopWhen(gap=1e-3, max_iterations=60)
"""Ours; the paper stops where the gradient of the lower level has the norm 0.1."""


@dataclass(frozen=True)
class TrainingSettings(PaperInpainting):
    """Values of the paper, and how much of them a run does."""

    c_training: tuple[float, float] = (0.3, 1e-3)  # ours: (0.01, 0.001) does not suit our network
    iterations: int = 300  # Figure "Inpainting: Visual comparison of reconstructions, with PSNR"
    every: int = 10
    images: int = 20  # section 5.3.1, Results
    size: int = 256
    training_images: int | None = None  # all 1000 faces, of which bilevel learning uses 160
    adversarial: AdversarialRecipe = FACES_INPAINTING_ADVERSARIAL  # section 5.3, with our changes
    bilevel: BilevelRecipe = FACES_INPAINTING_BILEVEL  # section 5.3.1, with our changes
    lower_level: StopWhen = LOWER_LEVEL
    search_iterations: int = 150  # ours
    tries_c: int = 10  # ours
    tries_step: int = 6  # ours


FULL = TrainingSettings()
QUICK = replace(
    FULL, iterations=150, images=2, size=64, training_images=72, search_iterations=100,
    tries_c=6, tries_step=5, lower_level=replace(LOWER_LEVEL, max_iterations=40),
    adversarial=replace(
        FULL.adversarial, held_out=4, validation_stop=StopWhen(gap=1e-2, max_iterations=60),
        options=replace(
            FULL.adversarial.options, steps=200, learning_rate=2e-3, validate_every=200),
    ),
    bilevel=replace(
        FULL.bilevel, held_out=4, images=32, batch_size=4,
        validation_stop=StopWhen(gap=1e-2, max_iterations=60),
        options=replace(FULL.bilevel.options, steps=12, warm_up=2, validate_every=12),
    ),
)  # fmt: skip

ADVERSARIAL = "adversarial"


def steps(study: Study) -> Sequence[Step]:
    """Four trainings, and every solver on what each of them made."""
    values = QUICK if study.quick else FULL
    images = load_faces(study.data, values.images, values.size)
    learned_from = training_images(study.data, values.training_images, values.size)
    task = Inpainting(values.missing, values.noise, images.mask, fill="zero")
    found: list[Step] = []
    first = Training(
        ADVERSARIAL, values.adversarial, learned_from, None, study,
        cost=60.0, title=f"Training, {SCHEMES[ADVERSARIAL]}",
    )  # fmt: skip
    trainings = [first, *(bilevel(name, method, first, values)
                          for name, method in lower_levels(values).items())]  # fmt: skip
    for training in trainings:
        # Steps are searched for on a face that is not tested, and used on those that are.
        example = Images((learned_from.names[0],), learned_from[0][None], "training", False)
        found += [training.step()]
        found += table_row(
            learned_setup(training, task, images, study),
            learned_setup(training, replace(task, mask=None), example, study),
            values,
        )
    return found


def lower_levels(values: TrainingSettings) -> dict[str, Method]:
    """Who solves the lower level: those of the paper, and our default."""
    return {
        "bilevel-nmapg": NMAPG(values.nmapg),
        "bilevel-proposed": PDHG(steps=PaperSteps(values.c_training)),
        "bilevel-default": PDHG(),
    }


def bilevel(name: str, method: Method, first: Training, values: TrainingSettings) -> Training:
    """From the adversarial network, with its weight absorbed, as the paper absorbs gamma."""

    def start(parts: Parts) -> InputConvexNetwork:
        part = parts[ADVERSARIAL]
        network = first.network(part)
        absorb_weight_(network, part.values["weight"])
        return network

    recipe = replace(values.bilevel, method=method, stop=values.lower_level)
    return Training(
        name, recipe, first.images, None, first.study, start, (ADVERSARIAL,),
        cost=40.0, title=f"Training, {SCHEMES[name]}",
    )  # fmt: skip


def learned_setup(
    training: Training, task: Inpainting, images: Images, study: Study
) -> LearnedSetup:
    """Images with what a training made."""

    def make(parts: Parts) -> Setup:
        part = parts[training.name]
        network = training.network(part)
        case = Case("inpainting", SCHEMES[training.name], task, lambda size, seed: network,
                    weight=part.values["weight"])  # fmt: skip
        return Setup(case, images, study, f"{training.name}-")

    settings = {
        "task": task, "images": images.clean, "seed": study.seed, "device": study.device.type,
    }  # fmt: skip
    return LearnedSetup(settings, (training.name,), make, f"{training.name}-")


def table_row(
    setup: LearnedSetup, search_setup: LearnedSetup, values: TrainingSettings
) -> list[Step]:
    """One row of the table: all solvers with one regularizer."""
    looks = Looks(values.iterations, values.every, (values.iterations,), values.images)
    found = [setup.step("data", lambda made, parts: data_step(made))]
    for competitor in competitors(values):
        found.append(
            setup.step(
                f"curve-{competitor.key}",
                partial(_curve, competitor, looks),
                {"competitor": competitor, "looks": looks},
                cost=0.02 * values.iterations * values.images,
                title=competitor.label,
            )
        )
    for key, (make, search) in searches(values).items():
        found += searched_curve(setup, search_setup, key, make, search, looks)
    return found


def competitors(values: TrainingSettings) -> list[Competitor]:
    """The paper's four with its step sizes, and those that need none."""
    return [
        *papers_four(values),
        DEFAULT,
        L_BFGS,
    ]


def searches(values: TrainingSettings) -> dict[str, tuple[Make, Search]]:
    """For the three whose step sizes do not adapt, from the paper's on."""
    iterations = values.search_iterations
    firsts: dict[str, tuple[Make, Numbers, float, int]] = {
        "proposed": (proposed, values.c, 10.0, values.tries_c),
        "sm-c": (lambda numbers: constant(*numbers), (values.sm_c,), 2.0, values.tries_step),
        "sm-d": (lambda numbers: diminishing(*numbers), (values.sm_d,), 2.0, values.tries_step),
    }
    return {
        key: (make, Search(first, factor, tries, iterations))
        for key, (make, first, factor, tries) in firsts.items()
    }


def searched_curve(
    setup: LearnedSetup,
    search_setup: LearnedSetup,
    key: str,
    make: Make,
    search: Search,
    looks: Looks,
) -> list[Step]:
    """A search on one face, and the test faces with what it found."""
    name, full_name = f"search-{key}", f"{setup.prefix}search-{key}"

    def chosen(made: Setup, parts: Parts) -> Step:
        label = f"{SEARCHED[key]}, searched"
        return curve_step(made, searched(parts[full_name], make, f"{key}-searched", label), looks)

    return [
        search_setup.step(
            name,
            lambda made, parts: search_step(made, name, make, search, cost=1.0),
            {"search": search, "first": make(search.first)},
            cost=0.02 * search.tries * search.iterations,
            title=f"Search for steps: {SEARCHED[key]}",
        ),
        setup.step(
            f"curve-{key}-searched", chosen, {"looks": looks}, needs=(full_name,),
            cost=0.02 * looks.iterations * looks.images, title=f"{SEARCHED[key]}, searched",
        ),
    ]  # fmt: skip


def _curve(competitor: Competitor, looks: Looks, made: Setup, parts: Parts) -> Step:
    return curve_step(made, competitor, looks)


def report(parts: Mapping[str, Part]) -> Document:
    """What the parts say."""
    values = QUICK if parts[f"{ADVERSARIAL}-data"].values["quick"] else FULL
    return training_report(parts, values.iterations)


TRAINING = Experiment(
    "training", "Training schemes and solvers, inpainting", "section 5.3.1", steps, report
)
