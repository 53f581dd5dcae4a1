"""Every data term of the registry: 50 digits, brute force, conjugates, infima over boxes.

All of them are sums of convex functions of one variable. A minimiser is right if no point beside
it, at any distance, is better.
"""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from parts import FIDELITIES, exact
from strategies import floats
from torch import Tensor

import convexlift as cl

getcontext().prec = 50
DATA = [0.0, 0.1, 0.7, 1.0, 2.9, 7.0]
Y = torch.tensor([DATA], dtype=torch.float64)
every_entry = pytest.mark.parametrize("entry", FIDELITIES.values(), ids=list(FIDELITIES))
WITH_FORMULAS = {name: entry for name, entry in FIDELITIES.items() if entry.density}
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.7, 2.9]), floats(-4, 4))


def agree(found: Tensor, expected: list[Decimal]) -> None:
    assert found.dtype == torch.float64
    for one, other in zip(map(exact, found.flatten().tolist()), expected, strict=True):
        assert abs(one - other) <= Decimal("2e-15") * max(Decimal(1), abs(other)), (one, other)


def beside(w: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """(distances, data): points at all distances from w, between two ends."""
    steps = torch.logspace(-7, 1.5, 60, dtype=torch.float64)
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in (low, high))
    moved = w + torch.cat([steps, -steps])[:, None]
    return torch.minimum(torch.maximum(moved, low), high)


def assert_best(cost, w: Tensor, low: Tensor | float, high: Tensor | float) -> None:
    """No point beside w between the ends has a smaller cost."""
    for other in beside(w, low, high):
        assert (cost(w) <= cost(other) + 1e-12 * (1 + cost(w).abs())).all()


@pytest.mark.parametrize("name", WITH_FORMULAS)
def test_formulas_are_right_to_the_last_digits(name):
    """In double precision, whatever the default is."""
    torch.set_default_dtype(torch.float32)
    entry = WITH_FORMULAS[name]
    f, w = entry.make(Y), Y + 0.37
    points = list(zip(map(exact, w[0].tolist()), map(exact, DATA), strict=True))
    if name == "KL":  # 0 log 0 = 0
        points[0] = (points[0][0], Decimal("1e-49"))
    agree(f.density(w), [entry.density(p, y) for p, y in points])
    step = Decimal("1e-20")
    slopes = [(entry.density(p + step, y) - entry.density(p, y)) / step for p, y in points]
    agree(f.gradient(w), slopes)
    tau = torch.full_like(w, 0.3)
    agree(f.prox(w + tau * f.gradient(w), tau), [p for p, _ in points])
    if entry.conjugate:
        for v in (-0.6, 0.0, 0.09, 0.65):
            agree(f.conjugate(torch.full_like(Y, v)), [entry.conjugate(exact(v), y)
                                                      for _, y in points])  # fmt: skip


@every_entry
def test_the_exam_is_passed(entry):
    cl.check_functional(entry.make(Y))


@every_entry
def test_gradients_are_those_of_autograd_and_values_are_sums(entry):
    y = torch.rand(3, 2, 4, 5)
    f, w = entry.make(y), (y + 0.3).requires_grad_()
    (gradient,) = torch.autograd.grad(f.density(w).sum(), w)
    torch.testing.assert_close(f.gradient(w.detach()), gradient)
    torch.testing.assert_close(f.value(w), f.density(w).sum((1, 2, 3)))
    some = torch.tensor([2, 0])
    torch.testing.assert_close(f.select(some).value(w[some]), f.value(w)[some])


@every_entry
@given(w=numbers, size=floats(-3, 3))
def test_proximal_points_are_the_best(entry, w, size):
    f, w, step = entry.make(Y), torch.full_like(Y, w), torch.full_like(Y, 10.0**size)
    point = f.prox(w, step)
    assert_best(lambda v: step * f.density(v) + (v - w) ** 2 / 2, point, -math.inf, math.inf)
    dual = f.conjugate_prox(w / step, 1 / step)  # Moreau
    torch.testing.assert_close(point + step * dual, w, rtol=1e-12, atol=1e-12)


@every_entry
def test_conjugates_are_suprema(entry):
    """f(w) + f*(v) >= v w, with equality where v is the slope at w; and brute force."""
    f = entry.make(Y)
    for shift in (0.0, 0.37, 5.0):
        v = f.clip_to_conjugate_domain(f.gradient(Y + shift))
        assert float((f.density(Y + shift) + f.conjugate(v) - v * (Y + shift)).abs().max()) < 1e-12
    grid = torch.linspace(entry.lowest, 60, 90_001)
    along = [entry.make(y.expand(1, len(grid)).clone()) for y in Y.flatten()]
    densities = torch.stack([one.density(grid[None])[0] for one in along])
    for v in (-0.6, -0.2, 0.0, 0.3, 0.65):
        brute = (v * grid - densities).amax(1)
        torch.testing.assert_close(
            f.conjugate(torch.full_like(Y, v))[0], brute, atol=1e-3, rtol=1e-3
        )


