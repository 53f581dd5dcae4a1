"""The paper's methods as the authors' scripts run them, against plain loops."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import Tensor

import convexlift as cl
from convexlift.solvers import ledger
from convexlift.solvers.loop import solve_roughly
from convexlift.solvers.primal_dual import released_duals

C = (0.5, 0.05)


def projected(p: Tensor, q: Tensor, slope: float = 0.2) -> tuple[Tensor, Tensor]:
    """The nearest point of {leaky ReLU(p) <= q}: itself, or on one of its two edges, or 0."""
    right = ((p + q) / 2).clamp_min(0)
    left = ((p + slope * q) / (1 + slope**2)).clamp_max(0)
    on_right = (p - right) ** 2 + (q - right) ** 2 <= (p - left) ** 2 + (q - slope * left) ** 2
    inside = torch.maximum(p, slope * p) <= q
    first = torch.where(on_right, right, left)
    second = torch.where(on_right, right, slope * left)
    return torch.where(inside, p, first), torch.where(inside, q, second)


def duals_first(problem: cl.VariationalProblem, x: Tensor, iterations: int) -> Tensor:
    """The iteration of the denoising script: v_1 = 0, v_2 = gamma W_2 on active units."""
    method = cl.PDHG(steps=cl.PaperSteps(C))
    state = method.solver(problem).start(x)
    tau, sigma = state.tau, state.sigma
    t1, t2 = float(tau["x"][0]), float(tau["z1"][0])
    s1, s2 = float(sigma["v1,1"][0]), float(sigma["v2"][0])
    one, two = problem.network.layers
    V, W = one.operators[0], two.operators[1]
    cap = problem.weight * problem.network.output
    z = torch.nn.functional.leaky_relu(V(x) + one.bias, 0.2)
    v11, v12 = torch.zeros_like(z), torch.zeros_like(z)
    v2 = cap * (W(z) + two.bias > 0)
    x_bar, z_bar = x, z
    y, scale = problem.fidelity.y, problem.fidelity.scale
    for _ in range(iterations):
        p, q = v11 + s1 * V(x_bar), v12 + s1 * z_bar
        near_p, near_q = projected(p / s1 + one.bias, q / s1)
        v11, v12 = p - s1 * (near_p - one.bias), q - s1 * near_q
        v2 = torch.minimum((v2 + s2 * (W(z_bar) + two.bias)).clamp_min(0), cap)
        point = x - t1 * V.adjoint(v11) - y
        x_next = y + point.sign() * (point.abs() - t1 * scale).clamp_min(0)
        z_next = z - t2 * (v12 + W.adjoint(v2))
        x_bar, z_bar = 2 * x_next - x, 2 * z_next - z
        x, z = x_next, z_next
    return x


@pytest.mark.parametrize("iterations", [1, 2, 15])
def test_the_duals_start_and_move_first_as_in_the_script(iterations):
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1", "no box", batch=2)
    solver = cl.PDHG(steps=cl.PaperSteps(C, as_released=True)).solver(problem)
    y = problem.fidelity.y
    found = solver.advance(solver.start(y), iterations).x
    torch.testing.assert_close(found, duals_first(problem, y, iterations))
    ours = cl.PDHG(steps=cl.PaperSteps(C)).solver(problem)
    assert not torch.allclose(found, ours.advance(ours.start(y), iterations).x, atol=1e-3)


def test_the_first_duals_of_a_dualised_fidelity_are_in_units_of_the_operator():
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "KL", "x >= 0", batch=2)
    saddle = cl.lift(problem, dualise_fidelity=True, pooled=False)
    x = problem.initial_image()
    v = released_duals(problem, saddle, x)
    assert set(v) == set(saddle.K.rows)
    assert not any(v[name].any() for name in v if name not in ("v0", "v4"))
    fidelity, A = problem.fidelity, problem.operator
    slope = 1 - fidelity.y / (A(x) + fidelity.background)
    torch.testing.assert_close(v["v0"], slope / A.norm(tuple(x.shape[1:])))
    a = problem.network.hidden(x).a[-1]
    torch.testing.assert_close(v["v4"], problem.weight * problem.network.output * (a > 0))


def test_both_starts_reach_the_same_minimum():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "masked L2", "box")
    stop = cl.StopWhen(gap=1e-6, max_iterations=20_000, check_every=50)
    ours, theirs = (
        cl.solve(problem, method=cl.PDHG(steps=cl.PaperSteps(C, as_released=chosen)), stop=stop)
        for chosen in (False, True)
    )
    assert theirs.status == ours.status == (cl.Status.CONVERGED,)
    torch.testing.assert_close(theirs.objective, ours.objective, rtol=2e-6, atol=0)


def test_known_duals_are_not_replaced():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1", "no box")
    solver = cl.PDHG(steps=cl.PaperSteps(C, as_released=True)).solver(problem)
    state = solver.advance(solver.start(problem.fidelity.y), 3)
    again = solver.resume(state)
    assert all(torch.equal(again.v[name], state.v[name]) for name in state.v)


def test_groups_have_no_released_start():
    problem = cl.VariationalProblem(
        fidelity=cl.L1(torch.rand(1, 1, 8, 8)), regularizer=cl.TotalVariation(), weight=0.1
    )
    with pytest.raises(ValueError, match="leave as_released out"):
        cl.solve(problem, method=cl.PDHG(steps=cl.PaperSteps((1.0,), as_released=True)))


def nmapg(problem: cl.VariationalProblem, x: Tensor, iterations: int) -> list[Tensor]:
    """Algorithm 4 of Li and Lin for one image, with rho = 0.9, delta = 0.1, eta = 0.8.

    Steps start from |<s, r>| / <r, r>, at most 1; the second search has a slack of 1e-4.
    """

    def F(x: Tensor) -> float:
        return float(problem.objective(x))

    def slope(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        data = problem.fidelity.density(problem.operator(leaf)).sum()
        return torch.autograd.grad(data + problem.weight * problem.regularizer(leaf).sum(), leaf)[0]

    def quotient(s: Tensor, r: Tensor) -> float:
        return min(1.0, float((s * r).sum().abs() / (r * r).sum()))

    def search(origin: Tensor, g: Tensor, step: float, level: float, slack: float) -> Tensor:
        while True:
            point = origin - step * g
            limit = level - 0.1 * float(((point - origin) ** 2).sum())
            if F(point) <= limit * (1 + slack):
                return point
            step *= 0.9

    before, z, t_before, t, q, c = x, x, 0.0, 1.0, 1.0, F(x)
    y_before = g_before = None
    found = []
    for _ in range(iterations):
        y = x + t_before / t * (z - x) + (t_before - 1) / t * (x - before)
        g = slope(y)
        step = 0.1 if y_before is None else quotient(y - y_before, g - g_before)
        z = search(y, g, step, max(F(y), c), 0.0)
        new = z
        if F(z) >= c - 0.1 * float(((z - y) ** 2).sum()):
            own = slope(x)
            step = step if y_before is None else quotient(x - y_before, own - g_before)
            v = search(x, own, step, c, 1e-4)
            new = v if F(v) <= F(z) else z
        before, x, y_before, g_before = x, new, y, g
        t_before, t = t, ((4 * t**2 + 1) ** 0.5 + 1) / 2
        c, q = (0.8 * q * c + F(x)) / (0.8 * q + 1), 0.8 * q + 1
        found.append(x)
    return found


@pytest.mark.parametrize("architecture", ["plain", "deep"])
def test_nmapg_takes_the_steps_of_the_authors_options(architecture):
    problem = zoo.problem(architecture, zoo.MONOTONE["smoothed"], "masked L2")
    solver = cl.NMAPG.as_released().solver(problem)
    x = problem.fidelity.y
    state = solver.start(x)
    for expected in nmapg(problem, x, 25):
        state = solver.step(state)
        torch.testing.assert_close(state.x, expected, rtol=1e-6, atol=1e-8)


def test_nmapg_accepts_by_its_own_rule():
    """c_k never rises, and F(x_k) stays below it up to the slack of the second search."""
    problem = zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2")
    method = cl.NMAPG.as_released()
    solver = method.solver(problem)
    state = solver.start(problem.fidelity.y)
    for _ in range(60):
        last, state = state, solver.step(state)
        value = float(problem.objective(state.x))
        assert value <= float(last.level) * (1 + method.slack)
        assert float(state.level) <= float(last.level) * (1 + method.slack)


def slope(problem: cl.VariationalProblem, x: Tensor) -> Tensor:
    """||grad J(x)|| for each image, by autograd."""
    leaf = x.clone().requires_grad_()
    data = problem.fidelity.density(problem.operator(leaf)).sum()
    total = data + problem.weight * problem.regularizer(leaf).sum()
    return torch.autograd.grad(total, leaf)[0].flatten(1).norm(dim=1)


def smooth_problem(batch: int = 1, box: tuple[float, float] | None = None) -> cl.VariationalProblem:
    """The paper's smooth network, small, on noisy data."""
    torch.manual_seed(0)
    network = cl.networks.baseline(8, channels=3, kernel=3, pool=2, hidden=4, smoothing=0.05)
    data, operator = zoo.fidelity("L2", batch)
    return cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=network, weight=3.0, box=box
    )


