"""The card of a network that a recipe made: what it was trained for, on what, and how well."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from convexlift.models.cards import ModelCard
from convexlift.training.data import ImageSet
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe, Outcome
from convexlift.training.settings import plain_settings

UNKNOWN_LICENSE = "unknown; it is for you to decide, as far as the training images allow"


def training_card(
    recipe: AdversarialRecipe | BilevelRecipe,
    outcome: Outcome,
    images: ImageSet,
    *,
    name: str,
    source: Sequence[str] = (),
    command: str = "",
    version: str = "",
    processes: int = 1,
) -> ModelCard:
    """What is known after a training.

    Args:
        recipe: that was followed.
        outcome: of it.
        images: it was given.
        name: of the model.
        source: where the images come from.
        command: that started it.
        version: of the code.
        processes: that took part.
    """
    trained = outcome.trained
    adversarial = isinstance(recipe, AdversarialRecipe)
    kind = "adversarial" if adversarial else "bilevel"
    task = next(iter(outcome.weights), "given damaged images")
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
        weight=outcome.weights.get(task, 1.0),
        weights=outcome.weights,
        weight_choice=_weight_choice(recipe, outcome),
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


def _weight_choice(recipe: AdversarialRecipe | BilevelRecipe, outcome: Outcome) -> str:
    if isinstance(recipe, BilevelRecipe):
        return "learned with the network, up to that of the first task, which is fixed"
    if outcome.validation is None:
        return "not chosen: there was no task to validate; search one for your data"
    if not recipe.search:
        return "that of the recipe"
    return f"the best for PSNR on {len(outcome.validation.images)} held-out images"


def _processor() -> str:
    """The name of the CPU, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
