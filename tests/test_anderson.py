"""Anderson's extrapolation of relaxed iterations."""

import math

import pytest
import torch

import convexlift as cl
from convexlift.solvers import extrapolated_iterations
from convexlift.solvers.anderson import EVERY, LEAST, Past
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.tensors import Blocks

ALL = torch.tensor([True])


def contraction(w):
    """P(w), affine, with two directions that converge slowly to 0, and many fast ones."""
    rates = torch.cat([torch.tensor([0.999, 0.99]), torch.linspace(0, 0.5, 30)])
    return rates * w


def run(count, extrapolate):
    past, w = Past.none(1), torch.ones(1, 32)
    for _ in range(count):
        r = contraction(w) - w
        ahead = Blocks({"x": w + 1.9 * r}), Blocks({})
        if extrapolate:
            ahead, past = past.next(r, ahead, ALL)
        w = ahead[0]["x"]
    return float(w.norm())


def test_slow_directions_are_extrapolated():
    assert run(60, extrapolate=False) > 0.5
    assert run(60, extrapolate=True) < 1e-4


def test_an_extrapolation_that_enlarges_the_residual_is_undone():
    past, ahead = Past.none(1), (Blocks({}), Blocks({}))
    for k in range(LEAST):
        before = Blocks({"x": torch.full((1, 2), float(k))}), Blocks({})
        r = torch.tensor([[1.0 + 1 / (k + 1), 0.3**k]])
        ahead, past = past.next(r, before, ALL)
    assert ahead[0]["x"] is not before[0]["x"]  # extrapolated
    assert past.trial < math.inf
    ahead, past = past.next(100 * r, (Blocks({"x": torch.full((1, 2), 99.0)}), Blocks({})), ALL)
    assert torch.equal(ahead[0]["x"], before[0]["x"])
    assert past.count == 0


def test_restarts_forget_the_past():
    past = Past.none(2)
    for _ in range(LEAST - 1):
        _, past = past.next(torch.rand(2, 3), (Blocks({"x": torch.rand(2, 3)}), Blocks({})),
                            torch.tensor([True, True]))  # fmt: skip
    relaxed = torch.tensor([True, False])  # the second image restarts
    plain = Blocks({"x": torch.rand(2, 3)})
    (u, _), past = past.next(torch.rand(2, 3), (plain, Blocks({})), relaxed)
    assert past.count.tolist() == [LEAST, 0]
    assert torch.equal(u["x"][1], plain["x"][1])
    assert LEAST % EVERY != 0 or not torch.equal(u["x"][0], plain["x"][0])


def scan(batch=1):
    """A small scan with smooth data term and regularizer: a matrix of steps."""
    generator = torch.Generator().manual_seed(0)
    A = cl.ParallelBeam(12, angles=4, bins=17).to(dtype=torch.float64)
    x = torch.rand(batch, 1, 12, 12, generator=generator)
    data = A(x) + 0.1 * torch.randn(A(x).shape, generator=generator)
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1).double()
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(data, torch.rand(data.shape, generator=generator)),
        operator=A, regularizer=network, weight=0.05, box=(0, 1),
    )  # fmt: skip


def test_fewer_iterations(monkeypatch):
    stop = cl.StopWhen(gap=1e-8, max_iterations=2000)
    fast = cl.solve(scan(), stop=stop)
    assert fast.status[0] is cl.Status.CONVERGED
    monkeypatch.setattr(extrapolated_iterations, "MEMORABLE", 0)
    slow = cl.solve(scan(), stop=stop)
    assert int(fast.iterations) < 0.75 * int(slow.iterations), (fast.iterations, slow.iterations)


def test_linear_programs_are_extrapolated_too(monkeypatch):
    """L1 data of a scan and total variation: without, more than 1.5 times the iterations."""
    torch.manual_seed(0)
    truth = torch.zeros(1, 1, 16, 16)
    truth[..., 4:12, 4:12] = 1.0
    A = cl.ParallelBeam(16, angles=8, bins=24)
    y = A(truth)
    y = y + 0.02 * y.max() * torch.randn(y.shape)
    stated = cl.VariationalProblem(
        fidelity=cl.L1(y), operator=A, regularizer=cl.TotalVariation(), weight=1.0, box=(0, 1)
    )
    stop = cl.StopWhen(gap=1e-4, max_iterations=1000)
    with_them = cl.solve(stated, stop=stop)
    monkeypatch.setattr(extrapolated_iterations, "MEMORABLE", 0)
    without = cl.solve(stated, stop=stop)
    assert with_them.status == without.status == (cl.Status.CONVERGED,)
    assert 1.5 * int(with_them.iterations) <= int(without.iterations)
    # Each bound is below the other's objective.
    assert float(with_them.lower_bound) <= float(without.objective)
    assert float(without.lower_bound) <= float(with_them.objective)


def test_images_of_a_batch_extrapolate_by_themselves():
    problem, stop = scan(batch=2), cl.StopWhen(gap=None, max_iterations=60)
    together = cl.solve(problem, stop=stop)
    for i in range(2):
        alone = cl.solve(problem.select(torch.tensor([i])), stop=stop)
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["matrix", "frequencies", "numbers"])
def test_the_norm_of_a_whitened_vector_is_its_length(kind):
    torch.manual_seed(1)
    problem = scan()
    if kind == "matrix":
        solver = cl.PDHG().solver(problem)
    else:
        from convexlift.problems.lifting import lift
        from convexlift.solvers.spectral_steps import FourierCoupling

        saddle = lift(problem, dualise_box=True)
        made = FourierCoupling(saddle, problem.fidelity.y) if kind == "frequencies" else None
        solver = RestartedPDHG(problem, saddle, made or Coupling(saddle))
    state = solver.start(problem.initial_image())
    du = Blocks({n: torch.randn_like(p) for n, p in state.u.items()})
    dv = Blocks({n: torch.randn_like(p) for n, p in state.v.items()})
    coupling, steps = solver.coupling, (state.tau, state.sigma)
    found = coupling.whitened(du, dv, *steps).norm(dim=1)
    torch.testing.assert_close(found, coupling.length(du, dv, *steps).to(found))
