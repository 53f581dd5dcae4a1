"""The kinds of images that the benchmark of random problems counts by themselves."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from benchmarks.random_problems import Kind, kinds_of, nothing_explains
from convexlift.networks import Convolution

STOP = cl.StopWhen(gap=1e-3, max_iterations=60)


def linear(sign: float) -> cl.InputConvexNetwork:
    """R(x) = sign sum x."""
    layer = cl.ConvexLayer(cl.Linear(), channels=1, skip=Convolution(1, 1, 1), bias=False)
    network = cl.InputConvexNetwork([layer])
    with torch.no_grad():
        layer.skip.weight.fill_(sign)
        network.output.fill_(1.0)
    return network


@pytest.mark.parametrize(
    ("box", "sign", "kind"),
    [
        ((0, None), -1.0, Kind.ENDLESS),  # unseen pixels grow without end
        ((0, None), 1.0, Kind.ORDINARY),
        ((0, 2), -1.0, Kind.ORDINARY),
    ],
)
def test_objectives_without_a_minimum_are_found(box, sign, kind):
    seen = torch.ones(4, 4)
    seen[0, 0] = 0
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(seen * torch.ones(1, 1, 4, 4)), operator=cl.Mask(seen),
        regularizer=linear(sign), weight=0.1, box=box,
    )  # fmt: skip
    assert kinds_of(problem, cl.solve(problem, stop=STOP), 1e-3) == [kind]


@pytest.mark.parametrize(("offset", "kind"), [(0.0, Kind.ZERO), (0.1, Kind.ORDINARY)])
def test_optima_of_zero_are_found(offset, kind):
    """A constant image fits the data, up to an offset that no image can explain."""
    A = cl.Blur(torch.tensor([[0.2, 0.5, 0.3]]), "circular")
    y = A(torch.full((1, 1, 5, 5), 0.7))
    y[0, 0, 2, 2] += offset
    problem = cl.VariationalProblem(
        fidelity=cl.L1(y), operator=A, regularizer=cl.TotalVariation(), weight=1.0, box=(0, 1)
    )
    start = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    solution = cl.solve(problem, stop=STOP, start=start)
    assert kinds_of(problem, solution, 1e-3) == [kind]


@pytest.mark.parametrize(("taps", "kind"), [((0.2, -0.9), Kind.IMPOSSIBLE), ((0.9, -0.2), None)])
def test_counts_that_no_image_explains_are_found(taps, kind):
    """A x >= 0 for (A x)_i = 0.2 x_i - 0.9 x_{i+1} on a circle asks for x = 0."""
    A = cl.Blur(torch.tensor([[0.0, *taps]]), "circular")
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(torch.ones(1, 1, 1, 5)), operator=A,
        regularizer=cl.TotalVariation(), weight=0.1, box=(0, None),
    )  # fmt: skip
    assert nothing_explains(problem, 0) == (kind is not None)
    if kind is not None:
        assert kinds_of(problem, cl.solve(problem, stop=STOP), 1e-3) == [kind]
