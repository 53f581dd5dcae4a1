"""Noise estimates against known noise; weights that keep what their rules promise."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import convexlift as cl
from convexlift.images import (
    example_names,
    gaussian_noise,
    load_example,
    psnr,
    random_mask,
    salt_and_pepper,
)
from convexlift.reconstruction.engine import Engine
from convexlift.reconstruction.noise import (
    LEAST_SIGMA,
    Noise,
    TooFewPixels,
    estimate_noise,
    gaussian_level,
    is_line_art,
    photons_of,
    spread,
)
from convexlift.reconstruction.statements import Gaussian, Impulses, Integrals, Photons
from convexlift.reconstruction.weights import (
    ACCURACY,
    card_weight,
    discrepancy_weight,
    predictive_weight,
    vertex,
)


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize(
    ("sigma", "accuracy"), [(0.02, 0.25), (0.05, 0.1), (0.1, 0.05), (0.2, 0.05)]
)
@pytest.mark.parametrize("bits", [8, None])
def test_gaussian_noise_is_recognised_and_measured(name, sigma, accuracy, bits):
    y = gaussian_noise(load_example(name), sigma, generator(1))
    if bits is not None:  # as files have it: clipped and rounded
        y = (255 * y.clamp(0, 1)).round() / 255
        accuracy += 0.06
    noise = estimate_noise(y)
    assert noise.kind == "gaussian"
    assert noise.estimated
    assert noise.level == pytest.approx(sigma, rel=accuracy)


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.25, 0.5])
def test_salt_and_pepper_is_recognised_and_measured(name, fraction):
    noise = estimate_noise(salt_and_pepper(load_example(name), fraction, generator(1)))
    assert noise.kind == "salt-and-pepper"
    assert noise.level == pytest.approx(fraction, rel=0.1)


@pytest.mark.parametrize("name", example_names())
def test_clean_pictures_have_little_gaussian_noise(name):
    noise = estimate_noise(load_example(name))
    assert noise.kind == "gaussian"
    assert LEAST_SIGMA <= noise.level < 0.01


def letters(paper=255, ink=0, size=14):
    picture = Image.new("L", (96, 96), paper)
    draw = ImageDraw.Draw(picture)
    for row in range(0, 96, size + 2):
        draw.text((1, row), "The quick brown fox jumps", fill=ink, font_size=size)
    return torch.from_numpy(np.asarray(picture) / np.float32(255))[None, None]


@pytest.mark.parametrize("size", [8, 14, 30])
def test_letters_are_no_salt_and_pepper(size):
    for image in (letters(size=size), 1 - letters(size=size)):
        assert estimate_noise(image).kind == "gaussian"
        assert is_line_art(image)
    on_grey = letters(paper=180, size=size)
    assert estimate_noise(on_grey).kind == "gaussian"
    assert not is_line_art(on_grey)


def test_photographs_are_no_line_art():
    x = load_example("camera")
    for y in (x, salt_and_pepper(x, 0.7, generator(1)), torch.zeros(1, 1, 16, 16)):
        assert not is_line_art(y)
    assert is_line_art((letters() > 0.5).float())


def test_salt_alone_is_recognised():
    x = load_example("camera")
    y = torch.where(torch.rand(x.shape, generator=generator(4)) < 0.2, torch.ones_like(x), x)
    assert estimate_noise(y).kind == "salt-and-pepper"


def test_missing_pixels_are_not_looked_at():
    x = load_example("camera")
    mask = (torch.rand(x.shape, generator=generator(2)) > 0.05).float()
    noisy = gaussian_noise(x, 0.05, generator(1))
    spoiled = torch.where(mask > 0, noisy, torch.full_like(x, 7.0))
    assert gaussian_level(spoiled, mask) == pytest.approx(0.05, rel=0.1)
    assert estimate_noise(spoiled, mask).kind == "gaussian"


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize("missing", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(
    ("sigma", "accuracy"), [(0.02, (0.4, 0.6)), (0.05, (0.15, 0.25)), (0.1, (0.1, 0.2))]
)
def test_noise_is_measured_between_missing_pixels(name, missing, sigma, accuracy):
    # Hardly a window of 3 x 3 pixels is whole: lines and pairs remain, which see more of the image.
    x = load_example(name)
    mask = random_mask(x, missing, generator(2))
    spoiled = torch.where(mask > 0, gaussian_noise(x, sigma, generator(1)), 7.0)
    lines, pairs = accuracy
    level = gaussian_level(spoiled, mask)
    assert level == pytest.approx(sigma, rel=pairs if missing == 0.9 else lines)


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize(("size", "missing"), [(8, 0), (12, 0.3), (24, 0.7), (32, 0.5)])
def test_noise_is_measured_in_small_images(name, size, missing):
    x = load_example(name)[..., 80 : 80 + size, 100 : 100 + size]
    mask = random_mask(x, missing, generator(2))
    levels = [
        gaussian_level(mask * gaussian_noise(x, 0.1, generator(seed)), mask) for seed in range(5)
    ]
    assert min(levels) > 0.06
    assert max(levels) < 0.15
    assert sum(levels) / 5 == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize(("length", "slope"), [(3, 0.002), (2, 0.0)])
def test_lines_and_pairs_have_the_deviation_of_noise(length, slope):
    # Runs of so many pixels in every other row: no windows, and no columns. Lines see no slopes.
    y = 0.2 + slope * torch.arange(256) + 0.05 * torch.randn(256, 256, generator=generator(3))
    mask = torch.zeros_like(y)
    mask[::2] = (torch.arange(256) % (length + 1) < length).float()
    assert gaussian_level(y[None, None], mask[None, None]) == pytest.approx(0.05, rel=0.03)


def test_too_few_pixels_have_no_estimate():
    isolated = torch.zeros(1, 1, 64, 64)
    isolated[..., ::2, ::2] = 1
    with pytest.raises(TooFewPixels):
        estimate_noise(torch.rand(1, 1, 64, 64, generator=generator()), isolated, "gaussian")
    for kind in ("gaussian", "salt-and-pepper", None):
        with pytest.raises(TooFewPixels):
            estimate_noise(torch.full((1, 1, 2, 2), 0.5), None, kind)


def test_flat_images_have_an_estimate():
    assert estimate_noise(torch.full((1, 1, 8, 8), 0.5)).level == LEAST_SIGMA
    assert estimate_noise(torch.zeros(1, 1, 16, 16)).level == LEAST_SIGMA


def test_photons_are_counted_in_line_integrals():
    p = torch.linspace(0, 4, 120)[:, None] * torch.linspace(0.2, 1, 90)[None]
    counts = torch.poisson(5e3 * torch.exp(-p), generator=generator())
    integrals = -torch.log(counts / 5e3)
    assert photons_of(integrals[None, None]) == pytest.approx(5e3, rel=0.15)


def test_noise_says_what_it_is():
    assert str(Noise("gaussian", 0.1)) == "Gaussian noise, sigma 0.1 (estimated)"
    assert "25 %" in str(Noise("salt-and-pepper", 0.25, estimated=False))
    with pytest.raises(ValueError, match="finite"):
        Noise("gaussian", math.nan)


def test_weights_of_cards_are_scaled():
    weights = {"gaussian-denoising": 1.0, "salt-and-pepper": 7.0}
    assert card_weight(weights, "gaussian-denoising", Noise("gaussian", 0.1)) == pytest.approx(1)
    small = card_weight(weights, "gaussian-denoising", Noise("gaussian", 0.01))
    assert small == pytest.approx(10**-1.2)
    # Inpainting and denoising have the same data term: one stands in for the other.
    assert card_weight(weights, "inpainting", Noise("gaussian", 0.01)) == pytest.approx(small)
    assert card_weight(weights, "salt-and-pepper", Noise("salt-and-pepper", 0.25)) == 7.0
    assert card_weight({}, "salt-and-pepper", Noise("salt-and-pepper", 0.25)) is None
    assert card_weight({"ct": 2.0}, "ct", None) == 2.0


def test_the_vertex_of_a_parabola():
    values = [(k - 0.3) ** 2 for k in (-1, 0, 1)]
    assert vertex(*values) == pytest.approx(0.3)
    assert vertex(1.0, 1.0, 1.0) == 0.0
    assert -1 <= vertex(1.0, 0.999, 0.0) <= 1


@pytest.fixture(scope="module")
def crop():
    return load_example("camera")[..., 80:128, 100:148]


def statement_of(kind, x):
    if kind == "gaussian":
        return Gaussian(y=gaussian_noise(x, 0.1, generator(1)), sigma=0.1)
    if kind == "inpainting":
        mask = (torch.rand(x.shape, generator=generator(2)) > 0.3).float()
        return Gaussian(y=mask * gaussian_noise(x, 0.05, generator(1)), sigma=0.05, mask=mask)
    if kind == "impulses":
        return Impulses(y=salt_and_pepper(x, 0.2, generator(1)), fraction=0.2)
    operator = 4.0 * cl.ParallelBeam(x.shape[-1], 40, 48)
    if kind == "integrals":
        clean = operator(x)
        omega = 1 / (0.5 + 0.02 * clean)
        noise = torch.randn(clean.shape, generator=generator(1)) / omega.sqrt()
        return Integrals(y=clean + noise, operator=operator, omega=omega)
    counts = torch.poisson(operator(x) + 5.0, generator=generator(1))
    return Photons(y=counts, operator=operator, background=5.0)


KINDS = ("gaussian", "inpainting", "impulses", "integrals", "photons")


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_has_the_discrepancy_of_noise(kind, crop):
    # The statement in words: at the clean image, residuals are as large as noise alone.
    assert statement_of(kind, crop).discrepancy(crop) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("kind", ["gaussian", "inpainting", "integrals", "photons"])
def test_parts_of_split_data_are_independent(kind, crop):
    statement = statement_of(kind, crop)
    kept, score = statement.split(generator(5))
    # The truth predicts what was kept apart better than an image that knows the noise of the rest.
    assert kept.y.shape == statement.y.shape
    assert not torch.equal(kept.y, statement.y)
    other = (crop + 0.05 * torch.randn(crop.shape, generator=generator(6))).clamp(0, 1)
    assert score(crop) < score(other)
    if kind in ("gaussian", "inpainting"):
        first = kept.y - (crop if kept.mask is None else kept.mask * crop)
        apart = kept.y + (statement.y - kept.y) * (1 + 1 / 0.1)  # y - sigma n / sqrt(a)
        second = apart - (crop if kept.mask is None else kept.mask * crop)
        correlation = (first * second).sum() / (first.norm() * second.norm())
        assert abs(float(correlation)) < 0.1


def test_pixels_kept_apart_are_not_seen(crop):
    statement = statement_of("impulses", crop)
    kept, score = statement.split(generator(5))
    hidden = kept.mask == 0
    assert 0.05 < float(hidden.float().mean()) < 0.15
    assert bool((kept.y[hidden] == 0).all())
    assert score(crop) < score((crop + 0.1).clamp(0, 1))
    changed = torch.where(hidden, crop, torch.rand_like(crop))
    assert score(changed) == pytest.approx(score(crop))


@pytest.fixture(scope="module")
def tv_engine():
    return Engine(cl.TotalVariation(), torch.device("cpu"), weight="auto")


def by_solving(engine, statement):
    def image(of, weight):
        problem = of.problem(engine.network, weight)
        return cl.solve(problem, stop=cl.StopWhen(gap=2e-3, max_iterations=300)).x

    return image


@pytest.mark.parametrize("kind", ["gaussian", "inpainting", "impulses"])
def test_discrepancy_keeps_its_promise(kind, crop, tv_engine):
    statement = statement_of(kind, crop)
    chosen = discrepancy_weight(statement, 0.02, by_solving(tv_engine, statement))
    assert chosen.note == ""
    x = cl.solve(statement.problem(tv_engine.network, chosen.value)).x
    assert statement.discrepancy(x) == pytest.approx(1, abs=3 * ACCURACY)
    assert 2 <= len(chosen.trials) <= 14


def test_discrepancy_says_when_it_cannot():
    flat = Gaussian(y=torch.full((1, 1, 16, 16), 0.5), sigma=0.1)
    chosen = discrepancy_weight(flat, 1.0, lambda of, weight: of.y)
    assert "residual" in chosen.note
    assert math.isfinite(chosen.value)


def test_auto_is_near_the_best_weight(crop, tv_engine):
    statement = statement_of("gaussian", crop)
    solve = by_solving(tv_engine, statement)
    chosen = predictive_weight(statement, 0.02, solve, generator())
    quality = {
        w: float(psnr(solve(statement, w), crop)) for w in (0.01, 0.03, 0.06, 0.09, 0.13, 0.3)
    }
    reached = float(psnr(solve(statement, chosen.value), crop))
    assert reached > max(quality.values()) - 0.3
    assert reached > quality[0.01] + 1  # where it could have stayed
    assert len(chosen.trials) <= 8


def test_the_engine_falls_back_to_auto(crop):
    network = cl.networks.ridge(channels=2, kernel=3)
    engine = Engine(
        network, torch.device("cpu"), weight="card", search=cl.StopWhen(max_iterations=5)
    )
    statement = statement_of("gaussian", crop[..., :16, :16])
    assert (
        engine.choose_weight(statement, "gaussian-denoising", Noise("gaussian", 0.1)).rule == "auto"
    )
    fixed = Engine(network, torch.device("cpu"), weight=0.7)
    assert fixed.choose_weight(statement, "ct", None).value == 0.7


def test_a_search_has_no_more_images_at_once_than_fit(crop, monkeypatch):
    sizes, solve = [], Engine._solve

    def counted(engine, problem, *others):
        sizes.append(problem.batch_size)
        return solve(engine, problem, *others)

    monkeypatch.setattr(Engine, "_solve", counted)
    engine = Engine(
        cl.TotalVariation(), torch.device("cpu"), weight="auto", batch=2,
        search=cl.StopWhen(max_iterations=5),
    )  # fmt: skip
    pages = statement_of("gaussian", crop[..., :16, :16].expand(5, -1, -1, -1))
    assert engine.choose_weight(pages, "gaussian-denoising", Noise("gaussian", 0.1)).value > 0
    assert set(sizes) == {2}  # the first and the fourth


def test_one_time_limit_for_the_search_and_all_pieces(crop):
    stop = cl.StopWhen(gap=1e-12, max_iterations=10**6, seconds=0.6)
    search = cl.StopWhen(gap=1e-12, max_iterations=10**6)
    engine = Engine(
        cl.TotalVariation(), torch.device("cpu"), stop, weight="auto", batch=1, search=search
    )
    pages = statement_of("gaussian", crop[..., :16, :16].expand(4, -1, -1, -1))
    begin = time.perf_counter()
    weight = engine.choose_weight(pages, "gaussian-denoising", Noise("gaussian", 0.1))
    assert "time limit" in weight.note
    solved = engine.solve(pages, weight.value, spent=weight.seconds)
    assert time.perf_counter() - begin < 1.2  # 0.6 for each of them would be 3 seconds
    assert set(solved.status) == {"TIME_LIMIT"}
    assert int(solved.iterations.min()) > 1


def test_clipped_noise_does_not_mislead_the_rules(tv_engine):
    # Half the image is black, where 8 bits keep half of the noise.
    x = load_example("camera")[..., 60:124, 100:164].clone()
    x[..., 32:] = 0
    y = gaussian_noise(x, 0.15, generator(3)).clamp(0, 1)
    statement = Gaussian(y=y, sigma=0.15)
    counted = statement._counted()
    assert float(counted[..., 40:].max()) == 0
    residual = (counted * (x - y)).norm() / (0.15 * counted.sum().sqrt())
    assert statement.discrepancy(x) == pytest.approx(float(residual))
    assert statement.discrepancy(x) == pytest.approx(1, abs=0.1)
    assert float((x - y).std()) < 0.85 * 0.15  # of all pixels


def test_simulated_noise_of_common_seeds_is_not_that_of_the_split():
    drawn = torch.randn(1000, generator=generator(Engine.seed))
    for seed in (0, 1, 2, 42, 123, 1234):
        other = torch.randn(1000, generator=generator(seed))
        assert abs(float((drawn * other).mean())) < 0.2


def test_large_stacks_are_estimated_from_some_of_their_planes(monkeypatch):
    stack = load_example("camera")[..., :64, :64].repeat(40, 1, 1, 1)
    noisy = gaussian_noise(stack, 0.08, generator())
    assert spread(noisy) == slice(None, None, 1)
    monkeypatch.setattr("convexlift.reconstruction.noise.MOST_PIXELS", 10 * 64 * 64)
    some = noisy[spread(noisy)]
    assert len(some) == 10
    assert estimate_noise(some).level == pytest.approx(estimate_noise(noisy).level, rel=0.02)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(monkeypatch):
    y = gaussian_noise(load_example("camera")[..., :32, :32].repeat(7, 1, 1, 1), 0.1, generator())
    engine = Engine(cl.TotalVariation(), torch.device("cpu"), cl.StopWhen(gap=1e-3), batch=7)
    statement = Gaussian(y=y, box=(0, 1), sigma=0.1)
    expected = engine.solve(statement, 0.1)
    whole, sizes = Engine._solve_piece, []

    def small_memory(self, part, *rest):
        sizes.append(len(part.y))
        if len(part.y) > 2:
            raise torch.cuda.OutOfMemoryError
        return whole(self, part, *rest)

    monkeypatch.setattr(Engine, "_solve_piece", small_memory)
    solved = engine.solve(statement, 0.1)
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    torch.testing.assert_close(solved.objective, expected.objective, rtol=2e-3, atol=0)
    assert solved.x.shape == y.shape
