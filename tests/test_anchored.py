"""A fidelity with a pull: the exam, brute force, and its limits."""

from __future__ import annotations

import math

import pytest
import torch

import convexlift as cl
from convexlift.functionals.fidelity import Anchored

Y = torch.tensor([[[[0.0, 1.0], [2.0, 7.0]]]], dtype=torch.float64)
TARGET = torch.tensor([[[[0.5, 0.2], [2.0, 9.0]]]], dtype=torch.float64)
BASES = {
    "L1": lambda y: cl.L1(y, 0.7),
    "L2": lambda y: cl.SquaredL2(y),
    "weighted L2": lambda y: cl.WeightedL2(y, 0.4),
    "not measured": lambda y: cl.WeightedL2(y, 0.0),
    "KL": lambda y: cl.KullbackLeibler(y, 0.5),
    "anchored L1": lambda y: Anchored(cl.L1(y, 0.7), 1 - y, 0.2),
}
every_base = pytest.mark.parametrize("name", BASES)
every_pull = pytest.mark.parametrize("pull", [1e-3, 0.3, 20.0])


def anchored(name: str, pull: float) -> Anchored:
    return Anchored(BASES[name](Y), TARGET, pull)


def grid_between(low: float, high: float) -> torch.Tensor:
    """Fine, and with the kinks of all pixels."""
    kinks = torch.cat([Y.flatten(), 1 - Y.flatten()]).clamp(low, high)
    return torch.cat([torch.linspace(low, high, 20_001), kinks])


def along(name: str, pull: float, i: int, grid: torch.Tensor) -> torch.Tensor:
    """D + pull/2 (w - target)^2 of pixel i on a grid, from the base fidelity."""
    y = Y.flatten()[i].expand(1, grid.numel()).clone()
    base = BASES[name](y).density(grid[None])[0]
    return base + pull / 2 * (grid - TARGET.flatten()[i]) ** 2


@every_base
@every_pull
def test_exam(name, pull):
    cl.check_functional(anchored(name, pull))


@every_base
@every_pull
def test_prox_by_brute_force(name, pull):
    f = anchored(name, pull)
    grid = grid_between(-0.4999, 12)
    for step in (0.05, 2.0, 50.0):
        for w in (-0.4, 0.0, 1.0, 5.0):
            point = f.prox(torch.full_like(Y, w), torch.full_like(Y, step)).flatten()
            for i in range(4):
                if not -0.4999 <= float(point[i]) <= 12:
                    continue  # the grid's end is not the minimum
                cost = step * along(name, pull, i, grid) + (grid - w) ** 2 / 2
                ours = step * along(name, pull, i, point[i : i + 1]) + (point[i] - w) ** 2 / 2
                assert float(ours) <= float(cost.min()) + 1e-9
                assert float(ours) >= float(cost.min()) - 1e-5 * (1 + step) * (1 + pull)


@every_base
@every_pull
@pytest.mark.parametrize("c", [-1.5, 0.0, 0.4, 3.0])
def test_minimiser_and_excess_by_brute_force(name, pull, c):
    f = anchored(name, pull)
    low, high = -0.45, 8.0
    grid = grid_between(low, high)
    lower, upper = torch.full_like(Y, low), torch.full_like(Y, high)
    slope = torch.full_like(Y, c)
    best = f.minimiser(slope, lower, upper).flatten()
    for w in (low, 0.3, 2.0, high):
        excess = f.excess(torch.full_like(Y, w), slope, lower, upper).flatten()
        for i in range(4):
            values = along(name, pull, i, grid) + c * grid
            here = along(name, pull, i, torch.tensor([w])) + c * w
            assert float(excess[i]) == pytest.approx(float(here - values.min()), abs=1e-5)
            assert float(excess[i]) >= pull / 2 * (w - float(best[i])) ** 2
            least = along(name, pull, i, best[i : i + 1]) + c * best[i]
            assert float(least) <= float(values.min()) + 1e-9


@every_base
def test_the_excess_in_single_precision_is_never_too_small(name):
    """A certificate rests on it, for pulls as small as hypergradients use."""
    f = anchored(name, 1e-3)
    single = f.to(dtype=torch.float32)
    assert {t.dtype for t in single.tensors()} == {torch.float32}
    w, c = Y + 0.3 * torch.rand(100, 2, 2)[:, None], torch.randn(100, 1, 2, 2) / 2
    ends = torch.full_like(w, -0.4), torch.full_like(w, 9.0)
    exact = f.excess(w, c, *ends)
    ours = single.excess(*(tensor.float() for tensor in (w, c, *ends)))
    assert (ours >= 0).all()
    torch.testing.assert_close(ours.double(), exact, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["L1", "KL"])
def test_a_problem_with_a_pull_is_solved_and_certified(name):
    y = torch.rand(2, 1, 8, 8)
    net = cl.networks.baseline(8, channels=3, pool=4, hidden=4, kernel=3)
    problem = cl.VariationalProblem(
        fidelity=Anchored(BASES[name](y), torch.rand_like(y), 0.1),
        regularizer=net, weight=0.5, box=(0, 1),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=2000))
    assert all(status is cl.Status.CONVERGED for status in solution.status)
    for _ in range(5):
        other = (solution.x + 0.01 * torch.randn_like(y)).clamp(0, 1)
        assert (problem.objective(other) >= solution.lower_bound).all()


def test_bad_input():
    with pytest.raises(ValueError, match=r"the target has shape \(2, 2\), the data \(1, 1, 2, 2\)"):
        Anchored(cl.L1(Y), TARGET[0, 0], 1.0)
    for pull in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"Anchored needs pull > 0, got pull={pull}"):
            Anchored(cl.L1(Y), TARGET, pull)
    with pytest.raises(ValueError, match=r"the target is nan at index \(0, 0, 0, 1\)"):
        Anchored(cl.L1(Y), TARGET.where(TARGET != 0.2, math.nan), 1.0)
