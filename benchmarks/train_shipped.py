"""Train the regularizers that are shipped, test them, and write them with their cards.

    python benchmarks/train_shipped.py --data DIR --output DIR NAME...

DIR holds ``faces/train``, ``faces/test``, ``faces/mask.png`` and ``natural/train``. The test images
are used once, after everything is chosen. Weights are rounded to half precision before the test.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet, Validation, follow
from convexlift.training.initialization import absorb_weight_
from convexlift.training.presets import PRESETS
from convexlift.training.recipes import BilevelRecipe, Recipe

FACES = "CC BY-NC-SA 4.0 (FFHQ); non-commercial research only"
TERMS = {
    "faces": (
        "the training faces of the paper (FFHQ, Karras et al. 2019; photographs by their authors "
        "on Flickr, compiled by NVIDIA), grey, 256 x 256"
    ),
    "natural": "BSDS500 without the images of BSD68 (Arbelaez et al. 2011), grey",
}
NOT_FOR = (
    "Diagnosis, identification of persons, or any use where invented detail does harm: the "
    "certificate proves that the stated problem is solved, not that the image is true."
)
CHOICES = {
    "faces": "Best mean PSNR on images held out from the training set.",
    "photo": (
        "Inpainting (30 % missing, 3 % noise): learned with the filters in the first stage, fixed "
        "from then on. Gaussian noise of 0.1: 1 in the first stage, learned in the others. Salt "
        "and pepper (25 %), for which it was not trained: a guess from earlier trainings. Other "
        "noise levels need other weights. Colour goes channel by channel."
    ),
}
ABOUT = {
    "faces-denoising": "Salt-and-pepper denoising of aligned 256 x 256 faces; adversarial.",
    "faces-inpainting-adversarial": "Inpainting of aligned 256 x 256 faces; adversarial, smooth.",
    "faces-inpainting-bilevel": "Inpainting of aligned 256 x 256 faces; bilevel, smooth.",
    "photo-any-size-first": "The first stage of photo-any-size.",
    "photo-any-size-second": "The second stage of photo-any-size.",
    "photo-any-size": "Denoising and inpainting of photographs of any size; bilevel.",
}
STARTS = {
    "faces-inpainting-bilevel": "faces-inpainting-adversarial",
    "photo-any-size-second": "photo-any-size-first",
    "photo-any-size": "photo-any-size-second",
}
FIRST = {  # how many images of each folder were used, where not all were
    "photo-any-size": {"faces/train": 340, "natural/train": 200},
}


def main() -> None:
    """See the module."""
    arguments = arguments_of_training(str(__doc__), sorted(ABOUT)).parse_args()
    for name in arguments.names:
        make(name, arguments)


def arguments_of_training(description: str, names: list[str]) -> argparse.ArgumentParser:
    """What every script that trains shipped regularizers is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="+", choices=names)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--steps", type=int)
    return parser


