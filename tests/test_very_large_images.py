"""Images so large that a GPU solves them as a CPU does: in strips, with packed dual variables."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

import convexlift as cl
from convexlift import strips
from convexlift.networks import bound_network
from convexlift.operators import convolution
from convexlift.problems.lifting import lift
from convexlift.problems.packed_slopes import CODES
from convexlift.solvers import tiled_iterations
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.tiled_iterations import SAMPLED, TiledIterations

SIZE = 72
CPU, GPU = torch.device("cpu"), torch.device("cuda")
pytestmark = pytest.mark.single_precision


def denoising(fidelity="L2", batch=1, smoothing=0.05) -> cl.VariationalProblem:
    torch.manual_seed(0)
    y = torch.rand(batch, 1, SIZE, SIZE)
    data = cl.L1(y) if fidelity == "L1" else cl.SquaredL2(y)
    net = cl.networks.ridge(channels=32, kernel=5, smoothing=smoothing)
    return cl.VariationalProblem(fidelity=data, regularizer=net, weight=0.3, box=(0, 1))


def test_a_gpu_is_given_more_at_once():
    assert strips.at_once(100, CPU) == 100
    assert strips.at_once(100, GPU) > 100


def tiled_on(device: str, problem: cl.VariationalProblem) -> TiledIterations:
    """The iterations for filters on a device that need not exist here."""
    saddle = lift(problem)
    coupling = Coupling(saddle)
    operator = saddle.K.rows["v1"]["x"].convolution
    with FakeTensorMode():
        operator.weight = torch.empty(operator.weight.shape, device=device)
    return TiledIterations(saddle, coupling)


def test_a_gpu_has_strips_for_single_images_that_are_very_large(monkeypatch):
    problem = denoising()
    with pytest.raises(DoesNotApply, match="very large"):
        tiled_on("cuda", problem)
    monkeypatch.setattr(tiled_iterations, "LARGE_ON_A_GPU", 32 * SIZE**2)
    assert tiled_on("cuda", problem).packs(problem.fidelity.y)
    for other in (denoising(batch=2), problem.to(dtype=torch.float64)):
        with pytest.raises(DoesNotApply, match="very large"):
            tiled_on("cuda", other)
    with pytest.raises(DoesNotApply, match="very large"):
        tiled_on("mps", problem)  # without double precision


@pytest.mark.parametrize(("smoothing", "whole"), [(0.05, False), (0.0, True)])
@pytest.mark.parametrize("fidelity", ["L1", "L2"])
def test_anchors_that_only_measure_displacements_are_a_few_rows(
    fidelity, smoothing, whole, monkeypatch
):
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    problem = denoising(fidelity, smoothing=smoothing)
    solver = RestartedPDHG(problem, lift(problem))
    with torch.no_grad():
        state = solver.advance(solver.start(problem.initial_image()), 20)
        again = RestartedPDHG(problem, lift(problem)).advance(state, 20)
        expected = solver.advance(state, 20)
    anchor = state.anchor_v["v1"]
    assert anchor.dtype is CODES
    assert anchor.shape[-2] == (SIZE if whole else SIZE // SAMPLED)
    # Another solver continues from such a state.
    torch.testing.assert_close(again.x, expected.x)
    torch.testing.assert_close(again.sigma["v1"], expected.sigma["v1"])


def test_parts_of_a_network_are_not_too_large(monkeypatch):
    network = denoising().network
    monkeypatch.setattr(bound_network, "LARGEST_PART", 2 * SIZE**2)
    assert len(network.in_parts(1)) == 16
    assert len(network.in_parts(8 * SIZE**2)) == 4  # if no more are asked for


def test_adjoints_in_strips_are_the_same(monkeypatch):
    operator = denoising().network.layers[0].operators[0].convolution.to(dtype=torch.float64)
    p = torch.rand(1, 32, SIZE, SIZE, dtype=torch.float64)
    whole = operator.adjoint(p)
    monkeypatch.setattr(convolution, "FOLDED", 4 * 5 * SIZE * 17)  # not a divisor of the height
    torch.testing.assert_close(operator.adjoint(p), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fidelity", ["L2", "L1"])
def test_a_packed_solve_on_a_gpu_ends_like_one_on_a_cpu(fidelity, monkeypatch):
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    monkeypatch.setattr(tiled_iterations, "LARGE_ON_A_GPU", 1)
    monkeypatch.setattr(strips, "AT_ONCE", 1)
    problem, stop = denoising(fidelity), cl.StopWhen(gap=1e-3)
    expected = cl.solve(problem, stop=stop)
    solution = cl.solve(problem.to(device="cuda"), stop=stop)
    assert solution.status == expected.status == (cl.Status.CONVERGED,)
    assert solution.state.v["v1"].dtype is CODES
    torch.testing.assert_close(solution.objective.cpu(), expected.objective, rtol=2e-3, atol=0)
    assert (solution.lower_bound.cpu() <= expected.objective).all()
