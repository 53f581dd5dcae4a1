"""What hypergradients are made of: pixels that move, the Lagrangian, the pulled problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypergradient_cases import KINKS, SIZE, SMOOTH, STEP, case, energy, network
from oracle import optimum

import convexlift as cl
from convexlift.functionals.fidelity import Anchored
from convexlift.networks.architectures import ridge
from convexlift.operators.imaging import Diagonal
from convexlift.solvers.derivatives import lagrangian, movable
from convexlift.solvers.hypergradients import upper_loss
from convexlift.solvers.pulled import Joined, pull_towards


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
@pytest.mark.sampled(2)
def test_the_lagrangian_of_a_smooth_network_is_its_energy(name):
    at = case(name)
    parameters = list(at.problem.regularizer.parameters())
    weight = torch.tensor(at.problem.weight, requires_grad=True)
    x = at.solution.x
    ours = lagrangian(replace(at.problem, weight=weight), x, at.solution.duals)
    direct = energy(at.problem, x, weight)
    torch.testing.assert_close(ours, direct)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), [*parameters, weight]),
        torch.autograd.grad(direct.sum(), [*parameters, weight]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-4)


@pytest.mark.sampled(3)
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


def weights() -> torch.Tensor:
    """Some of them zero."""
    return (3 * torch.rand(2, 1, SIZE, SIZE) - 1).clamp_min(0)


PULLED = {
    "L2": lambda y: (cl.SquaredL2(y), cl.Identity()),
    "L2, mask": lambda y: (cl.SquaredL2(y), cl.Mask(torch.rand(SIZE, SIZE) > 0.4)),
    "L2, weights": lambda y: (cl.SquaredL2(y), Diagonal(torch.rand(2, 1, SIZE, SIZE) - 0.3)),
    "L2, scaled": lambda y: (cl.SquaredL2(y), 3 * cl.Identity()),
    "L2, weighted": lambda y: (cl.WeightedL2(y, weights()), cl.Identity()),
    "L2, weighted, mask": lambda y: (cl.WeightedL2(y, weights()), cl.Mask(weights() > 0.4)),
    "L1": lambda y: (cl.L1(y, 0.7), cl.Identity()),
    "KL": lambda y: (cl.KullbackLeibler(y, 0.2), cl.Identity()),
    "mask, L1": lambda y: (cl.L1(y), cl.Mask(torch.rand(SIZE, SIZE) > 0.4)),
    "blur, L2": lambda y: (cl.SquaredL2(y), cl.Blur(torch.rand(3, 3))),
    "blur, weighted L2": lambda y: (cl.WeightedL2(y, weights()), cl.Blur(torch.rand(3, 3))),
    "rays, KL": lambda y: (
        cl.KullbackLeibler(torch.rand(2, 1, 5, 9), 0.2), cl.ParallelBeam(SIZE, 5, 9)
    ),
}  # fmt: skip


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
    kind = cl.SquaredL2 if name.startswith("L2") else Joined if "," in name else Anchored
    assert isinstance(pulled.fidelity, kind)


@pytest.mark.parametrize("name", [name for name in PULLED if not name.startswith("L2")])
def test_parts_of_pulled_problems_pass_the_exams(name):
    data, operator = PULLED[name](torch.rand(2, 1, SIZE, SIZE))
    net = network("baseline")
    problem = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=net, weight=0.7, box=(0, 1)
    )
    pulled = pull_towards(problem, torch.rand(2, 1, SIZE, SIZE), 0.3)
    cl.check_functional(pulled.fidelity)
    cl.check_operator(pulled.operator, input_shape=(1, SIZE, SIZE))
    stated = replace(problem, fidelity=pulled.fidelity, operator=pulled.operator)  # checked again
    assert cl.solve(stated, stop=cl.StopWhen(gap=1e-4)).status[0] is cl.Status.CONVERGED
