"""Train the regularizers for CT, test them, and write them with their cards.

    python benchmarks/train_ct.py --data DIR --output DIR NAME...

DIR holds ``train`` and ``test``: slices of 512 x 512 with values (HU + 1024) / 2524, named
PATIENT_SLICE. One patient of ``train`` is held out for validation; the test slices, of another
patient, are used once. Weights are rounded to half precision before the test.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from train_shipped import NOT_FOR, arguments_of_training, describe_machine

import convexlift as cl
from convexlift.images import psnr
from convexlift.tasks import GaussianDenoising, SparseViewCT
from convexlift.training import ImageSet, Validation, follow
from convexlift.training.initialization import absorb_weight_, deepened
from convexlift.training.presets import PRESETS

VALIDATION_PATIENT = "NLST-101287"
VALIDATED = 8
"""So many slices of the patient, evenly spread."""
ABOUT = {
    "ct-abdomen-chest-first": "The start of ct-abdomen-chest, for Gaussian noise.",
    "ct-abdomen-chest": "Sparse-view CT of chest and abdomen, 200 views, Poisson noise; bilevel.",
    "ct-abdomen-chest-deep": "Sparse-view CT as ct-abdomen-chest, with three layers; bilevel.",
}
STARTS = {
    "ct-abdomen-chest": "ct-abdomen-chest-first",
    "ct-abdomen-chest-deep": "ct-abdomen-chest",
}
DATA = (
    "338 slices of 6 patients, chest and abdomen, from the TCIA collections LIDC-IDRI, "
    "ACRIN-NSCLC-FDG-PET, RIDER Pilot, ACRIN-FLT-Breast, Lung-Fused-CT-Pathology and C4KC-KiTS, "
    "512 x 512, 8 bits, value (HU + 1024) / 2524; validated on 8 slices of another patient (NLST), "
    "tested on 20 of a third (TCGA-LUAD)"
)
TERMS = (
    "CC BY 3.0 and 4.0 (TCIA); cite the collections and Clark et al. 2013, and make no attempt at "
    "re-identification"
)
CITATION = (
    "Clark et al., The Cancer Imaging Archive, J. Digit. Imaging 26, 2013; the collections named"
)


def main() -> None:
    """See the module."""
    parser = arguments_of_training(str(__doc__), sorted(ABOUT))
    parser.add_argument("--start", type=Path, help="a model to start from")
    parser.add_argument("--untested", action="store_true", help="leave the test slices alone")
    arguments = parser.parse_args()
    images = ImageSet.from_folder(arguments.data / "train")
    for name in arguments.names:
        make(name, images, arguments)


def make(name: str, images: ImageSet, arguments: argparse.Namespace) -> None:
    """One regularizer: train, test, save."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = PRESETS[name]
    if arguments.steps:
        every = max(1, arguments.steps // 3)
        options = replace(
            recipe.options, steps=arguments.steps, validate_every=every, warm_up=min(20, every)
        )
        recipe = replace(recipe, options=options)
    held_out, training = validation_slices(images)
    task, _ = recipe.tasks[0]
    network = first_network(name, arguments, task, held_out, device)
    start = time.perf_counter()

    def tell(report) -> None:
        if report.score or report.row["step"] % 10 == 0:
            row = {key: round(value, 4) for key, value in report.row.items()}
            print(name, row, f"{time.perf_counter() - start:.1f} s", flush=True)

    outcome = follow(
        recipe,
        training,
        network=network,
        validation_images=held_out,
        device=device,
        callback=tell,
    )
    seconds = time.perf_counter() - start
    path = cl.save(outcome.trained.network, arguments.output / name, half=True)
    shipped = cl.load(path, device=device)
    tested = not (name.endswith("-first") or arguments.untested)
    results = test(shipped, arguments.data, device) if tested else {}
    print(name, json.dumps({"seconds": seconds, **results}), flush=True)
    card = cl.ModelCard(
        name=name,
        summary=ABOUT[name],
        task="ct",
        weight=1.0,
        weights={"ct": 1.0},
        weight_choice=(
            "Absorbed: learned with the filters, for 200 views of the paper's scanner and counts "
            "up to about 1000 over a background of 50. More noise needs a larger weight."
        ),
        data=DATA,
        license=TERMS,
        recipe={"preset": name, "settings": repr(recipe), "start": STARTS.get(name, "recipe")},
        command=f"python benchmarks/train_ct.py --data DIR --output DIR {name}",
        commit=arguments.commit,
        seed=recipe.seed,
        training_time=round(seconds, 1),
        machine=describe_machine(device),
        results=results,
        not_for=NOT_FOR,
        citation=CITATION,
    )
    cl.save(outcome.trained.network, arguments.output / name, card, half=True)


def validation_slices(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Some of the patient held out, and all of the others."""
    own = images.select(lambda name: name.startswith(VALIDATION_PATIENT))
    chosen = own.names[:: -(-len(own) // VALIDATED)]
    return (
        own.select(lambda name: name in chosen),
        images.select(lambda name: not name.startswith(VALIDATION_PATIENT)),
    )


def first_network(
    name: str,
    arguments: argparse.Namespace,
    task: SparseViewCT | GaussianDenoising,
    held_out: ImageSet,
    device: str,
) -> cl.InputConvexNetwork | None:
    """What the stage before it made, with the best weight for CT, or deepened."""
    if name not in STARTS:
        return None
    path = arguments.start or arguments.output / STARTS[name]
    network = cl.load(path, device=device)
    if PRESETS[name].network.depth > 1:
        # Responses are a few hundredths: times ten, they are large against the smoothing of 0.01.
        # The threshold turns a fifth of the units off.
        return deepened(
            network, PRESETS[name].network.depth, variety=0.1, scale=10.0, threshold=0.01
        )
    stop = cl.StopWhen(gap=2e-3, max_iterations=300)
    best = Validation(task, held_out, weight=5.0, search=True, stop=stop)(network)
    print(path, "on validation", float(best.psnr.mean()), best.weight, flush=True)
    absorb_weight_(network, best.weight)
    return network


def test(network: cl.InputConvexNetwork, data: Path, device: str) -> dict[str, dict[str, float]]:
    """PSNR and SSIM on the test slices, beside total variation with its best weight there."""
    slices, task = ImageSet.from_folder(data / "test"), SparseViewCT()
    stop = cl.StopWhen(gap=1e-3, max_iterations=1000)
    score = Validation(task, slices, stop=stop)(network)
    clean = torch.stack([slices[i] for i in range(len(slices))]).to(device)
    generators = [torch.Generator(device).manual_seed(i) for i in range(len(clean))]
    picture = task.measure(clean, generators).picture
    # Its images are right long before its certificate for x >= 0 is.
    tv_stop = cl.StopWhen(gap=1e-3, max_iterations=400)
    best = Validation(task, slices, weight=4.0, search=True, ratio=1.15, stop=tv_stop)(
        cl.TotalVariation().to(device)
    )
    return {
        "test": {
            "images": float(len(slices)),
            "psnr": round(float(score.psnr.mean()), 3),
            "ssim": round(float(score.ssim.mean()), 4),
            "largest_gap": float(score.gap.max()),
            "mean_iterations": float(score.iterations.double().mean()),
            "tv_psnr": round(float(best.psnr.mean()), 3),
            "tv_ssim": round(float(best.ssim.mean()), 4),
            "tv_weight": best.weight,
            "fbp_psnr": round(float(psnr(picture, clean).mean()), 3),
        }
    }


if __name__ == "__main__":
    main()
