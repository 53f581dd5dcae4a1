"""Hypergradients against finite differences of l(x(theta)), with x(theta) from CVXPY.

These tests say what a strategy can be trusted with, and where it must not be.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypergradient_cases import (
    KINKS,
    SMOOTH,
    case,
    compare,
    error,
    implicit,
    problem_of,
    value_function,
)

import convexlift as cl
from convexlift import Implicit, JacobianFree, Unrolled, ValueFunction

SMOOTH_DATA = tuple(name for name in SMOOTH if "L2" in name)


# What each strategy may be trusted with


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*SMOOTH, *KINKS])
def test_the_value_function_is_right_for_every_network(name):
    cosine, ratio = compare(value_function(1e-3), name)
    assert cosine > 0.999
    assert ratio == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("strategy", [implicit("cg"), implicit("minres"), Implicit()], ids=repr)
def test_implicit_differentiation_is_right_for_smooth_networks(name, strategy):
    """The default damping changes little."""
    cosine, ratio = compare(strategy, name)
    assert cosine > (0.999 if strategy == Implicit() else 0.9999)
    assert ratio == pytest.approx(1, abs=0.02 if strategy == Implicit() else 0.01)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", KINKS)
def test_implicit_differentiation_is_wrong_for_networks_with_kinks(name):
    """Almost everywhere such a network has no second derivative, and its kinks hold x."""
    assert error(implicit("cg"), name) > 0.1 > 3 * error(value_function(1e-3), name)


@pytest.mark.parametrize("name", SMOOTH_DATA)
def test_unrolling_tends_to_implicit_differentiation(name):
    few, some, many = (error(Unrolled(steps), name) for steps in (2, 8, 250))
    assert few > some > many
    assert some > 0.03
    assert many < 0.005


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("baseline, L2", 0.5, 0.999), ("ridge, masked L2", 0.5, 0.999),
     ("baseline, masked L2", -1.0, -0.2)],
)  # fmt: skip
def test_without_jacobian_there_may_be_a_direction_of_descent_or_ascent(name, low, high):
    """Missing pixels make the Hessian anything but a multiple of the identity."""
    assert low < compare(JacobianFree(), name)[0] < high


def test_the_error_of_the_value_function_shrinks_with_b():
    for name in ("baseline, masked L2", "ridge, masked L2", "baseline with kinks, L2"):
        errors = [error(value_function(b), name) for b in (1e-1, 1e-2, 1e-3)]
        assert errors[2] < errors[1] / 3
        assert errors[1] < errors[0] / 2


def test_images_of_a_batch_have_surrogates_of_their_own():
    problem, truth = problem_of("baseline, L2")
    y = problem.fidelity.y
    both = replace(problem, fidelity=cl.SquaredL2(torch.cat([y, y.flip(2)])))
    truths = torch.cat([truth, truth.flip(3)])
    stop = cl.StopWhen(gap=1e-10, max_iterations=3000)
    for strategy in (value_function(1e-2), implicit("cg"), Unrolled(3), JacobianFree()):
        together = strategy.surrogate(both, cl.solve(both, stop=stop), truths)
        for i in range(2):
            one = replace(problem, fidelity=cl.SquaredL2(both.fidelity.y[i : i + 1]))
            alone = strategy.surrogate(one, cl.solve(one, stop=stop), truths[i : i + 1])
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=1e-3)


# The weight of the problem


@pytest.mark.parametrize(
    ("strategy", "names", "tolerance"),
    [
        (value_function(1e-3), ("baseline, L2", "baseline, L1", "baseline with kinks, L2"), 0.02),
        (implicit("cg"), ("baseline, L2", "baseline, L1", "ridge, masked L2"), 0.01),
        (implicit("minres"), ("ridge, masked L2",), 0.01),
        (Unrolled(250), ("baseline, L2", "ridge, masked L2"), 0.02),
    ],
    ids=["value function", "implicit", "implicit, minres", "unrolled"],
)
def test_a_learned_weight(strategy, names, tolerance):
    for name in names:
        at = case(name)
        weight = torch.tensor(at.problem.weight, requires_grad=True)
        surrogate = strategy.surrogate(replace(at.problem, weight=weight), at.solution, at.truth)
        (ours,) = torch.autograd.grad(surrogate.sum(), weight)
        assert float(ours) == pytest.approx(at.by_weight, rel=tolerance), name


# Errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: JacobianFree(0.0), r"JacobianFree needs step > 0, got step=0\.0"),
        (lambda: Unrolled(0), "Unrolled needs steps >= 1, got 0"),
        (lambda: Unrolled(3, step=-1.0), r"Unrolled needs step > 0, got step=-1\.0"),
        (lambda: Implicit(damping=-1.0), r"Implicit needs damping >= 0, got -1\.0"),
        (lambda: Implicit(damping=math.nan), "Implicit needs damping >= 0, got nan"),
        (lambda: Implicit(linear_solver="lu"), "linear_solver must be 'cg' or 'minres', got 'lu'"),
        (lambda: Implicit(iterations=0), "Implicit needs iterations >= 1, got 0"),
        (lambda: Implicit(tolerance=0.0), r"Implicit needs tolerance > 0, got tolerance=0\.0"),
        (lambda: ValueFunction(b=0.0), r"ValueFunction needs b > 0, got b=0\.0"),
        (lambda: ValueFunction(gap=math.inf), "ValueFunction needs gap > 0, got gap=inf"),
        (lambda: ValueFunction(max_iterations=0), "needs max_iterations >= 1, got 0"),
    ],
)
def test_options_that_make_no_sense(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("strategy", [JacobianFree(), Unrolled(2), Implicit(), ValueFunction()])
def test_a_ground_truth_of_another_shape(strategy):
    at = case("baseline, L2")
    message = r"ground truth has shape \(8, 8\), the reconstructions have \(1, 1, 8, 8\)"
    with pytest.raises(ValueError, match=message):
        strategy.surrogate(at.problem, at.solution, at.truth[0, 0])


def test_unrolling_without_curvature_asks_for_a_step():
    at = case("baseline with kinks, L1")
    with pytest.raises(
        ValueError, match=r"no curvature here .* write Unrolled\(steps=\.\.\., step"
    ):
        Unrolled(3).surrogate(at.problem, at.solution, at.truth)
