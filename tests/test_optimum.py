"""The optimum against CVXPY: the paper's Theorem, the solver and the certificate at once.

CVXPY is given the lifted problem from dense matrices and textbook cones; the library's objective
is the nested one. Agreement to 1e-6 therefore says that lifted and nested optimum are equal, that
PDHG finds it, and that the certified lower bound is below it.
"""

from __future__ import annotations

import pytest
import torch
import zoo
from oracle import optimum

import convexlift as cl

BOXES = list(zoo.BOXES)
CASES = [
    # Unseen pixels without bounds may want to go to infinity; a few of those that do not.
    (a, h, f, "box" if f == "masked L2" and (i or h == "leaky") else BOXES[(i + j + k) % 3])
    for i, a in enumerate(zoo.ARCHITECTURES)
    for j, h in enumerate(zoo.MONOTONE)
    for k, f in enumerate(zoo.FIDELITIES)
]
FIRST_LAYER_CASES = [
    ("plain", h, f, BOXES[(j + k) % 3])
    for j, h in enumerate(zoo.FIRST_LAYER_ONLY)
    for k, f in enumerate(zoo.FIDELITIES)
]
RESIDUAL_LAST = [
    ("residual last", h, f, "box") for h in ("leaky", "smoothed") for f in zoo.FIDELITIES
]
ALL = {**zoo.MONOTONE, **zoo.FIRST_LAYER_ONLY}


def agree(problem: cl.VariationalProblem, **options) -> None:
    value, minimiser = optimum(problem)
    solution = cl.solve(
        problem, stop=cl.StopWhen(gap=5e-7, max_iterations=20_000, check_every=20), **options
    )
    assert solution.status == (cl.Status.CONVERGED,), str(solution)
    assert float(solution.gap) < 1e-6
    scale = abs(value)
    nearby = float((solution.x - torch.as_tensor(minimiser)).abs().max()) <= 1.0
    if solution.guarantee == (cl.Guarantee.GLOBAL,) or nearby:
        assert float(solution.lower_bound) <= value + 1e-6 * scale
    assert float(solution.objective) == pytest.approx(value, rel=1e-6)


@pytest.mark.sampled(19)
@pytest.mark.parametrize("case", CASES + FIRST_LAYER_CASES + RESIDUAL_LAST, ids=", ".join)
def test_optimum(case):
    architecture, activation, fidelity, box = case
    agree(zoo.problem(architecture, ALL[activation], fidelity, box))


THE_REST = [
    (a, h, f, box)
    for a in zoo.ARCHITECTURES
    for h in zoo.MONOTONE
    for f in zoo.FIDELITIES
    for box in zoo.BOXES
    if (a, h, f, box) not in CASES and (f != "masked L2" or box == "box")
]


@pytest.mark.slow
@pytest.mark.parametrize("case", THE_REST, ids=", ".join)
def test_optimum_with_every_other_box(case):
    architecture, activation, fidelity, box = case
    agree(zoo.problem(architecture, zoo.MONOTONE[activation], fidelity, box))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("boundary", ["zero", "circular", "reflect"])
@pytest.mark.parametrize("fidelity", ["L1", "L2", "KL"])
@pytest.mark.parametrize("box", [(0.0, 1.0), (0.0, None)], ids=["box", "x >= 0"])
def test_optimum_behind_a_blur(fidelity, boundary, box):
    kernel = torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.4, 0.1], [0.0, 0.2, 0.0]])
    scale = 20.0 if fidelity == "KL" else 1.0
    data, _ = zoo.fidelity(fidelity)
    problem = cl.VariationalProblem(
        fidelity=data,
        operator=scale * cl.Blur(kernel, boundary),
        regularizer=zoo.network("plain", cl.LeakyReLU(0.2)),
        weight={"L1": 0.3, "L2": 0.1, "KL": 3.0}[fidelity],
        box=box,
    )
    agree(problem)


@pytest.mark.parametrize("architecture", ["plain", "skips"])
@pytest.mark.parametrize("dualise", [None, True])
def test_optimum_behind_a_circular_blur_without_a_box(architecture, dualise):
    kernel = torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.4, 0.1], [0.0, 0.2, 0.0]])
    problem = cl.VariationalProblem(
        fidelity=zoo.fidelity("L2")[0],
        operator=1.5 * cl.Blur(kernel, "circular"),
        regularizer=zoo.network(architecture, cl.LeakyReLU(0.2)),
        weight=0.1,
    )
    agree(problem, method=cl.PDHG(dualise_fidelity=dualise))


@pytest.mark.parametrize("fidelity", zoo.FIDELITIES)
def test_dualising_the_fidelity_changes_nothing(fidelity):
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, "box")
    agree(problem, method=cl.PDHG(dualise_fidelity=True))


@pytest.mark.parametrize("fidelity", ["L2", "masked L2"])
def test_colour_images(fidelity):
    agree(zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, "box", channels=2))


@pytest.mark.parametrize("padding", ["reflect", "replicate"])
@pytest.mark.parametrize("fidelity", ["L1", "masked L2"])
def test_padded_convolutions(padding, fidelity):
    net = cl.networks.convolutional(channels=3, kernel=5, padding=padding)
    net.layers[1].bias.data.fill_(0.2)
    data, operator = zoo.fidelity(fidelity)
    problem = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=net, weight=0.5, box=(0.0, 1.0)
    )
    agree(problem)


def test_sixteen_by_sixteen():
    net = cl.networks.baseline(16, channels=4, kernel=3, pool=4, hidden=6)
    net.layers[1].bias.data.fill_(0.1)
    generator = torch.Generator().manual_seed(0)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 16, 16, generator=generator)),
        regularizer=net,
        weight=100.0,
    )
    agree(problem)


@pytest.mark.parametrize("c", [(0.5, 0.05), (0.05, 0.5)])
def test_the_papers_steps_reach_the_optimum_too(c):
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", "box")
    agree(problem, method=cl.PDHG(steps=cl.PaperSteps(c)))
