"""Hypergradients against finite differences of l(x(theta)), with x(theta) from CVXPY.

Derivatives along random directions of all weights, and of the regularization weight, are compared
by their cosine and by their size. These tests say what a strategy can be trusted with, and where
it must not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from oracle import optimum
from torch import Tensor

import convexlift as cl
from convexlift.functionals.anchored import Anchored
from convexlift.networks.architectures import baseline, ridge
from convexlift.operators.imaging import Diagonal
from convexlift.training import Hypergradient, Implicit, JacobianFree, Unrolled, ValueFunction
from convexlift.training.hypergradients import (
    energy,
    lagrangian,
    movable,
    pull_towards,
    upper_loss,
)

SIZE = 8
DIRECTIONS = 5
STEP = 3e-5
SMOOTH = ("baseline, L2", "baseline, masked L2", "baseline, L1", "ridge, masked L2", "ridge, L1")
KINKS = (
    "baseline with kinks, L2",
    "baseline with kinks, masked L2",
    "baseline with kinks, L1",
    "ridge with kinks, L2",
    "ridge with kinks, masked L2",
)
SMOOTH_DATA = tuple(name for name in SMOOTH if "L2" in name)


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, its solution, and derivatives of l(x(theta)) along directions."""

    problem: cl.VariationalProblem
    truth: Tensor
    solution: cl.Solution
    directions: list[list[Tensor]]  # of the network's parameters
    derivatives: Tensor  # along them, by finite differences
    by_weight: float  # in the weight of the problem


def network(name: str) -> cl.InputConvexNetwork:
    """Weights away from zero, so that W >= 0 is no constraint for small changes."""
    generator = torch.Generator().manual_seed(1)
    smoothing = 0.0 if "kinks" in name else 0.1

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    def uniform(like: Tensor, low: float, high: float) -> Tensor:
        noise = torch.rand(like.shape, generator=generator, dtype=torch.float64)
        return low + (high - low) * noise

    if name.startswith("ridge"):
        net = ridge(channels=4, kernel=3, smoothing=smoothing)
    else:
        net = baseline(SIZE, channels=4, pool=4, hidden=6, kernel=3, smoothing=smoothing)
    with torch.no_grad():
        filters = normal(net.layers[0].skip.weight)
        filters -= filters.mean((-2, -1), keepdim=True)
        net.layers[0].skip.weight.copy_(
            filters / filters.flatten(1).norm(dim=1)[:, None, None, None]
        )
        if name.startswith("ridge"):
            net.output.copy_(uniform(net.output, 0.05, 0.08))
        else:
            dense = net.layers[1].previous.maps[1].weight
            net.layers[0].bias.copy_(0.02 * normal(net.layers[0].bias))
            dense.copy_(uniform(dense, 0.2, 0.5))
            net.layers[1].bias.copy_(0.1 + 0.02 * normal(net.layers[1].bias))
            net.output.copy_(uniform(net.output, 0.5, 0.8))
    return net


