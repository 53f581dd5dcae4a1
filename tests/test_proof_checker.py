"""The proof checker: agrees with the package's certificates, and refuses everything else."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import proof_files
import pytest
import torch
import zoo

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense
from convexlift.proof_checker import verify

ALL = {**zoo.MONOTONE, **zoo.FIRST_LAYER_ONLY}
DATA = list(itertools.product((*zoo.FIDELITIES, "weighted L2"), zoo.BOXES))
ARCHITECTURES = (*zoo.ARCHITECTURES, "residual last")


def assert_agreement(tmp_path, problem, known=None, rel=1e-9):
    """The checker confirms the package's numbers; returns the verdicts."""
    known = known or proof_files.evidence(problem)
    verdicts = verify(proof_files.write(tmp_path / "a.proof", problem, known))
    assert len(verdicts) == len(known.x)
    for verdict, objective, bound, guarantee in zip(
        verdicts, known.objective, known.lower_bound, known.guarantee, strict=True
    ):
        size = abs(float(objective))
        assert verdict.objective == pytest.approx(float(objective), abs=rel * size)
        assert verdict.lower_bound == pytest.approx(float(bound), abs=rel * size)
        assert verdict.guarantee == guarantee.name
        assert verdict.lower_bound <= verdict.objective
        assert verdict.gap == pytest.approx((verdict.objective - verdict.lower_bound) / size)
    return verdicts


@pytest.mark.sampled(13)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("activation", ALL)
def test_it_confirms_every_kind_of_problem(tmp_path, architecture, activation):
    """Three data terms and boxes for each network; together the tests run through all of them."""
    first = 7 * ARCHITECTURES.index(architecture) + 3 * list(ALL).index(activation)
    for k in range(3):
        fidelity, box = DATA[(first + 5 * k + k) % len(DATA)]
        assert_agreement(tmp_path, zoo.problem(architecture, ALL[activation], fidelity, box))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("activation", ALL)
def test_it_confirms_every_combination(tmp_path, architecture, activation):
    for fidelity, box in DATA:
        assert_agreement(tmp_path, zoo.problem(architecture, ALL[activation], fidelity, box))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", proof_files.OPERATORS)
@pytest.mark.parametrize("fidelity", [cl.SquaredL2, cl.L1], ids=["L2", "L1"])
@pytest.mark.parametrize("box", [None, (-0.1, 1.0)], ids=["no box", "box"])
def test_operators_are_those_of_the_package(tmp_path, name, fidelity, box):
    known = proof_files.evidence(
        problem := proof_files.behind(proof_files.OPERATORS[name](), box, fidelity, batch=2)
    )
    assert_agreement(tmp_path, problem, known)


@pytest.mark.parametrize("name", ["blur zero", "flat fan"])
def test_counts_behind_operators_with_one_sided_boxes(tmp_path, name):
    """x >= 0 only: A* v + c must be nonnegative, so v is moved up a little."""
    operator = 30.0 * proof_files.OPERATORS[name]()
    counts = torch.poisson(operator(zoo.clean_images(1)) + 0.5, generator=torch.manual_seed(1))
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(counts, 0.5),
        operator=operator,
        regularizer=zoo.network("plain", cl.ReLU()),
        weight=0.1,
        box=(0, None),
    )
    # Not solved to the end, where v is 1 at counts of zero and has no room to move up.
    known = proof_files.evidence(problem, 100)
    duals = dict(known.duals)
    backward = cl.problems.network_duals.made_feasible(problem.network, 0.1, known.x, known.duals)
    v = problem.fidelity.clip_to_conjugate_domain(duals["v0"])
    g = operator.adjoint(v) + backward.c
    sensitivity = operator.adjoint(torch.ones_like(v))
    seen = sensitivity > 0
    lift = float((-g[seen] / sensitivity[seen]).max()) * 1.01 + 1e-9  # and its rounding
    v = (v + lift).clamp_max(1 - 1e-6)
    duals["v0"] = v
    assert (operator.adjoint(v) + backward.c > 0).all()
    head, arrays = proof_files.contents(
        problem, dataclasses.replace(known, duals=cl.tensors.Blocks(duals))
    )
    # The bound for these v, from the mathematics.
    evaluation = problem.evaluate(known.x)
    minorant = cl.problems.one_pass.Minorant.of(problem.network, evaluation.layers, backward)
    constant = 0.1 * evaluation.regularizer - (minorant.c * known.x).sum() - minorant.slack
    bound = float(constant - problem.fidelity.conjugate(v).sum())
    head["claims"][0] |= {"lower_bound": bound - 1e-9, "guarantee": "GLOBAL", "gap": 1.0}
    (verdict,) = verify(proof_files.store(tmp_path / "a.proof", proof_files.sealed(head), arrays))
    assert verdict.lower_bound == pytest.approx(bound, rel=1e-9)
    assert verdict.guarantee == "GLOBAL"


