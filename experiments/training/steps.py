"""The settings and the computation of section 5.3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import convexlift as cl
from convexlift.images import load_example
from convexlift.tasks import Inpainting
from convexlift.training import (
    PRESETS,
    AdversarialRecipe,
    AnyRecipe,
    BilevelRecipe,
    ImageSet,
    absorb_weight_,
)
from experiments.common_steps import (
    DEFAULT,
    L_BFGS,
    Checks,
    PaperInpainting,
    curve_step,
    data_step,
    papers_four,
    searched_curve_steps,
    searches,
)
from experiments.images import EXAMPLES, TUNING_EXAMPLE, Images, load_faces, resized, training_faces
from experiments.runner import Parts, Step, Study
from experiments.setups import Setup, Training

SCHEMES = {
    "adversarial": "Adversarial",
    "bilevel-nmapg": "Bilevel + NMAPG",
    "bilevel-proposed": "Bilevel + Proposed",
    "bilevel-default": "Bilevel + our default",
}
"""Rows of the table; the paper has the first three."""
SEARCHED = {"proposed": "Proposed", "sm-c": "SM-C", "sm-d": "SM-D"}
"""Solvers whose step sizes are searched for."""

ADVERSARIAL = cast(AdversarialRecipe, PRESETS["faces-inpainting-adversarial"])
BILEVEL = cast(BilevelRecipe, PRESETS["faces-inpainting-bilevel"])
AS_RELEASED: dict[str, AnyRecipe] = {
    "adversarial": PRESETS["paper-inpainting"],
    "bilevel-nmapg": PRESETS["paper-bilevel-nmapg"],
    "bilevel-proposed": PRESETS["paper-bilevel"],
}
"""The paper's rows, trained as the authors did."""
AUTHORS = "authors-"
"""The prefix of their parts."""
LOWER_LEVEL = cl.StopWhen(gap=1e-3, max_iterations=60)
"""Ours; the paper stops where the gradient of the lower level has the norm 0.1."""

FIRST = "adversarial"
TILED = (*EXAMPLES[2:], TUNING_EXAMPLE)
"""Not the first two, which are tested on where there are no faces."""
ACROSS = 4
"""Tiles in a row of a photograph."""


@dataclass(frozen=True)
class TrainingSettings(PaperInpainting):
    """Settings of the experiment."""

    c_training: tuple[float, float] = (0.3, 1e-3)  # ours: (0.01, 0.001) does not suit our network
    iterations: int = 300  # Figure "Inpainting: Visual comparison of reconstructions, with PSNR"
    every: int = 10
    images: int = 20  # section 5.3.1, Results
    size: int = 256
    training_images: int | None = None  # all 1000 faces, of which bilevel learning uses 160
    adversarial: AdversarialRecipe = ADVERSARIAL  # section 5.3, with our changes
    bilevel: BilevelRecipe = BILEVEL  # section 5.3.1, with our changes
    lower_level: cl.StopWhen = LOWER_LEVEL
    search_iterations: int = 150  # ours
    tries_c: int = 10  # ours
    tries_step: int = 6  # ours
    as_released: bool = True  # whether the paper's rows are also trained as the authors did

    @classmethod
    def quick(cls) -> TrainingSettings:
        """Small images and short trainings."""
        stop = cl.StopWhen(gap=1e-2, max_iterations=60)
        return cls(
            iterations=150, images=2, size=64, training_images=72, search_iterations=100,
            tries_c=4, tries_step=3, as_released=False,
            lower_level=replace(LOWER_LEVEL, max_iterations=40),
            adversarial=replace(
                ADVERSARIAL, held_out=4, validation_stop=stop, options=replace(
                    ADVERSARIAL.options, steps=200, learning_rate=2e-3, validate_every=200),
            ),
            bilevel=replace(
                BILEVEL, held_out=4, images=32, batch_size=4, validation_stop=stop,
                options=replace(BILEVEL.options, steps=12, warm_up=2, validate_every=12),
            ),
        )  # fmt: skip


def training_images(data: Path | None, count: int | None, size: int) -> ImageSet:
    """The first training faces, brought to a size; tiles of photographs without data."""
    return training_faces(data, size, count) or tiles(size)


