"""Regularizers that read volumes: optima, proofs, files, gradients and a training."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_three_dimensions import SHAPE, SIDE, columns_of, correlation

import convexlift as cl
from convexlift.images import psnr
from convexlift.networks import NoiseGuide, UNetGuide
from convexlift.networks.guides import _shuffled, _unshuffled
from convexlift.tasks import GaussianDenoising
from convexlift.training import (
    BatchSampler,
    Bilevel,
    Implicit,
    TrainingOptions,
    ValueFunction,
    VolumeSet,
    train,
)

NOISE = 0.1


def network(**options):
    """A small network whose guide answers to every pixel."""
    torch.manual_seed(1)
    defaults = {"channels": 3, "kernel": 3, "widths": (4, 6), "blocks": 1, "dimensions": 3}
    net = cl.networks.adaptive(**defaults | options)
    with torch.no_grad():
        net.output.copy_(1 + torch.rand(net.output.shape))
        for parameter in net.guide.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape))
    return net


def problem_of(net, operator=None, batch=1):
    torch.manual_seed(2)
    operator = cl.Identity() if operator is None else operator
    y = operator(torch.rand(batch, 1, *SHAPE))
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y + 0.05 * torch.randn_like(y)), operator=operator, regularizer=net,
        weight=1.0, noise=NOISE, box=(0, 1),
    )  # fmt: skip


def scan():
    return cl.Slices(cl.ParallelBeam(SIDE, angles=7, bins=9), depth=SIDE)


CASES = {
    "Huber": ({}, None),
    "kinks": ({"smoothing": 0.0}, None),
    "biases": ({"reads": ("output", "biases")}, None),
    "scan": ({}, scan),
}


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_that_of_cvxpy(name, tmp_path):
    options, operator = CASES[name]
    problem = problem_of(network(**options), operator and operator())
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=20000))
    assert solution.status[0] is cl.Status.CONVERGED
    x = cvxpy.Variable(SIDE**3)
    y = problem.fidelity.y.flatten().numpy()
    net = problem.regularizer
    skip, width = net.layers[0].skip, options.get("smoothing", 0.1) * NOISE
    objective = 0.5 * cvxpy.sum_squares(columns_of(problem.operator, SHAPE) @ x - y)
    for channel, kernel in enumerate(skip.weight.detach().numpy()):
        response = correlation(kernel[0], skip.padding) @ x
        if "bias_1" in net.readings:
            response = response + net.bias_1[0, channel].detach().numpy().ravel()
        weights = net.output[0, channel].detach().numpy().ravel()
        assert weights.shape == (SIDE**3,)
        assert np.ptp(weights) > 0.1 * weights.mean()  # the guide answers to every pixel
        # c h(a / c): |a| - nu/2 beyond nu = width, a^2 / (2 nu) inside
        h = cvxpy.huber(response, width) / (2 * width) if width else cvxpy.abs(response)
        objective += cvxpy.sum(cvxpy.multiply(weights, h))
    best = cvxpy.Problem(cvxpy.Minimize(objective), [x >= 0, x <= 1]).solve(cvxpy.CLARABEL)
    assert float(solution.objective[0]) == pytest.approx(best, rel=2e-5)
    assert float(solution.lower_bound[0]) <= best * (1 + 1e-7)
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.lower_bound <= best * (1 + 1e-7)
    assert verdict.gap < 2e-5
    assert verdict.premise.startswith("given the weights that the guide read")
    assert solution.weight_map.shape == (1, 1, *SHAPE)


def test_weights_that_depend_on_the_noise_only(tmp_path):
    net = cl.networks.ridge(channels=2, kernel=3, smoothing=0.1, levels=(0.05, 0.2), dimensions=3)
    solution = cl.solve(problem_of(net), stop=cl.StopWhen(gap=1e-4))
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.premise == ""
    assert solution.status[0] is cl.Status.CONVERGED
    assert NoiseGuide(1, 2, levels=(0.1,)).dimensions is None


def test_blocks_of_pixels_become_channels_and_pixels_again():
    x = torch.rand(2, 3, 4, 6, 8)
    z = _unshuffled(x)
    assert z.shape == (2, 24, 2, 3, 4)
    assert torch.equal(_shuffled(z, 3), x)
    # A block is eight channels in a row, as in the two dimensions of torch.
    assert torch.equal(z[:, :8, 1, 2, 3], x[:, 0, 2:4, 4:6, 6:8].flatten(1))
    flat = torch.rand(1, 2, 4, 6)
    assert torch.equal(_unshuffled(flat), F.pixel_unshuffle(flat, 2))


@pytest.mark.parametrize("size", [(6, 6, 6), (5, 7, 9), (1, 4, 4)])
def test_a_guide_takes_volumes_of_any_size(size):
    guide = UNetGuide(1, 3, widths=(4, 6), blocks=1, dimensions=3)
    picture = torch.rand(2, 1, *size)
    noise = torch.full((2, 1, 1, 1, 1), 0.1)
    numbers = guide(picture, noise, torch.ones_like(picture))
    assert numbers.shape == (2, 3, *size)


def test_files_of_pictures_name_no_dimensions(tmp_path):
    net = network(reads=("output", "biases", "links"), depth=2, inner_channels=2)
    cl.save(net, tmp_path / "volume")
    again = cl.load(tmp_path / "volume").double()
    assert (again.dimensions, again.guide.dimensions) == (3, 3)
    x, y = torch.rand(1, 1, *SHAPE), torch.rand(1, 1, *SHAPE)
    torch.testing.assert_close(
        again.condition(y, NOISE)(x), net.condition(y, NOISE)(x), rtol=1e-5, atol=1e-6
    )
    flat = cl.networks.adaptive(channels=2, kernel=3, widths=(4,), blocks=1)
    assert "dimensions" not in flat.guide.arguments()


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: cl.networks.AdaptiveNetwork(list(network().layers), UNetGuide(1, 3)),
         "the guide reads 2 dimensions, and the filters have 3"),
        (lambda: network().condition(torch.rand(1, 1, 6, 6), NOISE),
         r"pictures of shape \(batch, 1, D, H, W\), got \(1, 1, 6, 6\)"),
        (lambda: UNetGuide(1, 3, dimensions=4), "2 for images or 3 for volumes, got 4"),
        (lambda: VolumeSet.from_tensors([torch.rand(4, 4)]), r"write \(D, H, W\)"),
        (lambda: VolumeSet.from_tensors([torch.rand(2, 4, 4)], ["a", "b"]), "1 volumes need as"),
        (lambda: VolumeSet.from_tensors([torch.rand(2, 4, 4)], []), "as many names, got 0"),
        (lambda: VolumeSet.from_folder("pictures"), "made from tensors, not from the pictures in"),
        (lambda: VolumeSet.from_folders(["one", "two"]), "made from tensors, not from"),
        (lambda: BatchSampler(VolumeSet.from_tensors([torch.rand(2, 4, 4)]), 1, crop=5),
         "volume 0 is 2 x 4 x 4, smaller than 2 x 5 x 5"),
    ],
)  # fmt: skip
def test_wrong_dimensions_are_named(attempt, said):
    with pytest.raises(ValueError, match=said):
        attempt()


@pytest.mark.parametrize(
    ("strategy", "accuracy"),
    [(Implicit(damping=0.0), 0.02), (ValueFunction(1e-3, gap=1e-11, max_iterations=5000), 0.06)],
)
def test_gradients_of_the_guide_agree_with_finite_differences(strategy, accuracy):
    net = network(smoothing=0.5, channels=2)
    torch.manual_seed(3)
    clean = torch.rand(1, 1, 4, 4, 4)
    y = clean + NOISE * torch.randn_like(clean)
    stop = cl.StopWhen(gap=1e-12, max_iterations=3000)

    def problem():
        data = cl.SquaredL2(y)
        return cl.VariationalProblem(fidelity=data, regularizer=net, weight=1.0, noise=NOISE)

    stated = problem()
    strategy.surrogate(stated, cl.solve(stated, stop=stop), clean).sum().backward()
    for parameter in (net.guide.first.weight, net.guide.last.weight, net.output):
        direction = torch.randn(parameter.shape)
        found, step = float((parameter.grad * direction).sum()), 1e-4 / float(direction.norm())
        ends = []
        for move in (step, -2 * step):
            with torch.no_grad():
                parameter.add_(direction, alpha=move)
            ends.append(float(((cl.solve(problem(), stop=stop).x - clean) ** 2).sum() / 2))
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
        slope = (ends[0] - ends[1]) / (2 * step)
        assert found == pytest.approx(slope, rel=accuracy, abs=1e-6)


def blocks(count, side=12):
    """Volumes of boxes, each with a grey value of its own."""
    generator = torch.Generator().manual_seed(5)
    volumes = []
    for _ in range(count):
        volume = torch.zeros(side, side, side)
        for _ in range(6):
            corner = torch.randint(side - 3, (3,), generator=generator).tolist()
            inside = tuple(slice(c, c + 6) for c in corner)
            volume[inside] = float(torch.rand((), generator=generator))
        volumes.append(volume)
    return VolumeSet.from_tensors(volumes)


def test_batches_of_volumes_are_cubes_of_them():
    volumes = blocks(3)
    batch = BatchSampler(volumes, 2, crop=8, rotations=True).batch(0)
    assert batch.clean.shape == (2, 1, 8, 8, 8)
    thin = VolumeSet.from_tensors([torch.arange(48.0).reshape(3, 4, 4) / 48, torch.rand(5, 6, 6)])
    cut = BatchSampler(thin, 2, crop=4).batch(0)
    assert cut.clean.shape == (2, 1, 3, 4, 4)
    place = cut.indices.tolist().index(0)
    torch.testing.assert_close(cut.clean[place, 0], thin[0][0].to(cut.clean))
    first, second = volumes.split(1, seed=0)
    assert (len(first), len(second)) == (2, 1)
    assert isinstance(second, VolumeSet)


@pytest.mark.slow
def test_a_training_on_volumes_raises_the_psnr():
    net = network()
    before = network()
    objective = Bilevel(
        [(GaussianDenoising(NOISE, box=None), 1.0)], decibels=True,
        stop=cl.StopWhen(gap=1e-3, max_iterations=400),
    )  # fmt: skip
    options = TrainingOptions(steps=30, learning_rate=2e-2, relative=True, zero_mean=True)
    train(net, objective, BatchSampler(blocks(8), 4, crop=8), options)
    clean = torch.stack([blocks(10)[i] for i in (8, 9)]).double()
    y = clean + NOISE * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))

    def quality(regularizer):
        data = cl.SquaredL2(y)
        problem = cl.VariationalProblem(
            fidelity=data, regularizer=regularizer.double(), weight=1.0, noise=NOISE
        )
        return float(psnr(cl.solve(problem).x, clean).mean())

    assert quality(net) > quality(before) + 1
