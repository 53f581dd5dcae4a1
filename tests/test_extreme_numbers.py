"""Claims and errors for numbers of extreme sizes, and for parts that change after they are made."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch.nn.utils import parametrize

import convexlift as cl
from convexlift.networks import Convolution
from convexlift.operators.imaging import Diagonal
from convexlift.problems.certificate import certify  # without the proof that every test checks

double = torch.float64
SHAPE = (1, 1, 2, 2)
LIMIT = r"rescale the problem so that no number exceeds 1e\+40"


def full(value: float, dtype: torch.dtype = double) -> torch.Tensor:
    return torch.full(SHAPE, value, dtype=dtype)


def stated(fidelity: cl.Fidelity, *, weight: float = 1.0, **others) -> cl.VariationalProblem:
    network = others.pop("regularizer", None) or cl.TotalVariation()
    network = network.to(fidelity.y.dtype)
    return cl.VariationalProblem(fidelity=fidelity, regularizer=network, weight=weight, **others)


def one_layer(activation: cl.Activation, filters: float, output: float) -> cl.InputConvexNetwork:
    """R(x) = output sum h(filters x)."""
    layer = cl.ConvexLayer(activation, channels=1, skip=Convolution(1, 1, 1), bias=False)
    network = cl.InputConvexNetwork([layer]).double()
    with torch.no_grad():
        layer.skip.weight.fill_(filters)
        network.output.fill_(output)
    return network


def large_network(where: str) -> cl.InputConvexNetwork:
    network = one_layer(cl.HuberMixture((0.1, 1.0)), 1.0, 1.0)
    with torch.no_grad():
        network.get_parameter(where)[0] = 1.7e308
    return network


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fidelity.y", lambda: stated(cl.SquaredL2(full(-1.7e308)))),
        ("fidelity.weights", lambda: stated(cl.WeightedL2(full(1.0), full(1.7e308)))),
        ("fidelity.background", lambda: stated(cl.KullbackLeibler(full(1.0), full(1e300)))),
        ("fidelity.scale", lambda: stated(cl.L1(full(1.0), 1e300))),
        ("operator.values", lambda: stated(cl.SquaredL2(full(1.0)), operator=Diagonal(full(1e41)))),
        ("operator.factor", lambda: stated(cl.SquaredL2(full(1.0)), operator=1e41 * cl.Identity())),
        ("box.upper", lambda: stated(cl.SquaredL2(full(1.0)), box=(0, 1e41))),
        ("weight", lambda: stated(cl.SquaredL2(full(1.0)), weight=1e41)),
        *(
            (f"regularizer.{name}", lambda name=name: stated(
                cl.SquaredL2(full(1.0)), regularizer=large_network(name)))
            for name in ("output", "layers.0.shares", "layers.0.skip.weight")
        ),
    ],
)  # fmt: skip
def test_numbers_above_the_limit_are_refused_by_name(name, problem):
    with pytest.raises(ValueError, match=f"{name} holds .*e\\+.*{LIMIT}"):
        problem()


@pytest.mark.parametrize("default", [torch.float32, double])
def test_an_operator_does_not_hide_a_slope_by_underflow(default):
    """c / d = 0 for the slope c = 1e-20 of R: nothing bounds x, and the objective falls forever."""
    torch.set_default_dtype(default)
    y, weights = full(1.0), full(0.0)
    network = one_layer(cl.LeakyReLU(0.5), 1.0, 1e-20)
    with pytest.raises(ValueError, match=r"operator.values holds 1.5e\+308"):
        stated(cl.WeightedL2(y, weights), operator=Diagonal(full(1.5e308)), regularizer=network)
    # c = 5e-21, d = 1e40: no underflow. c = 5e-311, d = 1e30: c / d = 0 in double precision.
    for output, d in ((1e-20, 1e40), (1e-310, 1e30)):
        network = one_layer(cl.LeakyReLU(0.5), 1.0, output)
        problem = stated(cl.WeightedL2(y, weights), operator=Diagonal(full(d)), regularizer=network)
        certificate = certify(problem, full(-1.0))
        assert certificate.guarantee[0] is not cl.Guarantee.GLOBAL
        solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=20))
        assert solution.guarantee[0] is not cl.Guarantee.GLOBAL


@pytest.mark.parametrize("omega", [1e-300, 5e-324])
def test_squares_of_slopes_do_not_vanish_before_they_are_divided(omega):
    """x t / 2 + omega/2 x^2 with t = 1e-170, for x < 0: its minimum is -t^2 / (8 omega)."""
    network = one_layer(cl.LeakyReLU(0.5), 1.0, 1e-170)
    problem = stated(cl.WeightedL2(full(0.0), full(omega)), regularizer=network)
    certificate = certify(problem, full(-1.0))
    minimum = -4 * Fraction(1e-170) ** 2 / (8 * Fraction(omega))
    bound = certificate.lower_bound.item()
    assert bound == -math.inf or Fraction(bound) <= minimum


@pytest.mark.parametrize(("omega", "x"), [(1e40, 1e-162), (1.0, 1e-170), (1e-300, 1e-20)])
def test_an_objective_that_underflows_is_rounded_up(omega, x):
    problem = stated(cl.WeightedL2(full(0.0), full(omega)))
    certificate = certify(problem, full(x))
    truth = 4 * Fraction(omega) * Fraction(x) ** 2 / 2
    assert Fraction(certificate.objective.item()) >= truth
    assert certificate.lower_bound.item() <= 0.0


def test_a_float32_regularizer_whose_shares_overflow_is_refused():
    network = one_layer(cl.HuberMixture((0.1, 1.0)), 1.0, 1.0).float()
    with torch.no_grad():
        network.layers[0].shares.fill_(3e38)
    with pytest.raises(ValueError, match="shares of layer 1"):
        stated(cl.SquaredL2(full(1.0, torch.float32)), regularizer=network)


EDITS = [
    ("weights", lambda f: f.weights[0, 0, 0, 0].fill_(-1), cl.WeightedL2, "weights >= 0.*-1"),
    ("weights", lambda f: f.weights[0, 0, 0, 0].fill_(math.nan), cl.WeightedL2, "not finite"),
    ("weights", lambda f: f.weights[0, 0, 0, 0].fill_(3e38).mul_(1e60), cl.WeightedL2, "weights "),
    ("y", lambda f: f.y[0, 0, 1, 1].fill_(math.inf), cl.SquaredL2, r"y is not finite at \(0, 0, 1"),
    ("y", lambda f: f.y[0, 0, 1, 1].fill_(-2), cl.KullbackLeibler, "needs counts.*-2"),
    ("background", lambda f: f.background.fill_(-2), cl.KullbackLeibler, "background >= 0"),
    ("scale", lambda f: setattr(f, "scale", -1.0), cl.L1, "scale > 0"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "edit", "kind", "words"), EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_data_terms_are_examined_again_before_each_use(part, edit, kind, words, dtype):
    arguments = {cl.WeightedL2: [full(1.0, dtype)], cl.KullbackLeibler: [full(1.0, dtype)]}
    f = kind(full(1.0, dtype), *arguments.get(kind, []))
    problem = stated(f, box=(0, None))
    x = full(0.5, dtype)
    cl.solve(problem)
    edit(f)
    with pytest.raises(ValueError, match=words):
        cl.solve(problem)
    with pytest.raises(ValueError, match=words):
        cl.certify(problem, x)
    with pytest.raises(ValueError, match=words):
        stated(f, box=(0, None))


def test_operators_are_examined_again_before_each_use():
    operator = Diagonal(full(1.0))
    problem = stated(cl.SquaredL2(full(1.0)), operator=operator)
    operator.values[0, 0, 0, 0] = math.nan
    with pytest.raises(ValueError, match=r"operator.values is not finite at \(0, 0, 0, 0\)"):
        cl.solve(problem)


class Doubled(cl.LinearOperator):
    """2 x by two tensors, one for each direction."""

    def __init__(self, there, back):
        self.there, self.back = there, back

    def forward(self, x):
        return self.there * x

    def adjoint(self, y):
        return self.back * y


def test_an_adjoint_that_was_edited_is_examined_again():
    operator = Doubled(full(2.0), full(2.0))
    problem = stated(cl.SquaredL2(full(1.0)), operator=operator, box=(0, 1))
    cl.solve(problem)
    operator.back.mul_(0.5)
    with pytest.raises(ValueError, match="adjoint"):
        cl.solve(problem)
    with pytest.raises(ValueError, match="adjoint"):
        cl.certify(problem, full(0.5))


def test_the_norm_of_an_operator_that_was_edited_is_computed_again():
    """Its rounding errors grow with it."""
    matrix = torch.eye(4, dtype=double)
    operator = cl.Operator(matrix, input_shape=SHAPE[1:])
    problem = stated(cl.SquaredL2(torch.ones(1, 4, dtype=double)), operator=operator, box=(0, 1))
    cl.solve(problem)
    assert operator.norm(SHAPE[1:]) < 1.1
    matrix.mul_(1e8)
    cl.solve(problem)
    assert operator.norm(SHAPE[1:]) >= 1e8


def two_layers() -> cl.InputConvexNetwork:
    first = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Convolution(1, 2, 3))
    second = cl.ConvexLayer(cl.ReLU(), channels=1, previous=Convolution(2, 1, 3, nonnegative=True))
    return cl.InputConvexNetwork([first, second]).double()


def test_weights_are_examined_through_their_parametrization():
    data = cl.SquaredL2(torch.rand(1, 1, 8, 8, dtype=double))
    network = two_layers()
    parametrize.register_parametrization(
        network.layers[1].previous, "weight", torch.nn.LogSigmoid()
    )
    with pytest.raises(ValueError, match="must be nonnegative"):
        stated(data, regularizer=network)
    network = two_layers()
    with torch.no_grad():
        network.layers[1].previous.weight.fill_(-1.0)
    parametrize.register_parametrization(network.layers[1].previous, "weight", torch.nn.Softplus())
    solution = cl.solve(stated(data, weight=0.1, regularizer=network))
    assert solution.status == (cl.Status.CONVERGED,)
    with torch.no_grad():
        network.layers[1].previous.parametrizations.weight.original.fill_(math.inf)
    with pytest.raises(ValueError, match=r"weight.*is not finite"):
        cl.solve(stated(data, regularizer=network))


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 5, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_data_of_any_number_of_dimensions_in_a_half_open_box(batch, shape):
    torch.manual_seed(0)
    count = math.prod(shape)
    matrix = torch.rand(count, 16, dtype=double)
    operator = cl.Operator(matrix, input_shape=(1, 4, 4), output_shape=shape)
    x = torch.rand(batch, 1, 4, 4, dtype=double)
    problem = stated(cl.SquaredL2(operator(x)), weight=1e-3, operator=operator, box=(0, None))
    solution = cl.solve(problem)
    assert solution.status == (cl.Status.CONVERGED,) * batch
    assert set(cl.certify(problem, x).guarantee) <= set(cl.Guarantee)


@pytest.mark.parametrize("box", [(0.0, 1e39), (-1e39, 0.0)])
def test_a_box_beyond_single_precision_is_refused_in_words(box):
    side = "lower" if box[0] else "upper"
    with pytest.raises(ValueError, match=f"box.{side} holds -?1e\\+39.*exceeds 3.40"):
        stated(cl.SquaredL2(full(0.5, torch.float32)), box=box)


def test_steps_that_cannot_be_computed_end_in_words():
    faint = cl.Blur(torch.full((3, 3), 5e-324, dtype=double), "zero")
    network = one_layer(cl.ReLU(), 0.0, 3.0)
    problem = stated(cl.L1(full(1.0), 1e-55), operator=faint, regularizer=network, weight=1e26)
    with pytest.raises(ValueError, match="no step sizes can be computed"):
        cl.solve(problem)


def sizes(generator: torch.Generator, dtype: torch.dtype, *, positive: bool) -> torch.Tensor:
    """Numbers of all sizes, zeros among them."""
    least, most = (-45, 38) if dtype is torch.float32 else (-323, 39)
    exponents = least + (most - least) * torch.rand(SHAPE, generator=generator, dtype=double)
    signs = torch.randint(0 if positive else -1, 2, SHAPE, generator=generator)
    return (signs * 10**exponents).to(dtype)


def exact(x: torch.Tensor, y, weights, d, filters: float, output: float) -> Fraction:
    total = Fraction(0)
    columns = (each.flatten().tolist() for each in (x, y, weights, d))
    for point, datum, weight, factor in zip(*columns, strict=True):
        off = Fraction(factor) * Fraction(point) - Fraction(datum)
        total += Fraction(weight) * off**2 / 2
        total += Fraction(output) * max(Fraction(filters) * Fraction(point), 0)
    return total


@pytest.mark.parametrize("dtype", [torch.float32, double])
@pytest.mark.parametrize("seed", range(12))
def test_no_image_has_an_objective_below_the_bound(dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    y, d = (sizes(draw, dtype, positive=False) for _ in range(2))
    weights = sizes(draw, dtype, positive=True)
    filters, output = (float(sizes(draw, dtype, positive=True).max()) for _ in range(2))
    network = one_layer(cl.ReLU(), filters, output)
    box = [None, (0, None), (None, 1), (-1, 1)][seed % 4]
    problem = stated(cl.WeightedL2(y, weights), operator=Diagonal(d), regularizer=network, box=box)
    images = [sizes(draw, dtype, positive=False) for _ in range(8)] + [torch.zeros_like(y)]
    images = [problem.bounds.project(x) for x in images]
    for x in images[:3]:
        certificate = certify(problem, x)
        if certificate.guarantee[0] is cl.Guarantee.GLOBAL:
            bound = Fraction(certificate.lower_bound.item())
            values = [exact(each, problem.fidelity.y, weights, d, filters, output)
                      for each in images]  # fmt: skip
            assert bound <= min(values)
        if certificate.objective < math.inf:
            value = exact(x, problem.fidelity.y, weights, d, filters, output)
            assert value <= Fraction(certificate.objective.item())
