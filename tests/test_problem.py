"""Problems: what is refused before any work starts, and what a problem computes."""

from __future__ import annotations

import math

import pytest
import torch
import zoo

import convexlift as cl

Y = torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def net() -> cl.InputConvexNetwork:
    return zoo.network("plain", cl.ReLU())


def state(**changes):
    arguments = {"fidelity": cl.SquaredL2(Y), "regularizer": net(), "weight": 0.1, **changes}
    return cl.VariationalProblem(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 0.0}, "weight must be positive and finite, got weight=0"),
        ({"weight": -1}, "weight=-1"),
        ({"weight": math.nan}, "weight=nan"),
        ({"weight": "0.1"}, "weight must be a number, got the text '0.1'"),
        ({"fidelity": Y}, r"fidelity=cl.SquaredL2\(y\) .* got the data"),
        ({"operator": lambda x: x}, "make one of a function and its adjoint"),
        ({"regularizer": torch.nn.ReLU()}, "must be an InputConvexNetwork"),
        ({"box": (1, 0)}, "lower < upper"),
        ({"box": 3}, r"box must be None or \(lower, upper\)"),
        ({"fidelity": cl.SquaredL2(Y.float())}, "data are torch.float32 .* is torch.float64"),
        ({"operator": cl.Mask(torch.ones(8, 8).float())}, "but the operator is torch.float32"),
        (
            {"fidelity": cl.SquaredL2(Y.repeat(1, 1, 2, 2))},
            r"not fit images of shape \(1, 16, 16\)",
        ),
        ({"fidelity": cl.SquaredL2(Y.flatten(1))}, r"\(batch, channels, H, W\)"),
        (
            {"operator": cl.Mask(torch.ones_like(Y)[..., :5, :5])},
            r"images of \(1, 8, 8\): it is for \(1, 5, 5\)",
        ),
        (
            {"operator": cl.Mask(torch.ones_like(Y).repeat(2, 1, 1, 1))},
            r"to data of \(2, 1, 8, 8\), but the data have \(1, 1, 8, 8\)",
        ),
        (
            {"fidelity": cl.KullbackLeibler(Y)},
            r"needs x >= 0: give box=\(0, None\), or the expected background",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_refused(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        state(**changes)


SEEN = torch.ones(8, 8, dtype=torch.float64)
SEEN[2, 3:6] = 0
COUNTS = (10 * Y).round() + 1
SMEAR = cl.Blur.gaussian(1.0).to(dtype=torch.float64)


@pytest.mark.parametrize(
    "operator",
    [cl.Mask(SEEN), 5 * cl.Mask(SEEN), cl.Mask(SEEN) @ SMEAR],
    ids=["mask", "scaled", "behind a blur"],
)
def test_counts_that_no_image_explains_are_refused(operator):
    """Where A x = 0 for all x and nothing is in the background, the objective is infinite."""
    with pytest.raises(ValueError, match=r"sees nothing .* at 3 of 64 values") as caught:
        state(fidelity=cl.KullbackLeibler(COUNTS), operator=operator, box=(0, None))
    assert "KullbackLeibler(mask * y)" in str(caught.value)
    assert "KullbackLeibler(y, background)" in str(caught.value)
    for data in (cl.KullbackLeibler(SEEN * COUNTS), cl.KullbackLeibler(COUNTS, 1 - SEEN)):
        problem = state(fidelity=data, operator=operator, box=(0, None))
        assert problem.objective(torch.ones_like(Y)).isfinite().all()


def test_counts_are_seen_by_the_mask_of_their_image():
    masks = torch.stack([SEEN, torch.ones_like(SEEN)])[:, None]
    operator = cl.Mask(masks)
    both = COUNTS.repeat(2, 1, 1, 1)
    problem = state(fidelity=cl.KullbackLeibler(masks * both), operator=operator, box=(0, None))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    assert set(solution.status) == {cl.Status.CONVERGED}
    with pytest.raises(ValueError, match="at 3 of 128 values"):
        state(fidelity=cl.KullbackLeibler(both), operator=operator, box=(0, None))


def test_the_objective_is_the_sum_of_its_parts():
    problem = zoo.problem("skips", cl.LeakyReLU(0.2), "KL", "x >= 0", batch=3)
    x = torch.rand(3, 1, 8, 8)
    parts = problem.evaluate(x)
    direct = problem.fidelity.density(20 * x).sum((1, 2, 3)) + 3.0 * problem.regularizer(x).detach()
    torch.testing.assert_close(parts.objective, direct)
    torch.testing.assert_close(parts.data_term + 3.0 * parts.regularizer, direct)
    assert problem.objective(x - 2).isinf().all()
    with pytest.raises(ValueError, match=r"x must have shape \(3, 1, 8, 8\)"):
        problem.evaluate(x[:1])


@pytest.mark.parametrize("name", zoo.FIDELITIES)
@pytest.mark.parametrize("box", zoo.BOXES)
def test_the_initial_image_is_feasible(name, box):
    problem = zoo.problem(fidelity_name=name, box=box, batch=2)
    assert torch.isfinite(problem.objective(problem.initial_image())).all()


def test_the_initial_image_of_a_blur_has_the_scale_of_the_image():
    blur = 7.0 * cl.Blur.gaussian(1.0)
    problem = state(fidelity=cl.SquaredL2(blur(torch.full_like(Y, 0.4))), operator=blur)
    torch.testing.assert_close(problem.initial_image(), torch.full_like(Y, 0.4), atol=0.05, rtol=0)


# Adjoints -----------------------------------------------------------------------------------------


class Shifted(cl.LinearOperator):
    """A x = x, shifted by a pixel, with an adjoint that shifts ``back``, times ``factor``."""

    input_shape = (1, 24, 24)

    def __init__(self, back, factor=1.0):
        self.back, self.factor = back, factor

    def forward(self, x):
        return x.roll(1, -1)

    def adjoint(self, y):
        return self.factor * y.roll(self.back, -1)


class Thrown(Shifted):
    def adjoint(self, y):
        return y[..., :-1]


def shifted_problem(operator, dtype=torch.float64):
    y = torch.rand(2, 1, 24, 24, dtype=dtype)
    network = cl.networks.convolutional(channels=2).to(dtype)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=operator, regularizer=network, weight=0.1, box=(0, 1)
    )


@pytest.mark.parametrize(
    "operator",
    [
        Shifted(1),
        Shifted(-1, 0.5),
        Shifted(-1, 1.01),
        2.0 * Shifted(1),
        cl.Blur(torch.ones(3, 3) / 9) @ Shifted(0),
        Thrown(-1),
    ],
    ids=repr,
)
def test_a_wrong_adjoint_is_found_when_the_problem_is_stated(operator):
    """Its lower bounds would be above optima, and look like proofs."""
    with pytest.raises(ValueError, match=r"not the adjoint of its forward.*check_operator"):
        shifted_problem(operator.to(dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_adjoint_is_examined_once(dtype):
    calls = []

    class Counted(Shifted):
        def adjoint(self, y):
            calls.append(y.shape)
            return super().adjoint(y)

    operator = Counted(-1)
    shifted_problem(operator, dtype)
    shifted_problem(operator, dtype)
    shifted_problem(3.0 * operator, dtype)
    assert len(calls) == 1
