"""Volumes (B, C, D, H, W): operators, regularizers with 3D filters, optima, proofs and files."""

from __future__ import annotations

import json

import cvxpy
import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.networks import AveragePool, Convolution, ForwardDifferences

SIDE = 6
SHAPE = (SIDE, SIDE, SIDE)
MODES = {"zero": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def correlation(kernel, padding, shape=SHAPE):
    """The matrix of x -> sum_t k_t x_{p+t}, from the definition."""
    count, margin = int(np.prod(shape)), [n // 2 for n in kernel.shape]
    outside = {"constant_values": -1} if padding == "zero" else {}
    index = np.arange(count).reshape(shape)
    places = np.pad(index, [(m, m) for m in margin], MODES[padding], **outside)
    matrix = np.zeros((count, count))
    for row, at in enumerate(np.ndindex(*shape)):
        for tap in np.ndindex(*kernel.shape):
            column = places[tuple(a + t for a, t in zip(at, tap, strict=True))]
            if column >= 0:
                matrix[row, column] += kernel[tap]
    return matrix


def differences(shape=SHAPE):
    """One matrix for each axis; zero at the end of it."""
    count = int(np.prod(shape))
    index = np.arange(count).reshape(shape)
    found = []
    for axis in range(3):
        matrix = np.zeros((count, count))
        for here, there in zip(
            np.delete(index, -1, axis).ravel(), np.delete(index, 0, axis).ravel(), strict=True
        ):
            matrix[here, there], matrix[here, here] = 1, -1
        found.append(matrix)
    return found


def columns_of(operator, shape):
    """The matrix of an operator of one channel, column by column."""
    count = int(np.prod(shape))
    basis = torch.eye(count).reshape(count, 1, *shape)
    return operator(basis).detach().flatten(1).T.numpy()


def ridge(**more):
    torch.manual_seed(3)
    options = {"channels": 3, "kernel": 3, "smoothing": 0.0, "dimensions": 3} | more
    return cl.networks.ridge(**options)


NETWORKS = {
    "isotropic": lambda: cl.TotalVariation(dimensions=3),
    "anisotropic": lambda: cl.TotalVariation(isotropic=False, dimensions=3),
    "filters": ridge,
    "circular filters": lambda: ridge(padding="circular"),
    "filters with zeros": lambda: ridge(padding="zero"),
    "Huber": lambda: ridge(smoothing=0.1),
}


def penalty(name, network, x):
    if name in ("isotropic", "anisotropic"):
        gradient = cvxpy.vstack([matrix @ x for matrix in differences()])
        sizes = cvxpy.norm(gradient, 2, axis=0) if name == "isotropic" else cvxpy.abs(gradient)
        return cvxpy.sum(sizes)
    skip, weights = network.layers[0].skip, network.output.detach().numpy()
    total = 0
    for kernel, weight in zip(skip.weight.detach().numpy(), weights, strict=True):
        response = correlation(kernel[0], skip.padding) @ x
        if name == "Huber":  # |a| - nu/2 beyond nu, a^2 / (2 nu) inside
            total += weight * cvxpy.sum(cvxpy.huber(response, 0.1)) / (2 * 0.1)
        else:
            total += weight * cvxpy.norm1(response)
    return total


def operators():
    torch.manual_seed(5)
    return {
        "identity": cl.Identity(),
        "mask": cl.Mask(torch.rand(1, 1, *SHAPE) > 0.3),
        "blur": cl.Blur(torch.rand(3, 3, 3) / 27),
        "circular blur": cl.Blur(torch.rand(3, 3, 3) / 27, "circular"),
        "parallel beam": cl.Slices(cl.ParallelBeam(SIDE, angles=7, bins=9), depth=SIDE),
        "mask of slices": cl.Slices(cl.Mask(torch.rand(1, SIDE, SIDE) > 0.3), depth=SIDE),
    }


def problem_of(name, operator, batch=1):
    torch.manual_seed(1)
    truth = torch.rand(batch, 1, *SHAPE)
    y = operator(truth)
    y = y + 0.05 * torch.randn_like(y)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=operator, regularizer=NETWORKS[name](), weight=0.1,
        box=(0, 1),
    )  # fmt: skip


CASES = [(name, "identity") for name in NETWORKS] + [
    (name, kind) for name in ("isotropic", "filters") for kind in operators() if kind != "identity"
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_optimum_is_that_of_cvxpy(name, kind, tmp_path):
    operator = operators()[kind]
    problem = problem_of(name, operator)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=20000))
    assert solution.status[0] is cl.Status.CONVERGED
    x = cvxpy.Variable(SIDE**3)
    A = columns_of(operator, SHAPE)
    y = problem.fidelity.y.flatten().numpy()
    objective = 0.5 * cvxpy.sum_squares(A @ x - y) + 0.1 * penalty(name, problem.regularizer, x)
    best = cvxpy.Problem(cvxpy.Minimize(objective), [x >= 0, x <= 1]).solve(cvxpy.CLARABEL)
    assert float(solution.objective[0]) == pytest.approx(best, rel=2e-5)
    assert float(solution.lower_bound[0]) <= best * (1 + 1e-7)
    verdict = cl.verify(solution.proof.save(tmp_path / "x.proof"))[0]
    assert verdict.lower_bound <= best * (1 + 1e-7)
    assert verdict.gap < 2e-5


