"""Every operator of the registry, and every map of networks: dense matrices, fractions, proofs.

The matrix of an operator is found column by column, and everything else is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import parts
import pytest
import scipy.sparse
import torch
from dense import dense_matrix
from marks import slow
from parts import BOUNDARIES, kernel, random
from scipy.sparse.linalg import LinearOperator, eigsh

import convexlift as cl
from convexlift.networks import AveragePool, Convolution, Dense, ForwardDifferences, PixelSum

SHAPE = (2, 8, 9)
Shape = tuple[int, ...]
IN = {"random": 1, "shift": 1, "difference": 1, "colour": 2, ">= 0": 2, "dead channel": 3}


def special_weights(kind: str, size: int) -> torch.Tensor:
    """Kernels that behave differently at an edge."""
    if kind == "shift":  # copies the corner pixel often, if the edge is replicated
        weights = torch.zeros(1, 1, size, size)
        weights[0, 0, 0, 0] = 1.0
    elif kind == "difference":
        weights = torch.zeros(2, 1, size, size)
        weights[:, 0, size // 2, size // 2] = -1.0
        weights[0, 0, -1, size // 2] = weights[1, 0, size // 2, -1] = 1.0
    else:
        weights = random(4, IN[kind], size, size)
        if kind in (">= 0", "dead channel"):
            weights = weights.abs()
        if kind == "dead channel":
            weights[:, 1] = weights[2] = 0.0
    return weights


def convolution(weights: torch.Tensor, shape: Shape, **options) -> cl.LinearOperator:
    """The operator of a layer with these weights."""
    outputs, inputs, size, _ = weights.shape
    layer = Convolution(inputs, outputs, size, **options)
    layer.weight.data.copy_(weights)
    return layer.operator(shape).detach()


def dense_map(outputs: int, shape: Shape) -> cl.LinearOperator:
    return Dense(int(np.prod(shape)), outputs).operator(shape).detach()


Make = Callable[[], tuple[cl.LinearOperator, Shape]]


def of_registry(name: str, shape: Shape = SHAPE) -> tuple[cl.LinearOperator, Shape]:
    shape = (1, *shape[1:]) if name in parts.ONE_CHANNEL else shape
    return parts.OPERATORS[name](shape), shape


OPERATORS: dict[str, Make] = {
    **{name: lambda name=name: of_registry(name) for name in parts.OPERATORS},
    "complex samples": lambda: (cl.MRI(parts.sampled(SHAPE)), SHAPE),
    "complex coils": lambda: (cl.MRI(parts.sampled(SHAPE), parts.coil_maps(SHAPE)), SHAPE),
    "differences": lambda: (ForwardDifferences().operator(SHAPE), SHAPE),
    "pooling": lambda: (AveragePool(2).operator((3, 8, 6)), (3, 8, 6)),
    "sum": lambda: (PixelSum().operator((3, 4, 5)), (3, 4, 5)),
    "mean": lambda: (PixelSum(mean=True).operator((3, 4, 5)), (3, 4, 5)),
    "dense": lambda: (dense_map(5, SHAPE), SHAPE),
    "dense after pooling": lambda: (
        dense_map(5, (3, 4, 3)) @ AveragePool(2).operator((3, 8, 6)), (3, 8, 6)
    ),
}  # fmt: skip
CONVOLUTIONS: dict[str, Make] = {
    f"{k} x {k}, {b}, {kind}, stride {s}": lambda k=k, b=b, kind=kind, s=s: (
        convolution(special_weights(kind, k), (IN[kind], 8, 9), stride=s, padding=b),
        (IN[kind], 8, 9),
    )
    for s in (1, 2) for b in BOUNDARIES for k in (1, 3, 5, 7) for kind in IN
}  # fmt: skip
QUICK = 5
every_operator = pytest.mark.parametrize(
    "name", [*OPERATORS, *(slow(n) if i % QUICK else n for i, n in enumerate(CONVOLUTIONS))]
)


@cache
def case(name: str) -> tuple[cl.LinearOperator, Shape, np.ndarray]:
    with torch.no_grad():
        operator, shape = (OPERATORS | CONVOLUTIONS)[name]()
        return operator, shape, dense_matrix(operator, shape)


@every_operator
def test_the_exam_is_passed(name):
    """Linear, with an adjoint, shapes, a diagonal and a transfer function if it has them."""
    operator, shape, _ = case(name)
    for dtype in (torch.float64, torch.float32):
        cl.check_operator(operator, shape, dtype=dtype)


@every_operator
def test_the_adjoint_is_the_transpose_and_the_norm_an_upper_bound(name):
    operator, shape, matrix = case(name)
    output_shape = operator.output_shape(shape)
    size = int(np.prod(output_shape))
    rows = torch.eye(size).reshape(size, *output_shape)
    transpose = torch.stack([operator.adjoint(row[None]).flatten() for row in rows]).numpy()
    np.testing.assert_allclose(transpose, matrix, atol=1e-14)
    exact = np.linalg.norm(matrix, 2)
    # Bounds of nonnegative kernels ignore strides, and kernels as large as the image its edges.
    slack = 3.5 if "stride 2" in name else 1.5 if "7 x 7" in name else 1.35
    assert exact * (1 - 1e-12) <= operator.norm(shape) <= slack * exact
    if operator.nonnegative:
        assert matrix.min() >= 0


@every_operator
def test_images_of_a_batch_do_not_meet(name):
    operator, shape, matrix = case(name)
    x = torch.randn(3, *shape)
    Ax = operator(x)
    assert Ax.shape == (3, *operator.output_shape(shape))
    np.testing.assert_allclose(Ax.flatten(1).numpy(), x.flatten(1).numpy() @ matrix.T, atol=1e-12)
    single = operator.to(dtype=torch.float32)
    y = torch.randn(Ax.shape, dtype=torch.float32)
    assert single(x.float()).dtype == single.adjoint(y).dtype == torch.float32
    assert operator(x).dtype == torch.float64  # conversions make copies


# Rounding


@every_operator
@pytest.mark.parametrize("adjoint", [False, True], ids=["A", "A*"])
def test_rounding_errors_are_below_their_bounds(name, adjoint):
    """Of A x in single precision, against sums of fractions: roundings eps |A| |x|."""
    operator, shape, _ = case(name)
    single = operator.to(dtype=torch.float32)
    operator = single.to(dtype=torch.float64)  # the same rounded coefficients
    matrix = dense_matrix(operator, shape)
    target = operator.output_shape(shape)
    source, target = (target, shape) if adjoint else (shape, target)
    matrix = matrix.T if adjoint else matrix
    x = torch.randn((1, *source)).float()
    sizes = x.abs().double()  # of channels, or of features
    sizes = sizes.amax(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else sizes
    magnitude = operator.magnitude(sizes, shape, adjoint=adjoint)
    largest = np.abs(matrix) @ sizes.expand(1, *source).flatten().numpy()
    bound = magnitude.expand(1, *target).flatten().numpy()
    assert (bound >= largest * (1 - 1e-12)).all()
    found = (single.adjoint(x) if adjoint else single(x)).flatten().tolist()
    roundings, eps = operator.roundings(shape, adjoint=adjoint), torch.finfo(torch.float32).eps
    numbers = [Fraction(v) for v in x.flatten().tolist()]
    for i in range(0, len(found), max(1, len(found) // 12)):
        row = zip(map(Fraction, matrix[i].tolist()), numbers, strict=True)
        true = sum(a * b for a, b in row if a)
        assert abs(Fraction(found[i]) - true) <= roundings * eps * bound[i]


# What operators are


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_boundaries_say_which_pixels_are_beyond(boundary):
    """Written out for a row of four, with a kernel that is turned around: no correlation."""
    places = {
        "zero": [None, None, 0, 1, 2, 3, None, None],
        "circular": [2, 3, 0, 1, 2, 3, 0, 1],
        "reflect": [2, 1, 0, 1, 2, 3, 2, 1],
        "replicate": [0, 0, 0, 1, 2, 3, 3, 3],
    }[boundary]
    taps = torch.rand(1, 5)
    x = torch.rand(1, 1, 1, 4)
    row = [Fraction(0) if i is None else Fraction(float(x[0, 0, 0, i])) for i in places]
    weights = [Fraction(tap) for tap in taps.flatten().tolist()]
    expected = [float(sum(w * row[i + 4 - j] for j, w in enumerate(weights))) for i in range(4)]
    blurred = cl.Blur(taps, boundary)(x)
    torch.testing.assert_close(blurred.flatten(), torch.tensor(expected), rtol=1e-15, atol=1e-15)
    ones = cl.Blur.gaussian(1.0, boundary)(torch.ones(1, 1, 16, 16))
    assert torch.allclose(ones, torch.ones_like(ones)) == (boundary != "zero")
    # Layers: the same margins, and torch's correlation.
    weights = random(4, 2, 5, 5)
    mode = "zeros" if boundary == "zero" else boundary
    for stride in (1, 2):
        theirs = torch.nn.Conv2d(2, 4, 5, stride, padding=2, padding_mode=mode, bias=False)
        theirs.weight.data.copy_(weights)
        ours = convolution(weights, SHAPE, stride=stride, padding=boundary)
        torch.testing.assert_close(ours(random(2, *SHAPE)), theirs(random(2, *SHAPE)))


def test_factors_are_not_rounded():
    """torch makes tensors of Python numbers in its default precision, which users leave single."""
    torch.set_default_dtype(torch.float32)
    x, mask = torch.rand(1, 1, 5, 4, dtype=torch.float64), torch.ones(5, 4, dtype=torch.float64)
    for operator, factor in [
        (0.1 * cl.Identity(), Fraction(0.1)),
        (0.3 * (0.7 * cl.Identity()), Fraction(0.3) * Fraction(0.7)),
        ((0.1 * cl.Identity()) @ cl.Mask(mask), Fraction(0.1)),
        (0.1 * cl.Identity() + 0.7 * cl.Mask(mask), Fraction(0.1) + Fraction(0.7)),
    ]:
        expected = torch.tensor([float(factor * Fraction(v)) for v in x.flatten().tolist()],
                                dtype=torch.float64)  # fmt: skip
        for found in (operator(x), operator.adjoint(x), operator.diagonal.to(x) * x):
            torch.testing.assert_close(found.flatten(), expected, rtol=4e-16, atol=0)


def test_masks_of_images_are_selected_with_them():
    A, x = cl.Mask(random(3, 1, 8, 9) > 0), torch.rand(3, 1, 8, 9)
    cl.check_operator(A, (1, 8, 9))
    assert torch.equal(A.select(torch.tensor([2, 0]))(x[[2, 0]]), A(x)[[2, 0]])
    assert torch.equal(A(x), A.diagonal * x)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("padding", ["reflect", "replicate"])
@pytest.mark.parametrize("kind", IN)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_norms_of_large_images_are_bounded_too(padding, kind, size):
    shape = (IN[kind], 70, 61)
    operator = convolution(special_weights(kind, size), shape, padding=padding)

    def normal(v: np.ndarray) -> np.ndarray:
        return operator.adjoint(operator(torch.as_tensor(v).reshape(1, *shape))).flatten().numpy()

    count = int(np.prod(shape))
    matrix = LinearOperator((count, count), matvec=normal, dtype=np.float64)
    exact = float(eigsh(matrix, k=1, which="LA", tol=1e-6, return_eigenvectors=False)[0]) ** 0.5
    assert exact * (1 - 1e-12) <= operator.norm() <= 1.1 * exact


# Files


@pytest.mark.parametrize("name", parts.OPERATORS)
def test_proofs_hold_the_same_operator(name, tmp_path):
    """The checker finds the same objective from the arguments that the file has of A."""
    A, shape = of_registry(name, (1, 8, 9))
    x = torch.rand(1, *shape)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(A(x) + 0.1), operator=A, weight=0.1, box=(0, 1),
        regularizer=cl.TotalVariation(),
    )  # fmt: skip
    proof = cl.Proof(problem, cl.certify(problem, x)).save(tmp_path / "x.proof")
    (verdict,) = cl.verify(proof)
    assert verdict.objective == pytest.approx(float(problem.objective(x)), rel=1e-9)


# Operators of users


FORWARD = torch.randn(12, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
THIN = (1, 6, 5)


def thin(x):
    return x[..., ::2, :]


def thick(y):
    x = y.new_zeros((len(y), *THIN))
    x[..., ::2, :] = y
    return x


MATRICES = {
    "tensor": lambda m: m,
    "array": lambda m: m.numpy(),
    "sparse": lambda m: m.to_sparse(),
    "csr": lambda m: m.to_sparse_csr(),
    "scipy csr": lambda m: scipy.sparse.csr_matrix(m.numpy()),
    "scipy coo": lambda m: scipy.sparse.coo_array(m.numpy()),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_matrix_is_an_operator(kind):
    A = cl.Operator(MATRICES[kind](FORWARD), input_shape=THIN, output_shape=(3, 4))
    cl.check_operator(A)
    cl.check_operator(A, dtype=torch.float32)
    np.testing.assert_allclose(dense_matrix(A, THIN), FORWARD.numpy())
    largest = float(torch.linalg.matrix_norm(FORWARD, 2))
    assert largest <= A.norm() <= 1.05 * largest


def test_two_functions_are_an_operator():
    A = cl.Operator(thin, thick, input_shape=THIN)
    cl.check_operator(A)
    assert A.output_shape(THIN) == (1, 3, 5)
    assert repr(A) == "Operator(functions, 1 x 6 x 5 -> 1 x 3 x 5)"
    assert cl.Operator(thin, thick, input_shape=THIN, norm=1.0).norm() == 1.0


@pytest.mark.parametrize("gap", [1e-4, slow(1e-6)])
def test_problems_with_functions_have_the_optimum_of_the_matrix(gap):
    rows = thin(torch.arange(30.0).reshape(1, *THIN)).flatten().long()
    y, solutions = torch.rand(1, 1, 3, 5), []
    for A in (
        cl.Operator(thin, thick, input_shape=THIN),
        cl.Operator(torch.eye(30)[rows], input_shape=THIN, output_shape=(1, 3, 5)),
        cl.Operator(
            scipy.sparse.eye(30).tocsr()[rows.numpy()], input_shape=THIN, output_shape=(1, 3, 5)
        ),
    ):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), operator=A, regularizer=cl.TotalVariation(), weight=0.1,
            box=(0, 1),
        )  # fmt: skip
        solutions.append(cl.solve(problem, stop=cl.StopWhen(gap=gap)))
    low = max(float(solution.lower_bound) for solution in solutions)
    assert all(float(solution.objective) <= low * (1 + 3 * gap) for solution in solutions)


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
        cl.Operator(forward, adjoint, input_shape=THIN, **more)


LIES = {
    "A is not linear": {"forward": lambda A, x: x if x.norm() < 8 else 2 * x},
    "relative difference of": {"adjoint": lambda A, y: 2 * y},
    "output_shape says": {"output_shape": lambda A, shape: (1, 2, 3)},
    "A.adjoint gives": {"adjoint": lambda A, y: y[..., 1:]},
    "A x and diagonal": {"diagonal": torch.tensor(2.0, dtype=torch.float64)},
    "transfer": {"transfer": lambda A, shape: torch.full((4, 3), 2.0 + 0j)},
    r"norm\(\) is": {"norm": lambda A, shape=None: 0.5},
}


@pytest.mark.parametrize("lie", LIES)
def test_the_exam_catches_lies(lie):
    honest = {"forward": lambda A, x: x, "adjoint": lambda A, y: y}
    liar = type("Liar", (cl.LinearOperator,), honest | LIES[lie])
    with pytest.raises(cl.CheckFailed, match=lie):
        cl.check_operator(liar(), (1, 4, 5))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.Mask(torch.tensor([[0.0, 0.5]])), r"found 0.5 at \(0, 1\)"),
        (lambda: cl.Mask(torch.ones(3)), r"\(H, W\), \(C, H, W\) or \(B, C, H, W\)"),
        (lambda: cl.Blur(torch.ones(2, 3)), "odd size"),
        (lambda: cl.Blur(torch.full((3, 3), torch.nan)), r"nan at \(0, 0\)"),
        (lambda: cl.Blur(torch.ones(3, 3), "mirror"), "boundary must be one of"),
        (lambda: cl.Blur.gaussian(0.0), "sigma > 0"),
        (lambda: cl.Blur(torch.ones(9, 9), "reflect")(torch.ones(1, 1, 4, 4)), "does not fit"),
        (lambda: cl.Identity() * float("nan"), "scaled by nan"),
        (lambda: cl.Blur(kernel()).norm(), "say for which one"),
        (lambda: AveragePool(3).operator((1, 8, 9)), "does not divide"),
        (lambda: Dense(5, 2).operator((1, 2, 2)), "a dense map from 5 features does not fit"),
        (lambda: convolution(torch.ones(1, 2, 3, 3), (1, 4, 4)), "2 input channels"),
        (lambda: AveragePool(2).operator((1, 4, 4))(torch.ones(1, 1, 6, 4)), "expects inputs of"),
        (
            lambda: AveragePool(2).operator((1, 4, 4)) + AveragePool(2).operator((1, 8, 8)),
            "cannot be added",
        ),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()
