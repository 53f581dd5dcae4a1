"""Images that go with dual variables, and steps that let dual variables run ahead of images."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.operators.imaging import Diagonal
from convexlift.problems.lifting import lift
from convexlift.problems.minorant import image_of_duals
from convexlift.solvers.coupling import Coupling


def stated(data=cl.SquaredL2, **options) -> cl.VariationalProblem:
    """Two images of different scales."""
    torch.manual_seed(0)
    y = torch.rand(2, 1, 12, 16) * torch.tensor([0.3, 3.0])[:, None, None, None]
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.05)
    options = {"regularizer": network, **options}
    return cl.VariationalProblem(fidelity=data(y), weight=0.1, **options)


def weights() -> torch.Tensor:
    """Of contrast 4 in one image, and 100 in the other."""
    weights = torch.ones(2, 1, 12, 16)
    weights[0, 0, 3, 4], weights[1, 0, 5, 6] = 0.25, 100.0
    return weights


def weighted(y: torch.Tensor) -> cl.Fidelity:
    return cl.WeightedL2(y, weights())


SEEN = (torch.arange(16) % 3 > 0).double().expand(12, 16)
CASES = {
    "plain": {},
    "box": {"box": (0.1, 1.0)},
    "weights": {"data": weighted},
    "diagonal": {
        "operator": Diagonal(torch.linspace(-2, -0.5, 16, dtype=torch.float64).expand(12, 16))
    },
}


@pytest.mark.parametrize("case", CASES)
def test_at_the_solution_it_is_the_solution(case):
    problem = stated(**CASES[case])
    best = cl.solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=3000))
    image, objective, _ = image_of_duals(problem, torch.zeros_like(best.x), best.duals)
    torch.testing.assert_close(objective, best.objective)
    torch.testing.assert_close(image, best.x, rtol=0, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_it_minimises_the_data_term_and_the_minorant(case):
    """Against gradient steps, for dual variables that are far from a solution."""
    problem = stated(**CASES[case])
    duals = cl.solve(problem, stop=cl.StopWhen(max_iterations=1)).duals
    c = lift(problem).K.adjoint(duals)["x"]
    x, _, before = image_of_duals(problem, c, duals)
    torch.testing.assert_close(before, problem.objective(c))
    d, k = problem.operator.diagonal, problem.fidelity.curvature
    slope = k * d * (d * x - problem.fidelity.y) + c
    moved = problem.bounds.project(x - 0.01 * slope)
    torch.testing.assert_close(moved, x)


@pytest.mark.parametrize(
    ("data", "operator"),
    [(cl.L1, cl.Identity()), (cl.SquaredL2, cl.Mask(SEEN)),
     (cl.SquaredL2, cl.Blur(torch.full((3, 3), 1 / 9, dtype=torch.float64)))],
)  # fmt: skip
def test_where_the_data_do_not_determine_it(data, operator):
    problem = stated(data, operator=operator)
    duals = cl.solve(problem, stop=cl.StopWhen(max_iterations=1)).duals
    assert image_of_duals(problem, problem.initial_image(), duals) is None


def test_claims_are_about_the_better_image():
    problem = stated()
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-2, check_every=5))
    left_behind = problem.objective(solution.state.x)
    assert (solution.objective < left_behind).all()
    torch.testing.assert_close(problem.objective(solution.x), solution.objective, rtol=1e-9, atol=0)


def test_dual_distances_count_more_where_the_data_are_even():
    def weight(**options) -> object:
        return Coupling(lift(stated(**options))).dual_weight

    torch.testing.assert_close(weight(), torch.full((2,), 2.0))
    torch.testing.assert_close(weight(data=weighted), torch.tensor([1.5, 1.1]))
    torch.testing.assert_close(weight(**CASES["diagonal"]), torch.full((2,), 1.25))
    share = float(SEEN.mean())
    unseen = weight(operator=cl.Mask(SEEN))
    torch.testing.assert_close(unseen, torch.full((2,), 1 + share**2))
    kinks = weight(operator=cl.Mask(SEEN), regularizer=cl.TotalVariation())
    torch.testing.assert_close(kinks, torch.ones(2))
    assert weight(data=cl.L1) == 1.0
