"""The loop: batches, stops, warm starts, callbacks, interruptions, and no NaN in sight."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import zoo

import convexlift as cl
from convexlift.problems import claims
from convexlift.solvers import stopwatch

METHODS = [
    cl.PDHG(),
    cl.PDHG(steps=cl.PaperSteps((0.5, 0.05))),
    cl.Subgradient(0.3),
    cl.Subgradient(3.0, diminishing=True),
    cl.NMAPG(),
    cl.LBFGS(),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


def one_of(problem: cl.VariationalProblem, i: int) -> cl.VariationalProblem:
    """The problem of one image of a batch."""
    y = problem.fidelity.y[i : i + 1]
    fidelity = cl.L1(y, problem.fidelity.scale) if isinstance(problem.fidelity, cl.L1) else (
        cl.SquaredL2(y)
    )  # fmt: skip
    return cl.VariationalProblem(
        fidelity=fidelity,
        operator=problem.operator,
        regularizer=problem.regularizer,
        weight=problem.weight,
        box=problem.box,
    )


@every_method
@pytest.mark.parametrize("fidelity", ["L1", "masked L2"])
def test_a_batch_of_four_is_four_single_runs(method, fidelity):
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], fidelity, "box", batch=4)
    # At ties the sign of x - y turns rounding errors into whole steps: fewer of those.
    chaotic = fidelity == "L1" and isinstance(method, cl.Subgradient)
    stop = cl.StopWhen(gap=1e-2, max_iterations=10 if chaotic else 120)
    together = cl.solve(problem, method=method, stop=stop)
    for i in range(4):
        alone = cl.solve(one_of(problem, i), method=method, stop=stop)
        assert together.status[i] == alone.status[0]
        assert int(together.iterations[i]) == int(alone.iterations[0])
        torch.testing.assert_close(together.x[i], alone.x[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(together.gap[i], alone.gap[0], rtol=1e-6, atol=1e-10)


def test_images_of_a_batch_stop_at_their_own_time():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", batch=4)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-6, check_every=1))
    assert set(solution.status) == {cl.Status.CONVERGED}
    assert len(set(solution.iterations.tolist())) > 1
    assert (solution.gap <= 1e-6).all()


@every_method
def test_a_warm_start_goes_on_where_it_stopped(method):
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], "L2", batch=2)
    first = cl.solve(problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=30))
    again = cl.solve(
        problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=0), start=first.state
    )
    torch.testing.assert_close(again.history[0].objective, first.history[-1].objective)


@pytest.mark.parametrize("method", [cl.LBFGS(), cl.NMAPG(), cl.PDHG()], ids=repr)
@pytest.mark.parametrize("weights", [(0.05, 0.5), (0.5, 0.05)])
def test_a_warm_start_with_another_weight_gets_there_too(method, weights):
    first, second = (
        replace(zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2"), weight=w) for w in weights
    )
    stop = cl.StopWhen(gap=1e-5, max_iterations=500)
    near = cl.solve(first, method=method, stop=stop)
    warm = cl.solve(second, method=method, stop=stop, start=near.state)
    assert warm.status == (cl.Status.CONVERGED,), str(warm)


@pytest.mark.parametrize("method", [cl.LBFGS(), cl.NMAPG()], ids=repr)
def test_what_was_learned_of_a_problem_is_kept_for_it(method):
    problem = zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2")
    stops = [cl.StopWhen(gap=None, max_iterations=n) for n in (20, 10)]
    whole = cl.solve(problem, method=method, stop=stops[0])
    half = cl.solve(problem, method=method, stop=stops[1])
    rest = cl.solve(problem, method=method, stop=stops[1], start=half.state)
    torch.testing.assert_close(rest.state.x, whole.state.x, rtol=0, atol=0)


def test_a_warm_start_of_pdhg_keeps_the_duals():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", batch=2)
    first = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    again = cl.solve(problem, stop=cl.StopWhen(gap=2e-5), start=first.state)
    assert again.iterations.tolist() == [0, 0]
    fixed = cl.PDHG(steps=cl.PaperSteps((0.5, 0.05)))
    assert (cl.solve(problem, method=fixed, start=first.state).iterations == 0).all()


def test_an_unbroken_run_equals_a_continued_one():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2")
    method = cl.PDHG(steps=cl.PaperSteps((0.5, 0.05)))
    whole = cl.solve(problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=40))
    half = cl.solve(problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=20))
    rest = cl.solve(
        problem, method=method, stop=cl.StopWhen(gap=None, max_iterations=20), start=half.state
    )
    torch.testing.assert_close(rest.state.x, whole.state.x, rtol=0, atol=0)


def test_start_from_an_image_or_from_another_methods_state():
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], "L2", "box")
    good = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-6))
    for start in (good.x, good.state):
        assert int(cl.solve(problem, start=start, stop=cl.StopWhen(gap=1e-5)).iterations) == 0
    outside = cl.solve(problem, start=good.x + 5, stop=cl.StopWhen(gap=1e-3))
    assert outside.status == (cl.Status.CONVERGED,)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(1, 1, 4, 4), r"start must have shape \(1, 1, 8, 8\), got \(1, 1, 4, 4\)"),
        (torch.full((1, 1, 8, 8), float("nan")), r"start is nan at index \(0, 0, 0, 0\)"),
    ],
)
def test_bad_starts(start, message):
    with pytest.raises(ValueError, match=message):
        cl.solve(zoo.problem(), start=start)


class Clock:
    """A clock that advances by a tenth of a second whenever it is read."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=self.read))

    def read(self) -> float:
        self.now += 0.1
        return self.now


