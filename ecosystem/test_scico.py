"""``cl.scico`` with SCICO itself: ``make test-ecosystem``."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scico.numpy as snp
import torch
from scico import linop, loss
from scico.optimize import ADMM
from scico.optimize.admm import LinearSubproblemSolver
from scico.optimize.pgm import AcceleratedPGM
from test_numpy_libraries import SIZE, WEIGHT, Matrix, certified, matrix, picture

import convexlift as cl

pytestmark = pytest.mark.filterwarnings("default")


def image():
    return snp.array(picture().astype(np.float32))


def functional(accuracy: float = 1e-4) -> cl.scico.RegularizerFunctional:
    return cl.scico.RegularizerFunctional(cl.TotalVariation(), accuracy=accuracy)


def test_algorithms_of_scico_reach_the_certified_optimum():
    rows = snp.array(matrix().astype(np.float32))
    A = linop.MatrixOperator(rows) @ linop.Reshape((SIZE, SIZE), (SIZE**2,), input_dtype=np.float32)
    y = A(image())
    best = certified(torch.from_numpy(np.array(y, dtype=np.float64))[None], Matrix())
    data, R = loss.SquaredL2Loss(y=y, A=A), functional()
    start = snp.zeros((SIZE, SIZE), dtype=np.float32)
    lipschitz = 1.01 * float(np.linalg.norm(matrix(), 2)) ** 2
    fast = AcceleratedPGM(f=data, g=WEIGHT * R, L0=lipschitz, x0=start, maxiter=100)
    split = ADMM(
        f=data, g_list=[WEIGHT * R], C_list=[linop.Identity((SIZE, SIZE))], rho_list=[1.0],
        x0=start, maxiter=60, subproblem_solver=LinearSubproblemSolver(),
    )  # fmt: skip
    for solver in (fast, split):
        found = solver.solve()
        objective = float(data(found)) + WEIGHT * float(R(found))
        assert float(best.lower_bound) * (1 - 1e-4) <= objective <= 1.01 * float(best.objective)


def test_moreaus_identity_inside_and_outside_of_compiled_functions():
    R, x, lam = functional(), image(), 0.3
    split = R.prox(x, lam) + lam * R.conj_prox(x / lam, 1 / lam)
    np.testing.assert_allclose(split, x, atol=1e-3)
    compiled = jax.jit(lambda v: R.prox(v, lam))(x)
    np.testing.assert_allclose(compiled, R.prox(x, lam), atol=1e-6)


def test_bad_factors_are_refused():
    with pytest.raises(Exception, match="a number > 0, got -1"):
        functional().prox(image(), -1.0)
