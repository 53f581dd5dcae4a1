"""Trainings of regularizers that read the data: gradients of guides, steps, and their refusal."""

from __future__ import annotations

import pytest
import torch
from test_adaptive import NOISE, network
from training_runs import crops

import convexlift as cl
from convexlift.images import psnr
from convexlift.tasks import GaussianDenoising
from convexlift.training import (
    BatchSampler,
    Bilevel,
    Implicit,
    TrainingOptions,
    ValueFunction,
    train,
)


@pytest.mark.parametrize(
    ("strategy", "smoothing"),
    [(Implicit(damping=0.0), 0.5), (ValueFunction(1e-3, gap=1e-11, max_iterations=5000), 0.5)],
)
def test_gradients_of_the_guide_agree_with_finite_differences(strategy, smoothing):
    torch.manual_seed(3)
    clean, net = torch.rand(1, 1, 6, 6), network(smoothing=smoothing)
    y = clean + NOISE * torch.randn(clean.shape)
    stop = cl.StopWhen(gap=1e-12, max_iterations=5000)

    def problem():
        return cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, noise=NOISE
        )

    def loss():
        x = cl.solve(problem(), stop=stop).x
        return float(((x - clean) ** 2).sum() / 2)

    stated = problem()
    solution = cl.solve(stated, stop=stop)
    strategy.surrogate(stated, solution, clean).sum().backward()
    for parameter in (net.guide.last.weight, net.guide.first.weight, net.output):
        direction = torch.randn(parameter.shape)
        found = float((parameter.grad * direction).sum())
        step = 1e-4 / float(direction.norm())
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
            ends.append(loss())
            with torch.no_grad():
                parameter.add_(direction, alpha=-sign * step)
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.03, abs=1e-6)


def trained(steps: int, **options):
    """A short training on parts of the example pictures, for random noise levels."""
    net = network()
    stop = options.pop("stop", cl.StopWhen(gap=1e-3, max_iterations=400))
    objective = Bilevel(
        [(GaussianDenoising(0.05, up_to=0.3, box=None), 1.0)], decibels=True, strict=True, stop=stop
    )
    batches = BatchSampler(crops(8), 4)
    settings = TrainingOptions(
        steps=steps, learning_rate=2e-2, relative=True, zero_mean=True, checkpoint_every=2
    )
    return net, train(net, objective, batches, settings, **options)


def test_training_raises_the_psnr():
    net, _ = trained(40)
    clean = torch.stack([crops(8)[i] for i in range(8)]).double()
    y = clean + NOISE * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))

    def quality(regularizer):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=regularizer, weight=1.0, noise=NOISE
        )
        return float(psnr(cl.solve(problem).x, clean).mean())

    assert quality(net) > quality(network()) + 1
    assert float(net.layers[0].skip.weight.detach().mean((-2, -1)).abs().max()) < 1e-12


def test_a_step_whose_lower_level_missed_its_gap_is_not_taken():
    before = network().state_dict()
    net, result = trained(3, stop=cl.StopWhen(gap=1e-9, max_iterations=2))
    assert [row["learning_rate"] for row in result.rows] == [0, 0, 0]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_training_can_be_resumed(tmp_path):
    whole, _ = trained(6, folder=tmp_path / "whole")
    settings = {"folder": tmp_path / "parts", "callback": lambda report: None}

    def interrupt(report):
        if report.step == 3:
            raise RuntimeError("the power failed")

    with pytest.raises(RuntimeError, match="power"):
        trained(6, **{**settings, "callback": interrupt})
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    parts, _ = trained(6, **settings, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name
