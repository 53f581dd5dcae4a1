"""From the options of ``convexlift train`` to a recipe: a preset with some values changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from convexlift.cli.app import UserError
from convexlift.cli.training_options import (
    AdversarialOptions,
    BilevelOptions,
    TrainingTask,
    TrainOptions,
)
from convexlift.images import load_image
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import (
    PRESETS,
    AdversarialRecipe,
    AnyRecipe,
    Hypergradient,
    Implicit,
    JacobianFree,
    NetworkSettings,
    Unrolled,
    ValueFunction,
)

LEVELS: dict[str, str] = {
    GaussianDenoising.name: "sigma", Inpainting.name: "noise", SaltAndPepper.name: "fraction",
}  # fmt: skip
"""The field of a task that --sigma sets."""
TASKS: dict[TrainingTask, Task] = {
    TrainingTask.denoise: GaussianDenoising(),
    TrainingTask.inpaint: Inpainting(),
    TrainingTask.salt_and_pepper: SaltAndPepper(),
}
FIRST_WEIGHTS = {GaussianDenoising.name: 1.0, Inpainting.name: 0.17, SaltAndPepper.name: 7.5}
"""Weights for networks of any size with cosine filters, from which bilevel learning starts."""
HYPERGRADIENTS: dict[str, Hypergradient] = {
    "implicit": Implicit(damping=1e-2, iterations=20, tolerance=1e-2),
    "value-function": ValueFunction(),
    "jacobian-free": JacobianFree(),
    "unrolled": Unrolled(steps=20),
}


def changed_recipe(job: TrainOptions) -> AnyRecipe:
    """The recipe of the preset, changed by the options."""
    recipe = _with_task(_preset(job), job)
    recipe = replace(recipe, network=_network(job, recipe.network))
    options = replace(recipe.options, **_given(job, "steps", "learning_rate", "validate_every"))
    changes = _given(job, "batch_size", "crop", "images", "held_out", "seed", "penalty")
    if isinstance(job, BilevelOptions) and job.hypergradient is not None:
        changes["hypergradient"] = HYPERGRADIENTS[job.hypergradient]
    if damaged_folder(job) is not None:
        changes = {"crop": None, **changes, "task": None, "flips": False}
    if job.mask is not None:
        recipe = _with_mask(recipe, job.mask)
    return replace(recipe, options=options, **changes)


def _preset(job: TrainOptions) -> AnyRecipe:
    kind, other = job.kind, "adversarial" if job.kind == "bilevel" else "bilevel"
    name = job.preset or ("photo" if is_adaptive(job) else "photo-any-size-first")
    if name in job.presets:
        return PRESETS[name]
    if name in PRESETS:
        raise UserError(f"{name} is a preset of `convexlift train {other}`. Use that command.")
    known = ", ".join(job.presets)
    raise UserError(f"There is no {kind} preset {name!r}. Choose one of {known}.")


def is_adaptive(job: TrainOptions) -> bool:
    """Whether the options ask for a network that reads the data."""
    return isinstance(job, BilevelOptions) and job.adaptive


def _with_task(recipe: AnyRecipe, job: TrainOptions) -> AnyRecipe:
    """The recipe for the task and noise level of the options."""
    if job.task is None and job.sigma is None:
        return recipe
    option = "--sigma" if job.task is None else "--task"
    if damaged_folder(job) is not None:
        raise UserError(f"--damaged gives the damaged images. Leave out {option}, or --damaged.")
    if str(job.preset).startswith("paper-"):
        raise UserError(f"{job.preset} is the paper's recipe. Leave out {option}, or --preset.")
    tasks = [recipe.task] if isinstance(recipe, AdversarialRecipe) else [t for t, _ in recipe.tasks]
    known = [task for task in tasks if task is not None and task.name in LEVELS]
    if job.task is not None:
        wanted = TASKS[job.task]
    elif len(tasks) > 1 or not known:
        raise UserError("--sigma needs to know of which task. Add --task denoise, for example.")
    else:
        wanted = known[0]
    # The recipe's own version of the task, if any, for values not given here.
    base = next((task for task in known if task.name == wanted.name), wanted)
    level, task = LEVELS[base.name], base
    if job.sigma is not None:
        one_level = {"up_to": None} if isinstance(base, GaussianDenoising) else {}
        task = replace(base, **one_level | {level: job.sigma})  # type: ignore[type-var]
    if isinstance(recipe, AdversarialRecipe):
        return replace(recipe, task=task, validation_task=None)
    weight = next((w for t, w in recipe.tasks if t.name == task.name), FIRST_WEIGHTS[task.name])
    if recipe.network.architecture != "adaptive":  # such networks scale with the noise
        # As the weights of total variation scale, about: 0.086 at 0.1 and 0.016 at 0.03.
        weight *= max(getattr(task, level) / getattr(base, level), 0.01) ** 1.5
    return replace(recipe, tasks=((task, weight),), turns=None, validation_task=None)


def _network(job: TrainOptions, settings: NetworkSettings) -> NetworkSettings:
    """The network of the recipe, changed by the options."""
    changes = _given(job, "channels", "kernel", "widths")
    adaptive = settings.architecture == "adaptive"
    if is_adaptive(job) and not adaptive:
        raise UserError(
            f"--adaptive needs a recipe for networks that read the data, and {job.preset} is for "
            "others. Leave out one of the two."
        )
    if changes and job.start is not None:
        raise UserError(
            f"--{next(iter(changes))} is for a new network, and --start names a trained one. "
            "Leave out one of the two."
        )
    if "widths" in changes:
        if not adaptive:
            raise UserError("--widths is for networks that read the data. Add --adaptive.")
        try:
            changes["widths"] = tuple(int(width) for width in changes["widths"].split(","))
        except ValueError:
            raise UserError(
                f"--widths is whole numbers and commas, such as 48,64,80, got {changes['widths']!r}"
            ) from None
    return replace(settings, **changes)


def _given(job: TrainOptions, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(job, name, None)) is not None}


def damaged_folder(job: TrainOptions) -> Path | None:
    """The folder of damaged images for the critic, if there is one."""
    return job.damaged if isinstance(job, AdversarialOptions) else None


def _with_mask(recipe: AnyRecipe, path: Path) -> AnyRecipe:
    """The recipe with one mask for all images in place of random ones."""
    mask = (load_image(path)[0, 0] >= 0.5).float()

    def fixed(task: Task | None) -> Task | None:
        return replace(task, mask=mask) if isinstance(task, Inpainting) else task

    tasks = [recipe.task] if isinstance(recipe, AdversarialRecipe) else [t for t, _ in recipe.tasks]
    if not any(isinstance(task, Inpainting) for task in tasks):
        raise UserError("--mask is for inpainting, which this preset does not do. Leave it out.")
    if isinstance(recipe, AdversarialRecipe):
        return replace(recipe, task=fixed(recipe.task))
    return replace(recipe, tasks=tuple((fixed(task) or task, w) for task, w in recipe.tasks))