def make(name: str, arguments: argparse.Namespace) -> None:
    """One regularizer: train, choose its weights on held-out images, test, save."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = PRESETS[name]
    if arguments.steps:
        recipe = replace(recipe, options=replace(recipe.options, steps=arguments.steps))
    images = training_images(name, arguments.data)
    network, first = None, STARTS.get(name)
    if first is not None:
        network = cl.load(arguments.output / first)
        absorb(network, recipe)
    start = time.perf_counter()
    outcome = follow(
        recipe,
        images,
        network=network,
        device=device,
        folder=arguments.output / f"{name}-run",
        callback=lambda report: print(name, report.row, flush=True) if report.score else None,
    )
    seconds = time.perf_counter() - start
    photo = name.startswith("photo")
    weights = {task: float(f"{weight:.3g}") for task, weight in outcome.weights.items()}
    if photo:  # salt and pepper: not trained for, but good at
        weights["salt-and-pepper"] = float(f"{7.5 * weights['gaussian-denoising']:.3g}")
        weights = dict(sorted(weights.items()))  # the card's own task is Gaussian noise throughout
    else:
        weights = choose_weights(outcome.trained.network, weights, recipe, images)
    path = cl.save(outcome.trained.network, arguments.output / name, half=True)
    shipped = cl.load(path, device=device)
    results = test(shipped, weights, arguments.data, recipe)
    print(name, json.dumps({"seconds": seconds, "weights": weights, **results}), flush=True)
    task, *_ = weights
    card = cl.ModelCard(
        name=name,
        summary=ABOUT[name],
        task=task,
        weight=weights[task],
        weights=weights,
        weight_choice=CHOICES["photo" if photo else "faces"],
        data=describe_data(images, recipe, photo, network.card.data if network else ""),
        license=FACES + ("; BSDS500: non-commercial research and education" if photo else ""),
        recipe={"preset": name, "settings": repr(recipe), "start": first or "recipe"},
        command=f"python benchmarks/train_shipped.py --data DIR --output DIR {name}",
        commit=arguments.commit,
        seed=recipe.seed,
        training_time=round(seconds, 1),
        machine=describe_machine(device),
        results=results,
        not_for=NOT_FOR,
        citation="FFHQ: Karras et al. 2019" + ("; BSDS500: Arbelaez et al. 2011" if photo else ""),
    )  # fmt: skip
    cl.save(outcome.trained.network, arguments.output / name, card, half=True)


def training_images(name: str, data: Path) -> ImageSet:
    """The faces and, for photographs of any size, natural images."""
    folders = ["faces/train", "natural/train"] if name.startswith("photo") else ["faces/train"]
    limits = FIRST.get(name, {})
    sets = [ImageSet.from_folder(data / each, limit=limits.get(each)) for each in folders]
    named = zip(folders, sets, strict=True)
    return ImageSet(
        tuple(f"{folder}/{file}" for folder, part in named for file in part.names),
        tuple(plane for part in sets for plane in part.planes),
    )


def absorb(network: cl.InputConvexNetwork, recipe: Recipe) -> None:
    """R becomes (weight found / weight of the recipe) R: learning goes on where the start ended.

    For the stages of photo-any-size the quotient is 1, since a stage has the weight of inpainting
    that the one before it ended with.
    """
    assert isinstance(recipe, BilevelRecipe)
    task, weight = recipe.tasks[0]
    absorb_weight_(network, network.card.weights[task.name] / weight)


def describe_data(images: ImageSet, recipe: Recipe, photo: bool, before: str) -> str:
    """What it was trained on; for the stages of photo-any-size, after what came before."""
    seen = f"{len(images)} images, {recipe.held_out} of them held out"
    if not photo:
        return f"{TERMS['faces']}; {seen}"
    seen += f", one crop of {recipe.crop} x {recipe.crop} of each"
    return f"{before}; then {seen}" if before else f"{TERMS['faces']}; {TERMS['natural']}; {seen}"


def describe_machine(device: str) -> str:
    """The GPU, or how much of which CPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} thread(s) of a {platform.machine()} CPU"


def choose_weights(
    network: cl.InputConvexNetwork, guesses: dict[str, float], recipe: Recipe, images: ImageSet
) -> dict[str, float]:
    """Refine the weight of each task on the held-out images."""
    _, held_out = images.split(recipe.held_out, recipe.seed)
    chosen = {}
    for name, weight in guesses.items():
        validation = Validation(
            TASKS[name], held_out, weight=weight, search=True, ratio=1.1,
            crop=recipe.validation_crop, seed=recipe.seed,
        )  # fmt: skip
        score = validation(network)
        chosen[name] = float(f"{score.weight:.3g}")
    return chosen


def test(
    network: cl.InputConvexNetwork, weights: dict[str, float], data: Path, recipe: Recipe
) -> dict[str, dict[str, float]]:
    """PSNR and SSIM on the test faces, beside total variation with its best weight there."""
    images = ImageSet.from_folder(data / "faces/test")
    mask = (load_image(data / "faces/mask.png") > 0.5).float()[0, 0]
    stop = cl.StopWhen(gap=1e-3, max_iterations=600)
    results: dict[str, dict[str, float]] = {}
    for name, weight in weights.items():
        task = Inpainting(mask=mask) if name == "inpainting" else TASKS[name]
        score = Validation(task, images, weight=weight, stop=stop)(network)
        key = "test" if not results else f"test {name}"
        results[key] = {
            "images": float(len(images)),
            "psnr": round(float(score.psnr.mean()), 3),
            "ssim": round(float(score.ssim.mean()), 4),
            "largest_gap": float(score.gap.max()),
            "mean_iterations": float(score.iterations.double().mean()),
            **total_variation(task, images, network.output.device),
        }
    return results


def total_variation(task: Task, images: ImageSet, device: torch.device) -> dict[str, float]:
    """The classical reference on the same data; its weight is the best one on the test images."""
    guess = {"inpainting": 0.016, "gaussian-denoising": 0.086, "salt-and-pepper": 0.7}[task.name]
    validation = Validation(task, images, weight=guess, search=True, ratio=1.15)
    score = validation(cl.TotalVariation().to(device))
    return {"tv_psnr": round(float(score.psnr.mean()), 3), "tv_weight": score.weight}


TASKS: dict[str, Task] = {
    task.name: task for task in (SaltAndPepper(), GaussianDenoising(), Inpainting())
}


if __name__ == "__main__":
    main()
