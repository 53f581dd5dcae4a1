"""Replayed checks and claims are the ordinary ones, of the call's own tensors."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from replaying import again, assert_same, baseline, ordinary, stated

import convexlift as cl
from convexlift.problems.claims import InBoth
from convexlift.problems.data_bound import Scopes
from convexlift.solvers import cuda_graphs, recordings, replays
from convexlift.solvers.copies import Copies, Mailbox
from convexlift.tensors import Blocks


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    return again(monkeypatch)


CASES = {
    "inpainting": {},
    "kinks": {"network": lambda: cl.networks.ridge(channels=3, kernel=5, smoothing=0.0)},
    "L1": {"fidelity": cl.L1, "operator": cl.Identity()},
    "counts": {"fidelity": lambda y: cl.KullbackLeibler((9 * y).round(), 0.5)},
    "no box": {"box": None},
    "half a box": {"box": (0, None), "fidelity": cl.L1},
    "weights": {"fidelity": lambda y: cl.WeightedL2(y, (y > 0.2).to(y))},
    "total variation": {"network": cl.TotalVariation},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_solves_are_the_same(case, graphs, monkeypatch):
    options = {"network": lambda: cl.networks.ridge(channels=4, smoothing=0.01)} | CASES[case]
    network = options.pop("network")()
    for seed in range(4):  # new data and masks, the same network
        problem = stated(seed, network, **options)
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
    assert graphs.captures
    assert graphs.replays > graphs.captures


@pytest.mark.parametrize("reads_data", [False, True])
def test_later_solves_replay_everything(reads_data, graphs):
    network, options = cl.networks.ridge(channels=4, smoothing=0.01), {}
    if reads_data:
        network = cl.networks.adaptive(channels=4, kernel=3, widths=(4,), blocks=1)
        options = {"noise": 0.1, "weight": 1.0}
    for seed in range(2):
        cl.solve(stated(seed, network, batch=1, **options))
    captures, before = graphs.captures, graphs.replays
    solution = cl.solve(stated(2, network, batch=1, **options))
    assert graphs.captures == captures == 4
    # The initial image, all checks, and the claim.
    assert graphs.replays == before + 1 + len(solution.history) + 1


def test_two_layers_and_blurs(graphs, monkeypatch):
    torch.manual_seed(0)
    blur = cl.Blur(torch.full((3, 3), 1 / 9), "circular")
    for operator in (cl.Identity(), blur):
        for _ in range(3):
            problem = cl.VariationalProblem(
                fidelity=cl.SquaredL2(torch.rand(2, 1, 16, 16)), operator=operator,
                regularizer=baseline(), weight=0.5, box=(0, 1),
            )  # fmt: skip
            assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
    assert graphs.captures


@pytest.mark.parametrize("hidden", [False, True])
def test_weights_changed_in_place_count(hidden, graphs, monkeypatch):
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    for step in range(4):
        problem = stated(0, network)
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
        for parameter in network.parameters():
            part = parameter.data if hidden else parameter  # ``.data`` has its own version
            with torch.no_grad():
                part.mul_(1 + 0.1 * step)
    assert graphs.replays


def test_data_changed_in_place_count(graphs, monkeypatch):
    problem = stated()
    for _ in range(4):
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
        problem.fidelity.y.mul_(0.9)
        problem.operator.values[..., :3, :3] = 1 - problem.operator.values[..., :3, :3]


def test_solutions_stay_as_they_are():
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    for _ in range(2):
        cl.solve(stated(0, network))
    first = cl.solve(stated(1, network))
    kept = first.x.clone(), first.gap.clone(), {n: p.clone() for n, p in first.duals.items()}
    state = first.state.x.clone()
    cl.solve(stated(2, network))
    assert torch.equal(first.x, kept[0])
    assert torch.equal(first.gap, kept[1])
    assert torch.equal(first.state.x, state)
    assert all(torch.equal(part, kept[2][name]) for name, part in first.duals.items())


def test_weights_boxes_and_activations_are_of_the_kind(graphs, monkeypatch):
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    for options in ({}, {"weight": 0.3}, {"box": (0, 0.9)}, {"batch": 3}, {}) * 2:
        problem = stated(0, network, **options)
        assert_same(cl.solve(problem), ordinary(problem, monkeypatch))
    network.layers[0].activation = replace(network.layers[0].activation, delta=0.02)
    problem = stated(0, network)
    assert_same(cl.solve(problem), ordinary(problem, monkeypatch))


@pytest.mark.slow
def test_threads_have_their_own_copies(monkeypatch):
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    problems = [stated(seed, network) for seed in range(4)]
    expected = [ordinary(problem, monkeypatch) for problem in problems]
    errors = []

    def work(which):
        try:
            for _ in range(4):
                assert_same(cl.solve(problems[which]), expected[which])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_memory_is_bounded(graphs, monkeypatch):
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    for _ in range(2):
        cl.solve(stated(0, network, batch=1))  # of two images, one may end before the other
    assert len(replays.IDLE) == 1
    monkeypatch.setattr(graphs, "room", lambda device: replays.KEPT * 60_000)
    for batch in (1, 2, 3):
        for _ in range(2):
            cl.solve(stated(0, network, batch=batch))
    assert sum(each.nbytes for each in replays.IDLE.values()) <= 60_000
    before = graphs.captures
    for _ in range(3):
        # Too large to be copied; a claim about the few that end first would not be.
        cl.solve(stated(0, network, batch=40), stop=cl.StopWhen(gap=None, max_iterations=20))
    assert graphs.captures == before


def test_copies_do_not_keep_problems_alive():
    problem = stated()
    for _ in range(3):
        cl.solve(problem)
    alive = weakref.ref(problem.regularizer), weakref.ref(problem.fidelity.y)
    del problem
    gc.collect()
    assert [each() for each in alive] == [None, None]
    assert replays.IDLE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.single_precision
@pytest.mark.parametrize("case", CASES)
def test_graphs_on_a_gpu(case, monkeypatch):
    graphs = cuda_graphs.CudaGraphs()
    monkeypatch.setattr(replays, "GRAPHS", graphs)
    options = {"network": lambda: cl.networks.ridge(channels=4, smoothing=0.01)} | CASES[case]
    network = options.pop("network")()
    for seed in range(4):
        problem = stated(seed, network, **options).to(device="cuda")
        found, expected = cl.solve(problem), ordinary(problem, monkeypatch)
        assert torch.allclose(found.x, expected.x, atol=1e-5)
        assert torch.allclose(found.gap, expected.gap, rtol=1e-3, atol=1e-6)
    assert not graphs.failures
    made = [each for kept in replays.IDLE.values() for each in kept.recordings.values()]
    assert any(each.copies is not None for each in made), [each.refusal for each in made]


def test_weights_changed_in_place_are_noticed(graphs, monkeypatch):
    """Also by ``data``, of which tensors do not count changes; and cards do not matter."""
    problem, stop = stated(), cl.StopWhen(gap=1e-2)
    for card in (None, "one", "another"):
        problem.regularizer.card = card
        cl.solve(problem, stop=stop)
    assert len(replays.IDLE) == 1
    problem.regularizer.layers[0].skip.weight.data.mul_(0.5)
    again = stated(network=problem.regularizer)
    assert_same(cl.solve(again, stop=stop), ordinary(again, monkeypatch, stop=stop))
    for _ in range(3):
        cl.solve(again, stop=stop)
    captures, kept = graphs.captures, again.regularizer.output.data.clone()
    for wrong, error in ((-1.0, "nonnegative"), (math.nan, "not finite")):
        problem.regularizer.output.data[0] = wrong
        with pytest.raises(ValueError, match=error):
            cl.solve(again, stop=stop)
        problem.regularizer.output.data.copy_(kept)
        cl.solve(again, stop=stop)
    assert graphs.captures == captures
    problem.regularizer.output.data[0] = -1.0
    with pytest.raises(ValueError, match="nonnegative"):  # with another first call than before
        cl.solve(again, method=cl.LBFGS(), stop=stop)


def test_another_network_of_the_same_shapes(graphs, monkeypatch):
    stop = cl.StopWhen(gap=1e-2)
    for seed in range(3):
        problem = stated(seed)
        with torch.enable_grad():
            assert_same(cl.solve(problem, stop=stop), ordinary(problem, monkeypatch, stop=stop))
    assert len(replays.IDLE) == 1


def doubled(both, x, blocks):
    """A call for tests: 2 x + v, its first block as it is, and the sum of each image."""
    result = 2 * x + blocks["v"]
    return (result, blocks["v"]), (result.flatten(1).sum(1),)


@torch.no_grad()
def test_graphs_read_buffers_in_place_of_copies(graphs):
    calls, buffers = replays.Replays(InBoth(stated())), torch.zeros(2, 2, 1, 3, 3)
    for value in (1.0, 2.0, 3.0, 4.0):
        buffers.copy_(value * torch.rand(2, 2, 1, 3, 3))
        x, v = buffers.clone()
        mirrors = list(zip((x, v), buffers.unbind(), strict=True))
        (result, same), (numbers,) = calls.launched(doubled, x, Blocks({"v": v}), mirrors=mirrors)()
        assert same is v
        assert torch.equal(result, 2 * x + v)
        assert torch.equal(numbers, result.flatten(1).sum(1))
    assert (graphs.captures, graphs.replays) == (1, 3)
    (made,) = calls._workshop.recordings.values()
    assert not made.copies.copied
    # What graphs hold counts all the same: the images, v and the result.
    assert made.nbytes == 3 * x.nbytes
    # Without buffers, decisions are known already; a copy with other strides has no mirror.
    (result, _), _ = calls(doubled, x, Blocks({"v": v}))
    assert torch.equal(result, 2 * x + v)
    turned = x.mT.contiguous().mT
    (result, _), _ = calls.launched(
        doubled, turned, Blocks({"v": v}), mirrors=[(turned, buffers[0])]
    )()
    assert torch.equal(result, 2 * x + v)
    assert graphs.captures == 2


def test_recordings_do_not_keep_buffers_alive():
    """Nor do the functions that make results from others."""
    x, buffer = torch.rand(2, 3), torch.rand(2, 3)
    copies = Copies([x, x], [None, buffer])
    mine, held = copies.tensors
    recording, mailbox = recordings.Recording([], 1), Mailbox(torch.zeros(0))
    found = Scopes(Blocks({"x": 2 * mine, "v": held}), Blocks({"v": held}))
    recording.take(copies, mailbox, lambda: None, (found, 0))
    alive = weakref.ref(held)
    del mine, held, found
    assert alive() is None
    results, _ = recording.play([x, buffer])()
    assert results.everywhere["v"] is results.near["v"] is buffer


@torch.no_grad()
def test_buffers_that_move_again_and_again_are_copied(graphs):
    calls, alive = replays.Replays(InBoth(stated())), []
    for _ in range(recordings.MOVES + 4):
        x, v = torch.rand(2, 2, 1, 3, 3)
        alive.append(x.clone())
        (result, _), _ = calls.launched(doubled, x, Blocks({"v": v}), mirrors=[(x, alive[-1])])()
        assert torch.equal(result, 2 * x + v)
    assert len(calls._workshop.recordings) == recordings.MOVES + 1


@torch.no_grad()
def test_results_are_mirrored_where_the_graph_computes_them(graphs):
    calls = replays.Replays(InBoth(stated()))
    for _ in range(4):
        x, v = torch.rand(2, 2, 1, 3, 3)
        first = calls.launched(doubled, x, Blocks({"v": v}))
        (result, _), _ = first()
        again, _ = calls.launched(doubled, result, Blocks({"v": v}), mirrors=first.mirrors)()
        assert torch.equal(again[0], 2 * result + v)
    ((mine, theirs),) = first.mirrors
    assert mine is result
    assert mine is not theirs


def test_ctrl_c_while_a_start_is_awaited_proves_nothing_about_a_network_that_is_not_convex(
    graphs, monkeypatch
):
    """The start tells whether it is convex; here nobody hears it."""
    network = cl.networks.ridge(channels=4, smoothing=0.01)
    problem = stated(0, network)
    for _ in range(3):
        cl.solve(problem)
    with torch.no_grad():
        network.output[0] = -0.3
    waited, replayed = Mailbox.wait, graphs.replays

    def interrupted(self):
        monkeypatch.setattr(Mailbox, "wait", waited)
        raise KeyboardInterrupt

    monkeypatch.setattr(Mailbox, "wait", interrupted)
    with pytest.raises(ValueError, match="negative"):
        cl.solve(problem)
    assert graphs.replays > replayed
