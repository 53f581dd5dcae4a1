"""The model card of a training."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from convexlift.models.files import ModelCard
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.training.image_sets import ImageSet
from convexlift.training.recipes import AdversarialRecipe, AnyRecipe, BilevelRecipe, RecipeResult
from convexlift.training.run_files import plain_settings
from convexlift.training.validation import Score

UNKNOWN_LICENSE = "unknown; yours to decide, as far as the training images allow"


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
    total_variation: Score | None = None,
    start: InputConvexNetwork | None = None,
) -> ModelCard:
    """The card of a trained network.

    Args:
        recipe: the recipe of the training.
        result: the result of the training.
        images: the images given to ``follow``.
        name: the name of the model.
        source: the origin of the images.
        command: the command that started the training.
        version: the version of the code.
        processes: number of processes.
        total_variation: the score of total variation on the validation images.
        start: the network given to ``follow`` instead of the recipe's.
    """
    trained, used = result.trained, result.images
    kind = "adversarial" if isinstance(recipe, AdversarialRecipe) else "bilevel"
    task = next(iter(result.weights), "given damaged images")
    results = {}
    if trained.score is not None:
        results["validation"] = _finite(trained.score)
    if total_variation is not None:
        results["validation, total variation instead"] = _finite(total_variation.summary())
    device = next(trained.network.parameters()).device
    where = f" from {', '.join(source)}" if source else ""
    settings = plain_settings(recipe)
    if start is not None:
        settings["network"] = start.card.recipe.get("network") if start.card else None
    return ModelCard(
        name=name,
        summary=f"A regularizer from {kind} training on {used} image{'s' * (used != 1)}.",
        task=task,
        weight=result.weights.get(task, 1.0),
        weights=result.weights,
        weight_choice=_weight_choice(recipe, result),
        data=f"{used} of {len(images)} images{where}; SHA-256 of all {images.fingerprint()}",
        license=UNKNOWN_LICENSE,
        recipe=settings,
        command=command,
        commit=version,
        seed=recipe.seed,
        training_time=trained.seconds,
        machine=machine(device, processes),
        results=results,
        best_step=None if trained.score is None else trained.step,
    )


def best_is_start(result: RecipeResult) -> bool:
    """Whether no validated step was better than the initial network, which is then the result."""
    return result.trained.score is not None and result.trained.step == 0


def _finite(score: Mapping[str, float]) -> dict[str, float]:
    return {key: score[key] for key in ("psnr", "ssim") if math.isfinite(score[key])}


def machine(device: torch.device, processes: int = 1) -> str:
    """The system, the processor or GPU, and PyTorch's version, as text."""
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    several = f", {processes} processes" if processes > 1 else ""
    return f"{processor}{several}; {platform.platform()}; PyTorch {torch.__version__}"


def _weight_choice(recipe: AnyRecipe, result: RecipeResult) -> str:
    if isinstance(recipe, BilevelRecipe):
        first, *others = result.weights
        if not others or not recipe.learn_weights:
            return "fixed before the training, in which the network was fitted to it"
        return f"for {first}, fixed before the training; for other tasks, learned with the network"
    if not recipe.search and result.weights:
        return "taken from the recipe"
    if result.validation is None:
        return "not chosen: nothing was validated; find a weight for your data"
    count = len(result.validation.images)
    return f"best PSNR on {count} held-out image{'s' * (count != 1)}"


def _processor() -> str:
    """The name of the CPU, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
