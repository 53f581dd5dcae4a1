"""Replayed checks and claims are the ordinary ones, of the call's own tensors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import replace

import pytest
import torch

import convexlift as cl
from convexlift.decisions import Decisions, decided
from convexlift.problems.claims import InBoth
from convexlift.solvers import replays
from convexlift.solvers.kinds import Unfit, kind_of, rebuilt
from convexlift.solvers.replays import Replays

HERE = torch.device("cpu")


class Again(replays.CudaGraphs):
    """Instead of a graph: the launches once more, into the same results."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = self.replays = 0

    def room(self, device):
        return 2**40

    def stream(self, device):
        return 0

    def capture(self, launch):
        self.captures += 1
        results = launch()

        def compute():
            self.replays += 1
            new = launch()
            for old, other in zip(
                *(kind_of(each, HERE)[1] for each in (results, new)), strict=True
            ):
                old.copy_(other)

        return results, compute


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    made = Again()
    monkeypatch.setattr(replays, "GRAPHS", made)
    monkeypatch.setattr(replays, "IDLE", replays.IdleWorkshops())
    return made


def stated(
    seed=0, network=None, fidelity=cl.SquaredL2, batch=2, **options
) -> cl.VariationalProblem:
    torch.manual_seed(seed)
    if network is None:
        network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.01)
    mask = cl.Mask(torch.rand(12, 16) > 0.3)
    options = {"operator": mask, "weight": 0.2, "box": (0, 1)} | options
    y = torch.rand(batch, 1, 12, 16)
    return cl.VariationalProblem(fidelity=fidelity(y), regularizer=network, **options)


def ordinary(problem, monkeypatch, **options) -> cl.Solution:
    with monkeypatch.context() as patch:
        patch.setattr(replays, "GRAPHS", None)
        return cl.solve(problem, **options)


def assert_same(one: cl.Solution, other: cl.Solution) -> None:
    for name in ("x", "objective", "lower_bound", "gap", "iterations"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.status == other.status
    assert one.guarantee == other.guarantee
    for name, part in one.duals.items():
        assert torch.equal(part, other.duals[name])
    for name in ("objective", "data_term", "regularizer", "lower_bound", "gap"):
        assert torch.equal(one.history[name], other.history[name])


def baseline():
    torch.manual_seed(5)
    return cl.networks.baseline(image_size=16, channels=3, smoothing=0.01)


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
    assert graphs.captures == captures == 3
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
        state = solver.first(calls)
        assert torch.equal(state.x, expected.x)
        for name, part in expected.duals.items():
            assert torch.equal(state.duals[name], part)
    assert graphs.captures == 1


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.single_precision
@pytest.mark.parametrize("case", CASES)
def test_graphs_on_a_gpu(case, monkeypatch):
    graphs = replays.CudaGraphs()
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


def test_a_rehearsal_does_not_import_the_compiler():
    lines = ["import sys, torch", "from convexlift.solvers.replays import Rehearsal",
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
    problem.regularizer.output.data[0] = -1.0
    with pytest.raises(ValueError, match="nonnegative"):
        cl.solve(again, stop=stop)


def test_another_network_of_the_same_shapes(graphs, monkeypatch):
    stop = cl.StopWhen(gap=1e-2)
    for seed in range(3):
        problem = stated(seed)
        with torch.enable_grad():
            assert_same(cl.solve(problem, stop=stop), ordinary(problem, monkeypatch, stop=stop))
    assert len(replays.IDLE) == 1
