"""Layers lifted after their pooling: the projection, where it is used, and the same optimum."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from oracle import activation_epigraph
from strategies import floats

import convexlift as cl
from convexlift.functionals.terms import mean_multiplier
from convexlift.networks import AveragePool, Chain, Convolution, Dense
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.tensors import Blocks

every_activation = pytest.mark.parametrize("h", zoo.ACTIVATIONS, ids=repr)


def project(h, y, p, sigma_a=1.0, sigma_p=1.0):
    """(a, p', v_1, mu) for blocks y (M, N) and heights p (M,)."""
    sigma_a, sigma_p = p.new_full((1,), sigma_a), p.new_full((1,), sigma_p)
    mu = mean_multiplier(h, y, p, sigma_a, sigma_p)
    v = h.scaled_slope(y, mu[:, None] / y.shape[1], sigma_a)
    return y - v / sigma_a, p + mu / sigma_p, v, mu


def by_cvxpy(h, y, p, sigma_a, sigma_p):
    """The same projection of one block, from a textbook statement."""
    count = len(y)
    a, z, height = cp.Variable(count), cp.Variable(count), cp.Variable()
    distance = sigma_a * cp.sum_squares(a - y) + sigma_p * cp.square(height - p)
    constraints = [*activation_epigraph(h, a, z, (count,)), cp.sum(z) / count <= height]
    problem = cp.Problem(cp.Minimize(distance / 2), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return a.value, float(height.value)


CASES = {
    "random": (lambda g: g.standard_normal(4), -0.3, 1.0, 1.0),
    "unequal steps": (lambda g: g.standard_normal(9), -0.3, 0.1, 5.0),
    "stiff": (lambda g: g.standard_normal(4), -0.2, 10.0, 0.05),
    "all negative": (lambda g: -1 - g.random(4), -2.5, 1.0, 1.0),
    "all equal": (lambda g: np.full(4, 0.7), 0.1, 1.0, 1.0),
    "at kinks": (lambda g: np.array([0.0, 0.0, 0.1, 0.05, 0.2, -0.1]), -0.1, 1.0, 1.0),
    "far outside": (lambda g: g.standard_normal(4), -60.0, 1.0, 1.0),
    "one of many": (lambda g: np.r_[8.0, np.zeros(8)], 0.2, 1.0, 1.0),
    "single": (lambda g: np.array([1.3]), 0.2, 2.0, 1.0),
}


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # than so small a tolerance
@pytest.mark.parametrize("case", CASES)
@every_activation
def test_projection_is_that_of_cvxpy(h, case):
    draw, p, sigma_a, sigma_p = CASES[case]
    y = draw(np.random.default_rng(0))
    a, height, _, mu = project(h, torch.tensor(y)[None], torch.tensor([p]), sigma_a, sigma_p)
    expected, expected_height = by_cvxpy(h, y, p, sigma_a, sigma_p)
    np.testing.assert_allclose(a[0].numpy(), expected, atol=2e-4)
    assert float(height) == pytest.approx(expected_height, abs=2e-4)
    inside = float(h.value(torch.tensor(y)).mean()) <= p
    assert (float(mu) == 0) == inside


@pytest.mark.sampled(2)
@every_activation
@pytest.mark.parametrize("count", [1, 4, 256])
def test_optimality_conditions(h, count):
    """Feasible, with a slope at the projection, and a multiplier only where it binds."""
    heights = torch.linspace(-3, 3, 60)
    steps = [(1.0, 1.0), (0.01, 1.0), (30.0, 0.1), (1.0, 1e4), (1e-3, 1e-3)]
    for scale in (0.03, 1.0, 20.0):
        y, p = scale * torch.randn(60, count), scale * heights
        for sigma_a, sigma_p in steps:
            a, height, v, mu = project(h, y, p, sigma_a, sigma_p)
            size = float(h.value(y).abs().max() + p.abs().max() + 1)
            excess = h.value(a).mean(1) - height
            assert float(excess.max()) <= 1e-11 * size
            assert float(mu.min()) >= 0
            outside = h.value(y).mean(1) > p
            assert ((mu > 0) == outside).all()
            assert (v[~outside] == 0).all()
            assert float(excess[outside].abs().max()) <= 1e-11 * size
            t = (mu[outside] / count)[:, None]
            slopes = h.clip(v[outside] / t)
            loss = h.fenchel_young(a[outside], slopes)
            assert float((loss / (1 + h.value(y[outside]).abs())).max()) <= 1e-6


@every_activation
@given(
    size=st.integers(-12, 12),
    steps=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
    height=floats(-1, 1, width=32),
    seed=st.integers(0, 99),
)
def test_extreme_scales_in_single_precision(h, size, steps, height, seed):
    """Finite, of the right sign, with slopes in the domain: what the certificate builds on."""
    if isinstance(h, cl.HalfSquare):
        size = min(size, 6)
    y = torch.randn((3, 16), generator=torch.Generator().manual_seed(seed)) * 10.0**size
    y[1, ::2], y[2] = 0.0, y[2, 0]
    p = torch.full((3,), height * 10.0**size)
    sigma = [10.0**k for k in steps]
    _, _, v, mu = project(h, y.float(), p.float(), *sigma)
    assert mu.dtype == v.dtype == torch.float32
    assert torch.isfinite(mu).all()
    assert torch.isfinite(v).all()
    assert float(mu.min()) >= 0
    low, high = h.slopes
    t = mu[:, None] / 16
    assert (v >= low * t - 1e-6 * t).all() or low == -float("inf")
    assert (v <= high * t + 1e-6 * t).all() or high == float("inf")
    exact = project(h, y.float().double(), p.float().double(), *sigma)[3]
    per_a, per_p = 1 / (16 * sigma[0]), 1 / sigma[1]
    steepest = per_p + per_a * h.derivative(y).square().mean(1)
    # What rounding of h and of p in single precision moves at least, over the flattest slope.
    rounding = 1e-5 * (h.value(y).abs().mean(1) + (y * h.derivative(y)).abs().mean(1) + p.abs())
    rounding = (rounding + 1e-5 * exact * steepest) / per_p + 1e-30
    assert ((mu.double() - exact).abs() <= rounding).all()


def linked_problem() -> cl.VariationalProblem:
    """Both hidden layers are pooled, to different sizes, on their way to the last one."""
    torch.manual_seed(2)

    def pooled(size: int) -> Chain:
        return Chain(AveragePool(size), Dense(2 * (zoo.SIZE // size) ** 2, 4, nonnegative=True))

    first = cl.ConvexLayer(zoo.MONOTONE["leaky"], channels=2, skip=Convolution(1, 2, 3))
    second = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Convolution(1, 2, 3))
    last = cl.ConvexLayer(cl.ReLU(), channels=4, previous=pooled(4), links={1: pooled(2)})
    net = cl.InputConvexNetwork([first, second, last], image_size=(zoo.SIZE, zoo.SIZE))
    with torch.no_grad():
        net.layers[-1].bias.normal_()
        net.output.uniform_(4.0, 20.0)
    data, operator = zoo.fidelity("L2")
    return cl.VariationalProblem(fidelity=data, operator=operator, regularizer=net, weight=0.1)


class FullResolution(cl.PDHG):
    """The default method on the paper's lift."""

    def solver(self, problem: cl.VariationalProblem) -> RestartedPDHG:
        return RestartedPDHG(problem, cl.lift(problem, pooled=False))


def assert_same_optimum(problem: cl.VariationalProblem) -> None:
    stop = cl.StopWhen(gap=1e-5, max_iterations=10_000)
    ours = cl.solve(problem, stop=stop)
    full = cl.solve(problem, method=FullResolution(), stop=stop)
    for solution in (ours, full):
        assert solution.status == (cl.Status.CONVERGED,)
    assert float(ours.lower_bound) <= float(full.objective) + 1e-12
    assert float(full.lower_bound) <= float(ours.objective) + 1e-12
    assert float(ours.objective) == pytest.approx(float(full.objective), rel=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fidelity", ["L2", "masked L2", "L1"])
@pytest.mark.parametrize("activation", ["leaky", "smoothed"])
@pytest.mark.parametrize("architecture", ["plain", "deep"])
def test_the_same_optimum(architecture, activation, fidelity):
    box = "no box" if fidelity == "L2" else "box"
    assert_same_optimum(zoo.problem(architecture, zoo.MONOTONE[activation], fidelity, box))


def test_the_adjoint_is_exact():
    saddle = cl.lift(linked_problem(), dualise_fidelity=True)
    u = Blocks({name: torch.randn(2, *shape) for name, shape in saddle.K.shapes.items()})
    v = Blocks({name: torch.randn_like(part) for name, part in saddle.K(u).items()})
    torch.testing.assert_close(
        saddle.K(u).dot(v).total(), u.dot(saddle.K.adjoint(v)).total(), rtol=1e-12, atol=1e-12
    )


def test_the_papers_method_keeps_the_papers_lift():
    problem = zoo.problem("plain", zoo.MONOTONE["leaky"], "L2")
    stop = cl.StopWhen(gap=1e-4, max_iterations=20_000)
    papers = cl.solve(problem, method=cl.PDHG(steps=cl.PaperSteps((0.5, 0.5))), stop=stop)
    ours = cl.solve(problem, stop=stop)
    assert papers.state.v["v1,2"].shape == papers.state.u["z1"].shape == (1, 3, 8, 8)
    solver = RestartedPDHG(problem, cl.lift(problem))
    state = solver.start(problem.initial_image())
    assert state.v["v1,2"].shape == state.u["z1"].shape == (1, 3, 4, 4)
    assert state.v["v1,1"].shape == (1, 3, 8, 8)
    assert papers.status == ours.status == (cl.Status.CONVERGED,)
    assert float(papers.objective) == pytest.approx(float(ours.objective), rel=1e-4)


def test_a_solve_of_one_lift_continues_the_other():
    """With its dual variables: the certificate of the first holds for the second at once."""
    problem = linked_problem()
    precise, enough = (cl.StopWhen(gap=gap, max_iterations=5000) for gap in (1e-6, 2e-6))
    for one, other in ((cl.PDHG(), FullResolution()), (FullResolution(), cl.PDHG())):
        first_run = cl.solve(problem, method=one, stop=precise)
        again = cl.solve(problem, method=other, stop=enough, start=first_run.state)
        assert again.iterations.tolist() == [0]
