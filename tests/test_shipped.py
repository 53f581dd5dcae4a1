"""The regularizers inside the package do what their cards say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import convexlift as cl
from convexlift.images import gaussian_noise, load_example, load_image, psnr
from convexlift.tasks import (
    GaussianDenoising,
    Inpainting,
    Measurement,
    SaltAndPepper,
    SparseViewCT,
)
from convexlift.training import ImageSet, Validation

pytestmark = pytest.mark.single_precision
PROMISED = {
    "faces-denoising": "salt-and-pepper",
    "faces-inpainting-adversarial": "inpainting",
    "faces-inpainting-bilevel": "inpainting",
    "photo-any-size": "gaussian-denoising",
    "ct-abdomen-chest": "ct",
    "ct-abdomen-chest-deep": "ct",
}
OF_PICTURES = {name: task for name, task in PROMISED.items() if task != "ct"}
TASKS = {task.name: task for task in (GaussianDenoising(), Inpainting(), SaltAndPepper())}
CT = SparseViewCT(scanner=cl.paper_scanner(256, 100, 400))
TV_WEIGHTS = {  # around the best ones for natural images
    "gaussian-denoising": (0.06, 0.08, 0.1),
    "inpainting": (0.01, 0.014, 0.018),
    "salt-and-pepper": (0.5, 0.65, 0.8),
}


def part_of(name: str) -> torch.Tensor:
    return load_example(name)[..., 64:160, 80:176]


def measure(task: str, x: torch.Tensor) -> Measurement:
    return {**TASKS, "ct": CT}[task].measure(x, [torch.Generator().manual_seed(0)])


@pytest.mark.parametrize(("name", "task"), PROMISED.items())
def test_each_is_there_with_the_terms_of_its_data(name, task):
    network = cl.load(name)
    assert network.card.task == task
    if task == "ct":
        assert "CC BY" in network.card.license
        assert "FFHQ" not in network.card.data
        assert set(network.card.weights) == {"ct"}
    else:
        assert "FFHQ" in network.card.license
        assert "non-commercial" in network.card.license
        assert set(network.card.weights) <= set(TASKS)


@pytest.mark.parametrize("name", PROMISED)
def test_damage_is_more_expensive_than_a_clean_picture(name):
    network = cl.load(name)
    clean = load_example("astronaut")
    damaged = measure(network.card.task, clean).picture
    with torch.no_grad():
        assert network(damaged) > 1.2 * network(clean)


@pytest.mark.parametrize("name", PROMISED)
def test_brightness_is_free(name):
    """Filters of mean zero: adding a constant changes nothing."""
    network = cl.load(name)
    clean = load_example("camera")
    with torch.no_grad():
        assert network(clean + 0.1).item() == pytest.approx(network(clean).item(), rel=2e-3)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.sampled(3)
def test_any_size_beats_total_variation_on_pictures_it_has_not_seen(task):
    """On the mean of three, against the best of three weights; not on every single one."""
    network = cl.load("photo-any-size")
    clean = torch.cat([part_of(name) for name in ("astronaut", "camera", "chelsea")])
    generators = [torch.Generator().manual_seed(i) for i in range(len(clean))]
    measurement = TASKS[task].measure(clean, generators)
    stop = cl.StopWhen(gap=1e-3, max_iterations=400)

    def quality(regularizer: cl.InputConvexNetwork, weight: float) -> float:
        solution = cl.solve(measurement.problem(regularizer, weight), stop=stop)
        assert set(solution.status) == {cl.Status.CONVERGED}
        return float(psnr(solution.x, clean).mean())

    best = max(quality(cl.TotalVariation(), weight) for weight in TV_WEIGHTS[task])
    assert quality(network, network.card.weights[task]) > best + 0.1


@pytest.mark.parametrize("name", ["photo", "photo-open"])
def test_a_pattern_of_single_pixels_is_kept(name):
    """A training without patterns took a checkerboard for noise, and made it flat grey."""
    squares = torch.arange(64)
    clean = 0.2 + 0.6 * ((squares[:, None] + squares) % 2).float()[None, None]
    y = gaussian_noise(clean, 0.1, torch.Generator().manual_seed(0))

    def quality(regularizer: str) -> float:
        result = cl.reconstruct(
            y, noise="gaussian", sigma=0.1, range=(0.0, 1.0), regularizer=regularizer, truth=clean
        )
        assert result.record["status"] == "CONVERGED"
        return float(result.record["psnr"])

    assert quality(name) > quality("photo-any-size") + 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"),
    [(name, task) for name in OF_PICTURES for task in cl.models.card(name).weights],
)
def test_the_card_tells_the_truth_about_the_test_faces(name, task):
    """All figures of a task, within what another noise, or another solver, changes them by."""
    folder = os.environ.get("CONVEXLIFT_DATA")
    if folder is None:
        pytest.skip("set CONVEXLIFT_DATA to the folder that holds faces/test and faces/mask.png")
    network = cl.load(name)
    card = network.card
    claim = card.results["test" if task == card.task else f"test {task}"]
    images = ImageSet.from_folder(Path(folder) / "faces/test")
    assert len(images) == claim["images"]
    mask = (load_image(Path(folder) / "faces/mask.png") > 0.5).float()[0, 0]
    damage = {**TASKS, "inpainting": Inpainting(mask=mask)}[task]
    stop = cl.StopWhen(gap=1e-3, max_iterations=600)
    score = Validation(damage, images, weight=card.weights[task], stop=stop)(network)
    tv = Validation(damage, images, weight=claim["tv_weight"], stop=stop)(cl.TotalVariation())
    assert float(score.psnr.mean()) == pytest.approx(claim["psnr"], abs=0.08)
    assert float(score.ssim.mean()) == pytest.approx(claim["ssim"], abs=0.002)
    assert float(tv.psnr.mean()) == pytest.approx(claim["tv_psnr"], abs=0.08)
    assert float(score.gap.max()) <= stop.gap
    assert float(score.iterations.double().mean()) <= 1.25 * claim["mean_iterations"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, task in PROMISED.items() if task == "ct"])
def test_ct_beats_total_variation_on_test_slices(name):
    """Two of the twenty slices, not far from their mean, with TV's best weight for all."""
    folder = os.environ.get("CONVEXLIFT_DATA")
    if folder is None:
        pytest.skip("set CONVEXLIFT_DATA to the folder that holds ct/test")
    network = cl.load(name)
    claim = network.card.results["test"]
    slices = ImageSet.from_folder(Path(folder) / "ct/test")
    assert len(slices) == claim["images"]
    few = slices.select(lambda slice_name: slice_name in slices.names[5:16:10])
    stop = cl.StopWhen(gap=2e-3, max_iterations=400)
    score = Validation(SparseViewCT(), few, weight=network.card.weight, stop=stop)(network)
    tv = Validation(SparseViewCT(), few, weight=claim["tv_weight"], stop=stop)(cl.TotalVariation())
    assert float(score.psnr.mean()) > float(tv.psnr.mean()) + 0.5
    assert float(score.psnr.mean()) == pytest.approx(claim["psnr"], abs=1.0)
