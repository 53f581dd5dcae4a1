"""Train the paper's regularizers as the authors ran them, and test them beside the printed PSNR.

    python benchmarks/train_paper.py --data DIR --output DIR NAME... [--seed N] [--steps N]

NAME is a preset: paper-salt-and-pepper, paper-inpainting, paper-bilevel, paper-bilevel-nmapg,
paper-ct or paper-ct-deep. DIR holds ``faces/train``, ``faces/test`` and ``faces/mask.png``, and for
CT ``ct/train`` and the authors' slice as ``paper-ct/{phantom,sino,fbp}.npy``. The test has the
paper's method with its step sizes, without a box (x >= 0 for CT), from the data; every face has the
noise of ``torch.manual_seed(0)``. Nothing is chosen by it. One JSON line each.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import convexlift as cl
from convexlift.images import load_image, psnr
from convexlift.tasks import Inpainting, Measurement
from convexlift.training import PRESETS, AnyRecipe, BilevelRecipe, ImageSet, follow
from convexlift.training.cards import training_card
from convexlift.training.loop import StepReport

VALIDATED = 40
"""The last training faces, on which the authors validate bilevel learning."""


@dataclass(frozen=True)
class Printed:
    """The paper's step sizes, and its PSNR after so many iterations; None where it prints none."""

    c: tuple[float, ...]
    psnr: dict[int, float | None]
    face: str | None = None  # of one face, not the mean of all


PRINTED = {
    "paper-salt-and-pepper": Printed((0.1, 5e-5), {15: 28.80, 200: 28.87}, "00011.png"),
    "paper-inpainting": Printed((0.01, 0.001), {300: 28.18}),
    "paper-bilevel": Printed((0.01, 0.001), {300: 29.80}),
    "paper-bilevel-nmapg": Printed((0.01, 0.001), {300: 29.46}),
    "paper-ct": Printed((500.0, 100.0, 0.1), {50: 31.06, 500: 31.16}),
    "paper-ct-deep": Printed((500.0, 100.0, 5.0, 0.5, 0.1), {50: None, 500: None}),
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PRINTED)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="of the weights at the start, and of the batches")
    parser.add_argument("--steps", type=int, help="fewer than the authors', to try it")
    parser.add_argument("--faces", type=int, help="test and validate on so many, to try it")
    arguments = parser.parse_args()
    for name in arguments.names:
        print(json.dumps(run(name, arguments)), flush=True)


def run(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One training and its test."""
    recipe = prepared(PRESETS[name], arguments.data, arguments.steps)
    if arguments.seed is not None:
        recipe = replace(recipe, seed=arguments.seed)
    kind = "ct" if "ct" in name else "faces"
    images, validated = ImageSet.from_folder(arguments.data / kind / "train"), None
    if isinstance(recipe, BilevelRecipe):
        last = images.names[-VALIDATED:][: arguments.faces]
        validated = images.select(lambda file: file in last)
    result = follow(
        recipe,
        images,
        validation_images=validated,
        device="cuda" if torch.cuda.is_available() else "cpu",
        callback=tell,
    )
    card = training_card(recipe, result, images, name=name)
    cl.save(result.trained.network, arguments.output / f"{name}-{recipe.seed}", card)
    found = test(name, result.trained.network, card.weight, arguments.data, arguments.faces)
    seconds = round(result.trained.seconds, 1)
    return {"preset": name, "seed": recipe.seed, "seconds": seconds, **found}


def tell(report: StepReport) -> None:
    """Print the first ten steps, then every hundredth."""
    if report.step <= 10 or report.step % 100 == 0:
        print(report.row, flush=True)


def prepared(recipe: AnyRecipe, data: Path, steps: int | None) -> AnyRecipe:
    """The preset with the paper's mask, perhaps for fewer steps."""
    if steps is not None:
        recipe = replace(recipe, options=replace(recipe.options, steps=steps))
    if isinstance(recipe, BilevelRecipe):
        ((task, weight),) = recipe.tasks
        return replace(recipe, tasks=((replace(task, mask=mask(data)), weight),))
    if isinstance(recipe.task, Inpainting):
        return replace(recipe, task=replace(recipe.task, mask=mask(data)))
    return recipe


def mask(data: Path) -> torch.Tensor:
    """The paper's mask: 1 for seen pixels."""
    return (load_image(data / "faces" / "mask.png")[0, 0] >= 0.5).float()


def test(
    name: str, network: cl.InputConvexNetwork, weight: float, data: Path, faces: int | None
) -> dict[str, object]:
    """PSNR after the printed numbers of iterations, of each image and on average."""
    printed, device = PRINTED[name], network.output.device
    names, clean, measured = paper_data(name, data, faces)
    clean, problem = clean.to(device), measured.to(device=device).problem(network, weight)
    found: dict[int, list[float]] = {}
    solver = cl.PDHG(steps=cl.PaperSteps(printed.c, as_released=True)).solver(problem)
    with torch.no_grad():
        state, done = solver.start(measured.picture.to(device)), 0
        for count in printed.psnr:
            state, done = solver.advance(state, count - done), count
            found[count] = psnr(state.x, clean).tolist()
    return {
        "printed": printed.psnr,
        "mean": {k: round(sum(values) / len(values), 3) for k, values in found.items()},
        "images": {
            file: {k: round(values[i], 3) for k, values in found.items()}
            for i, file in enumerate(names)
        },
        "printed for": printed.face or "the mean",
    }


def paper_data(
    name: str, data: Path, faces: int | None
) -> tuple[list[str], torch.Tensor, Measurement]:
    """Names, ground truth and data of the paper's test images."""
    if "ct" in name:
        parts = (np.load(data / "paper-ct" / f"{each}.npy") for each in ("phantom", "sino", "fbp"))
        slice_, counts, start = (torch.from_numpy(part).float()[None, None] for part in parts)
        task = PRESETS[name].task
        fidelity = cl.KullbackLeibler(counts, task.background)
        return ["slice"], slice_, Measurement(fidelity, task.scanner, task.box, start)
    images = ImageSet.from_folder(data / "faces" / "test", limit=faces)
    clean = torch.stack([images[i] for i in range(len(images))])
    torch.manual_seed(0)
    if name == "paper-salt-and-pepper":
        chance = torch.rand(clean[0].shape)
        noisy = torch.where(chance < 0.125, 0.0, torch.where(chance > 0.875, 1.0, clean))
        return (
            list(images.names),
            clean,
            Measurement(cl.L1(noisy, 0.02), cl.Identity(), None, noisy),
        )
    seen = mask(data)
    noisy = seen * (clean + 0.03 * torch.randn(clean[0].shape))
    measured = Measurement(cl.SquaredL2(noisy), cl.Mask(seen), None, noisy)
    return list(images.names), clean, measured


if __name__ == "__main__":
    main()