@every_entry
@given(
    c=numbers, low=floats(0, 1), width=st.sampled_from([0.0, 0.5, 3.0, math.inf]),
    inside=floats(0, 1),
)  # fmt: skip
def test_infima_over_boxes_are_attained_and_bounded_from_below(entry, c, low, width, inside):
    """Of f(w) + c w; -inf where the cost falls without end."""
    f, c = entry.make(Y), torch.full_like(Y, c)
    lower = torch.full_like(Y, low) + max(0.0, entry.lowest if entry.lowest > -1 else -0.25)
    upper = lower + width
    best = f.minimiser(c, lower, upper)
    assert ((lower <= best) & (best <= upper)).all()
    finite = best.isfinite()
    cost = lambda w: torch.where(finite, f.density(w) + c * w, 0.0)  # noqa: E731
    assert_best(cost, torch.where(finite, best, lower), lower, upper)
    w = lower + inside * (min(width, 10.0))
    excess = f.excess(w, c, lower, upper)
    infimum = torch.where(finite, f.density(best) + c * best, -math.inf)
    torch.testing.assert_close(excess, f.density(w) + c * w - infimum, rtol=1e-9, atol=1e-9)
    below = f.infimum_below(c, lower, upper)
    assert (below <= infimum).all()
    torch.testing.assert_close(below, infimum, rtol=1e-9, atol=1e-9)


@every_entry
@given(c=floats(-2, 2), w=floats(0, 1), y=floats(0, 3), high=floats(1, 2))
def test_single_precision_is_close_and_never_negative(entry, c, w, y, high):
    found = []
    for dtype in (torch.float32, torch.float64):
        f = entry.make(torch.tensor([[y]], dtype=torch.float32).to(dtype))
        point, slope, low, top = (torch.tensor([[v]], dtype=dtype) for v in (w, c, 0.0, high))
        for each in (f.prox(point, top), f.conjugate_prox(point, top), f.density(point)):
            assert each.dtype == dtype
            assert each.isfinite().all()
        found.append(float(f.excess(point, slope, low, top)))
    assert found[0] >= 0
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=2e-5)


