"""``cl.cil`` with a stand-in that has the methods of CIL (``stand_in_cil``)."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import stand_in_cil as cil
import torch

import convexlift as cl

SHAPE, WEIGHT = (8, 8), 0.1
DATA = (5, 9)
TV = cl.TotalVariation()


@pytest.fixture
def adapter(monkeypatch):
    cil.install(monkeypatch)
    module = importlib.import_module("convexlift.cil")
    yield module
    sys.modules.pop("convexlift.cil", None)
    vars(cl).pop("cil", None)


def matrix_operator() -> cil.MatrixOperator:
    matrix = np.random.default_rng(0).normal(size=(45, 64)) / 8
    return cil.MatrixOperator(matrix, cil.Geometry(*SHAPE), cil.Geometry(*DATA))


def container(array: np.ndarray) -> cil.Container:
    return cil.Container(array.astype(np.float32), cil.Geometry(*array.shape))


def picture() -> np.ndarray:
    x = np.zeros(SHAPE)
    x[2:6, 3:7] = 1
    return x + 0.05 * np.random.default_rng(1).normal(size=SHAPE)


def certified(adapter) -> tuple[cil.MatrixOperator, cil.Container, cl.Solution]:
    A = matrix_operator()
    b = A.direct(container(picture()))
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.from_numpy(b.array)[None, None]),
        operator=adapter.ContainerOperator(A, terms=64), regularizer=TV, weight=WEIGHT,
    )  # fmt: skip
    return A, b, cl.solve(problem, stop=cl.StopWhen(gap=3e-3, max_iterations=3000))


def test_their_operators_are_ours(adapter):
    A = matrix_operator()
    operator = adapter.ContainerOperator(A)
    x = torch.randn(2, 1, *SHAPE, dtype=torch.float32)
    expected = x.flatten(1) @ torch.from_numpy(A.matrix).T
    torch.testing.assert_close(operator(x), expected.reshape(2, 1, *DATA))
    assert A.norm() <= operator.norm() <= 1.03 * A.norm()
    cl.check_operator(operator, dtype=torch.float32)


def test_their_fista_reaches_the_certified_optimum(adapter):
    A, b, best = certified(adapter)
    assert best.gap <= 3e-3
    R = WEIGHT * adapter.RegularizerFunction(TV)
    f = cil.LeastSquares(A, b, c=0.5)
    x, values = cil.fista(A.domain_geometry().allocate(0), f, R, 80)
    assert values[-1] == pytest.approx(f(x) + R(x))
    assert float(best.lower_bound) <= f(x) + R(x) <= 1.02 * float(best.objective)


def test_a_smooth_regularizer_stands_beside_the_data_term(adapter):
    """FISTA on 1/2 |x - b|^2 + w R(x) with x >= 0.3, by gradients of R."""
    b = container(picture())
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1).float()
    R = adapter.RegularizerFunction(network)
    data, box = 0.5 * cil.L2NormSquared(b), cil.IndicatorBox(0.3)
    with pytest.raises(TypeError):
        cil.fista(b, data + WEIGHT * R, box, 1)  # no step size, and no constant of R is known
    with torch.no_grad():  # norms of convolutions by Young's inequality, and h'' <= 1 / smoothing
        filters = network.layers[0].skip.weight.abs().flatten(1).sum(1)
        R.L = float((network.output * filters**2).sum() / 0.1)
    _, values = cil.fista(b, data + WEIGHT * R, box, 400)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.from_numpy(b.array)[None, None]), regularizer=network,
        weight=WEIGHT, box=(0.3, None),
    )  # fmt: skip
    best = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    # CIL sums in single precision, which may round an optimum below its lower bound.
    assert (1 - 1e-6) * float(best.lower_bound) <= values[-1] <= 1.001 * float(best.objective)


def test_operators_may_return_nothing_and_slices_are_images(adapter):
    """Older operators return nothing with ``out``; newer geometries keep a single slice."""
    given = matrix_operator()
    A = cil.SilentOperator(given.matrix, cil.Geometry(1, *SHAPE), cil.Geometry(1, *DATA))
    operator = adapter.ContainerOperator(A)
    assert (operator.input_shape, operator.data_shape) == ((1, *SHAPE), (1, *DATA))
    x = torch.randn(2, 1, *SHAPE, dtype=torch.float32)
    torch.testing.assert_close(operator(x), adapter.ContainerOperator(given)(x))


def test_results_do_not_share_the_memory_of_a_container(adapter):
    given = matrix_operator()
    A = cil.BufferedOperator(given.matrix, given.domain, given.range)
    operator = adapter.ContainerOperator(A)
    x = torch.randn(2, 1, *SHAPE, dtype=torch.float32)
    matrix = torch.from_numpy(A.matrix)
    first = operator(x)
    operator(torch.zeros_like(x))
    torch.testing.assert_close(first.flatten(1), x.flatten(1) @ matrix.T)
    y = torch.randn(3, 1, *DATA, dtype=torch.float32)
    torch.testing.assert_close(operator.adjoint(y).flatten(1), y.flatten(1) @ matrix)


def test_autograd_goes_through_their_operators(adapter):
    A = matrix_operator()
    operator = adapter.ContainerOperator(A)
    x = torch.randn(2, 1, *SHAPE, dtype=torch.float32, requires_grad=True)
    v = torch.randn(2, 1, *DATA, dtype=torch.float32)
    (slope,) = torch.autograd.grad((operator(x) * v).sum(), x)
    torch.testing.assert_close(slope, operator.adjoint(v))
    assert operator(x.double()).dtype is torch.float32


def test_values_are_written_to_out_and_the_argument_is_left_alone(adapter):
    R = adapter.RegularizerFunction(TV)
    x = container(picture())
    before, out = x.array.copy(), x.copy()
    assert R.proximal(x, 0.3, out=out) is out
    assert (x.array == before).all()
    np.testing.assert_allclose(R.proximal(x, 0.3).array, out.array, atol=2e-3)
    assert R(out) < R(x)
    again = R(x)
    assert R.gradient(x, out=out) is out
    np.testing.assert_allclose((3 * R).gradient(x).array, 3 * out.array, rtol=1e-6)
    # A norm's subgradient s has <s, x> = R(x).
    assert float((out.array * x.array).sum()) == pytest.approx(again, rel=1e-5)
    assert np.isnan(R.convex_conjugate(x))
    # In place, and in the precision of the container.
    double = cil.Container(before.astype(np.float64), cil.Geometry(*SHAPE, dtype=np.float64))
    expected = R.proximal(double, 0.3)
    assert expected.dtype == np.float64
    assert R.proximal(double, 0.3, out=double) is double
    np.testing.assert_allclose(double.array, expected.array, atol=2e-3)


def test_moreaus_identity_of_their_base_class_holds(adapter):
    R, x, tau = adapter.RegularizerFunction(TV), container(picture()), 0.7
    given = x.copy()
    dual = R.proximal_conjugate(given, tau)
    np.testing.assert_allclose(given.array, x.array, rtol=1e-6)
    primal = R.proximal(container(x.array / tau), 1 / tau)
    np.testing.assert_allclose(dual.array + tau * primal.array, x.array, atol=2e-3)


def test_slices_are_images_of_their_own_and_channels_are_not(adapter):
    R = adapter.RegularizerFunction(TV)
    stack = container(np.stack([picture(), 2 * picture()]))
    assert R(stack) == pytest.approx(3 * R(container(picture())), rel=1e-5)
    colour = adapter.RegularizerFunction(cl.TotalVariation(in_channels=2))
    assert colour.proximal(stack, 0.1).array.shape == (2, *SHAPE)
    with pytest.raises(ValueError, match=r"images of shape \(2, H, W\), got an array \(8, 8\)"):
        colour(container(picture()))


def test_bad_inputs_are_named(adapter):
    R = adapter.RegularizerFunction(TV)
    with pytest.raises(ValueError, match="step sizes for each pixel"):
        R.proximal(container(picture()), np.ones(SHAPE))
    with pytest.raises(TypeError, match="takes real images, got complex64"):
        R(cil.Geometry(*SHAPE).allocate(0, dtype=np.complex64))
    bent = matrix_operator()
    bent.linear = False
    with pytest.raises(TypeError, match="need a linear operator"):
        adapter.ContainerOperator(bent)
    with pytest.raises(ValueError, match="the domain is \\(2, 2, 2, 2\\)"):
        adapter.ContainerOperator(
            cil.MatrixOperator(np.eye(16), cil.Geometry(2, 2, 2, 2), cil.Geometry(4, 4))
        )


def test_blocks_of_containers_are_refused(adapter):
    """Two containers have the shape (2, 1), like an image of two pixels."""
    image = cil.Geometry(*SHAPE)
    blocks = cil.BlockGeometry(image, image)
    for domain, data in ((image, blocks), (blocks, image)):
        with pytest.raises(TypeError, match=r"one container each, .* block of several \(Block\)"):
            adapter.ContainerOperator(cil.MatrixOperator(np.eye(64), domain, data))
    with pytest.raises(TypeError, match="one by one"):
        adapter.RegularizerFunction(TV)(blocks.allocate(0))


@pytest.mark.slow
def test_the_example_of_the_documentation(adapter):
    page = (Path(__file__).parents[1] / "docs/ecosystem.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "from cil." in b]
    image_geometry = cil.Geometry(16, 16)
    image_geometry.voxel_num_x = 16
    x = np.zeros((16, 16))
    x[4:12, 5:9] = 0.02
    data = cil.projections(image_geometry, cil.Geometry(2, 16)).direct(container(x))
    names = {"cl": cl, "torch": torch, "image_geometry": image_geometry, "data": data}
    exec(block.replace("run(100)", "run(5)"), names)
    solution, fista = names["solution"], names["fista"]
    assert solution.status[0] is cl.Status.CONVERGED
    # FISTA has no box x >= 0, so that its minimum is not larger.
    assert 0 < fista.objective[-1] <= 1.01 * float(solution.objective)


def test_without_cil_the_error_says_where_it_comes_from():
    with pytest.raises(ImportError, match="installed with conda"):
        cl.cil  # noqa: B018
