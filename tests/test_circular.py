"""Circular blurs: their transfer function, and the squared L2 fidelity behind them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from dense import dense_matrix

import convexlift as cl
from convexlift.functionals.terms import CircularFidelityTerm
from convexlift.images import gaussian_noise, load_example

KERNEL = torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.4, 0.1], [0.0, 0.2, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 9), (2, 2, 5)], ids=str)
def test_the_transfer_function_is_the_operator(shape):
    operator = -1.5 * cl.Blur(KERNEL, "circular")
    x = torch.randn((2, *shape))
    transfer = operator.transfer(shape)
    blurred = torch.fft.irfft2(transfer * torch.fft.rfft2(x), s=shape[-2:])
    torch.testing.assert_close(blurred, operator(x))


@pytest.mark.parametrize("operator", [
    cl.Blur(KERNEL), cl.Blur(KERNEL, "zero"), 2 * cl.Blur(KERNEL, "replicate"), cl.Identity(),
    cl.Mask(torch.ones(8, 8)) @ cl.Blur(KERNEL, "circular"),
])  # fmt: skip
def test_other_operators_have_none(operator):
    assert operator.transfer((1, 8, 8)) is None


def test_the_prox_solves_its_equation():
    """(A* A + 1/tau) x = A* y + u/tau, with a tau for each image."""
    operator, shape = cl.Blur(KERNEL, "circular"), (2, 5, 6)
    y, u = torch.randn((2, 2, *shape))
    tau = torch.tensor([0.3, 40.0])
    term = CircularFidelityTerm(operator.transfer(shape), torch.fft.rfft2(y))
    found = term.prox(u, tau[:, None, None, None]).flatten(1).numpy()
    A = dense_matrix(operator, shape)
    for i, step in enumerate(tau.tolist()):
        matrix = A.T @ A + np.eye(A.shape[1]) / step
        right = A.T @ y[i].flatten().numpy() + u[i].flatten().numpy() / step
        np.testing.assert_allclose(found[i], np.linalg.solve(matrix, right), atol=1e-10)


def blurred(fidelity=cl.SquaredL2, boundary="circular", box=None) -> cl.VariationalProblem:
    return cl.VariationalProblem(
        fidelity=fidelity(torch.rand(1, 1, 8, 8)),
        operator=2 * cl.Blur(KERNEL, boundary),
        regularizer=zoo.network("plain", cl.ReLU()),
        weight=0.1,
        box=box,
    )


def test_the_fidelity_is_dualised_only_where_it_must_be():
    assert "v0" not in cl.lift(blurred()).K.rows
    assert "v0" in cl.lift(blurred(), dualise_fidelity=True).K.rows
    for problem in (blurred(cl.L1), blurred(boundary="reflect"), blurred(box=(0, None))):
        assert "v0" in cl.lift(problem).K.rows


def deconvolution(names=("camera",), size=48, sigma=2.0) -> cl.VariationalProblem:
    """Pictures in single precision, behind a strong blur."""
    x = torch.cat([load_example(name)[..., 60 : 60 + size, 90 : 90 + size] for name in names])
    operator = cl.Blur.gaussian(sigma, "circular").to(dtype=torch.float32)
    noisy = gaussian_noise(operator(x), 0.01, torch.Generator().manual_seed(0))
    network = cl.load("photo-any-size").to(torch.float32)  # with another boundary
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(noisy), operator=operator, regularizer=network, weight=0.01
    )


def test_deconvolution_takes_fewer_iterations_than_the_dualised_one():
    problem = deconvolution()
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=150))
    assert solution.status == (cl.Status.CONVERGED,)
    as_many = cl.StopWhen(gap=1e-3, max_iterations=int(solution.iterations))
    dualised = cl.solve(problem, method=cl.PDHG(dualise_fidelity=True), stop=as_many)
    assert dualised.status == (cl.Status.ITERATION_LIMIT,)
    assert float(dualised.objective) >= float(solution.objective) * (1 - 1e-6)


def test_the_gap_in_single_precision_falls_below_the_rounding_of_the_prediction():
    solution = cl.solve(deconvolution(), stop=cl.StopWhen(gap=1e-4, max_iterations=300))
    assert solution.status == (cl.Status.CONVERGED,)
    checked = cl.certify(deconvolution(), solution.x, solution.duals)
    assert float(checked.gap) <= 1.2e-4


def test_images_of_a_batch_do_not_influence_each_other():
    both = deconvolution(("camera", "coffee"), size=32)
    alone = cl.VariationalProblem(
        fidelity=cl.SquaredL2(both.fidelity.y[:1]), operator=both.operator,
        regularizer=both.regularizer, weight=both.weight,
    )  # fmt: skip
    stop = cl.StopWhen(gap=None, max_iterations=20)
    x = cl.solve(both, stop=stop).x[:1]
    torch.testing.assert_close(x, cl.solve(alone, stop=stop).x, atol=1e-5, rtol=0)
