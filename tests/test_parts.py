"""Parts: names in files, and capabilities that end where a formula changes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import parts
import pytest
import torch
import zoo

import convexlift as cl
from convexlift.models.store import build, describe
from convexlift.networks import Convolution, LinearMap
from convexlift.operators.convolution import ConvolutionOperator
from convexlift.parts import PARTS, known_parts
from convexlift.solvers.pulled import Joined

Y = torch.rand(1, 1, 8, 8, dtype=torch.float64)


def concrete(kind: type) -> Iterator[type]:
    """The library's classes of a kind that can be made objects of."""
    for each in kind.__subclasses__():
        if not inspect.isabstract(each) and each.__module__.startswith("convexlift."):
            yield each
        yield from concrete(each)


@pytest.mark.parametrize("kind", [cl.Activation, LinearMap])
def test_every_activation_and_map_of_the_library_has_a_name(kind):
    """Without one it could be trained, but not saved."""
    for each in concrete(kind):
        assert PARTS[each.__name__] is each


def test_every_part_of_the_library_is_in_a_test_list():
    activations = {type(entry.h) for entry in parts.ACTIVATIONS}
    assert activations - {parts.Softplus} == set(concrete(cl.Activation))  # as users write one
    fidelities = {type(entry.make(Y)) for entry in parts.FIDELITIES.values()}
    # Two of them side by side, a tool of hypergradients, have no proof files.
    assert fidelities == set(concrete(cl.Fidelity)) - {Joined}
    operators = {make((1, 8, 8)).part_name for make in parts.OPERATORS.values()}
    assert operators == set(known_parts(cl.LinearOperator))


def test_a_name_cannot_be_taken_from_another_class(registry):
    with pytest.raises(ValueError, match=r"taken by convexlift\.networks\.activations\.ReLU; choo"):

        class Other(cl.LeakyReLU, name="ReLU"):
            """Files would mean another function."""

    assert registry["ReLU"] is cl.ReLU


def test_a_class_that_is_defined_again_keeps_its_name(registry):
    """As in a notebook, where a cell is run twice."""
    for slope in (0.1, 0.3):

        @dataclass(frozen=True)
        class Own(cl.LeakyReLU, name="Own"):
            other: float = slope

    assert registry["Own"]().other == 0.3


# Fidelities


class Doubled(cl.SquaredL2):
    """(w - y)^2, and what follows from it; nothing is known of it but its formulas."""

    def density(self, w):
        return 2 * super().density(w)

    def gradient(self, w):
        return 2 * super().gradient(w)

    def prox(self, w, step):
        return super().prox(w, 2 * step)

    def conjugate(self, v):
        return 2 * super().conjugate(v / 2)

    def conjugate_prox(self, v, step):
        return cl.Fidelity.conjugate_prox(self, v, step)

    def minimiser(self, c, lower, upper):
        return super().minimiser(c / 2, lower, upper)

    def excess(self, w, c, lower, upper):
        return 2 * cl.SquaredL2(self.y).excess(w, c / 2, lower, upper)


class Told(Doubled):
    """The same, which says so."""

    curvature = 2.0


class Renamed(cl.SquaredL2):
    """Only its name and its constructor are new."""

    def __init__(self, y):
        super().__init__(y + 0)


def problem(fidelity: cl.Fidelity, **parts) -> cl.VariationalProblem:
    regularizer = zoo.network("plain", cl.LeakyReLU(0.2))
    return cl.VariationalProblem(
        **{"fidelity": fidelity, "regularizer": regularizer, "weight": 0.1} | parts
    )


def test_a_fidelity_with_another_formula_loses_what_was_known_of_it():
    f = Doubled(Y)
    assert f.curvature is f.kernel is f.part_name is None
    assert f.density_rounding == cl.Fidelity.density_rounding > cl.SquaredL2.density_rounding
    told = Told(Y)  # has what it states, and no other
    assert told.curvature == 2.0
    assert told.kernel is told.part_name is None


def test_a_fidelity_with_the_same_formulas_keeps_what_is_known_of_it():
    f = Renamed(Y)
    assert (f.curvature, f.kernel, f.part_name) == (1.0, cl.SquaredL2.kernel, "SquaredL2")


def test_the_distance_bound_rests_on_the_curvature_of_this_very_class():
    cl.check_functional(Doubled(Y))
    start = torch.rand(1, 1, 8, 8)
    plain, doubled, told = (cl.certify(problem(f(Y)), start) for f in (cl.SquaredL2, Doubled, Told))
    assert plain.distance_bound.isfinite().all()
    assert doubled.distance_bound.isinf().all()
    gap = told.objective - told.lower_bound
    torch.testing.assert_close(told.distance_bound, (2 * gap / 2.0).sqrt())


