"""A matrix of steps for few unknowns behind operators that mix pixels: valid, right, worth it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense import dense_matrix
from oracle import optimum

import convexlift as cl
from convexlift.functionals.terms import DiagonalFidelityTerm
from convexlift.problems.lifting import lift
from convexlift.solvers import matrix_steps
from convexlift.solvers.loop import suitable_method
from convexlift.solvers.matrix_steps import MatrixCoupling, MatrixSteps, has_matrix
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.tensors import Blocks

KERNEL = torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.3, 0.7], [0.1, 0.6, 0.2]], dtype=torch.float64)


def network(kind: str) -> cl.InputConvexNetwork:
    torch.manual_seed(0)
    if kind == "tv":
        return cl.TotalVariation(isotropic=False)
    layers = [
        cl.ConvexLayer(cl.LeakyReLU(0.2), channels=2, skip=cl.networks.Convolution(1, 2, 3)),
        cl.ConvexLayer(
            cl.ReLU(),
            channels=2,
            previous=cl.networks.Convolution(2, 2, 3, nonnegative=True),
            residual=kind == "residual",
        ),
    ]
    made = cl.InputConvexNetwork(layers)
    made.project_()
    return made


def problem(kind="tv", weights=None, batch=1, dtype=torch.float64, size=7, box=(0.0, 1.0)):
    generator = torch.Generator().manual_seed(1)
    A = cl.Blur(KERNEL / KERNEL.sum(), "reflect")
    x = torch.rand(batch, 1, size, size, generator=generator, dtype=torch.float64).round()
    y = A(x) + 0.01 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    data = cl.SquaredL2(y) if weights is None else cl.WeightedL2(y, weights)
    return cl.VariationalProblem(
        fidelity=data.to(dtype=dtype), operator=A.to(dtype=dtype),
        regularizer=network(kind).to(dtype), weight=0.01, box=box,
    )  # fmt: skip


def solver(stated: cl.VariationalProblem) -> RestartedPDHG:
    made = cl.PDHG()._adaptive(stated)
    assert isinstance(made.coupling, MatrixCoupling)
    return made


def weights(batch: int = 1) -> torch.Tensor:
    """Weights over eight decades, some of them zero."""
    generator = torch.Generator().manual_seed(5)
    omega = 10 ** (-8 * torch.rand(batch, 1, 7, 7, generator=generator, dtype=torch.float64))
    omega[..., 2, :3] = 0.0
    return omega


@pytest.mark.parametrize("kind", ["tv", "deep", "residual"])
def test_t_inverse_is_the_sum_over_rows_and_the_steps_are_admissible(kind):
    made = solver(problem(kind, weights()))
    K, coupling = made.saddle.K, made.coupling
    sigma = Blocks({v: torch.tensor([10.0 ** (i % 3 - 1)]).double() for i, v in enumerate(K.rows)})
    tau = coupling.tau(sigma)
    assert isinstance(tau, MatrixSteps)
    total = 0
    for v, row in K.rows.items():
        matrices = [
            dense_matrix(row[name], shape) if name in row else None
            for name, shape in K.shapes.items()
        ]
        height = next(len(m) for m in matrices if m is not None)
        whole = np.concatenate(
            [np.zeros((height, int(np.prod(s)))) if m is None else m
             for m, s in zip(matrices, K.shapes.values(), strict=True)], axis=1,
        )  # fmt: skip
        d = np.ones(height)
        if v in coupling.factors:
            d = coupling.factors[v].expand(1, 1, 7, 7).flatten().numpy()
        total = total + float(sigma[v]) * whole.T @ (d[:, None] * whole)
    T = tau["T"][0].numpy()
    assert np.linalg.eigvals(T @ total).real.max() < 1
    tiny = matrix_steps.TINY * total.diagonal().max() * np.eye(len(total))
    np.testing.assert_allclose(T @ (total + tiny), 0.999 * np.eye(len(T)), atol=1e-5)


@pytest.mark.parametrize("kind", ["tv", "deep", "residual"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum_is_cvxpys(kind, weighted):
    stated = problem(kind, weights() if weighted else None, size=7)
    solver(stated)
    found = cl.solve(stated, stop=cl.StopWhen(gap=1e-5, max_iterations=2000))
    assert found.status == (cl.Status.CONVERGED,)
    assert float(found.objective) == pytest.approx(optimum(stated)[0], rel=2e-5)


def test_fewer_iterations_than_with_one_step_for_each_block():
    stated = problem()
    counts = []
    for largest in (512, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matrix_steps, "LARGEST", largest)
            counts.append(int(cl.solve(stated, stop=cl.StopWhen(gap=1e-4)).iterations))
    assert counts[0] <= 0.6 * counts[1]


@pytest.mark.parametrize(("views", "most"), [(1, 2048), (10, 1024), (30, 512)])
def test_the_fewer_the_data_the_larger_the_matrix_may_be(views, most):
    A = cl.ParallelBeam(40, angles=views, bins=57)
    y = torch.zeros(1, 1, views, 57)
    stated = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=A, regularizer=cl.TotalVariation(), weight=1.0
    )
    assert matrix_steps.most_unknowns(stated) == most
    assert has_matrix(stated) == (most >= 1600)


def deep_and_smooth(size: int, operator: cl.LinearOperator) -> cl.VariationalProblem:
    torch.manual_seed(0)
    regularizer = cl.networks.deep(size, channels=2, kernel=3, pool=4, hidden=4, smoothing=0.1)
    y = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(operator(y)), operator=operator, regularizer=regularizer, weight=0.1,
        box=(0, None),
    )  # fmt: skip


def test_deep_and_smooth_problems_are_lifted_if_a_matrix_makes_their_layers_agree():
    blur = cl.Blur(KERNEL / KERNEL.sum(), "reflect")
    small, large = deep_and_smooth(8, blur), deep_and_smooth(24, blur)
    assert has_matrix(small)
    assert solver(small)
    assert suitable_method(small) == cl.PDHG()
    assert (
        suitable_method(large) == suitable_method(deep_and_smooth(8, cl.Identity())) == (cl.LBFGS())
    )
    lifted = cl.solve(small, stop=cl.StopWhen(gap=1e-3, max_iterations=200))
    direct = cl.solve(small, method=cl.LBFGS(), stop=cl.StopWhen(max_iterations=20))
    assert lifted.status == (cl.Status.CONVERGED,)
    assert float(lifted.lower_bound) <= float(direct.objective)
    assert float(direct.lower_bound) <= float(lifted.objective)


def test_a_batch_gives_what_single_images_give():
    whole = problem(weights=weights(3), batch=3)
    together = cl.solve(whole, stop=cl.StopWhen(gap=1e-4))
    for i in range(3):
        one = whole.select(torch.tensor([i]))
        alone = cl.solve(one, stop=cl.StopWhen(gap=1e-4))
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=0, atol=1e-8)


def test_single_precision_is_solved_in_double_and_answered_in_single():
    stated = problem(dtype=torch.float32)
    found = cl.solve(stated, stop=cl.StopWhen(gap=1e-4))
    assert found.x.dtype == torch.float32
    assert {part.dtype for part in found.duals.values()} == {torch.float32}
    assert found.state.u["x"].dtype == torch.float64
    assert found.status == (cl.Status.CONVERGED,)
    again = cl.solve(stated, start=found.state, stop=cl.StopWhen(gap=1e-5))
    assert again.status == (cl.Status.CONVERGED,)
    assert int(again.iterations) < int(cl.solve(stated, stop=cl.StopWhen(gap=1e-5)).iterations)


def test_other_problems_do_not_take_it():
    def chosen(stated):
        return type(cl.PDHG()._adaptive(stated).coupling)

    assert chosen(problem()) is MatrixCoupling
    assert chosen(problem(size=23)) is not MatrixCoupling  # 529 pixels
    assert chosen(problem("deep", size=14)) is not MatrixCoupling  # 588 unknowns
    seen = cl.Mask((torch.rand(2, 1, 7, 7) < 0.7).double())
    own = problem(batch=2)
    own = cl.VariationalProblem(
        fidelity=own.fidelity, operator=seen @ own.operator, regularizer=network("tv").double(),
        weight=0.01, box=(0, 1),
    )  # fmt: skip
    assert chosen(own) is not MatrixCoupling  # another mask for each image
    pixels = cl.VariationalProblem(
        fidelity=problem().fidelity, regularizer=network("tv").double(), weight=0.01
    )
    assert isinstance(lift(pixels).g["x"], DiagonalFidelityTerm)
    assert chosen(pixels) is not MatrixCoupling


def test_a_start_outside_the_domain_of_the_data_term_is_no_end():
    """Counts without background, behind a kernel with negative values: A x < 0 at the start."""
    A = cl.Blur(KERNEL - 0.6, "zero")
    y = torch.rand((1, 1, 7, 7), generator=torch.Generator().manual_seed(3)).double()
    stated = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(y), operator=A, regularizer=network("tv").double(),
        weight=0.01, box=(0, None),
    )  # fmt: skip
    assert not torch.isfinite(stated.objective(stated.initial_image())).all()
    state = solver(stated).start(stated.initial_image())
    assert all(torch.isfinite(part).all() for part in state.v.values())
    found = cl.solve(stated, stop=cl.StopWhen(gap=1e-3, max_iterations=50))
    assert found.status != (cl.Status.NOT_FINITE,)
