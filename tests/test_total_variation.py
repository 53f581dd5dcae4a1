"""Total variation: its formula, its optima stated to CVXPY, and closed-form minimisers."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.networks import Chain, Convolution, ForwardDifferences

HEIGHT, WIDTH = 9, 7


def formula(x: np.ndarray, isotropic: bool) -> float:
    """sum |grad x| by loops over pixels."""
    total = 0.0
    channels, height, width = x.shape
    for c, i, j in np.ndindex(channels, height, width):
        down = x[c, i + 1, j] - x[c, i, j] if i + 1 < height else 0.0
        right = x[c, i, j + 1] - x[c, i, j] if j + 1 < width else 0.0
        total += np.hypot(down, right) if isotropic else abs(down) + abs(right)
    return total


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 7), (1, 1, 5), (2, 5, 1), (1, 1, 1)])
def test_value(isotropic, shape):
    net = cl.TotalVariation(isotropic, in_channels=shape[0])
    x = torch.randn(2, *shape)
    x[:, :, :2] = 0.5  # flat somewhere
    expected = [formula(image.numpy(), isotropic) for image in x]
    np.testing.assert_allclose(net(x).numpy(), expected, rtol=1e-13)


def test_nothing_to_train_and_everything_moves():
    net = cl.TotalVariation()
    assert not any(p.requires_grad for p in net.parameters())
    single = net.to(torch.float32)
    x = torch.rand(1, 1, 8, 8, dtype=torch.float32)
    assert single(x).dtype == torch.float32
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(x), regularizer=single, weight=0.1)
    assert problem.to(dtype=torch.float64).evaluate(x.double()).objective.shape == (1,)
    with pytest.raises(ValueError, match=r"the regularizer is torch\.float32"):
        cl.VariationalProblem(fidelity=cl.SquaredL2(x.double()), regularizer=single, weight=0.1)
    single.project_()
    single.load_state_dict(cl.TotalVariation().state_dict())
    assert single.output.item() == 1.0


def test_it_is_convex_and_twice_differentiable():
    net = cl.TotalVariation()
    x = torch.zeros(1, 1, 6, 6)
    x[..., 2:4, 2:5] = 1.0
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    bound = net.bind((1, 6, 6))
    with torch.no_grad():
        tangent = bound.tangent(1.0, x, bound.forward(x).a)
    torch.testing.assert_close(gradient.detach(), tangent.c)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert torch.isfinite(second).all()


def stated_to_cvxpy(problem: cl.VariationalProblem, isotropic: bool) -> tuple[float, np.ndarray]:
    """From the numbers y, the mask and the definition of |grad x|; nothing of the library."""
    x = cp.Variable((HEIGHT, WIDTH))
    down = cp.vstack([x[1:] - x[:-1], np.zeros((1, WIDTH))])
    right = cp.hstack([x[:, 1:] - x[:, :-1], np.zeros((HEIGHT, 1))])
    if isotropic:
        pairs = cp.vstack([cp.vec(down, order="C"), cp.vec(right, order="C")])
        regularizer = cp.sum(cp.norm(pairs, 2, axis=0))
    else:
        regularizer = cp.sum(cp.abs(down)) + cp.sum(cp.abs(right))
    y = problem.fidelity.y[0, 0].numpy()
    seen = np.ones_like(y)
    if isinstance(problem.operator, cl.Mask):
        seen = problem.operator.mask.expand(1, 1, HEIGHT, WIDTH)[0, 0].numpy()
    rest = cp.multiply(seen, x) - y
    if isinstance(problem.fidelity, cl.L1):
        data = problem.fidelity.scale * cp.sum(cp.abs(rest))
    else:
        data = cp.sum_squares(rest) / 2
    statement = cp.Problem(cp.Minimize(data + problem.weight * regularizer))
    statement.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert statement.status == cp.OPTIMAL
    return float(statement.value), x.value


def noisy(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.zeros(1, 1, HEIGHT, WIDTH)
    clean[..., 2:6, 2:5] = 0.8
    return clean + 0.15 * torch.randn(clean.shape, generator=generator)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("isotropic", [True, False], ids=["isotropic", "anisotropic"])
@pytest.mark.parametrize("data", ["L2", "masked L2", "L1"])
@pytest.mark.parametrize("weight", [0.02, 0.2])
def test_optimum(isotropic, data, weight):
    y = noisy()
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1)) > 0.3
    problem = cl.VariationalProblem(
        fidelity=cl.L1(y, 0.4)
        if data == "L1"
        else cl.SquaredL2(mask * y if data == "masked L2" else y),
        operator=cl.Mask(mask.to(y)) if data == "masked L2" else cl.Identity(),
        regularizer=cl.TotalVariation(isotropic),
        weight=weight,
    )
    value, minimiser = stated_to_cvxpy(problem, isotropic)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=5e-7, max_iterations=40_000, check_every=20))
    assert solution.status == (cl.Status.CONVERGED,), str(solution)
    assert float(solution.objective) == pytest.approx(value, rel=1e-6)
    assert float(solution.lower_bound) <= value + 1e-8 * abs(value)
    for iterations in (1, 10, 100):  # a bound at any time, from any duals
        early = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=iterations))
        wild = cl.certify(problem, torch.as_tensor(minimiser)[None, None], early.duals)
        assert float(early.lower_bound) <= value + 1e-8 * abs(value)
        assert float(wild.lower_bound) <= value + 1e-8 * abs(value)


def test_two_pixels_approach_each_other():
    """min (x - y)^2/2 + w |x_2 - x_1| moves both by w, until they meet."""
    y = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2)
    for weight, expected in ((0.2, [0.2, 0.8]), (0.7, [0.5, 0.5])):
        for isotropic in (True, False):
            problem = cl.VariationalProblem(
                fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(isotropic), weight=weight
            )
            x = cl.solve(problem, stop=cl.StopWhen(gap=1e-10)).x.flatten()
            torch.testing.assert_close(x, torch.tensor(expected), atol=1e-4, rtol=0)


def test_a_large_weight_leaves_the_mean_of_each_channel():
    y = torch.cat([noisy(0), 2 + noisy(1)], dim=1)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(in_channels=2), weight=50.0
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-8, max_iterations=20_000))
    mean = y.mean((-2, -1), keepdim=True)
    assert float(solution.objective) == pytest.approx(float((y - mean).square().sum() / 2), 1e-7)
    torch.testing.assert_close(solution.x, mean.expand_as(y), atol=1e-3, rtol=0)


def test_single_precision_behind_a_blur():
    x = noisy().clamp_min(0).float()
    blur = cl.Blur.gaussian(0.7).to(dtype=torch.float32)
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(torch.poisson(30 * blur(x)), 1.0),
        operator=30 * blur,
        regularizer=cl.TotalVariation().to(torch.float32),
        weight=2.0,
        box=(0.0, None),
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    assert solution.status == (cl.Status.CONVERGED,)
    double = cl.certify(problem, solution.x, solution.duals)
    assert float(double.gap) <= 2e-4


@pytest.mark.parametrize("wrap", [lambda m: m, Chain], ids=["alone", "in a chain"])
def test_differences_are_for_the_image_only(wrap):
    first = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Convolution(1, 2, 3))
    second = cl.ConvexLayer(cl.ReLU(), channels=4, previous=wrap(ForwardDifferences()))
    with pytest.raises(ValueError, match="layer 2, map from layer 1, has the weight -1"):
        cl.InputConvexNetwork([first, second])
