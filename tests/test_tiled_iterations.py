"""Iterations in strips are the iterations, only faster."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import convexlift as cl
from convexlift.problems.lifting import lift
from convexlift.solvers import extrapolated_iterations, tiled_iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.saturated_head import SaturatedHead
from convexlift.solvers.tiled_iterations import TiledIterations

BATCH, SIZE = 3, 40


def one_layer(padding="reflect", activation="huber", fidelity="L2") -> cl.VariationalProblem:
    """Three images whose data, hence steps and restarts, are very different."""
    torch.manual_seed(0)
    net = cl.networks.ridge(channels=6, kernel=5, padding=padding)
    if activation == "abs":
        net = cl.networks.ridge(channels=6, kernel=5, padding=padding, smoothing=0.0)
    if activation == "group":
        layer = cl.ConvexLayer(
            cl.GroupNorm(2, cl.Huber(0.05)),
            channels=6,
            skip=cl.networks.Convolution(1, 6, 3, padding=padding),
        )
        net = cl.InputConvexNetwork([layer])
        torch.nn.init.normal_(layer.bias, std=0.1)
    y = torch.rand(BATCH, 1, SIZE, SIZE) * torch.tensor([0.1, 1.0, 5.0])[:, None, None, None]
    data = cl.L1(y) if fidelity == "L1" else cl.SquaredL2(y)
    return cl.VariationalProblem(
        fidelity=data, regularizer=net, weight=0.3, operator=cl.Mask(torch.rand(SIZE, SIZE) > 0.2)
    )  # fmt: skip


def run(problem, iterations, monkeypatch, *, in_strips):
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1 if in_strips else 10**9)
    monkeypatch.setattr(extrapolated_iterations, "MEMORABLE", 0)  # compared without extrapolations
    monkeypatch.setattr(tiled_iterations, "STRIP", 6 * SIZE * 17)  # not a divisor of the height
    solver = RestartedPDHG(problem, lift(problem))
    assert isinstance(solver.iterations, TiledIterations) == in_strips
    return solver.advance(solver.start(problem.initial_image()), iterations)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fidelity", ["L2", "L1"])
@pytest.mark.parametrize("padding", ["zero", "reflect", "circular"])
@pytest.mark.parametrize("activation", ["huber", "abs", "group"])
@pytest.mark.parametrize("iterations", [1, 6, 43])
def test_strips_give_the_same_iterates(padding, activation, fidelity, iterations, monkeypatch):
    problem = one_layer(padding, activation, fidelity).to(dtype=torch.float64)
    with torch.no_grad():
        plain = run(problem, iterations, monkeypatch, in_strips=False)
        fast = run(problem, iterations, monkeypatch, in_strips=True)
    for name in ("u", "v", "w_u", "w_v", "anchor_u", "sigma", "tau"):
        for block, part in getattr(plain, name).items():
            torch.testing.assert_close(getattr(fast, name)[block], part, rtol=1e-7, atol=1e-9)
    for name in ("inner", "total", "restart_next", "residual_at_test"):
        torch.testing.assert_close(getattr(fast.memory, name), getattr(plain.memory, name))


@pytest.mark.parametrize(("smoothing", "fidelity"), [(0.01, "L2"), (0.0, "L1")])
def test_rows_of_a_block_share_their_weights(smoothing, fidelity, monkeypatch):
    """Behind a pooling by 8, without the layers above it: in strips of 16 rows, the last has 8."""
    whole = one_layer(fidelity=fidelity)
    net = cl.networks.baseline(image_size=SIZE, channels=6, pool=8, hidden=5, smoothing=smoothing)
    head = SaturatedHead.of(replace(whole, regularizer=net, weight=30.0).to(dtype=torch.float64))
    assert head is not None
    problem, shapes, slopes = head.problem, [], type(net.layers[0].activation).scaled_slope
    monkeypatch.setattr(
        type(net.layers[0].activation), "scaled_slope",
        lambda h, y, t, sigma: shapes.append(tuple(t.shape[2:])) or slopes(h, y, t, sigma),
    )  # fmt: skip
    with torch.no_grad():
        plain = run(problem, 12, monkeypatch, in_strips=False)
        shapes.clear()
        fast = run(problem, 12, monkeypatch, in_strips=True)
    assert set(shapes) == {(2, 1, SIZE), (1, 1, SIZE)}
    for name in ("u", "v", "sigma", "tau"):
        for block, part in getattr(plain, name).items():
            torch.testing.assert_close(getattr(fast, name)[block], part, rtol=1e-7, atol=1e-9)


def test_the_old_state_stays_as_it_is(monkeypatch):
    problem = one_layer()
    with torch.no_grad():
        state = run(problem, 7, monkeypatch, in_strips=True)
        before = {name: part.clone() for name, part in state.w_v.items()}
        solver = RestartedPDHG(problem, lift(problem))
        solver.advance(state, 5)
    for name, part in before.items():
        torch.testing.assert_close(state.w_v[name], part, rtol=0, atol=0)


def is_tiled(problem) -> bool:
    return isinstance(RestartedPDHG(problem, lift(problem)).iterations, TiledIterations)


def test_strips_are_for_one_convolution():
    baseline = cl.networks.baseline(image_size=64, channels=32)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 64, 64)), regularizer=baseline, weight=1.0
    )
    assert not is_tiled(problem)
    head = SaturatedHead.of(problem)
    assert head is not None
    assert is_tiled(head.problem)
    blurred = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 64, 64)),
        regularizer=cl.networks.ridge(),
        weight=1.0,
        operator=cl.Blur(torch.ones(3, 3) / 9),
    )
    assert not is_tiled(blurred)


def test_no_time_limit_may_be_written_as_infinity(monkeypatch):
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1)
    stop = cl.StopWhen(gap=None, seconds=math.inf, max_iterations=15)
    assert (cl.solve(one_layer(), stop=stop).iterations == 15).all()


def test_a_time_limit_holds_for_blocks_of_iterations(monkeypatch):
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1)
    problem = one_layer()
    stop = cl.StopWhen(gap=None, seconds=0.3, max_iterations=10**9, check_every=10**6)
    solution = cl.solve(problem, stop=stop)
    assert solution.status == (cl.Status.TIME_LIMIT,) * BATCH
    assert 0 < int(solution.iterations.max()) < stop.check_every


@pytest.mark.parametrize("in_strips", [True, False])
@pytest.mark.parametrize("fidelity", ["L2", "L1"])
def test_images_that_have_ended_stay_and_the_others_iterate_as_before(
    fidelity, in_strips, monkeypatch
):
    problem = one_layer(fidelity=fidelity).to(dtype=torch.float64)
    active = torch.tensor([True, False, True])
    with torch.no_grad():
        first = run(problem, 5, monkeypatch, in_strips=in_strips)  # now a restart is due
        kept = first.x.clone(), {name: part.clone() for name, part in first.v.items()}
        solver = RestartedPDHG(problem, lift(problem))
        state = expected = first
        for count in (4, 10, 10):
            state = solver.advance(state, count, active)
        for count in (4, 10, 10):
            expected = RestartedPDHG(problem, lift(problem)).advance(expected, count)
    assert torch.equal(state.x[1], kept[0][1])
    assert state.memory.total.tolist() == [29, 5, 29]
    assert state.memory.restart_next.tolist()[1] == first.memory.restart_next.tolist()[1]
    for name, part in kept[1].items():
        assert torch.equal(state.v[name][1], part[1])
        torch.testing.assert_close(state.v[name][active], expected.v[name][active])
        assert torch.equal(state.sigma[name][1], first.sigma[name][1])
        torch.testing.assert_close(state.sigma[name][active], expected.sigma[name][active])
    torch.testing.assert_close(state.x[active], expected.x[active])


def test_a_batch_costs_what_its_images_cost(monkeypatch):
    """Passes over strips are counted: an image that has ended takes no more of them."""
    problem = one_layer(activation="abs").to(dtype=torch.float64)
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1)
    passes, plain = [], TiledIterations._prox

    def counted(self, *arguments):
        passes.append(arguments)
        return plain(self, *arguments)

    monkeypatch.setattr(TiledIterations, "_prox", counted)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=200))
    iterations = solution.iterations.tolist()
    assert len(set(iterations)) > 1
    assert len(passes) == sum(iterations)
