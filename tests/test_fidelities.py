"""Fidelities and the box: definitions, brute force, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from parts import FIDELITIES
from scipy.optimize import minimize_scalar
from strategies import floats

import convexlift as cl
from convexlift.functionals import fidelity as fidelities
from convexlift.functionals.terms import Box, DiagonalFidelityTerm
from convexlift.problems.certificate import judge
from convexlift.problems.claims import InBoth, proved
from convexlift.tensors import Blocks

Y = torch.tensor([[[[0.0, 1.0], [2.0, 7.0]]]], dtype=torch.float64)
every_fidelity = pytest.mark.parametrize("name", FIDELITIES)


@every_fidelity
def test_exam(name):
    cl.check_functional(FIDELITIES[name].make(Y))


@every_fidelity
@pytest.mark.parametrize("channels", [1, 3])
def test_large_images_give_the_same_a_few_rows_at_a_time(name, channels, monkeypatch):
    """To the last bit, with strips of 64 rows, of which the last is shorter."""
    torch.manual_seed(0)
    y = torch.rand(1, channels, 150, 21) + 0.1
    f, d = FIDELITIES[name].make(y), (torch.rand(150, 21) > 0.3).to(y)
    prox = DiagonalFidelityTerm(f, d, Box(0.0, 1.0)).prox
    net = cl.networks.ridge(in_channels=channels, channels=4, kernel=3)
    problem = cl.VariationalProblem(fidelity=f, regularizer=net, weight=0.1, box=(0, 2),
                                    operator=cl.Mask(d))  # fmt: skip
    x, duals = torch.rand_like(y), Blocks({"v1": 0.01 * torch.randn(1, 4, 150, 21)})
    shapes, found = [], []
    for large in (10**9, 1):
        monkeypatch.setattr(fidelities, "LARGE", large)
        monkeypatch.setattr(fidelities, "CACHED", 1)
        excess = type(f).excess

        def seen(self, w, *others, excess=excess):
            shapes.append(w.shape[-2])
            return excess(self, w, *others)

        with torch.no_grad(), monkeypatch.context() as patched:
            patched.setattr(type(f), "excess", seen)
            bounds = judge(problem, x, duals)[1]
            claimed = proved(InBoth(problem), x, duals, 0.0)[1]
            moved = prox(2 * x, torch.full((1, 1, 1, 1), 0.7))
        found.append((moved, bounds.near.gap, bounds.near.data.pixels, *claimed))
    assert set(shapes) == {150, 64, 22}
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@every_fidelity
@pytest.mark.parametrize("step", [0.05, 1.0, 20.0])
def test_prox_by_brute_force(name, step):
    f = FIDELITIES[name].make(Y)
    for w in (-0.3, 0.0, 0.6, 1.0, 3.0):
        point = f.prox(torch.full_like(Y, w), torch.full_like(Y, step)).flatten()
        for i in range(4):

            def cost(v, i=i, w=w):
                argument = torch.full_like(Y, v)
                return step * float(f.density(argument).flatten()[i]) + (v - w) ** 2 / 2

            bounds = (FIDELITIES[name].lowest, 30)
            brute = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-9})
            assert cost(float(point[i])) <= brute.fun + 1e-9


@every_fidelity
def test_conjugate_is_the_supremum(name):
    f = FIDELITIES[name].make(Y)
    grid = torch.linspace(-8, 60, 680_001)
    along = [FIDELITIES[name].make(y.expand(1, len(grid)).clone()) for y in Y.flatten()]
    densities = torch.stack([one.density(grid[None])[0] for one in along])
    for v in (-0.6, -0.2, 0.0, 0.3, 0.65):
        brute = (v * grid - densities).max(1).values
        ours = f.conjugate(torch.full_like(Y, v)).flatten()
        torch.testing.assert_close(ours, brute, atol=1e-4, rtol=1e-4)


@every_fidelity
def test_gradient_is_that_of_autograd(name):
    f = FIDELITIES[name].make(Y)
    w = (Y + 0.3).requires_grad_()
    (gradient,) = torch.autograd.grad(f.density(w).sum(), w)
    torch.testing.assert_close(f.gradient(w.detach()), gradient)


def test_kl_is_the_papers_divergence():
    w = torch.full_like(Y, 1.5)
    f = cl.KullbackLeibler(Y, 0.5)
    direct = w - Y + 0.5 + torch.special.xlogy(Y, Y) - torch.special.xlogy(Y, w + 0.5)
    torch.testing.assert_close(f.density(w), direct)
    assert float(f.density(Y - 0.5).abs().max()) < 1e-15
    assert f.density(torch.full_like(Y, -0.6)).isinf().all()


@example(y=0.0, w=0.0, r=31.0, step=546022.0)
@given(y=floats(0, 1e6), w=floats(-1, 1e6), r=floats(1.5, 100), step=floats(1e-6, 1e6))
def test_kl_prox_in_single_precision_stays_in_the_domain(y, w, r, step):
    data = torch.tensor([[y]], dtype=torch.float32)
    f = cl.KullbackLeibler(data, r)
    point = f.prox(torch.tensor([[w]], dtype=torch.float32), torch.tensor([[step]]).float())
    assert torch.isfinite(point).all()
    assert float(point) + r >= -1e-3 * (1 + r)
    dual = f.conjugate_prox(
        torch.tensor([[w]], dtype=torch.float32), torch.tensor([[step]]).float()
    )
    assert torch.isfinite(dual).all()
    assert float(dual) <= 1 + 1e-6


@given(
    c=floats(-2, 2), x=floats(0, 1), y=floats(0, 3), low=floats(-1, 0),
    high=floats(1, 2),
)  # fmt: skip
def test_excess_in_single_precision(c, x, y, low, high):
    """Nonnegative, and close to the definition in double precision."""

    def tensors(dtype):
        return [torch.tensor([[v]], dtype=dtype) for v in (x, c, low, high)]

    for build in (cl.SquaredL2, lambda d: cl.L1(d, 0.5), lambda d: cl.KullbackLeibler(d, 1.5)):
        single = build(torch.tensor([[y]], dtype=torch.float32)).excess(*tensors(torch.float32))
        double = build(torch.tensor([[y]], dtype=torch.float64)).excess(*tensors(torch.float64))
        assert float(single) >= 0
        assert float(single) == pytest.approx(float(double), abs=2e-6)


def test_box():
    assert cl.Box.of(None).is_everything
    assert cl.Box.of((0, None)) == cl.Box(0.0, math.inf)
    x = torch.tensor([[-1.0, 0.5], [0.2, 0.9]])
    assert cl.Box(0, 1).contains(x).tolist() == [False, True]
    assert cl.Box(0, 1).project(x).min() == 0


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: cl.SquaredL2([1.0]), TypeError, "as a torch.Tensor, got list"),
        (lambda: cl.SquaredL2(torch.ones(1, 1, 2, 2).int()), TypeError, r"write y.float\(\)"),
        (lambda: cl.SquaredL2(torch.ones(4)), ValueError, "batch dimension"),
        (lambda: cl.SquaredL2(torch.ones(1, 1, 0, 2)), ValueError, "without entries"),
        (
            lambda: cl.SquaredL2(torch.tensor([[[[1.0, math.nan]]]])),
            ValueError,
            r"the data are nan at index \(0, 0, 0, 1\)",
        ),
        (
            lambda: cl.L1(torch.tensor([[[[math.inf, 1.0]]]])),
            ValueError,
            r"the data are inf at index \(0, 0, 0, 0\)",
        ),
        (lambda: cl.L1(Y, 0.0), ValueError, "scale > 0, got scale=0.0"),
        (lambda: cl.WeightedL2(Y, -1.0), ValueError, "finite weights >= 0, but they are -1; write"),
        (
            lambda: cl.WeightedL2(Y, torch.tensor([[1.0, math.nan], [0.0, 0.0]])),
            ValueError,
            r"weights >= 0, but they are nan at index \(0, 1\); write 0 for data that were not",
        ),
        (lambda: cl.WeightedL2(Y, math.inf), ValueError, "weights of WeightedL2 is not finite"),
        (
            lambda: cl.WeightedL2(Y, torch.ones(3)),
            ValueError,
            r"weights of shape \(3,\) do not fit data of \(1, 1, 2, 2\)",
        ),
        (
            lambda: cl.WeightedL2(Y, torch.ones(4, 1, 2, 2)),
            ValueError,
            r"weights of shape \(4, 1, 2, 2\) do not fit data of \(1, 1, 2, 2\)",
        ),
        (
            lambda: cl.KullbackLeibler(-Y),
            ValueError,
            r"needs counts, but the data are -1 at index \(0, 0, 0, 1\)",
        ),
        (lambda: cl.KullbackLeibler(Y, -1.0), ValueError, "finite background >= 0"),
        (lambda: cl.KullbackLeibler(Y, math.nan), ValueError, "finite background >= 0"),
        (lambda: cl.KullbackLeibler(Y, torch.ones(3)), ValueError, "does not fit data"),
        (lambda: cl.Box(1, 0), ValueError, "lower < upper, got lower=1 and upper=0"),
        (lambda: cl.Box(0, math.nan), ValueError, "lower < upper"),
        (lambda: cl.Box.of((0, 1, 2)), ValueError, r"for example \(0, 1\) or \(0, None\)"),
    ],
)
def test_bad_input(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_a_wrong_prox_is_caught():
    class Wrong(cl.SquaredL2):
        def prox(self, w, step):
            return w

    with pytest.raises(cl.CheckFailed, match="prox is not optimal"):
        cl.check_functional(Wrong(Y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_prox_of_empty_counts_survives_a_division(dtype):
    """w = -r is the edge of the domain; behind a diagonal d the image is w / d, and d (w / d) has
    another rounding error."""
    generator = torch.Generator().manual_seed(0)
    r, d = (torch.rand((2, 1, 1, 1, 1000), generator=generator, dtype=torch.float64) + 0.1).to(
        dtype
    )
    f = cl.KullbackLeibler(torch.zeros_like(d), r)
    w = f.prox(-10 * torch.ones_like(d), torch.ones_like(d))
    torch.testing.assert_close(w, -r)
    assert torch.isfinite(f.density(d * (w / d))).all()
    assert torch.isfinite(f.density(-d * (w / -d))).all()
