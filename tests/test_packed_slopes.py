"""Large dual variables in 16 bits: still feasible, nearly as good, and less memory."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.networks.bound_network import BoundNetwork
from convexlift.problems import claims, rigorous_bounds
from convexlift.problems.packed_slopes import CODES, STEPS, can_be_packed, feasible, pack
from convexlift.solvers import iterations

SIZE = 72
pytestmark = pytest.mark.single_precision


def denoising(fidelity="L2", smoothing=0.05, weight=0.3) -> cl.VariationalProblem:
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=32, kernel=5, smoothing=smoothing)
    y = torch.zeros(1, 1, SIZE, SIZE)
    y[..., 20:50, 10:60] = 1.0
    y += 0.2 * torch.randn(y.shape)
    data = cl.L1(y) if fidelity == "L1" else cl.SquaredL2(y)
    return cl.VariationalProblem(fidelity=data, regularizer=network, weight=weight, box=(0, 1))


@pytest.mark.parametrize("h", [cl.ReLU(), cl.Huber(0.01), cl.LeakyReLU(0.2)])
def test_unpacked_slopes_are_feasible_near_and_exact_at_the_ends(h):
    t = torch.rand(1, 3, 1, 1) + torch.tensor([0.0, 1e-7, 3.0])[None, :, None, None]
    low, high = h.slopes
    s = low + (high - low) * torch.rand(1, 3, 200, 40)
    s[..., 0], s[..., 1] = low, high
    p = s * t
    unpacked = feasible(h, pack(h, p, t), t)
    assert pack(h, p, t).dtype is CODES
    torch.testing.assert_close(unpacked, h.clip_to_slopes(unpacked, t), rtol=0, atol=0)
    assert bool(((unpacked - p).abs() <= 0.51 * (high - low) / STEPS * t + 1e-6 * p.abs()).all())
    ends = h.clip_to_slopes(p, t)[..., :2]
    torch.testing.assert_close(unpacked[..., :2], ends, rtol=2e-7, atol=0)


def test_multipliers_of_zero_have_no_slope_and_give_zero():
    h, t = cl.ReLU(), torch.zeros(1, 2, 1, 1)
    p = torch.zeros(1, 2, 4, 4)
    assert not feasible(h, pack(h, p, t), t).any()


def test_groups_and_unbounded_slopes_are_not_packed():
    assert not can_be_packed(cl.GroupNorm(2, cl.Huber(0.05)))
    assert not can_be_packed(cl.HalfSquare())


@pytest.mark.parametrize(("fidelity", "smoothing"), [("L2", 0.05), ("L2", 0.0), ("L1", 0.0)])
def test_a_packed_solve_ends_like_a_plain_one(fidelity, smoothing, monkeypatch):
    problem = denoising(fidelity, smoothing, weight=2.0 if fidelity == "L1" else 0.3)
    stop = cl.StopWhen(gap=1e-3, max_iterations=800)
    plain = cl.solve(problem, stop=stop)
    monkeypatch.setattr(iterations, "LARGE", 1)
    packed = cl.solve(problem, stop=stop)
    assert packed.state.v["v1"].dtype is CODES
    assert packed.duals["v1"].dtype is torch.float32
    assert packed.status == plain.status == (cl.Status.CONVERGED,)
    assert float(packed.gap) <= 1e-3
    assert abs(int(packed.iterations) - int(plain.iterations)) <= 10 + int(plain.iterations) // 5
    checked = cl.certify(problem, packed.x, packed.duals)
    torch.testing.assert_close(checked.lower_bound, packed.lower_bound, rtol=1e-6, atol=0)


def test_a_solve_continues_from_a_packed_state(monkeypatch):
    problem = denoising()
    monkeypatch.setattr(iterations, "LARGE", 1)
    first = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=40))
    again = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=0), start=first.state)
    torch.testing.assert_close(again.objective, first.objective, rtol=1e-3, atol=0)
    assert float(again.gap) <= 1.5 * float(first.gap) + 1e-4
    paper = cl.PDHG(steps=cl.PaperSteps((1.0,)))
    cl.solve(problem, method=paper, stop=cl.StopWhen(max_iterations=2), start=first.state)
    other = denoising(weight=0.2)  # slopes are those of another weight
    assert cl.solve(other, start=first.state).status == (cl.Status.CONVERGED,)


def test_batches_are_not_packed(monkeypatch):
    problem = denoising()
    twice = cl.VariationalProblem(
        fidelity=cl.SquaredL2(problem.fidelity.y.repeat(2, 1, 1, 1)),
        regularizer=problem.regularizer, weight=0.3,
    )  # fmt: skip
    monkeypatch.setattr(iterations, "LARGE", 1)
    state = cl.solve(twice, stop=cl.StopWhen(max_iterations=10, gap=None)).state
    assert state.v["v1"].dtype is torch.float32


def test_the_sum_of_all_parts_is_the_network():
    network = denoising().network
    x = torch.rand(1, 1, SIZE, SIZE)
    parts = network.in_parts(1)
    assert len(parts) == 6
    values = [part.value(part.forward(x).z[-1]) for _, part in parts]
    torch.testing.assert_close(sum(values), network.value(network.forward(x).z[-1]))
    assert network.in_parts(10**9)[0][1] is network


def test_networks_of_several_layers_are_one_part():
    network = cl.networks.baseline(image_size=32, channels=8).bind((1, 32, 32))
    assert isinstance(network, BoundNetwork)
    assert [part for _, part in network.in_parts(1)] == [network]


def test_claims_in_parts_prove_the_same(monkeypatch):
    problem = denoising()
    solution = cl.solve(problem)
    whole = cl.certify(problem, solution.x, solution.duals)
    for module in (claims, rigorous_bounds):
        monkeypatch.setattr(module, "PART", 1)
    parts = cl.certify(problem, solution.x, solution.duals)
    torch.testing.assert_close(parts.objective, whole.objective, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.lower_bound, whole.lower_bound, rtol=1e-9, atol=0)