@pytest.mark.parametrize("kind", [Doubled, Told])
def test_a_fidelity_with_another_formula_is_solved_by_its_own_prox(kind):
    """Behind a circular blur the prox of squared L2 has a closed form, which is not that of 2 f."""
    blur = cl.Blur.gaussian(0.6, "circular").to(dtype=torch.float64)
    stop, root = cl.StopWhen(gap=1e-4, max_iterations=2000), 2**0.5
    twice = cl.solve(problem(kind(Y), operator=blur), stop=stop)
    same = cl.solve(problem(cl.SquaredL2(root * Y), operator=root * blur), stop=stop)
    torch.testing.assert_close(twice.objective, same.objective, rtol=2e-4, atol=0)


def test_a_proof_of_a_fidelity_of_ones_own_cannot_be_written(tmp_path):
    for f in (Doubled(Y), Renamed(Y)):
        with pytest.raises(ValueError, match="is not the library's own"):
            cl.solve(problem(f)).proof.save(tmp_path / "x.proof")


# Activations


@dataclass(frozen=True)
class Lifted(cl.Huber):
    """One more than a Huber function: the same slopes, another value."""

    multiplier = cl.SmoothActivation.multiplier

    def value(self, a):
        return super().value(a) + 1

    def conjugate(self, s):
        return super().conjugate(s) - 1


@dataclass(frozen=True)
class NamedLifted(Lifted, name="Lifted"):
    """The same, with a name."""


def one_layer(h: cl.Activation) -> cl.InputConvexNetwork:
    return cl.InputConvexNetwork([cl.ConvexLayer(h, channels=2, skip=Convolution(1, 2, 3))])


def test_an_activation_with_another_formula_loses_what_was_known_of_it():
    h = Lifted(0.1)
    cl.check_activation(h)
    assert h.ramp is h.part_name is None
    a, t = torch.linspace(-1, 1, 9)[None], torch.ones(1, 9)
    value, loss = h.value_and_loss(a, h.derivative(a), t)
    torch.testing.assert_close(value, h.value(a))
    torch.testing.assert_close(loss, torch.zeros(1, 9))
    torch.testing.assert_close(h.mean_at_prox(a, t[:, :1])[0], h.value(h.prox(a, t)).mean(-1))
    with pytest.raises(
        ValueError, match=r'Lifted is not registered .* class Lifted\(..., name="Lifted"'
    ):
        describe(one_layer(h))


def test_a_named_activation_of_ones_own_is_loaded_and_not_proved(tmp_path):
    net = one_layer(NamedLifted(0.25)).double()
    assert build(describe(net)).layers[0].activation == NamedLifted(0.25)
    with pytest.raises(ValueError, match="activation NamedLifted is not the library's own"):
        cl.solve(problem(cl.SquaredL2(Y), regularizer=net)).proof.save(tmp_path / "x.proof")


# Operators


class Flipped(ConvolutionOperator):
    """A convolution, then a mirror."""

    def forward(self, x):
        return super().forward(x).flip(-1)

    def adjoint(self, y):
        return super().adjoint(y.flip(-1))


class Turned(cl.ParallelBeam):
    """Rays elsewhere."""

    def lines(self):
        return cl.ParallelBeam(8, 5, 7, detector_offset=1.0).lines()


class MirroredBlur(cl.Blur):
    """A blur, then a mirror: no convolution."""

    def forward(self, x):
        return super().forward(x).flip(-1)

    def adjoint(self, y):
        return super().adjoint(y.flip(-1))


def test_operators_with_other_formulas_lose_what_was_known_of_them():
    kernel = torch.rand(1, 1, 3, 3)
    convolution = Flipped(kernel, (1, 8, 8))
    assert ConvolutionOperator(kernel, (1, 8, 8)).convolution is not None
    assert convolution.convolution is convolution.symbol(8, 8, kernel) is None
    beam = Turned(8, 5, 7)
    assert cl.ParallelBeam(8, 5, 7).invertible
    assert not beam.invertible
    assert beam.symbol(8, 8, kernel) is beam.part_name is None
    with pytest.raises(ValueError, match="not Turned"):
        cl.fbp(beam, torch.zeros(1, 1, 5, 7))
    blur = MirroredBlur(kernel[0, 0], "circular")
    assert blur.transfer((1, 8, 8)) is blur.part_name is None
    assert not blur.nonnegative
    for operator in (convolution, beam, blur):
        cl.check_operator(operator, (1, 8, 8))
