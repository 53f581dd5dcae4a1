"""Gradients of reconstructions with kinks behind ill-conditioned blurs, beside active sets.

With total variation, x(y) is affine as long as the same differences of pixels vanish: on the space
Z of images with these differences zero, dx/dy = Z (Z* A* A Z)^-1 Z* A*. Behind a blur the pieces
are small, and a difference quotient, or a pull that moves x too far, averages over many of them.
"""

from __future__ import annotations

import pytest
import torch

import convexlift as cl

SIZE, WEIGHT = 6, 0.03


def differences() -> cl.InputConvexNetwork:
    """|x_right - x| + |x_below - x|, summed up."""
    net = cl.networks.ridge(channels=2, kernel=3, smoothing=0.0)
    with torch.no_grad():
        kernel = net.layers[0].skip.weight.zero_()
        kernel[:, 0, 1, 1], kernel[0, 0, 1, 2], kernel[1, 0, 2, 1] = 1, -1, -1
        net.output.fill_(1.0)
    return net


def blurred(y: torch.Tensor, width: float) -> cl.VariationalProblem:
    blur = cl.Blur.gaussian(width, radius=2)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=blur, regularizer=differences(), weight=WEIGHT
    )


def data(width: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    clean = torch.zeros(1, 1, SIZE, SIZE)
    clean[..., 2:4, 2:5] = 1
    return clean, cl.Blur.gaussian(width, radius=2)(clean) + 0.05 * torch.randn(clean.shape)


def exact_gradient(width: float) -> torch.Tensor:
    """Of the squared distance of x(y) to the clean image, from the active set."""
    clean, y = data(width)
    problem = blurred(y, width)
    stop = cl.StopWhen(gap=1e-12, max_iterations=20_000)
    with torch.no_grad():
        x = cl.solve(problem, stop=stop).x
        units = torch.eye(SIZE**2).reshape(-1, 1, SIZE, SIZE)
        A = problem.operator(units).reshape(SIZE**2, -1).T
        V = problem.network.layers[0].operators[0](units).reshape(SIZE**2, -1).T
        responses = (V @ x.flatten()).abs()
        assert not ((responses > 1e-6) & (responses < 1e-3)).any()  # which are zero is known
        _, sizes, rows = torch.linalg.svd(V[responses <= 1e-6])
        Z = rows[int((sizes > 1e-9).sum()) :].T
        slope = 2 * (x - clean).flatten()
        return A @ Z @ torch.linalg.solve(Z.T @ A.T @ A @ Z, Z.T @ slope)


@pytest.mark.parametrize("first", [None, 1e-2])
def test_pulls_become_weaker_until_no_kink_is_crossed(first):
    width = 0.8  # A* A has a condition of 2e4
    clean, y = data(width)
    strategy = None if first is None else cl.ValueFunction(first, gap=None, max_iterations=20_000)
    y.requires_grad_()
    x = cl.solve(
        blurred(y, width), stop=cl.StopWhen(gap=1e-7, max_iterations=20_000), differentiable=True,
        hypergradient=strategy,
    ).x  # fmt: skip
    ((x - clean) ** 2).sum().backward()
    exact = exact_gradient(width)
    assert float((y.grad.flatten() - exact).norm() / exact.norm()) < 5e-3


def test_a_pull_of_one_strength_is_wrong_there():
    """Which is why it is not the default."""
    width = 0.8
    clean, y = data(width)
    y.requires_grad_()
    strategy = cl.ValueFunction(1e-2, gap=1e-9, max_iterations=20_000)
    x = cl.solve(blurred(y, width), stop=cl.StopWhen(gap=1e-7), differentiable=True,
                 hypergradient=strategy).x  # fmt: skip
    ((x - clean) ** 2).sum().backward()
    exact = exact_gradient(width)
    assert float((y.grad.flatten() - exact).norm() / exact.norm()) > 0.05