@example(y=0.0, w=0.0, r=31.0, step=546022.0)
@given(y=floats(0, 1e6), w=floats(-1, 1e6), r=floats(1.5, 100), step=floats(1e-6, 1e6))
def test_counts_of_any_size_stay_in_the_domain_in_single_precision(y, w, r, step):
    point, step = (torch.tensor([[v]], dtype=torch.float32) for v in (w, step))
    f = cl.KullbackLeibler(torch.tensor([[y]], dtype=torch.float32), r)
    assert float(f.prox(point, step)) + r >= -1e-3 * (1 + r)
    assert float(f.conjugate_prox(point, step)) <= 1 + 1e-6
    assert f.density(f.prox(point, step)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_prox_of_empty_counts_survives_a_division(dtype):
    """w = -r is the edge of the domain; behind a diagonal d the image is w / d, and d (w / d) has
    another rounding error."""
    r, d = torch.rand((2, 1, 1000)).to(dtype) + 0.1
    f = cl.KullbackLeibler(torch.zeros_like(d), r)
    w = f.prox(-10 * torch.ones_like(d), torch.ones_like(d))
    torch.testing.assert_close(w, -r)
    assert torch.isfinite(f.density(d * (w / d))).all()
    assert torch.isfinite(f.density(-d * (w / -d))).all()


# Data that were not measured


WEIGHTS = torch.tensor([[0.0, 0.3, 0.0, 5.0, 1.0, 0.0]], dtype=torch.float64)


def test_what_was_not_measured_says_nothing():
    """Whatever is in the data there, even numbers whose squares are infinite."""
    unseen, step = WEIGHTS == 0, torch.full_like(Y, 0.7)
    y = torch.where(unseen, torch.finfo(torch.float64).max, Y)
    f, w, v = cl.WeightedL2(y, WEIGHTS), torch.randn_like(Y), torch.randn_like(Y)
    infinity = torch.full_like(Y, math.inf)
    cl.check_functional(cl.WeightedL2(Y, WEIGHTS))
    assert torch.equal(f.density(w) == 0, unseen)
    assert torch.equal(f.gradient(w) == 0, unseen)
    assert torch.equal(f.prox(w, step)[unseen], w[unseen])
    assert torch.equal(f.conjugate(v).isinf(), unseen)
    assert (f.conjugate(0 * v)[unseen] == 0).all()
    assert torch.equal(f.clip_to_conjugate_domain(v) == 0, unseen)
    assert torch.equal(f.minimiser(v, -infinity, infinity).isinf(), unseen)
    for slope, lower, upper, fall in ((1, w - 2, infinity, 2.0), (-1, -infinity, w + 3, 3.0)):
        falling = f.excess(w, slope + 0 * w, lower, upper)[unseen]
        torch.testing.assert_close(falling, torch.full_like(falling, fall))
    torch.testing.assert_close(f.measured, ~unseen)


@given(st.floats(1e-37, 1e37), floats(-1e6, 1e6), floats(-10, 10))
def test_extreme_weights_make_no_nan(omega, c, w):
    f = cl.WeightedL2(torch.ones(1, 1, dtype=torch.float32), omega)
    point, slope = torch.tensor([[w]]).float(), torch.tensor([[c]]).float()
    infinity, step = torch.full_like(point, math.inf), torch.full_like(point, 0.1)
    for lower, upper in ((-infinity, infinity), (point, infinity), (-infinity, point + 1)):
        assert float(f.excess(point, slope, lower, upper)) >= 0
        best = f.minimiser(slope, lower, upper)
        assert ((lower <= best) & (best <= upper)).all()
    assert f.conjugate_prox(slope, step).isfinite().all()
    assert f.prox(point, step).isfinite().all()


# Data terms of one's own, lies, boxes and bad input


LIES = {
    "prox is not optimal": {"prox": lambda f, w, step: w},
    "Moreau fails": {"conjugate_prox": lambda f, v, step: v},
    "value is not the sum": {"value": lambda f, w: 2 * f.density(w).flatten(1).sum(1)},
    "Fenchel-Young is negative": {"fenchel_young": lambda f, w, v: -torch.ones_like(w)},
    "fenchel_young is off": {"conjugate": lambda f, v: v**2 + v * f.y},
    "gradient is not a subgradient": {"gradient": lambda f, w: 2 * (w - f.y)},
    "gradient and curvature": {"curvature": 3.0},
    "excess and its definition": {
        "excess": lambda f, w, c, low, up: f.density(w),
        "fenchel_young": lambda f, w, v: (w - f.y - v) ** 2 / 2,
    },
    "minimiser is beaten": {
        "minimiser": lambda f, c, low, up: low,
        "excess": lambda f, w, c, low, up: f.density(w) + c * w - f.density(low) - c * low,
        "fenchel_young": lambda f, w, v: (w - f.y - v) ** 2 / 2,
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_the_exam_catches_lies(lie):
    liar = type("Liar", (cl.SquaredL2,), LIES[lie])
    with pytest.raises(cl.CheckFailed, match=lie):
        cl.check_functional(liar(Y))


def test_boxes():
    assert cl.Box.of(None).is_everything
    assert cl.Box.of((0, None)) == cl.Box(0.0, math.inf)
    x = torch.tensor([[-1.0, 0.5], [0.2, 0.9]])
    assert cl.Box(0, 1).contains(x).tolist() == [False, True]
    assert torch.equal(cl.Box(0, 1).project(x), x.clamp(0, 1))
    assert cl.Box(0.1, 0.7).project(x.float()).double().max() <= 0.7  # not 0.7 rounded up


@pytest.mark.parametrize("build", [entry.make for entry in FIDELITIES.values()], ids=FIDELITIES)
def test_bad_data_are_named(build):
    for value in (math.nan, math.inf):
        y = Y.clone()
        y[0, 3] = value
        with pytest.raises(ValueError, match=rf"the data are {value} at index \(0, 3\)"):
            build(y)
    with pytest.raises(TypeError, match=r"write y.float\(\)"):
        cl.SquaredL2(Y.int())


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: cl.SquaredL2([1.0]), TypeError, "as a torch.Tensor, got list"),
        (lambda: cl.SquaredL2(torch.ones(4)), ValueError, "batch dimension"),
        (lambda: cl.SquaredL2(torch.ones(1, 0)), ValueError, "without entries"),
        (lambda: cl.L1(Y, 0.0), ValueError, "scale > 0, got scale=0.0"),
        (lambda: cl.WeightedL2(Y, -1.0), ValueError, "finite weights >= 0, but they are -1; write"),
        (lambda: cl.WeightedL2(Y, WEIGHTS / WEIGHTS), ValueError, r"they are nan at index \(0, 0"),
        (lambda: cl.WeightedL2(Y, math.inf), ValueError, "is not finite"),
        (lambda: cl.WeightedL2(Y, torch.ones(3)), ValueError, r"weights of shape \(3,\) do not"),
        (lambda: cl.KullbackLeibler(-Y), ValueError, r"data are -0.1 at index \(0, 1\)"),
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
