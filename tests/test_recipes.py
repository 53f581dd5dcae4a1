"""Recipes: every preset runs, and images that do not fit one are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from quick_training import psnrs
from training_runs import crops

import convexlift as cl
from convexlift.tasks import Inpainting, SparseViewCT
from convexlift.training import TrainingOptions, follow, presets
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe

pytestmark = pytest.mark.single_precision


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_runs(name):
    recipe = presets.PRESETS[name]
    size = 32
    network = replace(recipe.network, channels=4)
    if network.image_size is not None:
        network = replace(network, image_size=size)
    recipe = replace(
        recipe, network=network, batch_size=2, held_out=1, images=3,
        crop=None if recipe.crop is None else 24, validation_crop=None,
        options=replace(recipe.options, steps=2, validate_every=2),
    )  # fmt: skip
    images = crops(4, size)
    if recipe.network.in_channels == 3:
        images = cl.training.ImageSet.from_tensors([images[i].expand(3, -1, -1) for i in range(4)])
    if isinstance(recipe, AdversarialRecipe):
        recipe = replace(recipe, search=False, task=_for_size(recipe.task, size))
    else:
        tasks = tuple((_for_size(task, size), weight) for task, weight in recipe.tasks)
        recipe = replace(recipe, tasks=tasks)
    outcome = follow(recipe, images)
    assert outcome.trained.rows[-1]["step"] == 2
    assert all(math.isfinite(row["loss"]) for row in outcome.trained.rows[1:])
    outcome.trained.network.check_convexity()
    assert len(psnrs(outcome.trained)) == 1 + recipe.options.validate_start
    assert all(weight > 0 for weight in outcome.weights.values())
    if isinstance(recipe, BilevelRecipe):
        assert set(outcome.weights) == {task.name for task, _ in recipe.tasks}


def _for_size(task, size):
    if isinstance(task, SparseViewCT):
        return replace(task, scanner=cl.ParallelBeam(size, 12, 40, float(size)))
    return task


def test_damaged_images_can_be_given():
    images = crops(4, 32)
    noise = 0.1 * torch.randn(4, 32, 32)
    damaged = cl.training.ImageSet.from_tensors([images[i][0] + noise[i] for i in range(4)])
    recipe = replace(
        presets.FACES_DENOISING, task=None, batch_size=2, flips=False,
        network=replace(presets.FACES_DENOISING.network, channels=2),
        options=TrainingOptions(steps=2),
    )  # fmt: skip
    outcome = follow(recipe, images, damaged=damaged)
    assert outcome.validation is None
    assert outcome.weights == {}


def test_validation_images_of_their_own():
    recipe = replace(SMALL, options=TrainingOptions(steps=1, validate_every=1), held_out=100)
    own = crops(2, 32)
    outcome = follow(recipe, crops(4, 32), validation_images=own)
    assert outcome.validation.images is own


SMALL = replace(
    presets.FACES_DENOISING,
    network=replace(presets.FACES_DENOISING.network, channels=2),
    batch_size=2, held_out=1, search=False,
    options=TrainingOptions(1, 1e-2),
)  # fmt: skip


def test_crops_for_a_network_of_one_size():
    outcome = follow(replace(SMALL, crop=16), crops(3, 40))
    assert outcome.trained.network.image_size == (16, 16)
    assert outcome.validation.crop == 16


def test_damaged_images_must_match():
    recipe = replace(SMALL, task=None, flips=False)
    images = crops(4, 16)
    with pytest.raises(ValueError, match="4 clean and 3 damaged images"):
        follow(recipe, images, damaged=images.first(3))
    with pytest.raises(ValueError, match="need crop=None and flips=False"):
        follow(replace(recipe, flips=True), images, damaged=images)
    with pytest.raises(
        ValueError, match="the damaged image image 0 is 8 x 8, but the clean image image 0"
    ):
        follow(recipe, images, damaged=crops(4, 8))
    with pytest.raises(ValueError, match="needs a task that damages images, or damaged images"):
        follow(replace(SMALL, flips=False), images, damaged=images)
    with pytest.raises(ValueError, match="for adversarial recipes"):
        follow(replace(presets.PAPER_BILEVEL, images=None, held_out=1), images, damaged=images)


def test_a_mask_of_another_size_is_refused():
    recipe = replace(SMALL, task=Inpainting(mask=torch.ones(8, 8)))
    with pytest.raises(ValueError, match="the mask is 8 x 8, but the images are 16 x 16"):
        follow(recipe, crops(4, 16))