METHODS = [cl.PDHG(), cl.PDHG(steps=cl.PaperSteps(C, as_released=True)), cl.NMAPG.as_released(),
           cl.LBFGS(), cl.Subgradient(0.3)]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_solves_stop_at_the_first_image_with_a_short_gradient(method):
    problem = smooth_problem(3)
    stop = cl.StopWhen(gap=None, gradient=0.02, max_iterations=3000, check_every=1)
    solution = cl.solve(problem, method=method, stop=stop)
    assert solution.status == (cl.Status.STATIONARY,) * 3
    assert bool((slope(problem, solution.x) < 0.02).all())
    before = cl.StopWhen(gap=None, max_iterations=int(solution.iterations.min()) - 1, check_every=1)
    unfinished = cl.solve(problem, method=method, stop=before).state.x
    assert bool((slope(problem, unfinished) >= 0.02).all())
    assert bool((solution.gap >= 0).all())  # certified as always


@pytest.mark.parametrize("limit", [7, 3000])
def test_bounds_that_nothing_reads_change_no_image(limit, monkeypatch):
    problem, calls = smooth_problem(3), []
    stop = cl.StopWhen(gap=None, gradient=0.02, max_iterations=limit, check_every=1)
    judged = ledger.judged
    monkeypatch.setattr(ledger, "judged", lambda *given: calls.append(1) or judged(*given))
    method = cl.Subgradient(0.3)
    frugal = solve_roughly(problem, method=method, stop=stop)
    assert len(calls) <= 4 < len(frugal.history)  # the first, and where images end
    watched = solve_roughly(problem, method=method, stop=stop, callback=lambda progress: None)
    assert len(calls) > len(watched.history)
    assert frugal.status == watched.status
    assert torch.equal(frugal.x, watched.x)
    assert torch.equal(frugal.objective, watched.objective)
    assert bool((frugal.lower_bound <= frugal.objective).all())


def test_the_gap_and_the_gradient_are_alternatives():
    problem = smooth_problem()
    steep = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, gradient=1e-12))
    assert steep.status == (cl.Status.CONVERGED,)
    flat = cl.solve(problem, stop=cl.StopWhen(gap=1e-9, gradient=0.1, check_every=1))
    assert flat.status == (cl.Status.STATIONARY,)
    assert int(flat.iterations) < int(steep.iterations)


def test_a_gradient_needs_a_smooth_problem_without_a_box():
    stop = cl.StopWhen(gradient=0.1)
    for problem, words in (
        (zoo.problem("plain", zoo.MONOTONE["smoothed"], "L1"), "has kinks"),
        (zoo.problem("plain", cl.LeakyReLU(0.2), "L2"), "has kinks"),
        (smooth_problem(box=(0.0, 1.0)), "bounds of a box"),
    ):
        with pytest.raises(ValueError, match=words):
            cl.solve(problem, stop=stop)
    with pytest.raises(ValueError, match="gradient must be positive"):
        cl.StopWhen(gradient=0.0)
