"""Weights that keep what their rules promise, and searches that keep within memory and time."""

from __future__ import annotations

import math
import time

import pytest
import torch

import convexlift as cl
from convexlift.images import (
    gaussian_noise,
    load_example,
    psnr,
    salt_and_pepper,
)
from convexlift.reconstruction.engine import Engine
from convexlift.reconstruction.noise import (
    Noise,
)
from convexlift.reconstruction.noise_models import Gaussian, Impulses, Integrals, Photons
from convexlift.reconstruction.weight_selection import (
    ACCURACY,
    card_weight,
    discrepancy_weight,
    predictive_weight,
    vertex,
)

KINDS = ("gaussian", "inpainting", "impulses", "integrals", "photons")


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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