@pytest.mark.parametrize("kind", list(operators()))
def test_operators_have_exact_adjoints_and_norms(kind):
    operator = operators()[kind]
    shape = (1, *SHAPE)
    cl.check_operator(operator, None if operator.input_shape else shape)
    matrix = columns_of(operator, SHAPE)
    assert operator.norm(shape) >= np.linalg.norm(matrix, 2) * (1 - 1e-9)


@pytest.mark.parametrize("padding", list(MODES))
@pytest.mark.parametrize("nonnegative", [False, True])
def test_convolutions_are_those_of_the_definition(padding, nonnegative):
    convolution = Convolution(1, 2, 3, padding=padding, nonnegative=nonnegative, dimensions=3)
    operator = convolution.operator((1, *SHAPE))
    matrix = columns_of(operator, SHAPE)
    kernels = convolution.weight.detach().numpy()
    expected = np.concatenate([correlation(kernel[0], padding) for kernel in kernels])
    np.testing.assert_allclose(matrix, expected, atol=1e-14)
    y = torch.rand(1, 2, *SHAPE)
    pulled = operator.adjoint(y).detach().flatten().numpy()
    np.testing.assert_allclose(pulled, expected.T @ y.flatten().numpy(), atol=1e-13)
    assert operator.norm() >= np.linalg.norm(matrix, 2) * (1 - 1e-9)
    bound = operator.magnitude(torch.ones(1, 1, 1, 1, 1), (1, *SHAPE)).flatten().detach().numpy()
    rows = np.abs(expected).sum(1).reshape(2, -1).max(1)
    assert (bound >= rows * (1 - 1e-12)).all()


