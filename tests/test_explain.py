"""``explain`` says what ``solve`` does."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.networks import Convolution

Y = torch.linspace(0, 1, 1024, dtype=torch.float64).reshape(1, 1, 32, 32)


def lines(problem: cl.VariationalProblem, method: cl.PDHG | None = None) -> dict[str, str]:
    """What was chosen, by what it is about."""
    return {choice.about: choice.chosen for choice in cl.explain(problem, method=method).choices}


def test_kinks_are_lifted_and_deep_smooth_networks_are_not():
    kinks = cl.VariationalProblem(fidelity=cl.L1(Y), regularizer=cl.TotalVariation(), weight=0.1)
    assert lines(kinks)["method"].startswith("PDHG")
    assert lines(kinks)["acceleration"] == "relaxation by 1.9"
    assert lines(kinks)["iterations"] == "extrapolated"
    deep = cl.VariationalProblem(
        fidelity=cl.SquaredL2(Y),
        regularizer=cl.networks.deep(image_size=32, smoothing=0.01),
        weight=0.1,
    )
    assert lines(deep) == {"method": str(cl.LBFGS())}
    assert "lift" in lines(deep, cl.PDHG())


def test_tomography_takes_steps_by_frequency_and_dualises_its_box():
    operator = cl.ParallelBeam(32, torch.linspace(0, 3, 12), bins=48)
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(10 * operator(Y).round() + 1, 1.0),
        operator=operator, regularizer=cl.networks.ridge(), weight=0.1, box=(0, None),
    )  # fmt: skip
    chosen = lines(problem)
    assert chosen["steps"] == "one for each frequency of x"
    assert chosen["lift"] == "u = (x), v = (v0, vx, v1)"
    assert chosen["iterations"] == "extrapolated"


def test_reasons_are_printed_below_the_choices():
    many = torch.zeros(1, 1, 640, 640)
    problem = cl.VariationalProblem(
        fidelity=cl.L1(many), regularizer=cl.TotalVariation(), weight=0.1
    )
    text = str(cl.explain(problem))
    assert "acceleration  relaxation by 1.9 for 20 iterations, then reflected Halpern\n" in text
    assert "iterations    plain\n" in text
    assert "not fused: not on a GPU" in text
    assert "not extrapolated: 1228800 variables" in text


def test_only_problems_are_explained():
    with pytest.raises(TypeError, match="VariationalProblem"):
        cl.explain(Y)


def two_layers(on: bool = False) -> cl.InputConvexNetwork:
    """Two convolutions; the units of the second may all be on."""
    torch.manual_seed(0)
    h = cl.SmoothedReLU(0.02)
    first = cl.ConvexLayer(h, channels=3, skip=Convolution(1, 3, 3))
    between = Convolution(3, 2, 3, nonnegative=True)
    skip = None if on else Convolution(1, 2, 3)
    net = cl.InputConvexNetwork([first, cl.ConvexLayer(h, channels=2, previous=between, skip=skip)])
    torch.nn.init.constant_(net.layers[1].bias, 1.0 if on else 0.0)
    return net


NOISY = torch.rand(2, 1, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
UNEVEN = torch.ones_like(NOISY).index_fill_(-1, torch.tensor([3]), 50.0)


@pytest.mark.parametrize(
    ("fidelity", "options", "method"),
    [(cl.SquaredL2(NOISY), {}, cl.LBFGS), (cl.SquaredL2(NOISY), {"box": (0, 1)}, cl.LBFGS),
     (cl.WeightedL2(NOISY, 2 + 0 * NOISY), {}, cl.LBFGS),
     (cl.WeightedL2(NOISY, UNEVEN), {}, cl.PDHG),
     (cl.SquaredL2(NOISY), {"operator": cl.Mask((NOISY[0, 0] > 0.3).double())}, cl.PDHG),
     (cl.KullbackLeibler(9 * NOISY, 1.0), {"box": (0, None)}, cl.PDHG)],
)  # fmt: skip
def test_two_smooth_layers_need_no_lift_where_data_hold_all_pixels_alike(fidelity, options, method):
    problem = cl.VariationalProblem(
        fidelity=fidelity, regularizer=two_layers(), weight=0.1, **options
    )
    assert lines(problem)["method"].startswith(method.__name__)
    assert cl.solve(problem).status == (cl.Status.CONVERGED,) * 2


def test_a_saturated_second_layer_is_left_to_pdhg():
    options = {"fidelity": cl.SquaredL2(NOISY), "weight": 0.1}
    saturated = cl.VariationalProblem(regularizer=two_layers(on=True), **options)
    assert "left out" in lines(saturated)["last layer"]