def problem_of(name: str) -> tuple[cl.VariationalProblem, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(margin: int = 0) -> Tensor:
        size = SIZE + margin
        return torch.rand(1, 1, size, size, generator=generator, dtype=torch.float64)

    truth = 1.2 * torch.nn.functional.avg_pool2d(random(4), 5, 1) - 0.1
    noise = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    y, operator, weight = truth + 0.1 * noise, cl.Identity(), 1.0
    fidelity = cl.SquaredL2(y)
    if "masked" in name:
        mask = (random() > 0.2).double()
        fidelity, operator = cl.SquaredL2(mask * y), cl.Mask(mask)
    elif "L1" in name:
        hit = random() < 0.25
        fidelity = cl.L1(torch.where(hit, random().round(), truth))
        weight = 6.0 if name.startswith("ridge") else 8.0
    if name.startswith("ridge with kinks"):
        weight = 0.25  # else x is flat, and l does not change
    problem = cl.VariationalProblem(
        fidelity=fidelity, operator=operator, regularizer=network(name), weight=weight, box=(0, 1)
    )
    return problem, truth


def loss_at_the_optimum(problem: cl.VariationalProblem, truth: Tensor) -> float:
    return float(upper_loss(torch.from_numpy(optimum(problem)[1]), truth))


@cache
def case(name: str) -> Case:
    problem, truth = problem_of(name)
    parameters = list(problem.regularizer.parameters())
    generator = torch.Generator().manual_seed(7)
    directions, derivatives = [], []

    @torch.no_grad()
    def loss_along(direction: list[Tensor], t: float) -> float:
        for parameter, change in zip(parameters, direction, strict=True):
            parameter.add_(t * change)
        value = loss_at_the_optimum(replace(problem), truth)
        for parameter, change in zip(parameters, direction, strict=True):
            parameter.sub_(t * change)
        return value

    for _ in range(DIRECTIONS):
        direction = [
            p.detach().square().mean().sqrt()
            * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for p in parameters
        ]
        directions.append(direction)
        difference = loss_along(direction, STEP) - loss_along(direction, -STEP)
        derivatives.append(difference / (2 * STEP))
    high, low = problem.weight * (1 + STEP), problem.weight * (1 - STEP)
    by_weight = (
        loss_at_the_optimum(replace(problem, weight=high), truth)
        - loss_at_the_optimum(replace(problem, weight=low), truth)
    ) / (high - low)
    # An interior-point method comes near to the box and to the data, and never quite there.
    start = torch.from_numpy(optimum(problem)[1])
    for held in (torch.zeros_like(start), torch.ones_like(start), problem.fidelity.y):
        start = torch.where((start - held).abs() < 1e-6, held, start)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=5000), start=start)
    assert solution.status[0] is cl.Status.CONVERGED
    derivatives = torch.tensor(derivatives, dtype=torch.float64)
    return Case(problem, truth, solution, directions, derivatives, by_weight)


def compare(strategy: Hypergradient, name: str) -> tuple[float, float]:
    """The cosine of ours and the finite differences, and the ratio of their sizes."""
    at = case(name)
    net = at.problem.regularizer
    net.zero_grad()
    surrogate = strategy.surrogate(at.problem, at.solution, at.truth)
    assert surrogate.shape == (1,)
    surrogate.sum().backward()
    ours = torch.stack(
        [
            sum((p.grad * d).sum() for p, d in zip(net.parameters(), direction, strict=True)
                if p.grad is not None)
            for direction in at.directions
        ]
    )  # fmt: skip
    exact = at.derivatives
    assert torch.isfinite(ours).all()
    cosine = float(ours @ exact / (ours.norm() * exact.norm()))
    return cosine, float(ours.norm() / exact.norm())


def error(strategy: Hypergradient, name: str) -> float:
    """||ours - exact|| / ||exact||."""
    cosine, ratio = compare(strategy, name)
    return math.sqrt(max(0.0, 1 + ratio**2 - 2 * ratio * cosine))


def value_function(b: float) -> ValueFunction:
    return ValueFunction(b, gap=1e-12, max_iterations=5000)


def implicit(linear_solver: str) -> Implicit:
    return Implicit(damping=1e-6, linear_solver=linear_solver, iterations=300, tolerance=1e-8)


# What each strategy may be trusted with


@pytest.mark.parametrize("name", [*SMOOTH, *KINKS])
def test_the_value_function_is_right_for_every_network(name):
    cosine, ratio = compare(value_function(1e-3), name)
    assert cosine > 0.999
    assert ratio == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("linear_solver", ["cg", "minres"])
def test_implicit_differentiation_is_right_for_smooth_networks(name, linear_solver):
    cosine, ratio = compare(implicit(linear_solver), name)
    assert cosine > 0.9999
    assert ratio == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_default_damping_changes_little(name):
    cosine, ratio = compare(Implicit(), name)
    assert cosine > 0.999
    assert ratio == pytest.approx(1, abs=0.02)


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


@pytest.mark.parametrize("name", ["baseline, L2", "ridge, masked L2"])
def test_without_jacobian_there_may_be_a_direction_of_descent(name):
    cosine, _ = compare(JacobianFree(), name)
    assert 0.5 < cosine < 0.999


def test_without_jacobian_there_may_be_a_direction_of_ascent():
    """Missing pixels make the Hessian anything but a multiple of the identity."""
    assert compare(JacobianFree(), "baseline, masked L2")[0] < -0.2


