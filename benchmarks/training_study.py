"""What matters in training: variants of the recipes side by side, in one run.

    python benchmarks/training_study.py --data DIR --output results.jsonl NAME...

DIR holds ``faces/train``, ``faces/test``, ``faces/mask.png`` and ``natural/train``. Each variant is
trained, then tested on the test faces with the weight that validation chose. One JSON line each.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet, Validation, follow, presets
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe

VARIANTS: dict[str, AdversarialRecipe | BilevelRecipe] = {}


def variant(name: str, recipe: AdversarialRecipe | BilevelRecipe, **options: object) -> None:
    """Add one, with some of its training options changed."""
    VARIANTS[name] = replace(recipe, options=replace(recipe.options, **options), held_out=8)


P, Q = presets.PAPER_INPAINTING, presets.FACES_INPAINTING_ADVERSARIAL
SHORT = {"steps": 1000, "validate_every": 1000}
variant("inpainting: paper", P, **SHORT)
variant("inpainting: zero-mean", P, zero_mean=True, **SHORT)
variant("inpainting: zero-mean, fill", replace(P, task=Q.task), zero_mean=True, **SHORT)
variant("inpainting: filters", Q, **SHORT)
variant("inpainting: filters, zero fill", replace(Q, task=P.task), **SHORT)
variant("inpainting: filters, penalty 30", replace(Q, penalty=30.0), **SHORT)
variant("inpainting: filters, slow", Q, learning_rate=1e-3, **SHORT)
S, T = presets.PAPER_SALT_AND_PEPPER, presets.FACES_DENOISING
variant("denoising: paper", S, **SHORT)
variant("denoising: filters", T, **SHORT)
variant("denoising: zero-mean", replace(S, search=True), zero_mean=True, **SHORT)
B = presets.FACES_INPAINTING_BILEVEL
variant("bilevel: filters", B, steps=100, validate_every=50)
variant("bilevel: PDHG", replace(B, method=None), steps=60, validate_every=30)
variant("photo", presets.PHOTO_ANY_SIZE, steps=300, validate_every=150)
variant(
    "photo: two layers",
    replace(
        presets.PHOTO_ANY_SIZE,
        network=replace(presets.PHOTO_ANY_SIZE.network, architecture="convolutional", channels=32),
    ),
    steps=200,
    validate_every=100,
)


def test_tasks(mask: torch.Tensor) -> dict[str, Task]:
    """The three tasks on the test faces; inpainting with the paper's mask."""
    return {
        "salt-and-pepper": SaltAndPepper(),
        "gaussian-denoising": GaussianDenoising(),
        "inpainting": Inpainting(mask=mask),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help="variants")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="training images")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    faces = ImageSet.from_folder(arguments.data / "faces/train", limit=arguments.limit)
    natural = arguments.data / "natural/train"
    test = ImageSet.from_folder(arguments.data / "faces/test")
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    for name, recipe in VARIANTS.items():
        if not any(name == wanted for wanted in arguments.names):
            continue
        images = faces
        if name.startswith("photo") and natural.exists():
            images = ImageSet.from_folders([arguments.data / "faces/train", natural])
        start = time.perf_counter()
        outcome = follow(recipe, images, device=device)
        seconds = time.perf_counter() - start
        rows = [row for row in outcome.trained.rows if "psnr" in row]
        tested = {}
        for task, weight in outcome.weights.items():
            score = Validation(
                test_tasks(mask)[task],
                test,
                weight=weight * _scale(recipe),
                search=True,
                ratio=1.2,
            )(outcome.trained.network)
            tested[task] = [round(float(score.psnr.mean()), 3), score.weight]
        result = {
            "name": name,
            "seconds": round(seconds, 1),
            "steps": recipe.options.steps,
            "validation": [(int(row["step"]), round(row["psnr"], 3)) for row in rows],
            "weights": outcome.weights,
            "test": tested,
        }
        print(json.dumps(result), flush=True)
        with arguments.output.open("a") as file:
            file.write(json.dumps(result) + "\n")
        safe = name.replace(": ", "-").replace(", ", "-").replace(" ", "-")
        cl.save(outcome.trained.network, arguments.output.parent / safe, half=True)


def _scale(recipe: AdversarialRecipe | BilevelRecipe) -> float:
    """The weight that goes with a data term of scale 1."""
    task = recipe.task if isinstance(recipe, AdversarialRecipe) else None
    return 1 / task.scale if isinstance(task, SaltAndPepper) else 1.0


if __name__ == "__main__":
    main()
