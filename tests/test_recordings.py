"""Recordings of single calls: what is captured, copied, waited for and computed anew."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from replaying import HERE, again, assert_same, baseline, ordinary, stated

import convexlift as cl
from convexlift.decisions import Decisions, decided
from convexlift.problems.claims import InBoth
from convexlift.solvers import replays
from convexlift.solvers.kinds import Unfit, kind_of, rebuilt
from convexlift.solvers.pdhg import started
from convexlift.solvers.replays import Replays


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    return again(monkeypatch)


def doubled(both, x, factor):
    big = decided((x > 1).any())
    return (factor * x if big else x + both.problem.fidelity.y, x), [x.flatten(1).sum(1)]


def call(tool, x, factor=2.0):
    (found, same), (total,) = tool(doubled, x, factor)
    assert same is x
    assert torch.equal(total, x.flatten(1).sum(1).double())
    return found


@torch.no_grad()
def test_decisions_that_change_are_taken_anew(graphs):
    problem = stated()
    tool, y = Replays(InBoth(problem)), problem.fidelity.y
    small, large = y / 2, y + 1
    for x in (small, small, small, large, small, large, large, small, small):
        expected = 2 * x if x is large else x + y
        assert torch.equal(call(tool, x), expected)
    assert graphs.captures <= replays.TRIES


@torch.no_grad()
def test_numbers_are_waited_for_later():
    """Also if another call comes first, and if the decision turns out to be another one."""
    problem = stated()
    tool, y = Replays(InBoth(problem)), problem.fidelity.y
    small, large, smaller = y / 2, y + 1, y / 4
    for _ in range(3):
        tool(doubled, small, 2.0)
    pending = {x: tool.launched(doubled, x, 2.0) for x in (small, large, smaller)}
    for x, waited in pending.items():
        (found, same), (total,) = waited()
        assert torch.equal(found, 2 * x if x is large else x + y)
        assert same is x
        assert torch.equal(total, x.flatten(1).sum(1).double())


def two_layers() -> cl.VariationalProblem:
    data = cl.SquaredL2(torch.rand(2, 1, 16, 16))
    return cl.VariationalProblem(fidelity=data, regularizer=baseline(), weight=0.2, box=(0, 1))


@pytest.mark.parametrize("made", [stated, two_layers])
@torch.no_grad()
def test_a_replayed_start_is_the_ordinary_one(made, graphs):
    problem = made()
    calls = Replays(InBoth(problem))
    solver = cl.PDHG().solver(problem)
    expected = solver.start(problem.initial_image())
    for _ in range(3):
        state = solver.settled(solver.first(calls))
        assert torch.equal(state.x, expected.x)
        for name, part in expected.duals.items():
            assert torch.equal(state.duals[name], part)
    assert graphs.captures == 1


def shifted(by: float) -> cl.VariationalProblem:
    """A problem of two layers; all units of the second are on after a large shift."""
    problem = two_layers()
    with torch.no_grad():
        problem.regularizer.layers[-1].bias.fill_(by)
    return problem


@pytest.mark.parametrize(("first", "then"), [(5.0, -0.2), (-0.2, 5.0)])
def test_units_that_turn_out_to_be_off(first, then, monkeypatch):
    """Problems of one kind, of which only one can do without its second layer."""
    stop, method = cl.StopWhen(gap=1e-3, max_iterations=20), cl.PDHG()
    torch.manual_seed(6)
    recorded, other = shifted(first), shifted(then)
    expected = ordinary(other, monkeypatch, stop=stop, method=method)
    for _ in range(3):
        cl.solve(recorded, stop=stop, method=method)
    assert_same(cl.solve(other, stop=stop, method=method), expected)
    states = [cl.solve(each, stop=stop, method=method).state for each in (recorded, other)]
    assert {bool(state.holds.all()) for state in states} == {True, False}


def of_the_sign(both, lifted, coupling, headless):
    """Another start, that decides something about the data."""
    positive = decided(both.problem.fidelity.y.mean() > 0.5)
    found, numbers = started(both, lifted, coupling, headless)
    return (found[0] if positive else 0.5 * found[0], *found[1:]), numbers


def test_a_start_that_decides_otherwise(monkeypatch):
    monkeypatch.setattr("convexlift.solvers.pdhg.started", of_the_sign)
    light, dark = (stated(seed) for seed in (0, 1))
    for problem, shift in ((light, 0.2), (dark, -0.2)):
        problem.fidelity.y.add_(shift)
    for _ in range(3):
        cl.solve(light)
    solution = cl.solve(dark, stop=cl.StopWhen(max_iterations=0))
    torch.testing.assert_close(solution.x, 0.5 * dark.initial_image())
    assert len(solution.history) == 1


@torch.no_grad()
def test_nothing_is_shared_with_the_copies():
    problem = stated()
    tool, x = Replays(InBoth(problem)), torch.rand_like(problem.fidelity.y)
    found = [call(tool, x) for _ in range(4)]
    addresses = {each.data_ptr() for each in found}
    assert len(addresses) == 4
    assert all(torch.equal(each, found[0]) for each in found)


def asks_the_host(both, x):
    return x * float(x.sum()), [x.flatten(1).sum(1)]


def asks_for_places(both, x):
    return x.nonzero(), [x.flatten(1).sum(1)]


OUTSIDE = torch.rand(2, 1, 12, 16)


def reads_another(both, x):
    return x + OUTSIDE.to(x), [x.flatten(1).sum(1)]


@pytest.mark.parametrize("function", [asks_the_host, asks_for_places, reads_another])
@torch.no_grad()
def test_what_cannot_be_captured_is_computed(function, graphs):
    problem = stated()
    tool, x = Replays(InBoth(problem)), torch.rand_like(problem.fidelity.y)
    for _ in range(4):
        found, _ = tool(function, x)
        assert torch.equal(found, function(None, x)[0])
    assert not graphs.captures


@torch.no_grad()
def test_failures_of_a_capture_are_not_seen(graphs, monkeypatch):
    def fails(launch):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(graphs, "capture", fails)
    problem = stated()
    for _ in range(2):
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))


def test_errors_of_the_function_are():
    def wrong(both, x):
        if decided((x > 2).any()):
            raise ArithmeticError("wrong")
        return x + 1, [x.flatten(1).sum(1)]

    problem = stated()
    x = problem.fidelity.y
    with torch.no_grad():
        tool = Replays(InBoth(problem))
        for _ in range(3):
            tool(wrong, x)
        with pytest.raises(ArithmeticError):
            tool(wrong, x + 3)


def test_parts_of_others_and_gradients_are_left_alone(graphs, monkeypatch):
    class Own(cl.LinearOperator):
        def forward(self, x):
            return 0.5 * x

        def adjoint(self, y):
            return 0.5 * y

    for _ in range(3):
        problem = stated(operator=Own())
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
    assert not graphs.captures
    tool = Replays(InBoth(stated()))
    x = torch.rand(2, 1, 12, 16, requires_grad=True)
    for _ in range(3):
        assert tool(doubled, x, 1.0)[0][0].requires_grad


def test_kinds():
    problem = stated()
    words, tensors = kind_of(problem, HERE)
    assert words == kind_of(stated(3, stated().regularizer), HERE)[0]
    assert words != kind_of(stated(weight=0.25), HERE)[0]
    assert any(tensor is problem.fidelity.y for tensor in tensors)
    assert problem.network is not None
    twin = rebuilt(problem, iter([tensor.clone() for tensor in tensors]), HERE)
    assert "network" not in vars(twin)
    assert torch.equal(twin.network.output, problem.network.output)
    assert twin.network.output.data_ptr() != problem.network.output.data_ptr()
    with pytest.raises(Unfit):
        kind_of(object(), HERE)


def test_decisions_belong_to_a_thread():
    flag = torch.tensor(True)
    with Decisions() as recorded:
        assert decided(flag)
        thread = threading.Thread(target=lambda: decided(flag))
        thread.start()
        thread.join()
    assert recorded.answers == [True]
    with Decisions([False]) as taken:
        assert not decided(flag)
    assert taken.flags == [flag]


def test_a_rehearsal_does_not_import_the_compiler():
    lines = ["import sys, torch", "from convexlift.solvers.rehearsal import Rehearsal",
             "x = torch.ones(3)", "with Rehearsal([x]): x + 1",
             "assert 'torch._dynamo' not in sys.modules"]  # fmt: skip
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_a_tensor_that_is_two_results_is_copied_once(graphs):
    """So it stays one tensor, as in an ordinary call, and a new one for each call."""

    def function(both, x):
        doubled = 2 * x
        return (doubled, x, {"again": doubled}), (x.sum((1, 2, 3)),)

    calls = Replays(InBoth(stated()))
    seen = []
    for _ in range(4):
        x = torch.rand(2, 1, 12, 16)
        with torch.no_grad():
            (doubled, same, others), _ = calls(function, x)
        assert torch.equal(doubled, 2 * x)
        assert same is x
        assert others["again"] is doubled
        seen.append((doubled, 2 * x))
    assert graphs.replays == 3
    assert all(torch.equal(kept, expected) for kept, expected in seen)