def test_where_gradient_steps_fail():
    """The kinks of the data term, or of the network, are not seen by a gradient step."""
    assert compare(JacobianFree(), "baseline, L1")[0] < 0.5
    assert compare(JacobianFree(), "baseline with kinks, L1")[0] < 0.5
    assert compare(Unrolled(50), "baseline, L1")[0] < 0.9
    assert compare(Unrolled(50), "ridge with kinks, masked L2")[0] < 0.5


def test_the_error_of_the_value_function_shrinks_with_b():
    for name in ("baseline, masked L2", "ridge, masked L2", "baseline with kinks, L2"):
        errors = [error(value_function(b), name) for b in (1e-1, 1e-2, 1e-3)]
        assert errors[2] < errors[1] / 3
        assert errors[1] < errors[0] / 2


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
        surrogate = strategy.surrogate(at.problem, at.solution, at.truth, weight)
        (ours,) = torch.autograd.grad(surrogate.sum(), weight)
        assert float(ours) == pytest.approx(at.by_weight, rel=tolerance), name


def test_a_learned_weight_without_jacobian_has_the_right_sign():
    at = case("baseline, L2")
    weight = torch.tensor(at.problem.weight, requires_grad=True)
    surrogate = JacobianFree().surrogate(at.problem, at.solution, at.truth, weight)
    (ours,) = torch.autograd.grad(surrogate.sum(), weight)
    assert float(ours) * at.by_weight > 0


# The parts


@pytest.mark.parametrize("name", ["baseline, L1", "ridge, L1"])
def test_pixels_at_the_kink_or_on_the_box_do_not_move(name):
    at = case(name)
    held = movable(at.problem, at.solution.x) == 0
    x, y = at.solution.x, at.problem.fidelity.y
    assert torch.equal(held, (x == y) | (x == 0) | (x == 1))
    assert 0 < held.sum() < held.numel()
    changed = replace(at.problem, weight=at.problem.weight * (1 + STEP))
    moved = (torch.from_numpy(optimum(changed)[1]) - x).abs()
    assert float(moved[held].max()) < 1e-7
    assert float(moved[~held].max()) > 1e-6


def test_where_no_data_are_seen_the_kink_of_the_data_term_holds_nothing():
    y = torch.full((1, 1, 2, 2), 0.5)
    mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    problem = cl.VariationalProblem(
        fidelity=cl.L1(y * mask), operator=cl.Mask(mask), weight=1.0, box=(0, 1),
        regularizer=ridge(channels=2, kernel=1),
    )  # fmt: skip
    x = torch.tensor([[[[0.5, 0.3], [0.4, 1.0]]]])
    assert movable(problem, x).tolist() == [[[[0.0, 1.0], [1.0, 0.0]]]]


