"""``cl.Operator``: operators from two functions, or from a matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from marks import slow

import convexlift as cl

SHAPE = (1, 6, 5)


def thin(x):
    return x[..., ::2, :]


def thick(y):
    x = y.new_zeros((len(y), *SHAPE))
    x[..., ::2, :] = y
    return x


def matrix():
    return torch.randn(12, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_two_functions_are_an_operator():
    A = cl.Operator(thin, thick, input_shape=SHAPE)
    cl.check_operator(A)
    assert A.output_shape(SHAPE) == (1, 3, 5)
    assert repr(A) == "Operator(functions, 1 x 6 x 5 -> 1 x 3 x 5)"


@pytest.mark.parametrize(
    "kind",
    [
        lambda m: m,
        lambda m: m.numpy(),
        lambda m: m.to_sparse(),
        lambda m: m.to_sparse_csr(),
        lambda m: scipy.sparse.csr_matrix(m.numpy()),
        lambda m: scipy.sparse.coo_array(m.numpy()),
    ],
    ids=["tensor", "array", "sparse", "csr", "scipy csr", "scipy coo array"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_matrix_is_an_operator(kind):
    """Whatever holds it, A x and A* y are the products with M and its transpose."""
    M = matrix()
    A = cl.Operator(kind(M), input_shape=SHAPE, output_shape=(3, 4))
    cl.check_operator(A)
    x, y = torch.randn(2, *SHAPE), torch.randn(2, 3, 4)
    assert torch.allclose(A(x).flatten(1), x.flatten(1) @ M.T)
    assert torch.allclose(A.adjoint(y).flatten(1), y.flatten(1) @ M)
    largest = float(torch.linalg.matrix_norm(M, 2))
    assert largest <= A.norm() <= 1.05 * largest


@pytest.mark.parametrize("gap", [1e-4, slow(1e-6)])
def test_problems_with_it_have_the_optimum_of_the_matrix(gap):
    """The same problem with the dense matrix and with a function that thins rows."""
    rows = thin(torch.arange(30.0).reshape(1, *SHAPE)).flatten().long()
    y = torch.rand(1, 1, 3, 5, generator=torch.Generator().manual_seed(1))
    solutions = []
    for A in (
        cl.Operator(thin, thick, input_shape=SHAPE),
        cl.Operator(torch.eye(30)[rows], input_shape=SHAPE, output_shape=(1, 3, 5)),
        cl.Operator(scipy.sparse.eye(30).tocsr()[rows.numpy()], input_shape=SHAPE,
                    output_shape=(1, 3, 5)),
    ):  # fmt: skip
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), operator=A, regularizer=cl.TotalVariation(), weight=0.1,
            box=(0, 1),
        )  # fmt: skip
        solutions.append(cl.solve(problem, stop=cl.StopWhen(gap=gap)))
    assert all(solution.status[0] is cl.Status.CONVERGED for solution in solutions)
    low = max(float(solution.lower_bound[0]) for solution in solutions)
    assert all(float(solution.objective[0]) <= low * (1 + 3 * gap) for solution in solutions)


def test_a_known_norm_is_used():
    assert cl.Operator(thin, thick, input_shape=SHAPE, norm=1.0).norm() == 1.0


def test_single_precision_stays_single():
    A = cl.Operator(scipy.sparse.csr_matrix(matrix().numpy()), input_shape=SHAPE)
    assert A(torch.zeros(1, *SHAPE, dtype=torch.float32)).dtype is torch.float32


@pytest.mark.parametrize(
    ("forward", "adjoint", "more", "message"),
    [
        (lambda x: x**2, lambda y: y, {}, "forward is not linear"),
        (lambda x: x + 1, lambda y: y, {}, "forward is not linear"),
        (lambda x: x, lambda y: 2 * y, {}, "adjoint is not the adjoint of forward"),
        (lambda x: x.float(), lambda y: y, {}, "must keep the precision of its input"),
        (lambda x: x.mean(0, keepdim=True) + 0 * x, lambda y: y, {}, "mixes the images"),
        (lambda x: x, None, {}, "needs its adjoint too"),
        (lambda x: x, lambda y: y[:, :, 1:], {}, r"adjoint\(y\) has the shape \(1, 5, 5\)"),
        (lambda x: x[0], lambda y: y, {}, "forward must map a batch to a batch"),
        (lambda x: x.numpy(), lambda y: y, {}, "must return a torch.Tensor, got ndarray"),
        (lambda x: x @ torch.ones(3, 3), lambda y: y, {}, "forward failed on a batch of the shape"),
        (np.zeros((3, 4)), None, {}, "needs an input_shape of 4 entries"),
        (np.zeros((4, 30)), None, {"output_shape": (5,)}, "needs an output_shape of 4 entries"),
        (np.zeros(3), None, {}, "a matrix has two dimensions"),
        (np.full((2, 30), np.nan), None, {}, "infinite or NaN"),
        (np.zeros((2, 30)), lambda y: y, {}, "is its transpose; leave out adjoint"),
        ("thin", None, {}, "two functions"),
        (lambda x: x, lambda y: y, {"norm": -1}, "norm must be a positive number"),
        (lambda x: x, lambda y: y, {"output_shape": (1, 2)}, r"output_shape says \(1, 2\)"),
    ],
)  # fmt: skip
def test_what_is_no_operator_is_refused(forward, adjoint, more, message):
    with pytest.raises(ValueError, match=message):
        cl.Operator(forward, adjoint, input_shape=SHAPE, **more)
