"""Squared L2 with weights: data that were not measured, CVXPY, certificates, derivatives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import zoo
from hypergradient_cases import energy
from hypothesis import given
from hypothesis import strategies as st
from oracle import optimum
from strategies import floats
from torch import Tensor

import convexlift as cl
from convexlift.operators.imaging import Diagonal
from convexlift.problems.data_bound import can_hold_everywhere
from convexlift.solvers.derivatives import gradient, hessian
from convexlift.tensors import Blocks

Y = torch.tensor([[[[0.0, 1.0], [2.0, 7.0]]]], dtype=torch.float64)
OMEGA = torch.tensor([[0.0, 0.3], [5.0, 0.0]], dtype=torch.float64)
UNSEEN = OMEGA == 0


class Matrix(cl.LinearOperator):
    """A dense random matrix, from images to a row of data."""

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.matrix = torch.randn(rows, math.prod(shape)) / math.prod(shape) ** 0.5
        self.input_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.T)[:, None, None]

    def adjoint(self, y: Tensor) -> Tensor:
        return (y.flatten(1) @ self.matrix).reshape(len(y), *self.input_shape)

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, 1, len(self.matrix))


def scan(box=(0.0, None), *, dead: bool = True, weight: float = 0.1) -> cl.VariationalProblem:
    """A few angles around 8 x 8 pixels; two bins are dead and hold nonsense."""
    A = cl.ParallelBeam(8, 7, 11)
    p = A(zoo.clean_images(1))
    omega = 0.1 + 4 * torch.rand(p.shape)
    p = p + torch.randn(p.shape) / omega.sqrt()
    if dead:
        omega[..., 2::4] = 0.0
        p[..., 2::4] = 1e3
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(p, omega), operator=A, regularizer=cl.TotalVariation(),
        weight=weight, box=box,
    )  # fmt: skip


def agree(problem: cl.VariationalProblem) -> None:
    """The optimum lies between bound and objective, which are close."""
    value, _ = optimum(problem)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=20_000, check_every=20))
    assert solution.status == (cl.Status.CONVERGED,), str(solution)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    rounding = 1e-7 * abs(value)
    assert float(solution.lower_bound) - rounding <= value <= float(solution.objective) + rounding


@pytest.mark.parametrize(
    "weights", [OMEGA, 0.0, 2.5, torch.tensor([0.0, 3.0]), torch.zeros(1, 1, 1, 2)], ids=str
)
def test_exam(weights):
    cl.check_functional(cl.WeightedL2(Y, weights))


def test_weights_of_one_are_the_squared_l2_norm():
    ours, plain = cl.WeightedL2(Y, 1.0), cl.SquaredL2(Y)
    w, c, step = torch.randn(3, 1, 2, 2), torch.randn(3, 1, 2, 2), torch.rand(3, 1, 1, 1) + 0.1
    for method, arguments in {
        "value": (w,), "gradient": (w,), "prox": (w, step), "conjugate": (c,),
        "conjugate_prox": (c, step), "clip_to_conjugate_domain": (c,),
        "minimiser": (c, w - 1, w + 1), "excess": (w, c, w - 1, w + 1), "fenchel_young": (w, c),
    }.items():  # fmt: skip
        torch.testing.assert_close(
            getattr(ours, method)(*arguments), getattr(plain, method)(*arguments)
        )


def test_what_was_not_measured_says_nothing():
    f = cl.WeightedL2(Y, OMEGA)
    w, v, step = torch.randn(Y.shape), torch.randn(Y.shape), torch.full_like(Y, 0.7)
    infinity = torch.full_like(Y, math.inf)
    assert (f.density(w)[..., UNSEEN] == 0).all()
    assert (f.gradient(w)[..., UNSEEN] == 0).all()
    assert torch.equal(f.prox(w, step)[..., UNSEEN], w[..., UNSEEN])
    assert (f.conjugate(v)[..., UNSEEN] == math.inf).all()
    assert (f.conjugate(0 * v)[..., UNSEEN] == 0).all()
    assert (f.conjugate_prox(v, step)[..., UNSEEN] == 0).all()
    assert torch.equal(f.clip_to_conjugate_domain(v) == 0, UNSEEN.expand_as(v))
    assert torch.equal(f.fenchel_young(w, v).isinf(), UNSEEN.expand_as(v))
    assert (f.fenchel_young(w, 0 * v)[..., UNSEEN] == 0).all()
    assert torch.equal(f.minimiser(v, -infinity, infinity).isinf(), UNSEEN.expand_as(v))
    one = torch.ones_like(Y)
    rising = f.excess(w, one, w - 2, infinity)[..., UNSEEN]
    torch.testing.assert_close(rising, torch.full_like(rising, 2.0))
    falling = f.excess(w, -one, -infinity, w + 3)[..., UNSEEN]
    torch.testing.assert_close(falling, torch.full_like(falling, 3.0))


@given(
    omega=st.one_of(st.just(0.0), floats(2.0**-20, 2.0**20, width=32)),
    c=floats(-1024, 1024, width=32), y=floats(-2, 2, width=32), x=floats(0, 1, width=32),
    low=st.sampled_from([-math.inf, -0.5, 0.0]), high=st.sampled_from([1.0, 3.0, math.inf]),
)  # fmt: skip
def test_the_excess_is_right_in_single_precision(omega, c, y, x, low, high):
    """Never NaN nor negative, infinite where it is, and else near the definition."""

    def excess(dtype):
        tensors = [torch.tensor([[v]], dtype=dtype) for v in (x, c, low, high)]
        return float(cl.WeightedL2(torch.tensor([[y]], dtype=dtype), omega).excess(*tensors))

    single, double = excess(torch.float32), excess(torch.float64)
    assert single >= 0
    assert math.isinf(single) == math.isinf(double)
    if math.isfinite(double):
        rounding = 1e-6 * (abs(c) + omega * (abs(x) + abs(y)))  # of the slope at x
        loss = rounding**2 / omega + rounding * math.sqrt(2 * double / omega) if omega else 0
        assert single == pytest.approx(double, rel=1e-5, abs=loss + 1e-6 * (1 + abs(c)))


@given(st.floats(1e-37, 1e37), floats(-1e6, 1e6), floats(-10, 10))
def test_extreme_weights_make_no_nan(omega, c, w):
    f = cl.WeightedL2(torch.ones(1, 1, dtype=torch.float32), omega)
    point, slope = torch.tensor([[w]]).float(), torch.tensor([[c]]).float()
    infinity, step = torch.full_like(point, math.inf), torch.full_like(point, 0.1)
    for lower, upper in ((-infinity, infinity), (point, infinity), (-infinity, point + 1)):
        assert float(f.excess(point, slope, lower, upper)) >= 0
        best = f.minimiser(slope, lower, upper)
        assert (lower <= best).all()
        assert (best <= upper).all()
    assert f.conjugate_prox(slope, step).isfinite().all()
    assert f.prox(point, step).isfinite().all()


@pytest.mark.parametrize("box", [(-1.0, 2.0), (0.0, 1.0)], ids=str)
@pytest.mark.parametrize("architecture", ["plain", "skips"])
def test_optimum_of_weighted_pixels(architecture, box):
    agree(replace(zoo.problem(architecture, cl.LeakyReLU(0.2), "weighted L2"), box=box))


@pytest.mark.parametrize("box", [(0.0, None), (0.0, 1.0), (None, 0.8)], ids=str)
def test_optimum_of_a_scan(box):
    agree(scan(box))


def test_optimum_behind_a_matrix():
    A = Matrix(40, (1, 8, 8))
    cl.check_operator(A)
    omega = torch.rand(1, 1, 1, 40) * (torch.rand(40) > 0.2)
    data = A(zoo.clean_images(1)) + 0.1 * torch.randn(1, 1, 1, 40)
    net = zoo.network("plain", cl.SmoothedLeakyReLU(0.2, 0.1))
    fidelity = cl.WeightedL2(data, omega)
    agree(cl.VariationalProblem(
        fidelity=fidelity, operator=A, regularizer=net, weight=0.02, box=(0, 1)
    ))  # fmt: skip


def test_weights_are_those_of_an_operator():
    """1/2 sum omega (A x - y)^2 = 1/2 ||sqrt(omega) A x - sqrt(omega) y||^2, solved either way."""
    weighted = scan()
    root = weighted.fidelity.weights.sqrt()
    white = replace(
        weighted, fidelity=cl.SquaredL2(root * weighted.fidelity.y),
        operator=Diagonal(root) @ weighted.operator,
    )  # fmt: skip
    stop = cl.StopWhen(gap=1e-3, max_iterations=20_000)
    first, second = cl.solve(weighted, stop=stop), cl.solve(white, stop=stop)
    torch.testing.assert_close(weighted.objective(first.x), white.objective(first.x))
    torch.testing.assert_close(first.objective, second.objective, rtol=2e-3, atol=0)


@pytest.mark.parametrize("problem", [scan, lambda: zoo.problem(fidelity_name="weighted L2")])
def test_what_dead_pixels_hold_does_not_matter(problem):
    problem = problem()
    f = problem.fidelity
    y = torch.where(f.weights > 0, f.y, -7.0)
    other = replace(problem, fidelity=cl.WeightedL2(y, f.weights))
    stop = cl.StopWhen(gap=None, max_iterations=30)
    first, second = cl.solve(problem, stop=stop), cl.solve(other, stop=stop)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.lower_bound, second.lower_bound)


def test_pixels_that_were_not_measured_need_bounds():
    problem = zoo.problem(fidelity_name="weighted L2", activation=cl.ReLU())
    assert not can_hold_everywhere(problem)
    assert can_hold_everywhere(replace(problem, box=(0, 1)))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    assert solution.guarantee == (cl.Guarantee.WITHIN_RADIUS,)
    f = problem.fidelity
    everything = replace(problem, fidelity=cl.WeightedL2(f.y, f.weights + 1))
    assert can_hold_everywhere(everything)
    solution = cl.solve(everything, stop=cl.StopWhen(gap=1e-5))
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)


@pytest.mark.parametrize("size", [0.0, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("box", [(0.0, None), (None, 0.9), (0.0, 1.0)], ids=str)
def test_never_above_the_optimum_whatever_the_duals(box, size):
    """Also with dual variables at data that were not measured."""
    problem = scan(box)
    value, minimiser = optimum(problem)
    duals = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=1)).duals
    x = problem.bounds.project(torch.as_tensor(minimiser) + size * torch.randn(1, 1, 8, 8))
    wild = Blocks({n: size * torch.randn(v.shape) for n, v in duals.items()})
    certificate = cl.certify(problem, x, wild)
    assert certificate.guarantee == (cl.Guarantee.GLOBAL,)
    assert float(certificate.lower_bound) <= value * (1 + 1e-6)
    assert torch.isfinite(certificate.lower_bound).all()


def test_a_pixel_that_only_dead_bins_see_is_bounded_by_the_regularizer():
    """Rays along rows and columns; the rays through one pixel are both dead."""
    A = cl.ParallelBeam(8, [0.0, math.pi / 2], 8, bin_width=1.0)
    omega = torch.ones(1, 1, 2, 8)
    omega[..., 3] = 0.0
    problem = cl.VariationalProblem(
        fidelity=cl.WeightedL2(A(zoo.clean_images(1)), omega), operator=A,
        regularizer=cl.TotalVariation(), weight=0.1, box=(0, None),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=5000))
    assert solution.status == (cl.Status.CONVERGED,)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)


def test_the_distance_bound():
    problem = zoo.problem("plain", cl.SmoothedLeakyReLU(0.2, 0.1), "weighted L2", "box")
    start = problem.initial_image()
    assert cl.certify(problem, start).distance_bound.isinf().all()
    omega = 0.3 + torch.rand(1, 1, 8, 8)
    problem = replace(problem, fidelity=cl.WeightedL2(problem.fidelity.y.clamp(0, 1), omega))
    x = cl.solve(problem, stop=cl.StopWhen(gap=1e-4)).x
    certificate = cl.certify(problem, x)
    gap = certificate.objective - certificate.lower_bound
    torch.testing.assert_close(certificate.distance_bound, (2 * gap / omega.min()).sqrt())
    distance = (x - torch.as_tensor(optimum(problem)[1])).norm()
    assert float(distance) <= float(certificate.distance_bound) + 1e-5


@pytest.mark.parametrize("method", [cl.NMAPG(), cl.LBFGS()], ids=["nmapg", "lbfgs"])
def test_other_methods_reach_the_same_optimum(method):
    problem = zoo.problem("plain", cl.SmoothedLeakyReLU(0.2, 0.1), "weighted L2", "box")
    stop = cl.StopWhen(gap=1e-6, max_iterations=3000)
    ours, other = cl.solve(problem, stop=stop), cl.solve(problem, method=method, stop=stop)
    assert other.status == ours.status == (cl.Status.CONVERGED,)
    torch.testing.assert_close(other.objective, ours.objective, rtol=1e-6, atol=0)


@pytest.mark.parametrize("build", [
    lambda: zoo.problem("plain", cl.SmoothedLeakyReLU(0.2, 0.1), "weighted L2"),
    lambda: replace(scan(), regularizer=zoo.network("plain", cl.SmoothedLeakyReLU(0.2, 0.1))),
], ids=["pixels", "scan"])  # fmt: skip
def test_derivatives_of_the_objective_are_those_of_autograd(build):
    problem = build()
    x, v = zoo.clean_images(1).requires_grad_(), torch.randn(1, 1, 8, 8)
    (slope,) = torch.autograd.grad(energy(problem, x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient(problem, x), slope)
    (curved,) = torch.autograd.grad((slope * v).sum(), x)
    torch.testing.assert_close(hessian(problem, x)(v), curved)


def test_fill_values_of_what_was_not_measured_do_not_matter():
    y = torch.zeros(2, 1, 2, 2, dtype=torch.float32)
    y[0, 0, 0, 0] = torch.finfo(torch.float32).max
    weights = torch.ones_like(y)
    weights[0, 0, 0, 0] = 0
    fidelity = cl.WeightedL2(y, weights)
    assert torch.equal(fidelity.value(torch.zeros_like(y)), torch.zeros(2, dtype=torch.float64))
    problem = cl.VariationalProblem(
        fidelity=fidelity, regularizer=cl.TotalVariation().float(), weight=0.1, box=(-1, 1)
    )
    proof = cl.certify(problem, torch.full_like(y, 0.1))
    assert torch.isfinite(proof.gap).all()
    assert torch.isinf(proof.distance_bound[0])  # a pixel of this image only was not measured
    assert torch.isfinite(proof.distance_bound[1])
