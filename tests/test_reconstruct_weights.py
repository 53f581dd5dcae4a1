"""Weights that keep what their rules promise, and searches that keep within memory and time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import pytest
import torch

import convexlift as cl
from convexlift.images import gaussian_noise, load_example, psnr, salt_and_pepper
from convexlift.networks.architectures import TotalVariation
from convexlift.reconstruction.held_out import split
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.weight import (
    SEED,
    card_weight,
    choose_weight,
    predictive_weight,
    texture_of,
)
from convexlift.tasks import GaussianDenoising, Measurement
from convexlift.training import plain_settings, presets

pytestmark = pytest.mark.single_precision


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_weights_of_cards_are_scaled():
    weights = {"gaussian-denoising": 1.0, "salt-and-pepper": 7.0}
    assert card_weight(weights, "gaussian-denoising", Noise("gaussian", 0.1)) == pytest.approx(1)
    small = card_weight(weights, "gaussian-denoising", Noise("gaussian", 0.01))
    assert small == pytest.approx(10**-1.2)
    # Inpainting and denoising have the same data term: one replaces the other.
    assert card_weight(weights, "inpainting", Noise("gaussian", 0.01)) == pytest.approx(small)
    assert card_weight(weights, "salt-and-pepper", Noise("salt-and-pepper", 0.25)) == 7.0
    assert card_weight({}, "salt-and-pepper", Noise("salt-and-pepper", 0.25)) is None
    assert card_weight({"ct": 2.0}, "ct", None) == 2.0


def trained_card(sigma, **more):
    """The card of a training for denoising at one noise level."""
    recipe = replace(presets.PHOTO_ANY_SIZE, tasks=((GaussianDenoising(sigma, **more), 0.7),))
    return cl.ModelCard(
        name="own", summary="A model.", task="gaussian-denoising", weight=0.7,
        recipe=plain_settings(recipe),
    )  # fmt: skip


def test_weights_are_scaled_from_the_noise_level_of_the_card(crop):
    network = cl.networks.ridge(channels=4, kernel=3).float()
    network.card = trained_card(0.08)
    assert network.card.noise_levels == {"gaussian-denoising": 0.08}
    solver = PiecewiseSolver(network, torch.device("cpu"))
    for level, expected in ((0.08, 0.7), (0.16, 0.7 * 2**1.2)):
        y = gaussian_noise(crop, level, generator(1))
        data = Measurement(cl.SquaredL2(y), cl.Identity(), (0.0, 1.0), y)
        for task in ("gaussian-denoising", "inpainting"):
            chosen = choose_weight("card", data, task, Noise("gaussian", level), solver)
            assert chosen.value == pytest.approx(expected)
            assert chosen.to_json()["card_level"] == 0.08
    # A card without one level for its weight is scaled as before, by noise and texture.
    noise, texture = Noise("gaussian", 0.16), texture_of(network, y, 0.16)
    for card in (replace(network.card, recipe={}), trained_card(0.08, up_to=0.2)):
        network.card = card
        chosen = choose_weight("card", data, "gaussian-denoising", noise, solver)
        known = card_weight(card.weights, "gaussian-denoising", noise, texture)
        assert chosen.value == pytest.approx(known, rel=1e-5)
        assert "card_level" not in chosen.to_json()


@pytest.mark.parametrize("network", [TotalVariation(), cl.load("photo-any-size")])
def test_texture_is_a_noise_level(network):
    network = network.float()
    sigma, size = 0.1, (1, 1, 96, 96)
    flat = gaussian_noise(torch.full(size, 0.5), sigma, generator(1))
    assert texture_of(network, flat, sigma) < 0.02 * sigma
    # More noise than is known of counts as texture, and its level comes out.
    more = gaussian_noise(torch.full(size, 0.5), 1.5 * sigma, generator(1))
    assert texture_of(network, more, sigma) == pytest.approx(0.5 * sigma, rel=0.1)
    images = [gaussian_noise(load_example(n), sigma, generator(1)) for n in ("brick", "coffee")]
    crops = [image[..., 50:146, 50:146] for image in images]
    textures = [texture_of(network, crop, sigma) for crop in crops]
    assert min(textures) > 0
    # A batch has the mean of its images.
    both = torch.cat(crops)
    assert texture_of(network, both, sigma) == pytest.approx(sum(textures) / 2, rel=1e-3)


@pytest.mark.parametrize("name", ["camera", "rocket", "coffee"])
def test_clipped_noise_is_not_taken_for_less_texture(name):
    network, sigma = TotalVariation().float(), 0.15
    y = gaussian_noise(load_example(name)[..., :160, :160], sigma, generator(1))
    texture = texture_of(network, y, sigma)
    assert texture_of(network, y.clamp(0, 1), sigma) == pytest.approx(texture, abs=0.05 * sigma)


def test_texture_of_images_without_noise():
    network = TotalVariation().float()
    assert texture_of(network, torch.zeros(1, 1, 16, 16), 0.0) == 0.0
    assert math.isfinite(texture_of(network, load_example("camera"), 0.0))


@pytest.fixture(scope="module")
def crop():
    return load_example("camera")[..., 80:128, 100:148]


class Data(NamedTuple):
    data: Measurement
    noise: Noise | None


def data_of(kind, x):
    if kind == "gaussian":
        y = gaussian_noise(x, 0.1, generator(1))
        return Data(
            Measurement(cl.SquaredL2(y), cl.Identity(), (0.0, 1.0), y), Noise("gaussian", 0.1)
        )
    if kind == "inpainting":
        mask = (torch.rand(x.shape, generator=generator(2)) > 0.3).float()
        y = mask * gaussian_noise(x, 0.05, generator(1))
        return Data(
            Measurement(cl.SquaredL2(y), cl.Mask(mask), (0.0, 1.0), y), Noise("gaussian", 0.05)
        )
    if kind == "impulses":
        y = salt_and_pepper(x, 0.2, generator(1))
        return Data(
            Measurement(cl.L1(y), cl.Identity(), (0.0, 1.0), y), Noise("salt-and-pepper", 0.2)
        )
    operator = 4.0 * cl.ParallelBeam(x.shape[-1], 40, 48)
    if kind == "integrals":
        clean = operator(x)
        omega = 1 / (0.5 + 0.02 * clean)
        y = clean + torch.randn(clean.shape, generator=generator(1)) / omega.sqrt()
        return Data(Measurement(cl.WeightedL2(y, omega), operator, (0.0, None), y), None)
    y = torch.poisson(operator(x) + 5.0, generator=generator(1))
    return Data(Measurement(cl.KullbackLeibler(y, 5.0), operator, (0.0, None), y), None)


@pytest.mark.parametrize("kind", ["gaussian", "inpainting", "integrals", "photons"])
def test_parts_of_split_data_are_independent(kind, crop):
    data, noise = data_of(kind, crop)
    kept, score = split(data, noise, generator(5))
    y, y_kept = data.fidelity.y, kept.fidelity.y
    # The truth predicts held-out data better than an image that knows the noise of the rest.
    assert y_kept.shape == y.shape
    assert not torch.equal(y_kept, y)
    other = (crop + 0.05 * torch.randn(crop.shape, generator=generator(6))).clamp(0, 1)
    assert score(crop) < score(other)
    if kind in ("gaussian", "inpainting"):
        first = y_kept - kept.operator(crop)
        apart = y_kept + (y - y_kept) * (1 + 1 / 0.1)  # y - sigma n / sqrt(a)
        second = apart - kept.operator(crop)
        correlation = (first * second).sum() / (first.norm() * second.norm())
        assert abs(float(correlation)) < 0.1


def test_held_out_pixels_are_not_seen(crop):
    kept, score = split(*data_of("impulses", crop), generator(5))
    hidden = kept.operator.diagonal == 0
    assert 0.05 < float(hidden.float().mean()) < 0.15
    assert bool((kept.fidelity.y[hidden] == 0).all())
    assert score(crop) < score((crop + 0.1).clamp(0, 1))
    changed = torch.where(hidden, crop, torch.rand_like(crop))
    assert score(changed) == pytest.approx(score(crop))


def solver(**options):
    return PiecewiseSolver(cl.TotalVariation(), torch.device("cpu"), **options)


def by_solving(data, weight):
    problem = data.problem(cl.TotalVariation(), weight)
    return cl.solve(problem, stop=cl.StopWhen(gap=2e-3, max_iterations=300)).x


def test_auto_is_near_the_best_weight(crop):
    data, noise = data_of("gaussian", crop)
    chosen = predictive_weight(data, noise, 0.02, by_solving, generator())
    quality = {
        w: float(psnr(by_solving(data, w), crop)) for w in (0.01, 0.03, 0.06, 0.09, 0.13, 0.3)
    }
    reached = float(psnr(by_solving(data, chosen.value), crop))
    assert reached > max(quality.values()) - 0.3
    assert reached > quality[0.01] + 1  # where it could have stayed
    assert len(chosen.trials) <= 8


def test_a_card_without_a_weight_falls_back_to_auto(crop):
    network = cl.networks.ridge(channels=2, kernel=3)
    engine = PiecewiseSolver(network, torch.device("cpu"))
    data, noise = data_of("gaussian", crop[..., :16, :16])
    few = cl.StopWhen(max_iterations=5)
    assert choose_weight("card", data, "gaussian-denoising", noise, engine, few).rule == "auto"
    assert choose_weight(0.7, data, "ct", None, engine).value == 0.7


def test_one_time_limit_for_the_search_and_all_pieces():
    y = gaussian_noise(load_example("camera").repeat(4, 1, 1, 1), 0.1, generator())
    found = cl.reconstruct(
        y, regularizer="photo-any-size", sigma=0.1, weight="auto", batch=1, time_limit=1.0,
        tolerance=0.0, max_iterations=10**6,
    )  # fmt: skip
    assert "time limit" in found.weight.note
    assert 0 < found.weight.seconds < 0.9  # half of it for the search
    assert set(found.solution.status) == {cl.Status.TIME_LIMIT}
    assert bool(found.solution.gap.isfinite().all())
    assert found.record["seconds"] < 3  # not 1 for each piece


@pytest.mark.parametrize("direction", [1, -1])
def test_auto_says_when_the_best_weight_was_not_tried(direction, crop):
    """The score falls with the weight, or grows with it, without end."""
    data, noise = data_of("gaussian", crop)

    def worse_and_worse(of, weight):
        return of.fidelity.y + (weight if direction < 0 else 1 / weight)

    chosen = predictive_weight(data, noise, 1.0, worse_and_worse, generator())
    assert "beyond those tried" in chosen.note


def test_clipped_pixels_are_not_scored():
    # Half the image is black, where 8 bits keep half of the noise.
    x = load_example("camera")[..., 60:124, 100:164].clone()
    x[..., 32:] = 0
    y = gaussian_noise(x, 0.15, generator(3)).clamp(0, 1)
    data = Measurement(cl.SquaredL2(y), cl.Identity(), (0.0, 1.0), y)
    _, score = split(data, Noise("gaussian", 0.15), generator())
    black, seen = x.clone(), x.clone()
    black[..., 40:] += 0.1
    seen[..., :24] += 0.1
    assert score(black) == score(x) < score(seen)


def test_simulated_noise_of_common_seeds_is_not_that_of_the_split():
    drawn = torch.randn(1000, generator=generator(SEED))
    for seed in (0, 1, 2, 42, 123, 1234):
        other = torch.randn(1000, generator=generator(seed))
        assert abs(float((drawn * other).mean())) < 0.2


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    y = gaussian_noise(load_example("camera")[..., :32, :32].repeat(7, 1, 1, 1), 0.1, generator())
    sizes = []

    def small_memory(now):
        sizes.append(len(now.x))
        if len(now.x) > 2:
            raise torch.cuda.OutOfMemoryError

    options = {"regularizer": "tv", "sigma": 0.1, "batch": 7}
    expected = cl.reconstruct(y, **options).solution
    found = cl.reconstruct(y, progress=small_memory, **options).solution
    assert [size for size, _ in groupby(sizes)] == [7, 3, 1]
    torch.testing.assert_close(found.objective, expected.objective, rtol=2e-3, atol=0)
    assert found.history["gap"].shape[1] == 7
    assert found.proof.claim.x.shape == found.x.shape == y.shape


@pytest.mark.parametrize("given", [None, 0.07])
def test_a_regularizer_that_reads_the_noise_is_told_the_level(given):
    network = cl.networks.adaptive(channels=4, kernel=3, widths=(4, 6), blocks=1)
    y = gaussian_noise(load_example("camera")[..., 80:144, 100:164], 0.1, generator(1))[0, 0]
    found = cl.reconstruct(y, task="denoise", regularizer=network, sigma=given, max_iterations=5)
    assert found.noise.estimated == (given is None)
    assert found.noise.level == pytest.approx(0.1 if given is None else given, rel=0.1)
    assert found.problem.noise == found.record["noise"]["level"] == found.noise.level
    assert found.weight.value == 1.0


@pytest.mark.parametrize("shared", [False, True])
def test_noise_that_colours_share_is_said(shared):
    tint = torch.tensor([0.3, 0.25, 0.2]).reshape(3, 1, 1)
    colours = 0.5 * load_example("coffee")[..., :64, :64].expand(1, 3, 64, 64) + tint
    noise = torch.randn(1, 1 if shared else 3, 64, 64, generator=torch.Generator().manual_seed(0))
    result = cl.reconstruct(
        colours + 0.1 * noise, task="denoise", regularizer="tv", range=(0.0, 1.0), tolerance=0.1
    )
    notes = [note for note in result.record.get("notes", ()) if "share their noise" in note]
    assert bool(notes) == shared


def test_the_record_names_the_regularizer_for_colours():
    colours = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    options = {"task": "denoise", "range": (0.0, 1.0), "sigma": 0.1, "tolerance": 0.5}
    record = cl.reconstruct(colours, regularizer="photo-open", **options).record
    assert record["regularizer"] == "photo-open-colour"
    assert record["settings"]["regularizer"] == "photo-open"
    grey = cl.reconstruct(colours[:, :1], regularizer="photo-open", **options).record
    assert "regularizer" not in grey
