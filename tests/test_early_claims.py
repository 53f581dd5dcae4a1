"""What is launched before it is asked for: the first call, and the claim of the last check."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from replaying import again, assert_same, ordinary, stated

import convexlift as cl
from convexlift.problems.claims import InBoth
from convexlift.solvers.confirmations import claimed
from convexlift.solvers.forecast import Forecast
from convexlift.solvers.pdhg import PDHG, RestartedPDHG
from convexlift.solvers.replays import Replays

STOP = cl.StopWhen(gap=1e-3)


@pytest.fixture
def launches(monkeypatch):
    """Functions in the order in which they are launched and waited for, where graphs replay."""
    order: list[tuple[str, str]] = []
    launched = Replays.launched

    def logged(self, function, *given, **options):
        order.append(("launch", function.__name__))
        pending = launched(self, function, *given, **options)

        def wait():
            order.append(("wait", function.__name__))
            return pending.wait()

        return replace(pending, wait=wait)

    again(monkeypatch)
    monkeypatch.setattr(Replays, "launched", logged)
    monkeypatch.setattr(RestartedPDHG, "runs_ahead", lambda self, state: True)
    return order


@pytest.mark.parametrize("operator", [cl.Identity(), None], ids=["identity", "mask"])
def test_it_comes_before_the_numbers_of_that_check(operator, launches, monkeypatch):
    problem = stated(batch=1) if operator is None else stated(batch=1, operator=operator)
    expected = ordinary(problem, monkeypatch, stop=STOP)
    last = len(expected.history) - 1
    monkeypatch.setattr(Forecast, "expects_more", lambda self, _: len(self.courses[0].gaps) < last)
    for _ in range(3):  # recorded, captured, replayed
        launches.clear()
        assert_same(cl.solve(problem, stop=STOP), expected)
    assert launches[-4:] == [
        ("launch", "judged"), ("launch", "claimed"), ("wait", "judged"), ("wait", "claimed"),
    ]  # fmt: skip
    assert launches.count(("launch", "claimed")) == 1


def test_it_comes_before_the_numbers_of_the_check_at_a_limit(launches, monkeypatch):
    problem, stop = stated(batch=1), cl.StopWhen(gap=None, max_iterations=20)
    expected = ordinary(problem, monkeypatch, stop=stop)
    for _ in range(3):
        launches.clear()
        assert_same(cl.solve(problem, stop=stop), expected)
    assert launches[-4:] == [
        ("launch", "judged"), ("launch", "claimed"), ("wait", "judged"), ("wait", "claimed"),
    ]  # fmt: skip
    assert launches.count(("launch", "claimed")) == 1


def test_one_in_vain_is_thrown_away(launches, monkeypatch):
    """Here every check is expected to be the last one."""
    problem = stated()
    expected = ordinary(problem, monkeypatch, stop=STOP)
    monkeypatch.setattr(Forecast, "expects_more", lambda *_: False)
    for _ in range(3):
        launches.clear()
        assert_same(cl.solve(problem, stop=STOP), expected)
    assert launches.count(("launch", "claimed")) > launches.count(("wait", "claimed")) >= 1


@torch.no_grad()
def test_better_images_are_those_of_the_claim():
    """Of a batch in which one image is at the solution, and the other is not."""
    problem = stated(operator=cl.Identity(), box=(0, 1))
    solved = cl.solve(problem, stop=cl.StopWhen(gap=1e-9))
    x = solved.x.clone()
    x[1] = problem.initial_image()[1]
    (found, _), numbers = claimed(InBoth(problem), x, solved.duals, 1e-3, improve=True)
    assert problem.objective(found)[1] < problem.objective(x)[1]
    torch.testing.assert_close(found, solved.x, rtol=0, atol=1e-4)
    torch.testing.assert_close(numbers[0], solved.objective, rtol=1e-6, atol=0)


def test_the_first_call_comes_before_the_solver_is_made(launches, monkeypatch):
    """From the second solve of a kind on; and once, whatever it is called with."""
    problem = stated(batch=1)
    expected = ordinary(problem, monkeypatch, stop=STOP)
    made = PDHG.solver
    monkeypatch.setattr(
        PDHG, "solver", lambda *given: launches.append(("make", "solver")) or made(*given)
    )
    for first in ("make", "launch", "launch"):
        launches.clear()
        assert_same(cl.solve(problem, stop=STOP), expected)
        assert launches[0][0] == first
        assert launches.count(("launch", "started")) == 1


def test_a_first_call_in_vain_is_not_made_again(launches, monkeypatch):
    problem = stated(batch=1)
    expected = ordinary(problem, monkeypatch, method=cl.LBFGS())
    cl.solve(problem)
    for count in (1, 0):
        launches.clear()
        assert_same(cl.solve(problem, method=cl.LBFGS()), expected)
        assert launches.count(("launch", "started")) == count
    launches.clear()
    start = problem.initial_image()
    cl.solve(problem, start=start)
    assert launches.count(("launch", "started")) == 0


def test_graphs_are_kept_when_a_problem_is_refused(monkeypatch):
    """A wrong method, and a gradient asked for at kinks: both after the first launch."""
    graphs, problem = again(monkeypatch), stated(batch=1)
    for _ in range(3):
        cl.solve(problem, stop=STOP)
    captures = graphs.captures
    with pytest.raises(TypeError, match="method must be"):
        cl.solve(problem, method="pdhg", stop=STOP)
    with pytest.raises(ValueError, match="gradient need not vanish"):
        cl.solve(problem, stop=cl.StopWhen(gradient=1e-3))
    cl.solve(problem, stop=STOP)
    assert graphs.captures == captures
