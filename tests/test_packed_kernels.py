"""Kernels that read and write dual variables in 16 bits do what strips of rows do.

On a GPU, or on the threads of a CPU.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from first_layers import NETWORKS, ridge
from host_kernels import COMPILER, HostKernel, RigorousKernel
from marks import slow

import convexlift as cl
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.problems import one_pass
from convexlift.problems.claims import InBoth, proved
from convexlift.problems.fused_pass import FusedPass
from convexlift.problems.lifting import lift
from convexlift.problems.network_duals import feasible_duals
from convexlift.problems.packed_slopes import CODES, STEPS, all_packed, can_be_packed, feasible
from convexlift.problems.rigorous_kernels import KernelSums
from convexlift.solvers import tiled_iterations
from convexlift.solvers.packed_pass import PackedPass
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.tensors import Blocks

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
NAMES = [name for name in NETWORKS if name != "weights of images"]  # which are for batches
pytestmark = [
    pytest.mark.single_precision,
    pytest.mark.skipif(not ON_GPU and COMPILER is None, reason="needs g++"),
]


@pytest.fixture(autouse=True, params=[0, slow(10**6)])
def _compiled(request, monkeypatch):
    """Kernels with tiles of either kind, and everything large enough for them."""
    monkeypatch.setattr(first_layer, "FEW", request.param)
    if not ON_GPU:
        monkeypatch.setattr(first_layer, "compiled", HostKernel)
        monkeypatch.setattr(rigorous_pass, "compiled", RigorousKernel)
    monkeypatch.setattr(one_pass, "WORTHWHILE", 1)
    for name in ("LARGE", "LARGE_ON_A_GPU", "WORTHWHILE"):
        monkeypatch.setattr(tiled_iterations, name, 1)


def stated(
    network: cl.InputConvexNetwork, width: int, fidelity: str = "L2"
) -> cl.VariationalProblem:
    """A noisy square, with channels that have multipliers of zero."""
    torch.manual_seed(3)
    y = torch.zeros(1, 1, 22, width)
    y[..., 6:15, 10:30] = 1.0
    y += 0.2 * torch.randn(y.shape)
    data = cl.L1(y) if fidelity == "L1" else cl.SquaredL2(y)
    return cl.VariationalProblem(
        fidelity=data, regularizer=network, weight=0.3, box=(0, 1),
        noise=0.1 if network.reads_data else None,
    ).to(dtype=torch.float32, device=DEVICE)  # fmt: skip


def multipliers(problem: cl.VariationalProblem) -> torch.Tensor:
    return problem.weight * problem.network.output


@pytest.mark.sampled(13)
@pytest.mark.parametrize("width", [36, 39])
@pytest.mark.parametrize("name", NAMES)
def test_iterations_are_those_in_strips(name, width, monkeypatch):
    """Through restarts, and an attempt at a proof, which reads anchors."""
    problem = stated(NETWORKS[name](), width)
    if not can_be_packed(problem.network.layers[0].activation):
        pytest.skip("slopes are not numbers of an interval")
    fast, slow_one = (RestartedPDHG(problem, lift(problem)) for _ in range(2))
    assert fast.iterations._kernels is not None
    slow_one.iterations._kernels = None
    everywhere = torch.ones(1, dtype=torch.bool)
    ours, theirs = (solver.start(problem.initial_image()) for solver in (fast, slow_one))
    scale = float(multipliers(problem).max())
    for attempt in (False, False, True, False):
        ours, theirs = (
            solver.proving(state, 10, everywhere, everywhere)
            if attempt
            else solver.advance(state, 20)
            for solver, state in ((fast, ours), (slow_one, theirs))
        )
        assert ours.v["v1"].dtype is CODES
        torch.testing.assert_close(ours.x, theirs.x, rtol=0, atol=2e-5)
        v, expected = (
            feasible(problem.network.layers[0].activation, s.v["v1"], multipliers(problem))
            for s in (ours, theirs)
        )
        torch.testing.assert_close(v, expected, rtol=0, atol=2e-4 * scale)
        torch.testing.assert_close(ours.sigma["v1"], theirs.sigma["v1"], rtol=1e-2, atol=0)


@pytest.mark.parametrize("smoothing", [slow(0.05), 0.0])
def test_iterations_with_a_v_that_has_been_unpacked(smoothing, monkeypatch):
    """Their anchors are still packed."""
    monkeypatch.setattr(tiled_iterations, "rounding_squares", lambda *_: torch.tensor(math.inf))
    problem = stated(cl.networks.ridge(channels=4, kernel=5, smoothing=smoothing), 36, "L1")
    fast, slow_one = (RestartedPDHG(problem, lift(problem)) for _ in range(2))
    slow_one.iterations._kernels = None
    states = []
    for solver in (fast, slow_one):
        state = solver.advance(solver.start(problem.initial_image()), 10)
        assert solver.more_precise(state) is not None
        states.append(solver.advance(state, 60))
        assert states[-1].v["v1"].dtype is torch.float32
    ours, theirs = states
    torch.testing.assert_close(ours.x, theirs.x, rtol=0, atol=1e-4)
    scale = float(multipliers(problem).max())
    torch.testing.assert_close(ours.v["v1"], theirs.v["v1"], rtol=0, atol=1e-3 * scale)


def test_the_squares_of_a_step_and_of_its_rounding():
    problem = stated(NETWORKS["huber"](), 36)
    solvers = [RestartedPDHG(problem, lift(problem)) for _ in range(2)]
    solvers[1].iterations._kernels = None
    found = []
    for solver in solvers:
        state, iterations = solver.start(problem.initial_image()), solver.iterations
        iterations.load(state, torch.ones(1, dtype=torch.bool))
        mix = np.array([[[1.9]], [[-0.9]], [[0.0]]])
        iterations.iterate(state.tau, state.sigma, mix.repeat(3, 1), measure=True)
        found.append(
            (iterations.moved, iterations._rounding(), iterations.residual(state.tau, state.sigma))
        )
        assert not iterations.unpack()
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", [slow("leaky"), "biases of pixels"])
def test_the_sums_of_a_check_and_the_first_codes(name):
    """As those of the numbers that the codes stand for."""
    problem = stated(NETWORKS[name](), 39)
    h, network = problem.network.layers[0].activation, problem.network
    t, x = multipliers(problem), problem.initial_image()
    p = t * (2.2 * torch.rand(1, 3, 22, 39, device=DEVICE) - 1.1)
    codes = all_packed(h, h.clip_to_slopes(p, t), t)
    numbers = feasible(h, codes, t)
    assert FusedPass.of(network, x, CODES, network.output) is not None
    found, expected = (
        one_pass.OnePass.of(network)(problem.weight, x, Blocks({"v1": v})) for v in (codes, numbers)
    )
    torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=0)
    torch.testing.assert_close(found[1].slack, expected[1].slack, rtol=1e-4, atol=0)
    scale = float(expected[1].c.abs().max())
    torch.testing.assert_close(found[1].c, expected[1].c, rtol=0, atol=1e-5 * scale)
    tangent = one_pass.OnePass.of(network)
    packed = tangent.tangent(problem.weight, x, packed=True)
    assert packed.dtype is CODES
    near = feasible(h, packed, t) - tangent.tangent(problem.weight, x)
    assert bool((near.abs() <= 0.51 * (h.slopes[1] - h.slopes[0]) / STEPS * t + 1e-6 * t).all())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("width", [36, 39])
@pytest.mark.parametrize("name", NAMES)
def test_a_claim_proves_what_the_numbers_prove(name, width, monkeypatch):
    """To the last bit: a proof file holds the numbers."""
    problem = stated(NETWORKS[name](), width)
    h, t = problem.network.layers[0].activation, multipliers(problem)
    if not can_be_packed(h):
        pytest.skip("slopes are not numbers of an interval")
    x = problem.initial_image()
    p = t * (2.2 * torch.rand(1, 3, 22, width, device=DEVICE) - 1.1)
    codes = Blocks({"v1": all_packed(h, h.clip_to_slopes(p, t), t)})
    used = []
    minorants = KernelSums.minorants

    def noted(self, t, v):
        used.append(type(v).__name__)
        return minorants(self, t, v)

    monkeypatch.setattr(KernelSums, "minorants", noted)
    packed, found = proved(InBoth(problem), x, codes, 0.0)
    numbers = feasible_duals(problem.network, problem.weight, x, codes)
    _, expected = proved(InBoth(problem), x, numbers, 0.0)
    assert used == ["PackedDual", "Tensor"]
    assert packed[3]["v1"] is codes["v1"]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("fidelity", "smoothing"), [slow("L2", 0.05), slow("L1", 0.05), ("L1", 0.0)]
)
def test_whole_solves_end_like_those_in_strips(fidelity, smoothing, monkeypatch):
    network = cl.networks.ridge(channels=8, kernel=5, smoothing=smoothing)
    problem = stated(network, 36, fidelity)
    stop = cl.StopWhen(gap=1e-3, max_iterations=400)
    found = cl.solve(problem, stop=stop)
    monkeypatch.setattr(PackedPass, "of", lambda *_: None)
    monkeypatch.setattr(first_layer, "compiled", lambda *_, **__: None)
    expected = cl.solve(problem, stop=stop)
    assert found.status == expected.status == (cl.Status.CONVERGED,)
    assert found.state.v["v1"].dtype is CODES
    assert abs(int(found.iterations) - int(expected.iterations)) <= 10
    torch.testing.assert_close(found.objective, expected.objective, rtol=1e-3, atol=0)


def test_what_they_do_not_take():
    """Slopes of groups, and activations without a ramp: strips remain."""
    for network in (cl.TotalVariation(), ridge("softplus", "zero")):
        problem = stated(network, 36)
        assert PackedPass.of(lift(problem)) is None
