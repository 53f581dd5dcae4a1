"""Exact adjoints, norms from above, and errors that say what to write instead."""

from __future__ import annotations

import numpy as np
import parts
import pytest
import torch
from dense import dense_matrix
from parts import kernel, random
from scipy.sparse.linalg import LinearOperator, eigsh

import convexlift as cl
from convexlift.operators import convolution
from convexlift.operators.convolution import BOUNDARIES, ConvolutionOperator, Padding
from convexlift.operators.imaging import (
    DenseOperator,
    Diagonal,
    DifferenceOperator,
    PoolingOperator,
)

SHAPE = (2, 8, 9)


def weights(*shape: int, nonnegative: bool = False) -> torch.Tensor:
    return random(*shape).abs() if nonnegative else random(*shape)


IN = {"random": 1, "shift": 1, "difference": 1, "colour": 2, ">= 0": 2, "dead channel": 3}


def special_weights(kind: str, size: int) -> torch.Tensor:
    """Kernels that behave differently at an edge."""
    if kind == "shift":  # copies the corner pixel often, if the edge is replicated
        kernel = torch.zeros(1, 1, size, size)
        kernel[0, 0, 0, 0] = 1.0
        return kernel
    if kind == "difference":
        kernel = torch.zeros(2, 1, size, size)
        kernel[:, 0, size // 2, size // 2] = -1.0
        kernel[0, 0, -1, size // 2] = kernel[1, 0, size // 2, -1] = 1.0
        return kernel
    if kind == "dead channel":
        kernel = weights(4, 3, size, size, nonnegative=True)
        kernel[:, 1] = kernel[2] = 0.0
        return kernel
    return weights(4, IN[kind], size, size, nonnegative=kind == ">= 0")


OPERATORS = {
    **{
        name: lambda make=make, shape=SHAPE if name not in parts.ONE_CHANNEL else (1, *SHAPE[1:]): (
            make(shape), shape
        )
        for name, make in parts.OPERATORS.items()
    },
    "complex samples": lambda: (cl.MRI(parts.sampled(SHAPE)), SHAPE),
    "complex coils": lambda: (cl.MRI(parts.sampled(SHAPE), parts.coil_maps(SHAPE)), SHAPE),
    "diagonal per image": lambda: (Diagonal(weights(3, 1, 8, 9)), SHAPE),
    "mask per image": lambda: (cl.Mask(weights(3, 1, 8, 9) > 0), SHAPE),
    "padding": lambda: (Padding(SHAPE, (2, 1), "reflect"), SHAPE),
    "convolution": lambda: (ConvolutionOperator(weights(4, 2, 3, 3), SHAPE), SHAPE),
    "convolution, one channel": lambda: (
        ConvolutionOperator(weights(4, 1, 5, 5), (1, 8, 9)), (1, 8, 9)
    ),
    "convolution >= 0": lambda: (
        ConvolutionOperator(weights(4, 2, 3, 3, nonnegative=True), SHAPE), SHAPE
    ),
    "convolution, circular": lambda: (
        ConvolutionOperator(weights(4, 2, 5, 5), SHAPE, padding="circular"), SHAPE
    ),
    "convolution, circular, one channel": lambda: (
        ConvolutionOperator(weights(4, 1, 3, 3), (1, 8, 9), padding="circular"), (1, 8, 9)
    ),
    **{
        f"convolution {k} x {k}, {b}, {kind}": lambda k=k, b=b, kind=kind: (
            ConvolutionOperator(special_weights(kind, k), (IN[kind], 8, 9), padding=b),
            (IN[kind], 8, 9),
        )
        for b in ("reflect", "replicate") for k in (3, 5, 7) for kind in IN
    },
    "convolution, stride 2, reflect": lambda: (
        ConvolutionOperator(weights(4, 2, 3, 3), SHAPE, stride=2, padding="reflect"), SHAPE
    ),
    "convolution >= 0, stride 3, replicate": lambda: (
        ConvolutionOperator(
            weights(4, 2, 5, 5, nonnegative=True), SHAPE, stride=3, padding="replicate"
        ),
        SHAPE,
    ),
    "convolution, stride 2": lambda: (
        ConvolutionOperator(weights(4, 2, 3, 3), SHAPE, stride=2), SHAPE
    ),
    "convolution, stride 3, circular": lambda: (
        ConvolutionOperator(weights(4, 2, 5, 5), SHAPE, stride=3, padding="circular"), SHAPE
    ),
    "differences": lambda: (DifferenceOperator(SHAPE), SHAPE),
    "pooling": lambda: (PoolingOperator(2, (3, 8, 6)), (3, 8, 6)),
    "dense": lambda: (DenseOperator(weights(5, 144), SHAPE), SHAPE),
    "dense after pooling": lambda: (
        DenseOperator(weights(5, 36), (3, 4, 3)) @ PoolingOperator(2, (3, 8, 6)), (3, 8, 6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_exam(name):
    operator, shape = OPERATORS[name]()
    cl.check_operator(operator, shape)


@pytest.mark.parametrize("name", OPERATORS)
def test_exam_in_single_precision(name):
    operator, shape = OPERATORS[name]()
    cl.check_operator(operator, shape, dtype=torch.float32)


@pytest.mark.parametrize("name", [n for n in OPERATORS if "per image" not in n])
def test_adjoint_is_the_transpose_and_norm_an_upper_bound(name):
    operator, shape = OPERATORS[name]()
    matrix = dense_matrix(operator, shape)
    output_shape = operator.output_shape(shape)
    size = int(np.prod(output_shape))
    rows = torch.eye(size).reshape(size, *output_shape)
    transpose = torch.stack([operator.adjoint(row[None]).flatten() for row in rows]).numpy()
    np.testing.assert_allclose(transpose, matrix, atol=1e-14)
    exact = np.linalg.norm(matrix, 2)
    slack = 1.35 if "stride" not in name else 3.5  # nonnegative kernels ignore the stride
    assert exact * (1 - 1e-12) <= operator.norm(shape) <= slack * exact


@pytest.mark.parametrize("padding", BOUNDARIES)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_is_that_of_torch(padding, stride):
    x, w = weights(2, 2, 8, 9), weights(4, 2, 5, 5)
    mode = "zeros" if padding == "zero" else padding
    theirs = torch.nn.Conv2d(2, 4, 5, stride, padding=2, padding_mode=mode, bias=False)
    theirs.weight.data.copy_(w)
    ours = ConvolutionOperator(w, SHAPE, stride, padding)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("channels", "k"), [(1, 5), (2, 5), (3, 3), (4, 1), (1, 11)])
def test_adjoint_in_parts_is_that_of_torch(channels, k, dtype, monkeypatch):
    """With a few and with many sums along columns, in parts of rows that overlap."""
    monkeypatch.setattr(convolution, "SHARES", 1)
    weight, y = weights(6, channels, k, k), random(2, 6, 37, 20)
    operator = ConvolutionOperator(weight.to(dtype), (channels, 37, 20))
    exact = torch.nn.functional.conv_transpose2d(y, weight)
    error = (operator.adjoint_on_padded(y.to(dtype)) - exact).abs().max()
    assert error < 4 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_padding_by_index(boundary):
    """Which pixel stands where, written out; the adjoint is that of autograd."""
    places = {
        "zero": [None, None, 0, 1, 2, 3, None, None],
        "circular": [2, 3, 0, 1, 2, 3, 0, 1],
        "reflect": [2, 1, 0, 1, 2, 3, 2, 1],
        "replicate": [0, 0, 0, 1, 2, 3, 3, 3],
    }[boundary]
    x = torch.rand(1, 1, 1, 4, requires_grad=True)
    padding = Padding((1, 1, 4), (0, 2), boundary)
    padded = padding(x)
    row = x.detach().flatten().tolist()
    assert padded.flatten().tolist() == [0.0 if i is None else row[i] for i in places]
    y = torch.rand(1, 1, 1, 8)
    torch.testing.assert_close(padding.adjoint(y), torch.autograd.grad(padded, x, y)[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("padding", ["reflect", "replicate"])
@pytest.mark.parametrize("kind", IN)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_the_norm_of_a_large_image_is_bounded_from_a_small_one(padding, kind, size):
    shape = (IN[kind], 70, 61)
    operator = ConvolutionOperator(special_weights(kind, size), shape, padding=padding)

    def normal(v: np.ndarray) -> np.ndarray:
        return operator.adjoint(operator(torch.as_tensor(v).reshape(1, *shape))).flatten().numpy()

    count = int(np.prod(shape))
    matrix = LinearOperator((count, count), matvec=normal, dtype=np.float64)
    exact = float(eigsh(matrix, k=1, which="LA", tol=1e-6, return_eigenvectors=False)[0]) ** 0.5
    assert exact * (1 - 1e-12) <= operator.norm() <= 1.1 * exact


def test_blur_is_a_convolution_not_a_correlation():
    impulse = torch.zeros(1, 1, 7, 7)
    impulse[0, 0, 3, 3] = 1
    blurred = cl.Blur(kernel(3, 3), "zero")(impulse)
    torch.testing.assert_close(blurred[0, 0, 2:5, 2:5], kernel(3, 3))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_blur_of_a_constant_is_constant_unless_the_border_is_dark(boundary):
    blurred = cl.Blur.gaussian(1.0, boundary)(torch.ones(1, 1, 16, 16))
    assert torch.allclose(blurred, torch.ones(1, 1, 16, 16)) == (boundary != "zero")


def test_norm_is_computed_once():
    calls = []

    class Counting(cl.LinearOperator):
        input_shape = (1, 4, 4)

        def forward(self, x):
            calls.append(1)
            return 2 * x

        def adjoint(self, y):
            return 2 * y

    operator = Counting()
    first = operator.norm()
    count = len(calls)
    assert operator.norm() == first == pytest.approx(2 * 1.02)
    assert len(calls) == count


def test_conversion_moves_every_part():
    operator = (2 * cl.Blur(kernel())) @ cl.Mask(weights(8, 9) > 0)
    converted = operator.to(dtype=torch.float32)
    assert {t.dtype for t in converted.tensors()} == {torch.float32}
    assert {t.dtype for t in operator.tensors()} == {torch.float64}


def test_a_wrong_adjoint_is_caught():
    class Wrong(cl.LinearOperator):
        def forward(self, x):
            return x.roll(1, -1)

        def adjoint(self, y):
            return y.roll(1, -1)

    with pytest.raises(cl.CheckFailed, match="a relative difference of"):
        cl.check_operator(Wrong(), (1, 4, 5))


def test_a_non_linear_operator_is_caught():
    class Affine(cl.LinearOperator):
        def forward(self, x):
            return x + 1

        def adjoint(self, y):
            return y

    with pytest.raises(cl.CheckFailed):
        cl.check_operator(Affine(), (1, 4, 5))


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
        (lambda: cl.Blur(torch.ones(3, 3)).norm(), "say for which one"),
        (lambda: PoolingOperator(3, (1, 8, 9)), "does not divide"),
        (lambda: DenseOperator(torch.ones(2, 5), (1, 2, 2)), r"\(4 features\)"),
        (lambda: ConvolutionOperator(torch.ones(1, 2, 3, 3), (1, 4, 4)), "2 input channels"),
        (lambda: PoolingOperator(2, (1, 4, 4))(torch.ones(1, 1, 6, 4)), "expects inputs of shape"),
        (
            lambda: PoolingOperator(2, (1, 4, 4)) + PoolingOperator(2, (1, 8, 8)),
            "cannot be added",
        ),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_diagonal_operator():
    values = weights(8, 9)
    operator = Diagonal(values)
    x = torch.rand(2, 1, 8, 9)
    assert torch.equal(operator(x), values * x)
    assert torch.equal(operator.diagonal, values[None, None])
    assert operator.norm() == float(values.abs().max())
    assert Diagonal(torch.arange(4).reshape(2, 2)).values.is_floating_point()
    with pytest.raises(ValueError, match=r"Diagonal takes the shape .* got \(3,\)"):
        Diagonal(torch.ones(3))
    with pytest.raises(ValueError, match=r"Diagonal got nan at \(0, 1\)"):
        Diagonal(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match=r"Diagonal of shape \(1, 1, 8, 9\) does not fit"):
        operator.output_shape((1, 9, 8))
