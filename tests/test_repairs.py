"""Bounds for images that are bounded on one side only: dual variables repaired pixel by pixel."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from dense import dense_matrix
from torch import Tensor

import convexlift as cl
from convexlift.phantoms import shepp_logan
from convexlift.problems import certificate
from convexlift.problems.certificate import judge
from convexlift.problems.network_duals import DATA_DUAL, feasible_duals, made_feasible
from convexlift.problems.repairs import repaired, tightened

SIZE = 24


def scan(box, sign: float = 1.0, size: int = SIZE, views: int = 20) -> cl.VariationalProblem:
    """A noisy scan; with sign -1, of the negative image."""
    A = cl.ParallelBeam(image_size=size, angles=views, bins=size)
    noise = 0.02 * torch.randn((1, 1, views, size), generator=torch.Generator().manual_seed(0))
    y = A(shepp_logan(size).double()) + noise.double()
    data = cl.SquaredL2(sign * y)
    return cl.VariationalProblem(
        fidelity=data, operator=A, regularizer=cl.TotalVariation(), weight=0.02, box=box
    ).to(dtype=torch.float64)


def after(problem: cl.VariationalProblem, iterations: int) -> cl.Solution:
    stop = cl.StopWhen(gap=0.0, max_iterations=iterations)
    return cl.solve(problem, method=cl.PDHG(), stop=stop)


def slopes(problem: cl.VariationalProblem, x: Tensor, duals) -> Tensor:
    """g = A* v + V* p."""
    c = made_feasible(problem.network, problem.weight, x, duals).c
    return problem.operator.adjoint(duals[DATA_DUAL]) + c


def without_repairs(monkeypatch) -> None:
    monkeypatch.setattr(certificate, "repaired", lambda problem, at, witness: witness)


def test_repaired_variables_are_feasible_and_lack_less():
    problem = scan((0, None))
    solution = after(problem, 120)
    at, bounds = judge(problem, solution.state.x, solution.state.duals)
    before = bounds.near.witness
    found = repaired(problem, at, before)
    feasible = feasible_duals(problem.network, problem.weight, at.x, found)
    for name, part in found.items():
        assert torch.allclose(part, feasible[name], rtol=1e-12, atol=0), name
    least = [float(slopes(problem, at.x, duals).min()) for duals in (before, found)]
    assert least[0] < 0
    assert least[1] > least[0] / 3


def test_bounds_over_all_images_no_longer_lag(monkeypatch):
    problem = scan((0, None), size=40, views=30)
    repaired_gap = float(after(problem, 120).gap)
    without_repairs(monkeypatch)
    assert repaired_gap < float(after(problem, 120).gap) / 3


@pytest.mark.parametrize("box", [(0, 1), (-1, 2), None])
def test_tightened_variables_are_feasible_and_their_bound_is_nearer(box):
    problem = scan(box)
    solution = after(problem, 120)
    duals = solution.state.duals
    at, bounds = judge(problem, solution.state.x, duals)
    found = tightened(problem, at, duals)
    feasible = feasible_duals(problem.network, problem.weight, at.x, found)
    name = "v1"
    assert torch.allclose(found[name], feasible[name], rtol=1e-12, atol=0)
    assert torch.equal(found[DATA_DUAL], duals[DATA_DUAL])
    again = judge(problem, solution.state.x, found)[1]
    assert float(again.near.gap) < float(bounds.near.gap) / 2


def test_tightened_variables_are_near_the_best_for_these_data():
    """The largest bound over all p, with v fixed, by CVXPY."""
    problem = scan((0.0, 1.0), size=23, views=9)  # more unknowns than a matrix of steps takes
    state = after(problem, 40).state
    at, _ = judge(problem, state.x, state.duals)
    V = problem.network.layers[0].operators[0]
    matrix, v = dense_matrix(V, problem.image_shape), state.duals[DATA_DUAL]
    p = cp.Variable((2, 23**2))
    g = problem.operator.adjoint(v).numpy().ravel() + matrix.T @ cp.vec(p, order="C")
    best = cp.Problem(
        cp.Minimize(cp.sum(cp.pos(-g))), [cp.norm(p, 2, axis=0) <= float(problem.weight)]
    ).solve(solver=cp.CLARABEL)

    # What p costs the bound of total variation in the box [0, 1].
    raw, found = (
        float(slopes(problem, at.x, duals).neg().relu().sum())
        for duals in (state.duals, tightened(problem, at, state.duals))
    )
    assert 0.999 * best <= found
    assert found - best < 0.3 * (raw - best)


def test_gaps_are_tightened_near_the_tolerance_only(monkeypatch):
    problem, tried = scan((0, 1)), []
    original = certificate.tightened

    def counted(problem, at, witness):
        tried.append(1)
        return original(problem, at, witness)

    monkeypatch.setattr(certificate, "tightened", counted)
    stop = cl.StopWhen(gap=1e-3, max_iterations=400)
    solution = cl.solve(problem, stop=stop)
    assert solution.status == (cl.Status.CONVERGED,)
    assert 1 <= len(tried) <= 4
    monkeypatch.setattr(certificate, "tightened", lambda problem, at, witness: witness)
    assert int(solution.iterations) < int(cl.solve(problem, stop=stop).iterations)


def test_nothing_is_repaired_where_that_is_not_what_lacks(monkeypatch):
    called = []
    monkeypatch.setattr(
        certificate, "repaired", lambda problem, at, witness: called.append(1) or witness
    )
    for box in ((0, 1), None):
        after(scan(box), 20)
    assert not called
    problem = scan((0, None))
    cl.solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=40))  # far from the tolerance
    assert len(called) == 2  # at the end: the best dual variables, and the last


def test_upper_ends_are_the_mirror_image():
    mirrored = ((0, None), 1), ((None, 0), -1)
    gaps = [float(after(scan(box, sign), 160).gap) for box, sign in mirrored]
    assert gaps[1] == pytest.approx(gaps[0], rel=1e-6)


def test_bounds_stay_below_the_optimum(tmp_path):
    problem = scan((0, None), size=8, views=6)
    shape = (1, 8, 8)
    A, V = (
        dense_matrix(each, shape)
        for each in (problem.operator, problem.network.layers[0].operators[0])
    )
    x = cp.Variable(64, nonneg=True)
    parts = cp.reshape(V @ x, (2, 64), order="C")
    value = 0.5 * cp.sum_squares(A @ x - problem.fidelity.y.flatten().numpy())
    program = cp.Problem(cp.Minimize(value + 0.02 * cp.sum(cp.norm(parts, 2, axis=0))))
    program.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-12)
    for iterations in (20, 80, 160):
        solution = after(problem, iterations)
        assert float(solution.lower_bound) <= program.value * (1 + 1e-8)
        (verdict,) = cl.verify(solution.proof.save(tmp_path / f"{iterations}.proof"))
        assert verdict.guarantee == "GLOBAL"


@pytest.mark.parametrize("box", [(0, None), (None, 1)])
def test_missing_pixels_with_one_bound_have_a_global_proof(box, tmp_path):
    """Nothing but p bounds <c, x> at a pixel that no datum sees."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand((1, 1, SIZE, SIZE), generator=generator) > 0.4).double()
    clean = shepp_logan(SIZE).double()
    y = mask * (clean + 0.1 * torch.randn(clean.shape, generator=generator).double())
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=cl.Mask(mask), regularizer=cl.TotalVariation(),
        weight=0.1, box=box,
    )  # fmt: skip
    solution = cl.solve(problem)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert solution.status == (cl.Status.CONVERGED,)
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"
    assert np.isclose(verdict.gap, float(solution.gap), rtol=0.1, atol=1e-6)


