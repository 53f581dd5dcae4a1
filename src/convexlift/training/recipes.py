"""Recipes: a training as a typed record, and ``follow`` to carry it out.

The recipes of the paper and our own are constants in ``presets``; the command line changes single
fields of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from convexlift.networks import architectures
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.convolution import Boundary
from convexlift.solvers.hypergradients import Hypergradient
from convexlift.solvers.method import Method
from convexlift.solvers.solution import StopWhen
from convexlift.tasks import Task
from convexlift.training.data import BatchSampler
from convexlift.training.image_sets import ImageSet, size_text
from convexlift.training.initialization import (
    start_from_filters_,
    start_uniformly_,
    subtract_means_,
)
from convexlift.training.loop import StepCallback, Trained, TrainingOptions, train
from convexlift.training.objectives import LOWER_LEVEL, Adversarial, Bilevel, Objective
from convexlift.training.validation import Validation

VALIDATION = StopWhen(gap=1e-3, max_iterations=300)


@dataclass(frozen=True)
class NetworkSettings:
    """The network and its initial weights.

    Attributes:
        architecture: a name in ``convexlift.networks``.
        image_size: the size for networks with dense layers; None for that of the training images.
        channels: number of convolution channels.
        kernel: size of the convolutions.
        smoothing: nu of the activations.
        padding: the padding of the convolutions.
        depth: number of layers of a ``ridge`` or an ``adaptive`` network.
        profiles: Huber functions in each learned profile of a ``ridge``.
        levels: noise levels at which the weights of a ``ridge`` for all levels are learned.
        filters: start from cosine filters that measure a total variation (``initialization``), with
            this strength; None for random weights.
        uniform: start from nonnegative weights in U[0, uniform], as the authors do; None for ours.
        hidden: units of the dense layer of a ``baseline`` or ``deep`` network.
        widths: channels of the guide of an ``adaptive`` network at each scale.
        reads: the outputs of this guide: ``output`` weights, ``biases``, ``links``.
        in_channels: channels of the images.
    """

    architecture: Literal["baseline", "deep", "convolutional", "ridge", "adaptive"] = "baseline"
    image_size: int | None = None
    channels: int = 32
    kernel: int = 5
    smoothing: float = 0.0
    padding: Boundary = "zero"
    depth: int = 1
    filters: float | None = None
    widths: tuple[int, ...] = (48, 64, 80)
    in_channels: int = 1
    profiles: int = 1
    levels: tuple[float, ...] = ()
    reads: tuple[str, ...] = ("output",)
    uniform: float | None = None
    hidden: int = 256

    def build(self, image_size: tuple[int, int], seed: int) -> InputConvexNetwork:
        """A new network, for a given image size if it needs one."""
        names = ["in_channels", "channels", "kernel", "smoothing", "padding"]
        own = {"ridge": ["depth", "profiles", "levels"], "adaptive": ["widths", "reads", "depth"]}
        names += own.get(self.architecture, [])
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.architecture in ("baseline", "deep"):
            arguments |= {"image_size": self.image_size or image_size, "hidden": self.hidden}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: InputConvexNetwork = getattr(architectures, self.architecture)(**arguments)
            if self.uniform is not None:
                start_uniformly_(network, self.uniform)
        if self.filters is not None:
            start_from_filters_(network, self.filters)
        return network


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings common to adversarial and bilevel training.

    Attributes:
        network: the network and its initial weights.
        options: the options of the training loop.
        batch_size: the number of samples of all processes together.
        crop: side of random crops; None for whole images.
        flips: mirror images at random.
        rotations: turn and mirror square crops at random, in all 8 ways.
        images: number of training images to use; None for all.
        held_out: number of training images reserved for validation, if there is a task to validate;
            0 for no validation: the last weights are kept, instead of the best validated ones.
        validation_task: the task of the validation; by default the task trained for.
        validation_crop: side of the central part of larger validation images; a network for one
            image size gets that size.
        validation_stop: the stopping criterion of the solver in validation.
        fixed: whether an image always gives the same sample, with the same noise; reconstructions
            of bilevel learning are then warm-started from the last one.
        seed: the seed of all random choices.
    """

    network: NetworkSettings
    options: TrainingOptions
    batch_size: int = 8
    crop: int | None = None
    flips: bool = True
    rotations: bool = False
    images: int | None = None
    held_out: int = 16
    validation_task: Task | None = None
    validation_crop: int | None = None
    validation_stop: StopWhen = VALIDATION
    fixed: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AdversarialRecipe(Recipe):
    """Adversarial regularization.

    Attributes:
        task: damages the images; None where damaged images are given.
        penalty: lambda_GP.
        paired: whether lines join an image to its own damaged version.
        weight: regularization weight in validation, or the start of a search by factors of 1.3.
        search: whether to search for the weight.
    """

    task: Task | None
    penalty: float = 5.0
    paired: bool = True
    weight: float = 1.0
    search: bool = True


@dataclass(frozen=True, kw_only=True)
class BilevelRecipe(Recipe):
    """Bilevel learning.

    Attributes:
        tasks: the tasks, each with its initial weight of R.
        turns: the numbers of the tasks in the order of the steps, repeated; None for one after the
            other.
        learn_weights: whether the weights of all tasks except the first are learned.
        hypergradient: the hypergradient; None for the one that suits the network.
        method: the method of the lower level.
        stop: the stopping criterion of the lower level.
        from_picture: start reconstructions, also in validation, at the data as an image
            (``Measurement.picture``), as the authors do, instead of at a better guess.
        decibels: maximise the mean PSNR, so that tasks of different difficulty have equal
            influence, instead of minimising the mean squared error.
        strict: whether to take no step from a batch whose reconstructions missed the gap.
    """

    tasks: tuple[tuple[Task, float], ...]
    turns: tuple[int, ...] | None = None
    learn_weights: bool = True
    hypergradient: Hypergradient | None = None
    method: Method | None = None
    stop: StopWhen = LOWER_LEVEL
    from_picture: bool = False
    decibels: bool = False
    strict: bool = False