def test_strided_convolutions_have_exact_adjoints():
    for side in (6, 7):
        convolution = Convolution(2, 3, 3, stride=2, dimensions=3).requires_grad_(False)
        operator = convolution.operator((2, side, 6, 5))
        x, y = torch.rand(1, 2, side, 6, 5), torch.rand(1, 3, -(-side // 2), 3, 3)
        left, right = (operator(x) * y).sum(), (x * operator.adjoint(y)).sum()
        assert float(left) == pytest.approx(float(right), rel=1e-12)


def test_differences_are_those_of_the_definition():
    operator = ForwardDifferences(dimensions=3).operator((1, *SHAPE))
    np.testing.assert_array_equal(columns_of(operator, SHAPE), np.concatenate(differences()))
    x, y = torch.rand(2, 2, 4, 5, 6), torch.rand(2, 6, 4, 5, 6)
    two = ForwardDifferences(dimensions=3).operator((2, 4, 5, 6))
    assert float((two(x) * y).sum()) == pytest.approx(float((x * two.adjoint(y)).sum()), rel=1e-12)
    assert operator.norm() >= np.linalg.norm(np.concatenate(differences()), 2)


def test_equal_slices_are_denoised_as_one_image():
    """By symmetry and uniqueness the slices stay equal, and no difference between them counts."""
    torch.manual_seed(2)
    y, stop = torch.rand(1, 1, 12, 10), cl.StopWhen(gap=1e-8, max_iterations=20000)
    flat = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(),
                                 weight=0.1)  # fmt: skip
    volume = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y[:, :, None].expand(-1, -1, 5, -1, -1).contiguous()),
        regularizer=cl.TotalVariation(dimensions=3), weight=0.1,
    )  # fmt: skip
    image, solution = cl.solve(flat, stop=stop), cl.solve(volume, stop=stop)
    assert float(solution.objective) == pytest.approx(5 * float(image.objective), rel=1e-6)
    assert float((solution.x - image.x[:, :, None]).abs().max()) < 1e-3


@pytest.mark.parametrize("name", ["isotropic", "filters"])
def test_a_batch_gives_what_single_volumes_give(name):
    problem = problem_of(name, operators()["blur"], batch=2)
    stop = cl.StopWhen(gap=1e-4, max_iterations=5000)
    both = cl.solve(problem, stop=stop)
    for i in range(2):
        y = problem.fidelity.y[i : i + 1]
        alone = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), operator=problem.operator, regularizer=problem.regularizer,
            weight=0.1, box=(0, 1),
        )  # fmt: skip
        single = cl.solve(alone, stop=stop)
        assert float(single.objective[0]) == pytest.approx(float(both.objective[i]), rel=1e-4)
    certificate = cl.certify(problem, both.x)
    assert certificate.map.shape == (2, 1, *SHAPE)
    gap = both.objective - certificate.lower_bound
    torch.testing.assert_close(certificate.map.flatten(1).sum(1), gap, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("fidelity", ["L1", "KullbackLeibler"])
def test_other_data_terms_are_certified(fidelity):
    torch.manual_seed(4)
    counts = torch.poisson(20 * torch.rand(1, 1, *SHAPE))
    data = cl.L1(counts / 20) if fidelity == "L1" else cl.KullbackLeibler(counts, 1.0)
    problem = cl.VariationalProblem(
        fidelity=data, regularizer=cl.TotalVariation(dimensions=3), weight=0.2, box=(0, None)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=20000))
    assert solution.status[0] is cl.Status.CONVERGED
    cl.certify(problem, solution.x, solution.duals)


@pytest.mark.parametrize("method", [cl.LBFGS(), cl.NMAPG(), cl.Subgradient(step=0.05)])
def test_other_methods_work_on_volumes(method):
    torch.manual_seed(0)
    y = torch.rand(2, 1, *SHAPE)
    network = ridge(smoothing=0.1)
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network, weight=0.1)
    best = cl.solve(problem, stop=cl.StopWhen(gap=1e-6))
    other = cl.solve(problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=300))
    torch.testing.assert_close(other.objective, best.objective, rtol=1e-3, atol=0)


def test_gradients_through_a_solution():
    torch.manual_seed(0)
    network = ridge(smoothing=0.5, channels=2)
    y = torch.rand(1, 1, 4, 4, 4, requires_grad=True)
    stop = cl.StopWhen(gap=1e-10, max_iterations=5000)

    def loss(data):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(data), regularizer=network, weight=0.5
        )
        wanted = data.requires_grad
        return cl.solve(problem, stop=stop, differentiable=wanted).x.square().sum()

    (gradient,) = torch.autograd.grad(loss(y), y)
    move, h = torch.randn_like(y), 1e-4
    slope = (loss((y + h * move).detach()) - loss((y - h * move).detach())) / (2 * h)
    assert float((gradient * move).sum()) == pytest.approx(float(slope), rel=1e-4)