def test_absolute_differences_with_one_bound_take_fewer_iterations(monkeypatch):
    """Behind a diagonal operator, |x - y| grows with a slope of 1 only."""
    y = torch.rand((1, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(0))
    problem = cl.VariationalProblem(
        fidelity=cl.L1(y), regularizer=cl.TotalVariation(), weight=0.4, box=(0, None)
    )
    repaired_solution = cl.solve(problem)
    without_repairs(monkeypatch)
    assert repaired_solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert int(repaired_solution.iterations) < int(cl.solve(problem).iterations)


def test_images_of_a_batch_have_no_influence_on_each_other():
    """One image lags behind its bound near x, and the other does not."""
    generator = torch.Generator().manual_seed(0)
    noisy = torch.rand((1, 1, SIZE, SIZE), generator=generator)
    y = torch.cat([noisy, torch.full_like(noisy, 0.5)])

    def solved(data: Tensor) -> cl.Solution:
        problem = cl.VariationalProblem(
            fidelity=cl.L1(data), regularizer=cl.TotalVariation(), weight=0.4, box=(0, None)
        )
        return cl.solve(problem)

    both = solved(y)
    for i in range(2):
        alone = solved(y[i : i + 1])
        assert int(both.iterations[i]) == int(alone.iterations)
        assert float(both.lower_bound[i]) == pytest.approx(float(alone.lower_bound), rel=1e-12)


def test_filters_of_zeros_and_single_precision_are_no_obstacle():
    net = cl.networks.ridge(channels=1, kernel=3)
    torch.nn.init.zeros_(net.layers[0].skip.weight)
    y = torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    for regularizer in (net, cl.TotalVariation()):
        problem = cl.VariationalProblem(
            fidelity=cl.L1(y), operator=cl.Mask(y > 0.3), regularizer=regularizer, weight=0.1,
            box=(0, None),
        ).to(dtype=torch.float32)  # fmt: skip
        solution = cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=20))
        assert solution.guarantee == (cl.Guarantee.GLOBAL,)
