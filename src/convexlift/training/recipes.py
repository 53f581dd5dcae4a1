"""Recipes: a training as a typed record, ``follow``, which carries it out, and its model card.

The recipes of the paper and our own are literals in ``presets``; the command line changes single
fields of them.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from convexlift.models.cards import ModelCard
from convexlift.networks import architectures
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.padding import Boundary
from convexlift.solvers.method import Method
from convexlift.solvers.stopping import StopWhen
from convexlift.tasks import Task
from convexlift.training.data import BatchSampler, ImageSet, size_text
from convexlift.training.hypergradients import Hypergradient
from convexlift.training.initialization import start_from_filters_, subtract_means_
from convexlift.training.loop import StepCallback, Trained, TrainingOptions, train
from convexlift.training.objectives import LOWER_LEVEL, Adversarial, Bilevel, Objective
from convexlift.training.run_files import plain_settings
from convexlift.training.validation import Validation

VALIDATION = StopWhen(gap=1e-3, max_iterations=300)
UNKNOWN_LICENSE = "unknown; it is for you to decide, as far as the training images allow"


@dataclass(frozen=True)
class NetworkSettings:
    """Which network, and where its weights start.

    Attributes:
        architecture: a name in ``convexlift.networks``.
        image_size: of networks with dense layers; None takes that of the training images.
        channels: of the convolutions.
        kernel: their size.
        smoothing: nu of the activations.
        padding: of the convolutions.
        depth: layers of a ``ridge``.
        filters: start from cosine filters that measure a total variation (``initialization``), with
            this strength; None for random weights.
    """

    architecture: Literal["baseline", "deep", "convolutional", "ridge"] = "baseline"
    image_size: int | None = None
    channels: int = 32
    kernel: int = 5
    smoothing: float = 0.0
    padding: Boundary = "zero"
    depth: int = 1
    filters: float | None = None

    def build(self, image_size: tuple[int, int], seed: int) -> InputConvexNetwork:
        """A new network, for images of a size if it must know it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._build(image_size)
        if self.filters is not None:
            start_from_filters_(network, self.filters)
        return network

    def _build(self, image_size: tuple[int, int]) -> InputConvexNetwork:
        common = partial(
            getattr(architectures, self.architecture),
            channels=self.channels,
            kernel=self.kernel,
            smoothing=self.smoothing,
            padding=self.padding,
        )
        if self.architecture == "ridge":
            network: InputConvexNetwork = common(depth=self.depth)
        elif self.architecture == "convolutional":
            network = common()
        else:
            network = common(self.image_size or image_size)
        return network


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings that adversarial and bilevel trainings have in common.

    Attributes:
        network: and its start.
        options: of the loop.
        batch_size: of all processes together.
        crop: side of random crops; None for whole images.
        flips: mirror images by chance.
        images: use so many of the training images only; None for all.
        held_out: images for validation, taken from the training images, if there is a task to
            validate.
        validation_task: reconstructed in validation; by default the task trained for.
        validation_crop: the middle of the validation images, where these are larger; a network
            for one image size gets that size.
        validation_stop: of the solver in validation.
        seed: of everything.
    """

    network: NetworkSettings
    options: TrainingOptions
    batch_size: int = 8
    crop: int | None = None
    flips: bool = True
    images: int | None = None
    held_out: int = 16
    validation_task: Task | None = None
    validation_crop: int | None = None
    validation_stop: StopWhen = VALIDATION
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AdversarialRecipe(Recipe):
    """Adversarial regularization.

    Attributes:
        task: damages the images; None where damaged images are given.
        penalty: lambda_GP.
        paired: whether lines join an image and its own damaged version.
        weight: regularization weight in validation, the first of a search by factors of 1.3.
        search: whether to search.
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
        tasks: with the weight R has in each at the start.
        hypergradient: how to differentiate; None for the one that suits the network.
        method: of the lower level.
        stop: of the lower level.
        fixed: whether an image gives the same sample every time; reconstructions then start
            from the last one.
        decibels: whether the mean PSNR is maximised, which makes tasks of different difficulty
            count alike, rather than the mean squared error minimised.
    """

    tasks: tuple[tuple[Task, float], ...]
    hypergradient: Hypergradient | None = None
    method: Method | None = None
    stop: StopWhen = LOWER_LEVEL
    fixed: bool = False
    decibels: bool = False


AnyRecipe = AdversarialRecipe | BilevelRecipe


@dataclass(frozen=True, eq=False)
class RecipeResult:
    """A trained network, and the weight of each task for it."""

    trained: Trained
    weights: dict[str, float]
    validation: Validation | None


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
        recipe: of the training.
        images: clean ones.
        network: to start from, in place of the recipe's.
        damaged: images for the adversarial critic, in place of a task's; one for each clean
            image, in the same order.
        validation_images: to validate on in place of held-out ones: of another patient, say.
        device: for training.
        folder: for log and checkpoint.
        resume: from the checkpoint there.
        callback: called after each step.
    """
    if damaged is not None:
        _require_matching(damaged, images, recipe)
    checked = validated_task(recipe)
    split = checked is not None and validation_images is None
    training, held_out = _split(images, recipe, validated=split)
    if damaged is not None:
        damaged, _ = _split(damaged, recipe, validated=split)
    if validation_images is not None:
        held_out = validation_images
    if network is None:
        size = training.size(0) if recipe.crop is None else (recipe.crop, recipe.crop)
        network = recipe.network.build(size, recipe.seed)
    network = network.to(device)
    if recipe.options.zero_mean:
        subtract_means_(network)
    fixed = isinstance(recipe, BilevelRecipe) and recipe.fixed
    batches = BatchSampler(
        training, recipe.batch_size, recipe.crop, recipe.flips, seed=recipe.seed, fixed=fixed
    )
    objective: Objective
    if isinstance(recipe, AdversarialRecipe):
        weight, search, method = recipe.weight, recipe.search, None
        objective = Adversarial(recipe.task, recipe.penalty, paired=recipe.paired, damaged=damaged)
    else:
        if damaged is not None:
            raise ValueError("damaged images are for adversarial recipes; a bilevel one has tasks")
        weight, search, method = recipe.tasks[0][1], False, recipe.method
        objective = Bilevel(
            recipe.tasks, hypergradient=recipe.hypergradient, method=method, stop=recipe.stop,
            warm_starts=len(training) if fixed else 0, decibels=recipe.decibels,
        )  # fmt: skip
    validation = None
    if checked is not None and held_out is not None:
        validation = Validation(
            checked, held_out, weight=weight, search=search, method=method,
            crop=_validation_crop(recipe, network, held_out), stop=recipe.validation_stop,
            seed=recipe.seed,
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
    return RecipeResult(trained, weights, validation)


def validated_task(recipe: AnyRecipe) -> Task | None:
    """The task reconstructed from held-out images; None where none are held out."""
    first = recipe.task if isinstance(recipe, AdversarialRecipe) else recipe.tasks[0][0]
    return recipe.validation_task or first


def training_card(
    recipe: AnyRecipe,
    result: RecipeResult,
    images: ImageSet,
    *,
    name: str,
    source: Sequence[str] = (),
    command: str = "",
    version: str = "",
    processes: int = 1,
) -> ModelCard:
    """The card of a trained network.

    Args:
        recipe: of the training.
        result: of the training.
        images: that ``follow`` was given.
        name: of the model.
        source: where the images come from.
        command: that started the training.
        version: of the code.
        processes: that took part.
    """
    trained = result.trained
    kind = "adversarial" if isinstance(recipe, AdversarialRecipe) else "bilevel"
    task = next(iter(result.weights), "given damaged images")
    results = {}
    if trained.score is not None:
        scores = {key: trained.score[key] for key in ("psnr", "ssim")}
        results["validation"] = {k: v for k, v in scores.items() if math.isfinite(v)}
    device = next(trained.network.parameters()).device
    where = f" from {', '.join(source)}" if source else ""
    return ModelCard(
        name=name,
        summary=f"A regularizer from {kind} training on {len(images)} images.",
        task=task,
        weight=result.weights.get(task, 1.0),
        weights=result.weights,
        weight_choice=_weight_choice(recipe, result),
        data=f"{len(images)} images{where}; SHA-256 {images.fingerprint()}",
        license=UNKNOWN_LICENSE,
        recipe=plain_settings(recipe),
        command=command,
        commit=version,
        seed=recipe.seed,
        training_time=trained.seconds,
        machine=machine(device, processes),
        results=results,
    )


def machine(device: torch.device, processes: int = 1) -> str:
    """The system, the processor or GPU, and PyTorch's version, in words."""
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    several = f", {processes} processes" if processes > 1 else ""
    return f"{processor}{several}; {platform.platform()}; PyTorch {torch.__version__}"


def _split(
    images: ImageSet, recipe: Recipe, *, validated: bool
) -> tuple[ImageSet, ImageSet | None]:
    """Images to train on and, if anything is validated, others for that."""
    training, held_out = images, None
    if validated:
        training, held_out = images.split(recipe.held_out, recipe.seed)
    return training if recipe.images is None else training.first(recipe.images), held_out


def _validation_crop(recipe: Recipe, network: InputConvexNetwork, held_out: ImageSet) -> int | None:
    """The recipe's, or what there is of it in small images."""
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
        raise ValueError("damaged images that are given need crop=None and flips=False")
    for i, name in enumerate(damaged.names):
        if damaged.size(i) != images.size(i):
            raise ValueError(
                f"the damaged image {name} is {size_text(damaged.size(i))}, but {images.names[i]}, "
                f"the clean one, is {size_text(images.size(i))}"
            )


def _weight_choice(recipe: AnyRecipe, result: RecipeResult) -> str:
    if isinstance(recipe, BilevelRecipe):
        return "learned with the network, up to that of the first task, which is fixed"
    if result.validation is None:
        return "not chosen: there was no task to validate; search one for your data"
    if not recipe.search:
        return "that of the recipe"
    return f"the best for PSNR on {len(result.validation.images)} held-out images"


def _processor() -> str:
    """The name of the CPU, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