def test_limits_have_their_status(monkeypatch):
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "L1")
    limited = cl.solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=7))
    assert limited.status == (cl.Status.ITERATION_LIMIT,)
    assert int(limited.iterations) == limited.history[-1].iteration == 7
    Clock(monkeypatch)
    timed = cl.solve(problem, stop=cl.StopWhen(gap=1e-15, seconds=2.0, check_every=1000))
    assert timed.status == (cl.Status.TIME_LIMIT,)
    assert timed.seconds >= 2.0
    assert timed.history[-1].iteration == int(timed.iterations) > 0
    assert "max_iterations" in cl.Status.ITERATION_LIMIT.value
    nothing = cl.solve(problem, stop=cl.StopWhen(max_iterations=0))
    assert len(nothing.history) == 1


def test_a_callback_sees_named_values_and_can_stop(monkeypatch):
    seen, clock = [], Clock(monkeypatch)

    def watch(progress: cl.Progress) -> bool:
        seen.append(progress)
        clock.now += 1000.0
        return progress.iteration >= 30

    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1", batch=2)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=500), callback=watch)
    assert solution.status == (cl.Status.STOPPED,) * 2
    assert [p.iteration for p in seen] == [0, 10, 20, 30]
    assert seen[-1].x.shape == solution.x.shape
    assert seen[-1].gap.shape == seen[-1].lower_bound.shape == (2,)
    total = seen[1].data_term + problem.weight * seen[1].regularizer
    torch.testing.assert_close(total, seen[1].objective)
    assert solution.seconds < 1000.0  # callbacks do not count


def test_history_columns():
    solution = cl.solve(zoo.problem(batch=3), stop=cl.StopWhen(gap=1e-4, check_every=2))
    assert solution.history["gap"].shape == (len(solution.history), 3)
    assert solution.history["iteration"].tolist() == list(range(0, 2 * len(solution.history), 2))
    assert (solution.history["lower_bound"].diff(dim=0) >= 0).all()
    assert (solution.history["lower_bound"] <= solution.objective + 1e-12).all()


@every_method
def test_control_c_returns_the_best_iterate(method):
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], "L1", batch=2)

    def interrupt(progress: cl.Progress) -> None:
        if progress.iteration == 20:
            signal.raise_signal(signal.SIGINT)

    solution = cl.solve(
        problem, method=method, callback=interrupt, stop=cl.StopWhen(gap=0.0, max_iterations=10**6)
    )
    assert solution.status == (cl.Status.INTERRUPTED,) * 2
    assert solution.iterations.tolist() == [20, 20]
    assert solution.history["iteration"].tolist() == [0, 10, 20]
    assert torch.isfinite(solution.x).all()
    torch.testing.assert_close(problem.objective(solution.x), solution.objective)
    assert (solution.objective <= (1 + 1e-12) * solution.history["objective"]).all()


@pytest.mark.parametrize("fidelity", ["L2", "KL"])
@pytest.mark.sampled(3)
def test_divergence_is_a_status_and_never_an_image_of_nan(fidelity):
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, batch=2)
    solution = cl.solve(
        problem,
        method=cl.Subgradient(1e30),
        stop=cl.StopWhen(gap=1e-9, max_iterations=2000),
    )
    assert cl.Status.CONVERGED not in solution.status
    assert torch.isfinite(solution.x).all()
    assert torch.isfinite(solution.objective).all()
    assert torch.isfinite(solution.state.x).all()


def test_overflow_is_reported_as_not_finite():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2")
    solution = cl.solve(
        problem, method=cl.Subgradient(1e200), stop=cl.StopWhen(gap=1e-9, max_iterations=100)
    )
    assert solution.status == (cl.Status.NOT_FINITE,)
    assert torch.isfinite(solution.x).all()


def test_it_prints_a_summary():
    text = str(cl.solve(zoo.problem(batch=2)))
    assert "converged after" in text
    assert "gap" in text
    assert "(global)" in text


