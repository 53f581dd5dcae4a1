"""Whole solves with iterations in kernels and replayed checks, which read each other's buffers."""

from __future__ import annotations

import pytest
from fused_problems import ON_GPU, one_layer
from marks import slow
from replaying import again, assert_same, ordinary

import convexlift as cl
from convexlift.problems.certificate import judged
from convexlift.solvers import fused_iterations, pdhg, replays
from convexlift.solvers.confirmations import claimed
from convexlift.solvers.fused_iterations import FusedIterations

pytest.importorskip("triton")


@pytest.mark.skipif(ON_GPU, reason="test_replays.py has solves with graphs on a GPU")
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("smoothing", "fidelity", "gap"), [(0.01, "L2", 1e-3), (0.0, "L1", 2e-2), slow(0.0, "L2", 1e-3)]
)
def test_checks_read_the_buffers_of_iterations(
    smoothing, fidelity, gap, ahead, dual_kernel, monkeypatch
):
    """Also after attempts at a proof, when some images have ended, and at a limit."""
    monkeypatch.setattr(
        pdhg, "fastest_iterations",
        lambda saddle, coupling: (FusedIterations(saddle, coupling, interpreted=True), ""),
    )  # fmt: skip
    monkeypatch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    monkeypatch.setattr(pdhg.RestartedPDHG, "runs_ahead", lambda self, state: ahead)
    graphs, unbounded = again(monkeypatch), one_layer("zero", smoothing, fidelity)
    problem = cl.VariationalProblem(  # in a box, so that bounds hold everywhere
        fidelity=unbounded.fidelity, operator=unbounded.operator, weight=unbounded.weight,
        regularizer=unbounded.regularizer, box=(0, 1),
    )  # fmt: skip
    for stop in (cl.StopWhen(gap=gap, max_iterations=80), cl.StopWhen(gap=None, max_iterations=20)):
        expected = ordinary(problem, monkeypatch, stop=stop)
        for _ in range(3):
            captures = graphs.captures
            assert_same(cl.solve(problem, stop=stop), expected)
    assert graphs.captures == captures, "the third solve captures nothing"
    recorded = [workshop.recordings for workshop in replays.IDLE.values()]  # also of single images
    made = [(key, each.copies) for of in recorded for key, each in of.items() if each.copies]
    of_buffers = {function for (function, _, held), _ in made if all(held) and held}
    assert judged in of_buffers
    assert (claimed in of_buffers) == ahead
    for (_, _, held), copies in made:
        assert not (held and all(held)) or not copies.copied
