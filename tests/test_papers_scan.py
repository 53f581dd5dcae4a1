"""The paper's scanner: its scale, its angles, and the counts that the authors released.

The slice, from data of the Mayo Clinic, is not part of this repository. The authors' repository
has it; the tests want it as ``paper-ct`` in the data folder of ``experiments.images.find_data``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.images import psnr
from convexlift.operators.tomography import beams
from convexlift.phantoms import Ellipse, ellipse_image, shepp_logan
from convexlift.training import presets
from experiments.images import find_data
from experiments.tomography import BASELINE
from experiments.tomography.steps import changed_recipe, printed_recipe, printed_task


@pytest.fixture(scope="module")
def released():
    """The slice, its counts, and the authors' filtered back projection."""
    data = find_data(None)
    if data is None or not (data / "paper-ct").is_dir():
        pytest.skip("set CONVEXLIFT_DATA to a folder that holds the authors' slice as paper-ct")
    names = ("phantom", "sino", "fbp")
    arrays = (np.load(data / "paper-ct" / f"{name}.npy").astype(np.float64) for name in names)
    return tuple(torch.from_numpy(array)[None, None] for array in arrays)


def test_geometry():
    scanner = beams.paper_scanner()
    assert scanner.input_shape == (1, 512, 512)
    assert scanner.output_shape((1, 512, 512)) == (1, 200, 400)
    grid, beam = scanner.operator.grid, scanner.operator
    assert grid.pixel_width == grid.pixel_height == 0.5
    assert -beam.bins[0] + beam.bin_width / 2 == pytest.approx(128 * math.sqrt(2))
    assert scanner.factor == pytest.approx(10 / beam.bin_width)
    assert np.degrees(beam.exact_angles[[0, 100, 199]]) == pytest.approx([-89.55, 0.45, 89.55])
    assert repr(beam) == "ParallelBeam(512 x 512 pixels, 200 angles, 400 bins)"


@pytest.mark.parametrize("arguments", [(), (64, 25, 51), ((32, 64), 12, 51)])
def test_central_rays_of_a_disc_count_its_diameter(arguments):
    """value * diameter / PAPER_UNIT, at every angle, in every size and shape."""
    scanner = beams.paper_scanner(*arguments)
    _, height, side = scanner.input_shape
    square = ellipse_image((Ellipse(value := 0.4, 0.4, 0.4),), side)
    sinogram = scanner(square[..., (side - height) // 2 : (side + height) // 2, :])[0, 0]
    central = sinogram[:, sinogram.shape[1] // 2]
    expected = value * 0.4 * 256 * 10 / (256 * math.sqrt(2) / 400)
    torch.testing.assert_close(central, torch.full_like(central, expected), rtol=0.03, atol=0)


def test_counts_are_poisson_around_the_prediction(released):
    """The mean of (y - m)^2 / m over n = 80000 counts, m = A x + r: 1 +- sqrt(2 / n) = 0.005."""
    phantom, counts, _ = released
    mean = beams.paper_scanner()(phantom) + beams.PAPER_BACKGROUND
    chi_squared = ((counts - mean).square() / mean).mean()
    assert float(chi_squared) == pytest.approx(1, abs=0.02)
    assert float((counts - mean).mean()) == pytest.approx(0, abs=0.3)


def test_back_projections_of_the_recipe_are_the_authors(released):
    phantom, counts, theirs = released
    task = presets.PAPER_CT.task
    ours = cl.fbp(task.scanner, counts - task.background, task.filter).clamp(*task.clamp)
    assert float(psnr(ours, theirs)) > 39
    assert float(psnr(theirs, phantom)) == pytest.approx(21.287, abs=1e-3)  # 21.29 in the paper
    assert float(psnr(ours, phantom)) == pytest.approx(21.59, abs=0.01)
    smoother = cl.fbp(task.scanner, counts - task.background, "hann").clamp(*task.clamp)
    assert float(psnr(smoother, theirs)) < 25


@pytest.mark.parametrize("recipe", [presets.PAPER_CT, presets.PAPER_CT_DEEP])
def test_critic_and_start_see_what_the_authors_saw(recipe):
    """The picture of the data is both."""
    task = replace(recipe.task, scanner=cl.paper_scanner(32, 12, 25))
    measured = task.measure(shepp_logan(32), [torch.Generator().manual_seed(0)])
    counts = measured.fidelity.y - task.background
    sharp = cl.fbp(measured.operator, counts, "ram-lak")
    assert float(sharp.min()) < 0
    assert torch.equal(measured.picture, sharp.clamp(0, 1))


def test_only_the_recipe_as_printed_is_the_authors():
    """Ours has Hann's filter for its critic; the start of all methods is the paper's."""
    values = replace(BASELINE, size=32)
    task = printed_task(values)
    assert printed_recipe(values, task).task is task
    assert (task.filter, task.clamp) == ("ram-lak", (0.0, 1.0))
    ours = changed_recipe(values, task).task
    assert (ours.filter, ours.clamp, ours.scanner) == ("hann", None, task.scanner)
