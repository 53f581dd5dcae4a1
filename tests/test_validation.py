"""Validation: the best weight, the same noise every time, and scores that mean something."""

from __future__ import annotations

import pytest
import torch
from training_runs import waves

import convexlift as cl
from convexlift.networks.architectures import ridge
from convexlift.tasks import GaussianDenoising
from convexlift.training import ImageSet, Validation
from convexlift.training.initialization import start_from_filters_
from convexlift.training.validation import climb

STOP = cl.StopWhen(gap=1e-4, max_iterations=500)


def network() -> cl.InputConvexNetwork:
    net = ridge(channels=4, kernel=3, smoothing=0.05).float()
    start_from_filters_(net, 0.1)
    return net


def test_the_search_finds_the_best_of_a_grid():
    net, ratio = network(), 1.6
    options = {"weight": 0.02, "ratio": ratio, "stop": STOP}
    task, images = GaussianDenoising(0.15), waves()
    found = Validation(task, images, search=True, **options)(net)
    grid = {
        power: float(Validation(task, images, **options)(net, 0.02 * ratio**power).psnr.mean())
        for power in range(-2, 10)
    }
    best = max(grid, key=grid.get)
    assert -2 < best < 9
    assert found.weight == pytest.approx(0.02 * ratio**best)
    assert float(found.psnr.mean()) == pytest.approx(grid[best], abs=1e-6)
    # It goes on from where it is told.
    again = Validation(task, images, search=True, **options)(net, found.weight)
    assert again.weight == found.weight


def test_the_noise_is_the_same_every_time():
    first, second, other = (
        Validation(GaussianDenoising(0.2), waves(3), weight=1e-9, seed=seed, stop=STOP)(network())
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.psnr, second.psnr)
    assert not torch.equal(first.psnr, other.psnr)
    # With so small a weight the noisy images come back: 0.2 is 14 dB.
    assert first.psnr.tolist() == pytest.approx([14.0] * 3, abs=1.5)
    assert first.psnr.shape == first.ssim.shape == first.gap.shape == first.iterations.shape == (3,)
    # A sample does not depend on how many there are.
    fewer = Validation(GaussianDenoising(0.2), waves(2), weight=1e-9, stop=STOP)(network())
    torch.testing.assert_close(fewer.psnr, first.psnr[:2])


def test_crops_are_the_middle():
    image = torch.zeros(16, 20)
    image[2:14, 4:16] = waves(1)[0][0]
    arguments = {"weight": 0.05, "stop": STOP}
    task = GaussianDenoising(0.1)
    cropped = Validation(task, ImageSet.from_tensors([image]), crop=12, **arguments)(network())
    whole = Validation(task, waves(1), **arguments)(network())
    torch.testing.assert_close(cropped.psnr, whole.psnr)


@pytest.mark.parametrize("top", [-13, -4, -1, 0, 1, 2, 3, 6, 7, 40])
def test_climbing_a_hill(top):
    asked = []

    def score(power: int) -> float:
        asked.append(power)
        return -(abs(power - top) ** 1.5)

    assert climb(score) == top
    assert len(set(asked)) <= 9 + abs(top) / 4 + 4


def test_climbing_has_an_end():
    assert climb(float) == 20 * 4 + 20
    assert climb(lambda power: 0.0) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 0.0}, r"Validation needs weight > 0, got weight=0\.0"),
        ({"ratio": 1.0}, r"Validation needs ratio > 1, got ratio=1\.0"),
        ({"crop": 13}, "image 0 is 12 x 12, smaller than 13 x 13"),
        (
            {"images": ImageSet.from_tensors([torch.zeros(4, 4), torch.zeros(4, 5)])},
            "image 1 is 4 x 5, not 4 x 4",
        ),
    ],
)
def test_what_cannot_be_validated(changes, message):
    with pytest.raises(ValueError, match=message):
        Validation(**{"task": GaussianDenoising(), "images": waves(), **changes})
