"""The computation of section 5.3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import convexlift as cl
from convexlift.tasks import Inpainting
from convexlift.training import absorb_weight_
from experiments.common_steps import Looks, Search, curve_step, data_step, searched_curve_steps
from experiments.images import Images, load_faces
from experiments.learned import Training
from experiments.methods import DEFAULT, L_BFGS, constant, diminishing, papers_four, proposed
from experiments.runner import Parts, Step, Study
from experiments.setups import Setup
from experiments.training.images import training_images
from experiments.training.settings import SCHEMES, SEARCHED, TrainingSettings

ADVERSARIAL = "adversarial"


def steps(study: Study, values: TrainingSettings) -> Sequence[Step]:
    """Four trainings, and every solver on the regularizer of each of them."""
    images = load_faces(study.data, values.images, values.size)
    learned_from = training_images(study.data, values.training_images, values.size)
    task = Inpainting(values.missing, values.noise, images.mask, fill="zero")
    # Steps are searched for on a face that is not tested, and used on those that are.
    example = Images((learned_from.names[0],), learned_from[0][None], "training", False)
    first = Training(
        ADVERSARIAL, values.adversarial, learned_from, None, study,
        cost=60.0, title=f"Training, {SCHEMES[ADVERSARIAL]}",
    )  # fmt: skip
    lower_levels: dict[str, cl.Method] = {
        "bilevel-nmapg": cl.NMAPG(values.nmapg),
        "bilevel-proposed": cl.PDHG(steps=cl.PaperSteps(values.c_training)),
        "bilevel-default": cl.PDHG(),
    }
    found: list[Step] = []
    for training in (first, *(bilevel(*each, first, values) for each in lower_levels.items())):
        regularizer = training.regularizer(SCHEMES[training.name])
        prefix = f"{training.name}-"
        setup = Setup(task, regularizer, images, study, prefix)
        on = Setup(replace(task, mask=None), regularizer, example, study, prefix)
        found += [training.step(), *table_row(setup, on, values)]
    return found


def bilevel(name: str, method: cl.Method, first: Training, values: TrainingSettings) -> Training:
    """From the adversarial network, with its weight absorbed, as the paper absorbs gamma."""

    def start(parts: Parts) -> cl.InputConvexNetwork:
        part = parts[ADVERSARIAL]
        network = first.network(part)
        absorb_weight_(network, part.values["weight"])
        return network

    recipe = replace(values.bilevel, method=method, stop=values.lower_level)
    return Training(
        name, recipe, first.images, None, first.study, start, (ADVERSARIAL,),
        cost=40.0, title=f"Training, {SCHEMES[name]}",
    )  # fmt: skip


def table_row(setup: Setup, on: Setup, values: TrainingSettings) -> list[Step]:
    """One row of the table: all solvers with one regularizer; steps are searched for ``on``."""
    looks = Looks(values.iterations, values.every, (values.iterations,), values.images)
    cost = 0.02 * values.iterations * values.images
    return [
        data_step(setup),
        *(curve_step(setup, each, looks, cost=cost)
          for each in (*papers_four(values), DEFAULT, L_BFGS)),
        *(step for search in searches(values)
          for step in searched_curve_steps(setup, search, looks, on=on, cost=0.02)),
    ]  # fmt: skip


def searches(values: TrainingSettings) -> list[Search]:
    """Of the three methods whose step sizes do not adapt, from the paper's on."""
    iterations, tries = values.search_iterations, values.tries_step
    makes = {
        "proposed": (proposed, values.c, 10.0, values.tries_c),
        "sm-c": (lambda numbers: constant(*numbers), (values.sm_c,), 2.0, tries),
        "sm-d": (lambda numbers: diminishing(*numbers), (values.sm_d,), 2.0, tries),
    }
    return [
        Search(key, SEARCHED[key], make, first, factor, count, iterations)
        for key, (make, first, factor, count) in makes.items()
    ]
