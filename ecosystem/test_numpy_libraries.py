"""``cl.pyproximal`` and ``cl.odl`` with these libraries themselves: ``make test-ecosystem``."""

from __future__ import annotations

import numpy as np
import odl
import pylops
import pyproximal
import pytest
import torch

import convexlift as cl

pytestmark = pytest.mark.filterwarnings("default")

SIZE, WEIGHT = 12, 0.1
TV = cl.TotalVariation()


def picture() -> np.ndarray:
    x = np.zeros((SIZE, SIZE))
    x[3:9, 4:10] = 1
    return x + 0.05 * np.random.default_rng(0).normal(size=x.shape)


def matrix() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(100, SIZE**2)) / 12


class Matrix(cl.LinearOperator):
    """The matrix on images, for our own solution."""

    input_shape = (1, SIZE, SIZE)

    def __init__(self):
        self.matrix = torch.from_numpy(matrix())

    def forward(self, x):
        return x.flatten(1) @ self.matrix.T

    def adjoint(self, y):
        return (y @ self.matrix).reshape(-1, *self.input_shape)

    def output_shape(self, input_shape):
        return (100,)


def certified(y: torch.Tensor, operator: cl.LinearOperator) -> cl.Solution:
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=operator, regularizer=cl.TotalVariation().double(),
        weight=WEIGHT,
    )  # fmt: skip
    return cl.solve(problem, stop=cl.StopWhen(gap=1e-4))


def test_algorithms_of_pyproximal_reach_the_certified_optimum():
    y = matrix() @ picture().ravel()
    best = certified(torch.from_numpy(y)[None], Matrix())
    R = cl.pyproximal.RegularizerProx(TV, (SIZE, SIZE), sigma=WEIGHT)
    data = pyproximal.L2(pylops.MatrixMult(matrix()), y, niter=50, warm=True)
    step, start = 0.99 / np.linalg.norm(matrix(), 2) ** 2, np.zeros(SIZE**2)
    fast = pyproximal.optimization.primal.ProximalGradient(
        data, R, start, tau=step, niter=100, acceleration="fista"
    )
    split, _ = pyproximal.optimization.primal.ADMM(data, R, start, tau=1.0, niter=60)
    for found in (fast, split):
        objective = 0.5 * ((matrix() @ found - y) ** 2).sum() + R(found)
        assert float(best.lower_bound) <= objective <= 1.01 * float(best.objective)


def test_moreaus_identity_and_bad_steps_in_pyproximal():
    R = cl.pyproximal.RegularizerProx(TV, (SIZE, SIZE), accuracy=1e-4)
    x, tau = picture().ravel(), 0.3
    split = R.prox(x, tau) + tau * R.proxdual(x / tau, 1 / tau)
    np.testing.assert_allclose(split, x, atol=1e-3)
    with pytest.raises(ValueError, match="one number tau > 0"):
        R.prox(picture().ravel(), -1.0)
    with pytest.raises(ValueError, match="tau"):
        R.prox(picture().ravel(), np.ones(SIZE**2))


@pytest.mark.parametrize("volume", [1.0, 1 / SIZE**2])
def test_pdhg_of_odl_reaches_the_certified_optimum(volume):
    """With cells of any volume, by which ODL's inner products are weighted."""
    side = SIZE * volume**0.5
    space = odl.uniform_discr([0, 0], [side, side], [SIZE, SIZE])
    y = space.element(picture())
    R = WEIGHT * cl.odl.RegularizerFunctional(TV, space)
    # ODL's squared norm contains the volume of a cell.
    data = 0.5 / volume * odl.functionals.L2NormSquared(space).translated(y)
    x = space.zero()
    odl.solvers.pdhg(x, R, data, odl.IdentityOperator(space), 60, tau=volume, sigma=0.9 / volume)
    best = certified(torch.from_numpy(picture())[None, None], cl.Identity())
    objective = 0.5 * ((x.asarray() - picture()) ** 2).sum() + R(x)
    assert float(best.lower_bound) <= objective <= 1.01 * float(best.objective)


def test_the_gradient_of_odl_belongs_to_its_inner_product():
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1).double()
    space = odl.uniform_discr([0, 0], [1, 1], [SIZE, SIZE])
    R = cl.odl.RegularizerFunctional(network, space)
    x, d = (
        space.element(picture()),
        space.element(np.random.default_rng(2).normal(size=space.shape)),
    )
    slope = (R(x + 1e-6 * d) - R(x - 1e-6 * d)) / 2e-6
    assert R.gradient(x).inner(d) == pytest.approx(slope, rel=1e-6)