AnyRecipe = AdversarialRecipe | BilevelRecipe


@dataclass(frozen=True, eq=False)
class RecipeResult:
    """A trained network, its weight for each task, and the number of images it was trained on."""

    trained: Trained
    weights: dict[str, float]
    validation: Validation | None
    images: int


def follow(
    recipe: AnyRecipe,
    images: ImageSet,
    *,
    network: InputConvexNetwork | None = None,
    damaged: ImageSet | None = None,
    validation_images: ImageSet | None = None,
    device: torch.device | str = "cpu",
    folder: Path | None = None,
    resume: bool = False,
    callback: StepCallback | None = None,
) -> RecipeResult:
    """Train by a recipe on images, part of which are held out for validation.

    Args:
        recipe: the recipe.
        images: clean images.
        network: the initial network, instead of the recipe's.
        damaged: images for the adversarial critic, instead of the task's; one for each clean
            image, in the same order.
        validation_images: replace held-out images: images of another patient, for example.
        device: the device to train on.
        folder: the folder of log and checkpoint.
        resume: continue from the checkpoint in the folder.
        callback: called after each step.
    """
    if damaged is not None:
        _require_matching(damaged, images, recipe)
    checked = validated_task(recipe)
    split = checked is not None and validation_images is None and recipe.held_out != 0
    training, held_out = _split(images, recipe, validated=split)
    if damaged is not None:
        damaged, _ = _split(damaged, recipe, validated=split)
    if validation_images is not None:
        held_out = validation_images
    if network is None:
        size = training.size(0) if recipe.crop is None else (recipe.crop, recipe.crop)
        network = recipe.network.build(size, recipe.seed)
    network = network.to(device)
    if recipe.options.zero_mean:  # the loop does this after each step, but not at the start
        subtract_means_(network)
    batches = BatchSampler(
        training, recipe.batch_size, recipe.crop, recipe.flips, recipe.rotations,
        seed=recipe.seed, fixed=recipe.fixed,
    )  # fmt: skip
    objective: Objective
    if isinstance(recipe, AdversarialRecipe):
        weight, search, method, from_picture = recipe.weight, recipe.search, None, False
        objective = Adversarial(recipe.task, recipe.penalty, paired=recipe.paired, damaged=damaged)
    else:
        if damaged is not None:
            raise ValueError("damaged images are for adversarial recipes only; leave them out")
        weight, search, method = recipe.tasks[0][1], False, recipe.method
        from_picture = recipe.from_picture
        objective = Bilevel(
            recipe.tasks, turns=recipe.turns, learn_weights=recipe.learn_weights,
            hypergradient=recipe.hypergradient, method=method, stop=recipe.stop,
            warm_starts=len(training) if recipe.fixed else 0, decibels=recipe.decibels,
            strict=recipe.strict, from_picture=from_picture,
        )  # fmt: skip
    validation = None
    if checked is not None and held_out is not None:
        validation = Validation(
            checked, held_out, weight=weight, search=search, method=method,
            crop=_validation_crop(recipe, network, held_out), stop=recipe.validation_stop,
            seed=recipe.seed, from_picture=from_picture,
        )  # fmt: skip
    trained = train(
        network, objective, batches, recipe.options, validation=validation, folder=folder,
        resume=resume, callback=callback,
    )  # fmt: skip
    if isinstance(objective, Bilevel):
        weights = objective.weights
    else:
        found = weight if trained.score is None else trained.score["weight"]
        weights = {} if checked is None else {checked.name: found}
    return RecipeResult(trained, weights, validation, len(training))


def validated_task(recipe: AnyRecipe) -> Task | None:
    """The task reconstructed from held-out images; None if no images are held out."""
    first = recipe.task if isinstance(recipe, AdversarialRecipe) else recipe.tasks[0][0]
    return recipe.validation_task or first


def _split(
    images: ImageSet, recipe: Recipe, *, validated: bool
) -> tuple[ImageSet, ImageSet | None]:
    """Training images and, if a task is validated, validation images."""
    training, held_out = images, None
    if validated:
        training, held_out = images.split(recipe.held_out, recipe.seed)
    return training if recipe.images is None else training.first(recipe.images), held_out


def _validation_crop(recipe: Recipe, network: InputConvexNetwork, held_out: ImageSet) -> int | None:
    """The recipe's validation crop, or the largest that fits small images."""
    if recipe.validation_crop is None:
        return None if network.image_size is None else recipe.crop
    return min(recipe.validation_crop, *(min(held_out.size(i)) for i in range(len(held_out))))


def _require_matching(damaged: ImageSet, images: ImageSet, recipe: Recipe) -> None:
    """Raise unless there is a damaged image for each clean one, and both are used whole."""
    if len(damaged) != len(images):
        raise ValueError(
            f"there are {len(images)} clean and {len(damaged)} damaged images; "
            "give one damaged image for each clean one, in the same order"
        )
    if recipe.crop is not None or recipe.flips:
        raise ValueError("given damaged images need crop=None and flips=False")
    for i, name in enumerate(damaged.names):
        if damaged.size(i) != images.size(i):
            raise ValueError(
                f"the damaged image {name} is {size_text(damaged.size(i))}, but the clean image "
                f"{images.names[i]} is {size_text(images.size(i))}"
            )