def test_single_precision_reaches_its_tolerance():
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "L2", batch=2).to(dtype=torch.float32)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    assert set(solution.status) == {cl.Status.CONVERGED}
    exact = cl.certify(problem, solution.x, solution.duals)
    assert (exact.gap <= 2e-5).all()


@every_method
@pytest.mark.parametrize("blur", [False, True])
@pytest.mark.parametrize("fidelity", ["L1", "KL"])
def test_the_duals_of_a_solution_prove_its_bound(fidelity, blur, method):
    data, operator = zoo.fidelity(fidelity, batch=2)
    problem = cl.VariationalProblem(
        fidelity=data,
        operator=cl.Blur.gaussian(0.7) @ operator if blur else operator,
        regularizer=zoo.network("plain", zoo.MONOTONE["smoothed"]),
        weight=0.3,
        box=(0, 1),
    )
    if blur and fidelity == "L1" and isinstance(method, cl.NMAPG):
        pytest.skip("NMAPG refuses L1 behind a blur; test_baselines checks that it does")
    if blur and isinstance(method, cl.PDHG):
        method = cl.PDHG()  # the paper's steps would need a third number
    solution = cl.solve(problem, method=method, stop=cl.StopWhen(gap=1e-4, max_iterations=100))
    confirmed = cl.certify(problem, solution.x, solution.duals)
    assert (confirmed.lower_bound >= solution.lower_bound * (1 - 1e-12)).all()


def test_gradients_are_left_alone():
    problem = zoo.problem()
    assert not cl.solve(problem).x.requires_grad
    assert all(p.grad is None and p.requires_grad for p in problem.regularizer.parameters())


def test_tf32_is_off_inside_and_as_it_was_outside():
    matmul, seen = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        cl.solve(zoo.problem(), callback=lambda _: seen.append(matmul.fp32_precision))
        assert set(seen) == {"ieee"}
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.StopWhen(gap=-1.0), "gap must be nonnegative"),
        (lambda: cl.StopWhen(gap=float("nan")), "gap must be nonnegative"),
        (lambda: cl.StopWhen(max_iterations=-1), "max_iterations must be at least 0"),
        (lambda: cl.StopWhen(seconds=0.0), "seconds must be positive"),
        (lambda: cl.StopWhen(check_every=0), "check_every must be at least 1"),
        (lambda: cl.Subgradient(0.0), "step > 0"),
        (lambda: cl.NMAPG(shrink=1.0), "0 < shrink < 1"),
        (lambda: cl.NMAPG(memory=1.0), "0 <= memory < 1"),
        (lambda: cl.NMAPG(longest_step=0.0), "longest_step > 0"),
        (lambda: cl.NMAPG(slack=-1.0), "slack >= 0"),
        (lambda: cl.LBFGS(memory=0), "memory >= 1"),
    ],
)
def test_bad_options(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_states_of_other_filters_or_precisions_give_their_images():
    """What does not fit is no error: its image is a start like any other."""
    y = torch.rand(1, 1, 12, 12, dtype=torch.float64)

    def stated(channels, dtype):
        network = cl.networks.ridge(channels=channels, kernel=3).to(dtype)
        return cl.VariationalProblem(
            fidelity=cl.SquaredL2(y.to(dtype)), regularizer=network, weight=0.1
        )

    state = cl.solve(stated(8, torch.float64)).state
    for other in (stated(4, torch.float64), stated(8, torch.float32)):
        solution = cl.solve(other, start=state)
        assert solution.status == (cl.Status.CONVERGED,)
        assert solution.x.dtype == other.fidelity.y.dtype


def test_bounds_are_never_above_objectives():
    """In the end both are the same but for rounding."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", "box", batch=6)
    problem = problem.to(dtype=torch.float32)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=400))
    assert (solution.lower_bound <= solution.objective).all()
    assert (solution.gap >= 0).all()


def test_a_bound_above_the_objective_is_no_proof(monkeypatch):
    """As from a conjugate that is wrong: no rounding makes a bound larger than an objective."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", "box", batch=2)
    right = claims.objective_above
    monkeypatch.setattr(claims, "objective_above", lambda *stated: 0.99 * right(*stated))
    for attempt in (cl.solve, lambda it: cl.certify(it, cl.solve(it).x)):
        with pytest.raises(claims.InconsistentBounds, match=r"above the objective .* of image 0"):
            attempt(problem)


@pytest.mark.parametrize("method", ["lbfgs", cl.PDHG])
def test_methods_are_objects(method):
    with pytest.raises(TypeError, match=r"method must be cl.PDHG\(\)"):
        cl.solve(zoo.problem("plain", cl.LeakyReLU(0.2), "L2"), method=method)