def test_networks_of_volumes_are_saved_and_loaded(tmp_path):
    x = torch.rand(2, 1, *SHAPE)
    for number, network in enumerate((ridge(depth=2, inner_channels=2), NETWORKS["isotropic"]())):
        cl.save(network, tmp_path / str(number))
        again = cl.load(tmp_path / str(number)).double()
        assert again.dimensions == 3
        torch.testing.assert_close(again(x), network.double()(x), rtol=1e-6, atol=1e-6)
    cl.save(cl.TotalVariation(), tmp_path / "flat")
    assert "dimensions" not in (tmp_path / "flat.json").read_text()
    assert json.loads((tmp_path / "0.json").read_text())


def test_filtered_back_projection_of_a_volume_is_slice_by_slice():
    flat = cl.ParallelBeam(16, angles=20, bins=24)
    volume = cl.Slices(flat, depth=3)
    x = torch.rand(2, 1, 3, 16, 16)
    data = volume(x)
    assert data.shape == (2, 1, 3, 20, 24)
    for k in range(3):
        torch.testing.assert_close(data[:, :, k], flat(x[:, :, k]))
        inverse = volume.approximate_inverse(data)[:, :, k]
        torch.testing.assert_close(inverse, flat.approximate_inverse(flat(x[:, :, k])))


def test_a_solution_is_described():
    solution = cl.solve(problem_of("isotropic", cl.Identity()), stop=cl.StopWhen(gap=1e-2))
    assert "6 x 6 x 6" in repr(solution)
    assert solution._repr_html_()
    assert "(1, 6, 6, 6)" in str(solution.proof.problem)


Y = torch.zeros(1, 1, *SHAPE, dtype=torch.float64)


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: cl.TotalVariation()(Y), r"images have shape \(batch, channels, H, W\)"),
        (lambda: cl.TotalVariation(dimensions=3)(Y[0]), r"\(batch, channels, D, H, W\)"),
        (lambda: cl.TotalVariation(dimensions=4), "2 for images or 3 for volumes, got 4"),
        (lambda: cl.VariationalProblem(fidelity=cl.SquaredL2(Y), weight=1.0,
                                       regularizer=cl.TotalVariation()),
         r"the network takes images of shape \(1, H, W\), got \(1, 6, 6, 6\)"),
        (lambda: AveragePool(2).operator((1, *SHAPE)), "average pooling"),
        (lambda: cl.Blur(torch.ones(3, 3))(Y), "a kernel of 2 dimensions does not fit"),
        (lambda: cl.Slices(cl.Identity(), depth=0), "depth"),
        (lambda: cl.Slices(cl.Identity(), depth=4).output_shape((1, *SHAPE)), "takes volumes"),
        (lambda: cl.Slices(cl.Mask(torch.ones(2, 1, 6, 6)), depth=6), "differs from image"),
        (lambda: cl.solve_tiles(problem_of("isotropic", cl.Identity())), "tiles|one layer|images"),
    ],
)  # fmt: skip
def test_what_has_no_third_dimension_is_refused(attempt, said):
    with pytest.raises(ValueError, match=said):
        attempt()


def test_large_volumes_are_not_cut_into_strips_of_rows(monkeypatch):
    """Double-precision convolutions of large images are, to save memory."""
    monkeypatch.setattr("convexlift.operators.convolution.PATCHES", 1)
    V = cl.networks.ridge(channels=2, kernel=3, dimensions=3).layers[0].skip.operator((1, *SHAPE))
    x = torch.rand(1, 1, *SHAPE, dtype=torch.float64)
    expected = torch.nn.functional.conv3d(V.padding(x), V.weight)
    torch.testing.assert_close(V(x), expected)
