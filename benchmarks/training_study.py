"""What matters in adversarial training: variants of one recipe side by side, in one run.

    python benchmarks/training_study.py --data DIR --output results.jsonl [--size 64] [NAME...]

DIR holds ``train`` and ``test`` with square grey images, which are shrunk to ``--size``. Each
variant is trained by the paper's recipe with some of its settings changed, then tested with the
weight that is best on held-out training images. One JSON line each.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.networks import Chain
from convexlift.tasks import Inpainting
from convexlift.training import AdversarialRecipe, ImageSet, Validation, follow
from convexlift.training.presets import PAPER_INPAINTING

FILLED = Inpainting(missing=0.3, noise=0.03, fill="neighbours", box=None)
EMPTY = replace(FILLED, fill="zero")
PRINTED = replace(  # the paper's recipe, with our initial weights and fresh noise
    PAPER_INPAINTING,
    network=replace(PAPER_INPAINTING.network, uniform=None),
    task=EMPTY,
    fixed=False,
    search=True,
)


@dataclass(frozen=True)
class Variant:
    """Changes to the paper's recipe: of the recipe, its network, its options."""

    recipe: dict[str, object] = field(default_factory=dict)
    network: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    fixed_mask: bool = False


ZERO_MEAN = {"zero_mean": True}
VARIANTS = {
    "paper, one fixed mask": Variant(fixed_mask=True),
    "paper, fresh masks": Variant(),
    "paper, fresh masks, the authors' initial weights": Variant(network={"uniform": 0.01}),
    "paper, fresh masks, the authors' initial weights and pictures": Variant(
        {"task": PAPER_INPAINTING.task}, network={"uniform": 0.01}
    ),
    "zero mean": Variant(options=ZERO_MEAN),
    "filled": Variant({"task": FILLED}),
    "zero mean, filled": Variant({"task": FILLED}, options=ZERO_MEAN),
    "zero mean, filled, one fixed mask": Variant(
        {"task": FILLED}, options=ZERO_MEAN, fixed_mask=True
    ),
    "zero mean, filled, reflect": Variant(
        {"task": FILLED}, network={"padding": "reflect"}, options=ZERO_MEAN
    ),
    "zero mean, filled, reflect, cosine": Variant(
        {"task": FILLED},
        network={"padding": "reflect"},
        options={**ZERO_MEAN, "schedule": "cosine"},
    ),
    "zero mean, filled, penalty 1": Variant({"task": FILLED, "penalty": 1.0}, options=ZERO_MEAN),
    "zero mean, filled, penalty 30": Variant({"task": FILLED, "penalty": 30.0}, options=ZERO_MEAN),
    "zero mean, filled, from filters": Variant(
        {"task": FILLED}, network={"filters": 0.1}, options=ZERO_MEAN
    ),
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of the variants; all if omitted")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--steps", type=int, default=600)
    # Small images have fewer features that add up: larger than the paper's 5e-4.
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = shrink(arguments.data / "train", arguments.size, arguments.images)
    test = shrink(arguments.data / "test", arguments.size, None)
    for name in arguments.names or VARIANTS:
        recipe = build(VARIANTS[name], arguments.size, arguments.steps, arguments.learning_rate)
        start = time.perf_counter()
        outcome = follow(recipe, images, device=device)
        seconds = time.perf_counter() - start
        network, score = outcome.trained.network, outcome.trained.score
        assert score is not None
        tested = Validation(Inpainting(box=None), test, weight=score["weight"])(network)
        result = {
            "variant": name,
            "psnr": round(float(tested.psnr.mean()), 2),
            "weight": round(score["weight"], 3),
            "seconds": round(seconds, 1),
            **describe_head(network, torch.stack([test[i] for i in range(len(test))]).to(device)),
        }
        print(json.dumps(result), flush=True)
        with arguments.output.open("a") as file:
            file.write(json.dumps(result) + "\n")


def build(variant: Variant, size: int, steps: int, learning_rate: float) -> AdversarialRecipe:
    """The paper's recipe with the changes, for a fixed number of steps."""
    recipe = replace(PRINTED, **variant.recipe)  # type: ignore[arg-type]
    if variant.fixed_mask:
        generator = torch.Generator().manual_seed(0)
        mask = (torch.rand(size, size, generator=generator) >= 0.3).float()
        assert isinstance(recipe.task, Inpainting)
        recipe = replace(recipe, task=replace(recipe.task, mask=mask))
    return replace(
        recipe,
        weight=6.0,
        network=replace(recipe.network, **variant.network),  # type: ignore[arg-type]
        options=replace(
            recipe.options,
            steps=steps,
            learning_rate=learning_rate,
            validate_every=steps,
            validate_start=False,
            **variant.options,  # type: ignore[arg-type]
        ),
        held_out=8,
        validation_task=Inpainting(box=None),
        validation_stop=cl.StopWhen(gap=1e-2, max_iterations=100),
    )


def describe_head(network: cl.InputConvexNetwork, images: Tensor) -> dict[str, float]:
    """The signs of collapse: rank of W_1, units that are always on, mean of the filters."""
    chain = network.layers[1].previous
    assert isinstance(chain, Chain)
    with torch.no_grad():
        a = network.bind(tuple(images.shape[1:])).forward(images).a[1]
        filters = network.layers[0].skip.weight
        mean = filters.sum((-2, -1)).abs() / filters.abs().sum((-2, -1))
        weight = chain.maps[1].weight
        return {
            "rank": int(torch.linalg.matrix_rank(weight, rtol=1e-2)),
            "always_on": round(float((a > 0).all(0).float().mean()), 3),
            "mean_of_filters": round(float(mean.mean()), 3),
        }


def shrink(folder: Path, size: int, limit: int | None) -> ImageSet:
    """The images of a folder, averaged down."""
    images = ImageSet.from_folder(folder, limit=limit)
    small = [F.interpolate(images[i][None], size, mode="area")[0] for i in range(len(images))]
    return ImageSet.from_tensors(small, images.names)


if __name__ == "__main__":
    main()
