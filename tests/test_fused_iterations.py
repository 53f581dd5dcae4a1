"""Iterations in kernels are the iterations: on a GPU, or in Triton's interpreter and on threads."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import parts
import pytest
import torch
from fused_problems import DEVICE, ON_GPU, baseline, compare, in_kernels, one_layer, solvers
from marks import slow

import convexlift as cl
from convexlift.problems.lifting import lift
from convexlift.solvers import fused_iterations
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.saturated_head import SaturatedHead

pytest.importorskip("triton")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("padding", "smoothing", "fidelity", "kernel", "size"),
    [("zero", 0.01, "L2", 5, (9, 18)), ("reflect", 0.0, "L1", 5, (9, 12)),
     ("circular", 0.01, "KL", 3, (5, 17)), ("replicate", 0.0, "anchored", 3, (9, 12)),
     ("reflect", 0.01, "L2", 7, (19, 35))],
)  # fmt: skip
def test_one_layer(padding, smoothing, fidelity, kernel, size, dual_kernel):
    compare(one_layer(padding, smoothing, fidelity, kernel, size), [4, 3])  # 6 is a restart


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


@pytest.mark.parametrize("h", [parts.Softplus(), cl.HalfSquare()])
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
