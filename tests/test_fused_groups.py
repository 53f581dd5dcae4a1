"""Groups of iterations in kernels with restarts and attempts at a proof inside their graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused_problems import anchors, compare, one_layer, solvers
from marks import slow

from convexlift.solvers import fused_iterations, restart_rules
from convexlift.solvers.fused_restarts import Groups

pytest.importorskip("triton")


@pytest.mark.parametrize("trying", [[True, False], [True, True]])
@pytest.mark.parametrize(("smoothing", "fidelity"), [(0.0, "L1"), slow(0.01, "L2")])
def test_attempts_at_a_proof(smoothing, fidelity, trying, monkeypatch, dual_kernel):
    """Of some images, while others iterate; then all continue as if there had been none.

    Those of all images are one launch.
    """
    problem, both = one_layer("zero", smoothing, fidelity), torch.tensor([True, True])
    images, first = torch.tensor(trying), torch.tensor([True, False])
    found, launches = [], []
    attempt = Groups.attempt
    monkeypatch.setattr(Groups, "attempt", lambda *given: launches.append(1) or attempt(*given))
    with torch.no_grad():
        for solver in solvers(problem):
            state = solver.advance(solver.start(problem.initial_image()), 10)
            tried = solver.proving(state, 10, images, both)
            assert torch.equal(tried.x[images], state.x[images])
            again = solver.advance(solver.start(problem.initial_image()), 10)
            expected = solver.advance(solver.advance(again, 10, both & ~images), 5, first)
            after = solver.advance(tried, 5, first)
            assert torch.equal(after.u["x"], expected.u["x"])
            found.append((tried.x, *tried.v.values()))
    assert len(launches) == all(trying)
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("smoothing", "fidelity", "blocks"),
    [(0.01, "L2", [10, 5, 10]), (0.0, "L1", [10, 10]), slow(0.0, "L1", [5, 10, 3, 7, 10]),
     slow(0.0, "L2", [10, 10, 10])],
    ids=str,
)  # fmt: skip
def test_groups_of_iterations_restart_by_themselves(
    smoothing, fidelity, blocks, dual_kernel, monkeypatch
):
    """Relaxed iterations, Halpern iterations, and the change from one to the other."""
    for name in ("RELAXED_AT_FIRST", "WITH_KINKS_IN_DATA"):
        monkeypatch.setattr(restart_rules, name, 10)
    if fidelity == "L1":  # states without copies of their own
        monkeypatch.setattr(fused_iterations, "LARGE", 0)
    groups = []
    monkeypatch.setattr(
        Groups, "run", lambda *given, run=Groups.run: groups.append(given[1]) or run(*given)
    )
    compare(one_layer("zero", smoothing, fidelity), blocks)
    assert groups == [count for count in blocks if count % 5 == 0]


@pytest.mark.parametrize("fidelity", ["L2", slow("L1")])
def test_groups_of_some_images_are_those_of_all(fidelity, dual_kernel):
    """Before and after an image ends."""
    problem, active = one_layer("zero", 0.01, fidelity), torch.tensor([False, True])
    with torch.no_grad():
        _, fast = solvers(problem)
        first = fast.iterations.set_aside(fast.advance(fast.start(problem.initial_image()), 5))
        state = fast.advance(fast.advance(first, 5, active), 5, active)
        _, other = solvers(problem)
        expected = other.advance(other.start(problem.initial_image()), 15)
    for name in ("u", "v", "w_u", "w_v", "sigma", "tau", *anchors(fast, state)):
        for block, part in getattr(state, name).items():
            assert torch.equal(part[0], getattr(first, name)[block][0])
            assert torch.equal(part[1], getattr(expected, name)[block][1])
    assert state.memory.total.tolist() == [5, 15]


@pytest.mark.parametrize("fidelity", ["L2", slow("L1")])
def test_a_state_whose_w_is_lost_restarts_from_its_images(fidelity, dual_kernel):
    """And one whose w was set aside continues as if nothing had been computed since."""
    problem = one_layer("zero", 0.01, fidelity)
    with torch.no_grad():
        _, fast = solvers(problem)
        lent = fast.advance(fast.start(problem.initial_image()), 10)
        own = fast.iterations.set_aside(lent)
        once = fast.advance(lent, 5)
        assert fast.iterations.continues(own)
        assert not fast.iterations.continues(lent)
        again = fast.advance(own, 5)
        assert torch.equal(again.x, once.x)
        restarted = fast.advance(lent, 5)
        assert torch.equal(restarted.x, fast.advance(lent.restarted(), 5).x)
    assert not torch.equal(restarted.x, once.x)
    assert restarted.memory.total.tolist() == [15, 15]


@pytest.mark.parametrize("fidelity", ["L1", slow("L2")])
def test_relaxed_images_that_lag_behind_iterate_in_groups_of_their_own(
    fidelity, monkeypatch, dual_kernel
):
    """As after an attempt at a proof: restarts are due at other times, here after 10 and 20."""
    problem, second = one_layer("zero", 0.01, fidelity), torch.tensor([False, True])
    groups, run = [], Groups.run
    monkeypatch.setattr(Groups, "run", lambda *given: groups.append(given[1]) or run(*given))
    found = []
    with torch.no_grad():
        for solver in solvers(problem):
            state = solver.advance(solver.start(problem.initial_image()), 5)
            state = solver.advance(solver.advance(state, 10, second), 10)
            found.append(solver.advance(state, 5))
    plain, fast = found
    assert groups == [5, 10, 10, 10, 5, 5]
    for name in ("inner", "total", "restart_next"):
        assert torch.equal(getattr(fast.memory, name), getattr(plain.memory, name))
    for name in ("u", "v", "sigma", *anchors(solver, fast)):
        for block, part in getattr(plain, name).items():
            torch.testing.assert_close(getattr(fast, name)[block], part, rtol=1e-3, atol=1e-5)


def test_groups_serve_other_networks(monkeypatch, dual_kernel):
    """Graphs of groups have no norms of filters in them."""
    monkeypatch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    made = []
    monkeypatch.setattr(
        Groups, "__init__", lambda *given, init=Groups.__init__: made.append(1) or init(*given)
    )
    compare(one_layer("zero", 0.01, "L2"), [10])
    other = one_layer("zero", 0.01, "L2")
    other.regularizer.layers[0].skip.weight.data *= 3.0
    compare(replace(other, weight=0.1), [10])
    assert made == [1]