@pytest.mark.parametrize("name", SMOOTH)
def test_the_lagrangian_of_a_smooth_network_is_its_energy(name):
    at = case(name)
    parameters = list(at.problem.regularizer.parameters())
    weight = torch.tensor(at.problem.weight, requires_grad=True)
    x = at.solution.x
    ours = lagrangian(at.problem, x, at.solution.duals, weight)
    direct = energy(at.problem, x, weight)
    torch.testing.assert_close(ours, direct)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), [*parameters, weight]),
        torch.autograd.grad(direct.sum(), [*parameters, weight]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", KINKS)
def test_the_lagrangian_has_the_gradient_of_the_optimal_value(name):
    """At kinks the energy itself does not."""
    at = case(name)
    net = at.problem.regularizer
    parameters = list(net.parameters())
    gradients = {
        "lagrangian": torch.autograd.grad(
            lagrangian(at.problem, at.solution.x, at.solution.duals).sum(), parameters
        ),
        "energy": torch.autograd.grad(energy(at.problem, at.solution.x).sum(), parameters),
    }
    errors = dict.fromkeys(gradients, 0.0)
    for direction in at.directions:
        values = []
        for sign in (STEP, -STEP):
            with torch.no_grad():
                for p, d in zip(parameters, direction, strict=True):
                    p.add_(sign * d)
                values.append(optimum(replace(at.problem))[0])
                for p, d in zip(parameters, direction, strict=True):
                    p.sub_(sign * d)
        exact = (values[0] - values[1]) / (2 * STEP)
        for kind, gradient in gradients.items():
            ours = float(sum((g * d).sum() for g, d in zip(gradient, direction, strict=True)))
            errors[kind] = max(errors[kind], abs(ours - exact) / (abs(exact) + 0.1))
    assert errors["lagrangian"] < 2e-3
    assert errors["energy"] > 5 * errors["lagrangian"]


PULLED = {
    "L2": lambda y: (cl.SquaredL2(y), cl.Identity()),
    "L2, mask": lambda y: (cl.SquaredL2(y), cl.Mask(torch.rand(SIZE, SIZE) > 0.4)),
    "L2, weights": lambda y: (cl.SquaredL2(y), Diagonal(torch.rand(2, 1, SIZE, SIZE) - 0.3)),
    "L2, scaled": lambda y: (cl.SquaredL2(y), 3 * cl.Identity()),
    "L1": lambda y: (cl.L1(y, 0.7), cl.Identity()),
    "KL": lambda y: (cl.KullbackLeibler(y, 0.2), cl.Identity()),
}


@pytest.mark.parametrize("name", PULLED)
def test_a_pulled_problem_differs_by_a_constant(name):
    data, operator = PULLED[name](torch.rand(2, 1, SIZE, SIZE))
    problem = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=network("baseline"), weight=0.7, box=(0, 1)
    )
    truth, b = torch.rand(2, 1, SIZE, SIZE), 0.3
    pulled = pull_towards(problem, truth, b)
    assert pulled.weight == problem.weight
    assert pulled.bounds == problem.bounds
    constants = []
    for _ in range(4):
        x = torch.rand(2, 1, SIZE, SIZE)
        target = problem.objective(x) + b * upper_loss(x, truth)
        constants.append(target - pulled.objective(x))
    for constant in constants[1:]:
        torch.testing.assert_close(constant, constants[0], atol=1e-10, rtol=1e-10)
    assert isinstance(pulled.fidelity, cl.SquaredL2 if name.startswith("L2") else Anchored)


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


def test_the_second_solve_may_take_another_method():
    strategy = ValueFunction(1e-3, gap=1e-10, max_iterations=3000, method=cl.LBFGS())
    cosine, ratio = compare(strategy, "ridge, masked L2")
    assert cosine > 0.999
    assert ratio == pytest.approx(1, abs=0.03)


# Errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: JacobianFree(0.0), r"JacobianFree needs step > 0, got step=0\.0"),
        (lambda: Unrolled(0), "Unrolled needs steps >= 1, got 0"),
        (lambda: Unrolled(3, step=-1.0), r"Unrolled needs step > 0, got step=-1\.0"),
        (lambda: Implicit(damping=-1.0), r"Implicit needs damping >= 0, got -1\.0"),
        (lambda: Implicit(damping=math.nan), "Implicit needs damping >= 0, got nan"),
        (lambda: Implicit(linear_solver="lu"), "linear_solver is 'cg' or 'minres', got 'lu'"),
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


@pytest.mark.parametrize(
    ("fidelity", "operator", "names"),
    [
        (cl.L1, cl.Mask(torch.ones(SIZE, SIZE, dtype=torch.float64)), "L1 behind Mask"),
        (cl.SquaredL2, cl.Blur(torch.ones(3, 3, dtype=torch.float64)), "SquaredL2 behind Blur"),
    ],
)
def test_problems_that_cannot_be_pulled(fidelity, operator, names):
    truth = torch.rand(1, 1, SIZE, SIZE)
    problem = cl.VariationalProblem(
        fidelity=fidelity(truth), operator=operator, regularizer=network("ridge"), weight=1.0
    )
    with pytest.raises(ValueError, match=rf"got {names}: use Implicit\(\) there"):
        pull_towards(problem, truth, 0.1)


def test_unrolling_without_curvature_asks_for_a_step():
    at = case("baseline with kinks, L1")
    with pytest.raises(
        ValueError, match=r"no curvature here .* write Unrolled\(steps=\.\.\., step"
    ):
        Unrolled(3).surrogate(at.problem, at.solution, at.truth)
