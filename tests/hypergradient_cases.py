"""Problems with derivatives of l(x(theta)) by finite differences, with x(theta) from CVXPY.

Derivatives along random directions of all weights, and of the regularization weight, are compared
with ours by their cosine and by their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from oracle import optimum
from torch import Tensor

import convexlift as cl
from convexlift import Hypergradient, Implicit, ValueFunction
from convexlift.networks import baseline, ridge

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
    """l(x) = |x - truth|^2 / 2."""
    return float((torch.from_numpy(optimum(problem)[1]) - truth).square().sum() / 2)


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
    # As far as double precision goes: rounding alone makes a certified gap of 1e-11 or so.
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-13, max_iterations=5000), start=start)
    assert solution.status[0] in (cl.Status.CONVERGED, cl.Status.PRECISION_LIMIT)
    assert float(solution.gap) <= 1e-10
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
