"""The training loop learns, keeps its best weights, and does what its options say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from quick_training import Told, Valley, psnrs, quick, same_weights
from training_runs import crops, ingredients

import convexlift as cl
from convexlift.tasks import GaussianDenoising
from convexlift.training import (
    Adversarial,
    BatchSampler,
    Bilevel,
    Implicit,
    TrainingOptions,
    Validation,
    train,
)
from convexlift.training.objectives import Loss, Objective

SHORT = cl.StopWhen(gap=1e-3, max_iterations=60)
pytestmark = pytest.mark.single_precision


# It learns


def test_adversarial_training_helps():
    task = GaussianDenoising(0.1)
    torch.manual_seed(0)
    network = cl.networks.baseline(16, channels=4, pool=4, hidden=4, padding="reflect")
    training, held_out = crops(24, 32).split(4, seed=0)
    trained = train(
        network,
        Adversarial(task, 5.0),
        BatchSampler(training, 8, crop=16),
        TrainingOptions(40, 1e-2, betas=(0.5, 0.99), zero_mean=True, validate_every=40),
        validation=Validation(
            task, held_out, search=True, crop=16,
            stop=cl.StopWhen(gap=1e-4, max_iterations=80),
        ),
    )  # fmt: skip
    first, last = psnrs(trained)
    assert last > first + 3
    assert trained.score["psnr"] == last
    network.check_convexity()
    assert network.layers[0].skip.weight.mean((-2, -1)).abs().max() < 1e-6


@pytest.mark.parametrize("filters", [None, 0.003])
@pytest.mark.sampled(2)
def test_bilevel_training_helps(filters):
    task = GaussianDenoising(0.1)
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=4, kernel=3)
    if filters is not None:
        cl.training.start_from_filters_(network, filters)
    training, held_out = crops(12, 32).split(4, seed=0)
    objective = Bilevel([(task, 1.0)], hypergradient=Implicit(damping=1e-2, iterations=10))
    trained = train(
        network,
        objective,
        BatchSampler(training, 4, crop=16),
        TrainingOptions(20, 0.1, relative=True, zero_mean=True, validate_every=20),
        validation=Validation(task, held_out, crop=16, stop=SHORT),
    )
    first, last = psnrs(trained)
    assert last > first + 2
    assert last > 22.5  # the data have 20
    network.check_convexity()


# Options


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path):
    for surprise in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="at step 4; lower the learning rate"):
            quick(objective=Valley(surprise, at=3), folder=tmp_path)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 2
    assert all(value.isfinite().all() for value in saved["network"].values())


def test_the_best_weights_are_returned():
    told = Told(20.0, 22.0, 25.0, 24.0, 23.0)
    trained = quick(TrainingOptions(4, validate_every=1), validation=told)
    assert trained.step == 2
    assert trained.score == {"psnr": 25.0, "ssim": 25.0, "weight": 2.0}
    assert same_weights(trained.network.state_dict(), told.seen[2])
    assert not same_weights(trained.network.state_dict(), told.seen[4])


def test_patience(tmp_path):
    told = Told(20.0, 25.0, 24.0, 23.0, 26.0)
    options = TrainingOptions(50, validate_every=2, patience=2, checkpoint_every=50)
    trained = quick(options, validation=told, folder=tmp_path)
    assert [row["step"] for row in trained.rows][-1] == 6
    assert not trained.interrupted
    assert trained.step == 2
    again = quick(options, validation=Told(), folder=tmp_path, resume=True)
    assert not again.interrupted
    assert again.rows == trained.rows
    assert same_weights(again.network.state_dict(), trained.network.state_dict())


def test_mixed_precision():
    network, objective, batches, _ = ingredients("adversarial")
    options = TrainingOptions(3, 1e-2, mixed_precision=True)
    trained = train(network, objective, batches, options)
    network, objective, batches, _ = ingredients("adversarial")
    exact = train(network, objective, batches, replace(options, mixed_precision=False))
    for mixed, full in zip(trained.rows, exact.rows, strict=True):
        assert mixed["loss"] != full["loss"]
        assert mixed["loss"] == pytest.approx(full["loss"], rel=0.1, abs=0.05)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    network, objective, batches, _ = ingredients("bilevel")
    with pytest.raises(ValueError, match=r"Bilevel needs full precision.*mixed_precision=False"):
        train(network, objective, batches, options)


def test_schedules():
    constant = TrainingOptions(10, warm_up=3)
    assert [constant.rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = TrainingOptions(10, schedule="cosine")
    assert cosine.rate(0) == 1.0
    assert cosine.rate(5) == pytest.approx(0.5)
    assert 0 < cosine.rate(9) < 0.03
    assert replace(cosine, warm_up=1).rate(0) == 0.5
    trained = quick(replace(cosine, steps=4, learning_rate=0.1))
    expected = [0.1 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert [row["learning_rate"] for row in trained.rows] == pytest.approx(expected)


def test_relative_rates_change_all_tensors_by_the_same_fraction():
    class Everything(Objective):
        def forward(self, network, batch):
            loss = sum(p.sum() for p in network.parameters())
            return Loss(loss, loss.detach())

    network = cl.networks.convolutional(channels=3, kernel=3)
    with torch.no_grad():
        for layer in network.layers:
            layer.bias.zero_()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    batches = BatchSampler(crops(2, 8), 1)
    train(network, Everything(), batches, TrainingOptions(1, 0.01, relative=True))
    for name, p in network.named_parameters():
        size = float(before[name].square().mean().sqrt()) or 0.01
        moved = (before[name] - p.detach()).abs()  # Adam's first step has the length of the rate
        free = before[name] > 0.011 * size if (p >= 0).all() else torch.ones_like(p, dtype=bool)
        torch.testing.assert_close(moved[free], torch.full_like(moved[free], 0.01 * size))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"betas": (0.9, 1.0)},
        {"schedule": "linear"}, {"clip": 0.0}, {"validate_every": 0}, {"warm_up": -1},
        {"checkpoint_every": 0}, {"patience": 0},
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingOptions(**{"steps": 1, **wrong})


def test_images_that_do_not_fit_the_network_fail_before_any_work(tmp_path):
    network = cl.networks.baseline(16, channels=2, pool=4, hidden=2)
    with pytest.raises(ValueError, match=r"takes images of shape \(1, 16, 16\), got \(1, 8, 8\)"):
        train(network, Valley(), BatchSampler(crops(2, 8), 1), TrainingOptions(1), folder=tmp_path)
    assert not list(tmp_path.iterdir())