def test_colour_and_batches(tmp_path):
    problem = zoo.problem("residual", cl.GroupNorm(2), "masked L2", "box", batch=3, channels=3)
    verdicts = assert_agreement(tmp_path, problem)
    assert len({verdict.objective for verdict in verdicts}) == 3


def test_a_mask_for_each_image(tmp_path):
    masks = (torch.rand((2, 1, 8, 8), generator=torch.manual_seed(0)) > 0.4).to(torch.float64)
    y = masks * zoo.clean_images(2)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=cl.Mask(masks), box=(0, 1), weight=0.1,
        regularizer=zoo.network("plain", cl.LeakyReLU(0.2)),
    )  # fmt: skip
    assert_agreement(tmp_path, problem)


def odd_network(padding: str) -> cl.InputConvexNetwork:
    """Strides, paddings, chains in chains, links, and a layer without bias or use."""
    torch.manual_seed(4)

    def conv(inputs, outputs, stride=1, size=3):
        return Convolution(
            inputs, outputs, size, stride=stride, padding=padding, nonnegative=inputs > 1
        )

    layers = [
        cl.ConvexLayer(cl.Abs(), channels=3, skip=conv(1, 3, 2)),
        cl.ConvexLayer(cl.ReLU(), channels=2, previous=conv(3, 2), bias=False),
        cl.ConvexLayer(
            cl.SmoothedLeakyReLU(slope=0.1, smoothing=0.4),
            channels=2,
            skip=Chain(conv(1, 2), Chain(AveragePool(2), AveragePool(1))),
            links={1: conv(3, 2, size=5)},
        ),
        cl.ConvexLayer(
            cl.LeakyReLU(0.3),
            channels=5,
            previous=Chain(AveragePool(3), conv(2, 2), Dense(8, 5, nonnegative=True)),
            links={1: Dense(108, 5, nonnegative=True)},
        ),
        cl.ConvexLayer(
            cl.SmoothedReLU(smoothing=0.3),
            channels=5,
            previous=Dense(5, 5, nonnegative=True),
            residual=True,
        ),
    ]
    net = cl.InputConvexNetwork(layers, in_channels=1, image_size=(12, 12))
    with torch.no_grad():
        for layer in net.layers:
            if layer.bias is not None:
                layer.bias.normal_()
    return net


@pytest.mark.parametrize("padding", ["zero", "circular", "reflect", "replicate"])
def test_network_maps_are_those_of_the_package(tmp_path, padding):
    y = torch.rand((2, 1, 12, 12), generator=torch.manual_seed(3))
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=odd_network(padding), weight=2.0
    )
    assert_agreement(tmp_path, problem)


@pytest.mark.parametrize("isotropic", [True, False])
def test_total_variation(tmp_path, isotropic):
    y = torch.rand((1, 2, 7, 9), generator=torch.manual_seed(3))
    regularizer = cl.TotalVariation(isotropic, in_channels=2)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=regularizer, weight=0.1, box=(0, 1)
    )
    assert_agreement(tmp_path, problem)


def test_single_precision_files_are_computed_in_double(tmp_path):
    """The numbers are those of the stored values in float64, not what float32 makes of them."""
    y = (3 + zoo.clean_images(1)).float()
    net = zoo.network("plain", cl.LeakyReLU(0.2)).float()
    single = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=0.1)
    solution = cl.solve(single, stop=cl.StopWhen(gap=None, max_iterations=50, check_every=50))
    double = single.to(dtype=torch.float64)
    with torch.no_grad():
        at = double.evaluate(solution.x.double())
        duals = cl.tensors.Blocks({n: v.double() for n, v in solution.duals.items()})
        best = cl.problems.certificate.best_bounds(double, at, duals).everywhere
    known = proof_files.Evidence(
        solution.x, cl.tensors.Blocks(solution.duals), best.data.theta, at.objective,
        at.objective - best.gap, (cl.Guarantee.GLOBAL,),
    )  # fmt: skip
    assert proof_files.contents(single, known)[1]["x"].dtype == np.float32
    assert_agreement(tmp_path, single, known)


@pytest.mark.parametrize("activation", [cl.SmoothedReLU(smoothing=0.3), cl.ReLU()], ids=str)
def test_mixtures_with_the_minimum_of_the_network(tmp_path, activation):
    """L1 without a box needs theta < 1."""
    torch.manual_seed(0)
    layer = cl.ConvexLayer(activation, channels=4, skip=Convolution(1, 4, 3))
    net = cl.InputConvexNetwork([layer], in_channels=1)
    with torch.no_grad():
        net.output.mul_(8)
    y = zoo.clean_images(1)
    problem = cl.VariationalProblem(fidelity=cl.L1(y, 0.2), regularizer=net, weight=1.0)
    known = proof_files.evidence(problem)
    assert 0 < float(known.theta) < 1
    assert_agreement(tmp_path, problem, known)
