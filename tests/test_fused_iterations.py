"""Iterations in kernels are the iterations: on a GPU, or in Triton's interpreter and on threads."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from host_kernels import COMPILER, HostKernel
from marks import slow

import convexlift as cl
from convexlift.functionals.fidelity import Anchored
from convexlift.kernels import first_layer
from convexlift.problems.lifting import lift
from convexlift.solvers import fused_iterations, restart_rules
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.fused_restarts import Groups
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.restart_rules import RestartRules
from convexlift.solvers.saturated_head import SaturatedHead

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture(params=["cuda", slow("cuda, low tiles"), slow("triton")])
def dual_kernel(request, monkeypatch):
    """Which kernel takes the dual half of an iteration."""
    monkeypatch.setattr(first_layer, "FEW", 10**6 if "low" in request.param else 0)
    if request.param == "triton":
        monkeypatch.setattr(first_layer, "compiled", lambda *_, **__: None)
    elif not ON_GPU:
        if COMPILER is None:
            pytest.skip("needs g++")
        monkeypatch.setattr(first_layer, "compiled", HostKernel)
    return request.param


def one_layer(padding, smoothing, fidelity, kernel=3, size=(9, 12)) -> cl.VariationalProblem:
    """Two images whose data, hence steps and restarts, are very different.

    Tiles of 8 x 16 reach out of them.
    """
    torch.manual_seed(0)
    net = cl.networks.ridge(channels=5, kernel=kernel, padding=padding, smoothing=smoothing)
    y = torch.rand(2, 1, *size) * torch.tensor([0.3, 1.0])[:, None, None, None]
    masked = cl.Mask(torch.rand(size) > 0.2)
    data, operator = {
        "L2": (cl.SquaredL2(y), masked),
        "L1": (cl.L1(y, 0.7), masked),
        "KL": (cl.KullbackLeibler((20 * y).round(), 0.5), cl.Identity()),
        "anchored": (Anchored(cl.SquaredL2(y), y.flip(-1), 0.3), masked),
    }[fidelity]
    return cl.VariationalProblem(
        fidelity=data, regularizer=net, weight=0.3, operator=operator, box=(0, None)
    ).to(device=DEVICE, dtype=torch.float32)


def baseline(smooth: bool = True) -> cl.VariationalProblem:
    """A network with pooling by 16 and a dense layer, neither all on nor all off."""
    torch.manual_seed(1)
    net = cl.networks.baseline(image_size=32, channels=3, smoothing=0.01 if smooth else 0.0)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.2)
    net.project_()
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(2, 1, 32, 32)), regularizer=net, weight=0.5, box=(0, 1)
    ).to(device=DEVICE, dtype=torch.float32)


def solvers(problem):
    """With plain iterations, and with kernels."""
    plain, fast = (RestartedPDHG(problem, lift(problem)) for _ in range(2))
    plain.iterations = Iterations(plain.saddle, plain.coupling)
    fast.iterations = in_kernels(problem)
    plain.rules = fast.rules = RestartRules(problem)
    return plain, fast


def in_kernels(problem):
    """Kernels for a problem, interpreted where there is no GPU; raises ``DoesNotApply``."""
    saddle = lift(problem)
    return FusedIterations(saddle, Coupling(saddle), interpreted=not ON_GPU)


def anchors(solver, state) -> list[str]:
    """Names of the anchors of a state, where somebody reads them."""
    read = bool((state.memory.total >= solver._restarts.anchored_from).any())
    return ["anchor_u", "anchor_v"] if read else []


def compare(problem, blocks, double=None):
    """As many iterations by both, in blocks, and by the plain one in double precision."""
    double = problem.to(dtype=torch.float64) if double is None else double
    with torch.no_grad():
        plain, fast = solvers(problem)
        exact = RestartedPDHG(double, lift(double))
        exact.iterations, exact.rules = Iterations(exact.saddle, exact.coupling), plain.rules
        start = problem.initial_image()
        expected = plain.advance(plain.start(start), sum(blocks))
        reference = exact.advance(exact.start(start.double()), sum(blocks))
        state = fast.start(start)
        for count in blocks:
            state = fast.advance(state, count)
    # A block inherits the rounding of the others, so the largest of all sets the scale.
    largest = max(part.abs().max() for part in (*reference.u.values(), *reference.v.values()))
    for name in ("u", "v", "w_u", "w_v", *anchors(fast, state)):
        for block, part in getattr(reference, name).items():
            ours, usual = (
                (getattr(run, name)[block] - part).abs().max() for run in (state, expected)
            )
            assert ours <= 4 * usual + 2e-6 * largest, (name, block, ours, usual)
    for name in ("sigma", "tau"):
        for block, part in getattr(expected, name).items():
            torch.testing.assert_close(getattr(state, name)[block], part, rtol=1e-3, atol=0)
    for name in ("inner", "total", "restart_next"):
        torch.testing.assert_close(getattr(state.memory, name), getattr(expected.memory, name))
    torch.testing.assert_close(
        state.memory.residual_at_test, expected.memory.residual_at_test, rtol=1e-4, atol=1e-6
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("padding", "smoothing", "fidelity", "kernel", "size"),
    [("zero", 0.01, "L2", 5, (9, 18)), ("reflect", 0.0, "L1", 5, (9, 12)),
     ("circular", 0.01, "KL", 3, (5, 17)), ("replicate", 0.0, "anchored", 3, (9, 12)),
     ("reflect", 0.01, "L2", 7, (19, 35))],
)  # fmt: skip
def test_one_layer(padding, smoothing, fidelity, kernel, size, dual_kernel):
    compare(one_layer(padding, smoothing, fidelity, kernel, size), [4, 3])  # 6 is a restart


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


@pytest.mark.parametrize("blocks", [[2, 1], slow([4, 3])], ids=str)
def test_a_pooled_layer_and_the_rest_of_the_network(blocks):
    compare(baseline(), blocks)


@pytest.mark.parametrize("count", [2, slow(4)])
def test_multipliers_of_blocks(count, dual_kernel):
    """What a saturated head leaves: one number for each channel and block of 16 x 16 pixels."""
    single = baseline(smooth=False)
    heads = [SaturatedHead.of(problem) for problem in (single, single.to(dtype=torch.float64))]
    compare(heads[0].problem, [count], heads[1].problem)


@pytest.mark.parametrize("reads", [("output", "biases"), slow(("output",))], ids=str)
def test_weights_and_biases_of_pixels(reads, dual_kernel):
    """Both images have their own."""
    torch.manual_seed(2)
    net = cl.networks.adaptive(channels=5, kernel=3, widths=(4,), blocks=1, reads=reads)
    for parameter in net.guide.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    y = torch.rand(2, 1, 9, 18)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, noise=0.1, box=(0, 1)
    ).to(device=DEVICE, dtype=torch.float32)
    compare(problem, [2, 1])


@pytest.mark.parametrize("fidelity", ["L2", slow("L1")])
def test_images_that_have_ended_stay_and_the_others_iterate_as_before(fidelity, dual_kernel):
    problem, active = one_layer("zero", 0.01, fidelity), torch.tensor([False, True])
    with torch.no_grad():
        _, fast = solvers(problem)
        first = fast.advance(fast.start(problem.initial_image()), 5)  # now a restart is due
        first = fast.iterations.set_aside(first)
        state = fast.advance(fast.advance(first, 2, active), 1, active)
        expected = fast.advance(fast.advance(first, 2), 1)
    for name in ("u", "v", "w_u", "w_v", "sigma"):
        for block, part in getattr(state, name).items():
            assert torch.equal(part[0], getattr(first, name)[block][0])
            assert torch.equal(part[1], getattr(expected, name)[block][1])
    assert state.memory.total.tolist() == [5, 8]


def test_the_old_state_stays_as_it_is():
    problem = one_layer("zero", 0.01, "L2")
    with torch.no_grad():
        _, fast = solvers(problem)
        state = fast.advance(fast.start(problem.initial_image()), 2)
        before = {name: part.clone() for name, part in {**state.w_v, **state.w_u}.items()}
        once = fast.advance(state, 1)
        fast.advance(once, 1)
        again = fast.advance(state, 1)
    for name, part in before.items():
        torch.testing.assert_close({**state.w_v, **state.w_u}[name], part, rtol=0, atol=0)
    torch.testing.assert_close(again.x, once.x, rtol=0, atol=0)


def test_machines_are_used_again_with_the_data_of_another_problem(monkeypatch):
    """And the first problem stays as it is: its network, its mask, its data."""
    monkeypatch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())

    def made(shift):
        problem = one_layer("zero", 0.01, "L2", size=(8, 8))
        layer = problem.regularizer.layers[0]
        layer.bias = torch.nn.Parameter(
            torch.full((5,), 0.1 + shift, device=DEVICE, dtype=torch.float32)
        )
        mask = cl.Mask((torch.rand(2, 1, 8, 8) > 0.2 + shift).to(DEVICE, torch.float32))
        data = cl.SquaredL2(problem.fidelity.y * (1 - shift))
        return replace(problem, fidelity=data, operator=mask)

    first, second = made(0.0), made(0.5)
    compare(first, [1])
    (machine,) = fused_iterations.IDLE.values()
    before = [tensor.clone() for tensor in first.tensors()]
    with torch.no_grad():
        _, fast = solvers(second)
        fast.advance(fast.start(second.initial_image()), 1)
        assert fast.iterations._machine is machine
        assert not fused_iterations.IDLE
    for tensor, old in zip(first.tensors(), before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0)
    del fast
    compare(second, [1])


def test_machines_go_with_their_solver_and_idle_ones_are_few(monkeypatch):
    monkeypatch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    monkeypatch.setattr(fused_iterations, "most_kept", lambda device: 0)
    problem = one_layer("zero", 0.01, "L2", size=(8, 8))
    with torch.no_grad():
        _, fast = solvers(problem)
        fast.advance(fast.start(problem.initial_image()), 1)
    machine = weakref.ref(fast.iterations._machine)
    gc.disable()  # nothing must wait for it: it counts objects, not the memory of a GPU
    try:
        del fast
        assert machine() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("h", [cl.Softplus(), cl.ELU()])
def test_layers_that_ask_the_host_are_not_captured(h):
    network = baseline().regularizer
    network.layers[1].activation = h
    problem = replace(baseline(), regularizer=network)
    with pytest.raises(DoesNotApply, match="need the host"):
        in_kernels(problem)


def test_where_kernels_do_not_apply():
    usual = one_layer("zero", 0.01, "L2")
    in_kernels(usual)
    behind_a_blur = cl.VariationalProblem(
        fidelity=usual.fidelity,
        regularizer=usual.regularizer,
        weight=1.0,
        operator=cl.Blur.gaussian(1.0).to(device=DEVICE, dtype=torch.float32),
    )
    total_variation = cl.VariationalProblem(
        fidelity=usual.fidelity,
        regularizer=cl.TotalVariation().to(DEVICE, torch.float32),
        weight=1.0,
    )
    for problem, reason in (
        (usual.to(dtype=torch.float64), "not float32"),
        (behind_a_blur, "data term"),
        (total_variation, "convolution"),
    ):
        with pytest.raises(DoesNotApply, match=reason):
            in_kernels(problem)
    if not ON_GPU:
        saddle = lift(usual)
        with pytest.raises(DoesNotApply, match="not on a GPU"):
            FusedIterations(saddle, Coupling(saddle))


def test_kernels_that_do_not_fit_a_gpu_give_way_to_the_plain_path(monkeypatch):
    from triton import OutOfResources

    def too_much(machine, table):
        raise OutOfResources(300_000, 65_536, "shared memory")

    problem = one_layer("zero", 0.01, "L2")
    monkeypatch.setattr(fused_iterations.Machine, "run", too_much)
    with torch.no_grad():
        plain, fast = solvers(problem)
        start = problem.initial_image()
        with pytest.warns(UserWarning, match="plain path is taken: out of resource"):
            state = fast.advance(fast.start(start), 3)
        torch.testing.assert_close(state.x, plain.advance(plain.start(start), 3).x)
    assert type(fast.iterations) is Iterations
    assert "do not run here" in str(fast.choices)


def test_without_a_compiler_the_plain_path_is_taken(monkeypatch):
    def launched(*arguments, **keywords):
        raise RuntimeError("Failed to find C compiler")

    problem = one_layer("zero", 0.01, "L2")
    monkeypatch.setattr(fused_iterations.FirstLayer, "__call__", launched)
    monkeypatch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    with torch.no_grad():
        _, fast = solvers(problem)
        with pytest.warns(UserWarning, match="plain path is taken: Failed to find C compiler"):
            fast.advance(fast.start(problem.initial_image()), 1)


def test_other_errors_are_not_hidden(monkeypatch):
    def broken(machine, table):
        raise RuntimeError("a mistake of ours")

    problem = one_layer("zero", 0.01, "L2")
    monkeypatch.setattr(fused_iterations.Machine, "run", broken)
    with torch.no_grad():
        _, fast = solvers(problem)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            fast.advance(fast.start(problem.initial_image()), 1)