def tiles(size: int) -> ImageSet:
    """Squares of photographs, 16 of each."""
    planes, names = [], []
    for name in TILED:
        photograph = resized(load_example(name)[0], ACROSS * size)[0]
        for i in range(ACROSS):
            for j in range(ACROSS):
                rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
                planes.append(photograph[rows, columns])
                names.append(f"{name} {i} {j}")
    return ImageSet.from_tensors(planes, names)


def steps(study: Study, values: TrainingSettings) -> Sequence[Step]:
    """Four trainings, and every solver on the regularizer of each of them."""
    images = load_faces(study.data, values.images, values.size)
    learned_from = training_images(study.data, values.training_images, values.size)
    task = Inpainting(values.missing, values.noise, images.mask, fill="zero")
    # Step sizes are searched for on a training face, and used on the test faces.
    example = Images((learned_from.names[0],), learned_from[0][None], "training", False)
    first = Training(
        FIRST, values.adversarial, learned_from, None, study,
        cost=60.0, title=f"Training, {SCHEMES[FIRST]}",
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
    if values.as_released:
        for name, recipe in AS_RELEASED.items():
            found += authors_row(name, masked(recipe, images), task, images, learned_from, study,
                                 values)  # fmt: skip
    return found


def authors_row(
    name: str,
    recipe: AnyRecipe,
    task: Inpainting,
    images: Images,
    learned_from: ImageSet,
    study: Study,
    values: TrainingSettings,
) -> list[Step]:
    """One row of the paper's table with the authors' choices: their recipe, steps, and no box."""
    training = Training(
        AUTHORS + name, recipe, learned_from, None, study,
        cost=300.0 if name == FIRST else 6000.0,
        title=f"Training as the authors did, {SCHEMES[name]}",
    )  # fmt: skip
    regularizer = training.regularizer(SCHEMES[name])
    setup = Setup(replace(task, box=None), regularizer, images, study, f"{AUTHORS}{name}-")
    last = values.iterations
    checks, cost = Checks(last, last, (last,), values.images), 0.02 * last * values.images
    return [
        training.step(),
        data_step(setup),
        *(curve_step(setup, each, checks, cost=cost) for each in papers_four(values)),
    ]


def masked(recipe: AnyRecipe, images: Images) -> AnyRecipe:
    """The recipe with the paper's fixed mask, where the images have one."""
    if isinstance(recipe, AdversarialRecipe):
        return replace(recipe, task=replace(cast(Inpainting, recipe.task), mask=images.mask))
    tasks = tuple(
        (replace(cast(Inpainting, task), mask=images.mask), weight) for task, weight in recipe.tasks
    )
    return replace(recipe, tasks=tasks)


def bilevel(name: str, method: cl.Method, first: Training, values: TrainingSettings) -> Training:
    """From the adversarial network, with its weight absorbed, as the paper absorbs gamma."""

    def start(parts: Parts) -> cl.InputConvexNetwork:
        part = parts[FIRST]
        network = first.network(part)
        absorb_weight_(network, part.values["weight"])
        return network

    recipe = replace(values.bilevel, method=method, stop=values.lower_level)
    return Training(
        name, recipe, first.images, None, first.study, start, (FIRST,),
        cost=40.0, title=f"Training, {SCHEMES[name]}",
    )  # fmt: skip


def table_row(setup: Setup, on: Setup, values: TrainingSettings) -> list[Step]:
    """One row of the table: all solvers with one regularizer; steps are searched for ``on``."""
    checks = Checks(values.iterations, values.every, (values.iterations,), values.images)
    cost = 0.02 * values.iterations * values.images
    tried = searches(
        values.c, values.sm_c, values.sm_d, tries_c=values.tries_c, tries_step=values.tries_step,
        iterations=values.search_iterations,
    )  # fmt: skip
    return [
        data_step(setup),
        *(curve_step(setup, each, checks, cost=cost)
          for each in (*papers_four(values), DEFAULT, L_BFGS)),
        *(step for search in tried
          for step in searched_curve_steps(setup, search, checks, on=on, cost=0.02)),
    ]  # fmt: skip
