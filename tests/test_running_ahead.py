"""Iterations that were launched before a check has ended are the ones that would follow it."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.solvers.pdhg import RestartedPDHG


def stated(scales=(0.1, 1.0, 0.5)) -> cl.VariationalProblem:
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.01)
    y = torch.rand(len(scales), 1, 12, 16) * torch.tensor(scales)[:, None, None, None]
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.2, box=(0, 1),
        operator=cl.Mask(torch.rand(12, 16) > 0.3),
    )  # fmt: skip


@pytest.fixture
def launched(monkeypatch):
    """Solvers that may run ahead, also on a CPU, and the iterations of their calls."""
    counts: list[int] = []
    advance = RestartedPDHG.advance

    def counted(self, state, iterations, active=None):
        counts.append(int(state.memory.total.max()))
        return advance(self, state, iterations, active)

    monkeypatch.setattr(RestartedPDHG, "advance", counted)
    monkeypatch.setattr(RestartedPDHG, "runs_ahead", lambda self, state: True)
    return counts


def assert_same(one: cl.Solution, other: cl.Solution) -> None:
    for name in ("x", "objective", "lower_bound", "gap", "iterations"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.status == other.status
    assert torch.equal(one.history["gap"], other.history["gap"])
    last = one.iterations == one.iterations.max()  # the states of others may be a round ahead
    assert torch.equal(one.state.v["v1"][last], other.state.v["v1"][last])


@pytest.mark.parametrize("stop", [
    cl.StopWhen(gap=1e-4), cl.StopWhen(gap=None, max_iterations=25), cl.StopWhen(check_every=3),
])  # fmt: skip
def test_solutions_are_the_same(stop, launched, monkeypatch):
    problem = stated()
    ahead = cl.solve(problem, stop=stop)
    calls = list(launched)
    launched.clear()
    monkeypatch.setattr(RestartedPDHG, "runs_ahead", lambda self, state: False)
    assert_same(ahead, cl.solve(problem, stop=stop))
    assert set(launched) <= set(calls)


def test_nothing_is_computed_again_after_an_image_has_ended(launched):
    solution = cl.solve(stated(), stop=cl.StopWhen(gap=1e-4))
    assert len(solution.iterations.unique()) > 1
    assert len(launched) == len(set(launched))


def test_an_image_that_is_solved_at_the_start_stays_there(launched, monkeypatch):
    problem, stop = stated(), cl.StopWhen(gap=1e-2)
    start = problem.initial_image()
    start[0] = cl.solve(problem, stop=cl.StopWhen(gap=1e-6)).x[0]
    ahead = cl.solve(problem, stop=stop, start=start)
    assert ahead.iterations[0] == 0 < ahead.iterations[1]
    monkeypatch.setattr(RestartedPDHG, "runs_ahead", lambda self, state: False)
    assert_same(ahead, cl.solve(problem, stop=stop, start=start))


def test_nothing_is_launched_beyond_the_expected_end(launched):
    solution = cl.solve(stated((1.0,)), stop=cl.StopWhen(gap=1e-3))
    assert max(launched) < int(solution.iterations.max())


def test_a_callback_that_stops_gets_the_state_that_it_saw(launched):
    seen = []

    def stop_soon(progress):
        seen.append(progress.x)
        return len(seen) == 3

    solution = cl.solve(stated(), stop=cl.StopWhen(gap=0.0), callback=stop_soon)
    assert set(solution.status) == {cl.Status.STOPPED}
    assert torch.equal(solution.state.x, seen[-1])
    assert solution.iterations.tolist() == [20, 20, 20]


def test_with_a_time_limit_nothing_is_launched_ahead(launched):
    solution = cl.solve(stated(), stop=cl.StopWhen(gap=None, max_iterations=20, seconds=60.0))
    assert len(launched) == len(set(launched))
    assert max(launched) < int(solution.iterations.max())
