"""Every activation of the registry: 50 digits, optimality conditions, kinks, scales, files.

The truth are the formulas of ``parts`` in decimal numbers. A proximal point and a projection onto
the epigraph are right if they satisfy the optimality conditions of their convex problems: with the
slope s that they leave, h(a) + h*(s) - <s, a> = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, getcontext

import parts
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import ActivationEntry, exact
from strategies import floats
from torch import Tensor

import convexlift as cl
from convexlift.networks import Convolution

getcontext().prec = 50
ENTRIES = [*parts.ACTIVATIONS, *parts.WITH_SHARES]
NAMES = [f"{entry.h}{' with shares' * (entry in parts.WITH_SHARES)}" for entry in ENTRIES]
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
POINTS = [-3.7, -1.0, -0.7, -0.3, -0.04, 0.0, 0.01, 0.05, 0.07, 0.1, 0.2, 0.3, 0.9, 1.0, 2.6]
KINKS = [0.0, -0.0, 1e-30, -1e-30, 0.05, 0.1, 0.2, 1.0, -1.0, 0.7, math.nextafter(0.1, 1.0)]
near_kinks = st.one_of(st.sampled_from(KINKS), floats(-2, 2))


# Decimal numbers. Formulas of groups take the length of a group.


def read(h: cl.Activation, vector: list[Decimal]) -> Decimal:
    return vector[0] if h.group == 1 else sum(v * v for v in vector).sqrt()


def decimals(values: Tensor) -> list[Decimal]:
    return [exact(value) for value in values.flatten().tolist()]


def height(entry: ActivationEntry, a: list[Decimal]) -> Decimal:
    return entry.exact[0](read(entry.h, a))


def nearest_slope(h: cl.Activation, s: list[Decimal]) -> list[Decimal]:
    """In the domain of h*."""
    low, high = map(Decimal, h.slopes)
    if h.group == 1:
        return [min(max(s[0], low), high)]
    length = read(h, s)
    return s if length <= high else [high * v / length for v in s]


def loss(entry: ActivationEntry, a: list[Decimal], s: list[Decimal]) -> Decimal:
    """h(a) + h*(s) - <s, a>, which is zero if and only if s is a slope at a."""
    conjugate = entry.exact[2](read(entry.h, s))
    return height(entry, a) + conjugate - sum(p * q for p, q in zip(s, a, strict=True))


def agree(found: Tensor, expected: list[Decimal], digits: str = "2e-15") -> None:
    assert found.dtype == torch.float64
    for one, other in zip(decimals(found), expected, strict=True):
        assert abs(one - other) <= Decimal(digits) * max(parts.ONE, abs(other)), (one, other)


def arguments(h: cl.Activation) -> Tensor:
    """One group in each row: points in a direction, kinks among them."""
    direction = torch.linspace(1, 0.2, h.group, dtype=torch.float64)
    return torch.tensor(POINTS, dtype=torch.float64)[:, None] * direction


def slopes(h: cl.Activation) -> Tensor:
    low, high = max(h.slopes[0], -4.0), min(h.slopes[1], 4.0)
    s = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None] * (high - low) + low
    if h.group > 1:  # the ends of the domain but for rounding
        s = s * torch.linspace(1, 0.2, h.group, dtype=torch.float64) / h.group**0.5
    return s.clamp(low, high)


@pytest.fixture
def _single_precision_by_default(_double_precision):
    """torch makes tensors of Python numbers in its default precision, which users leave single."""
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_single_precision_by_default")
@every_entry
def test_formulas_are_right_to_the_last_digits(entry):
    h, (_, slope, conjugate) = entry.h, entry.exact
    a, s = arguments(h), slopes(h)
    rows = [decimals(row) for row in a]
    agree(h.value(a), [height(entry, row) for row in rows])
    agree(h.conjugate(s), [conjugate(read(h, decimals(row))) for row in s])
    length = [read(h, row) for row in rows]
    along = [
        slope(r) if h.group == 1 else slope(r) * v / (r or parts.ONE)
        for row, r in zip(rows, length, strict=True) for v in row
    ]  # fmt: skip
    away = torch.tensor([h.group == 1 or any(row) for row in rows])
    agree(h.derivative(a)[away], [v for v, far in zip(along, away.repeat_interleave(h.group),
                                                      strict=True) if far])  # fmt: skip
    losses = [loss(entry, x, y) for x, y in zip(rows, map(decimals, s[:1].expand_as(a)),
                                                strict=True)]  # fmt: skip
    agree(h.fenchel_young(a, s[:1].expand_as(a)), losses)


@every_entry
def test_slopes_have_no_loss_and_nothing_else_is_negative(entry):
    h, a = entry.h, arguments(entry.h)
    for row, s in zip(map(decimals, a), map(decimals, h.derivative(a)), strict=True):
        assert abs(loss(entry, row, nearest_slope(h, s))) <= Decimal("1e-14") * (1 + abs(row[0]))
    for s in slopes(h):
        assert float(h.fenchel_young(a, s.expand_as(a)).min()) >= 0
    if math.isfinite(h.slopes[1]):
        assert h.conjugate(torch.full((1, h.group), h.slopes[1] + 1e-9)).isinf().all()


@every_entry
@pytest.mark.parametrize("scale", [0.05, 3.0, 100.0])
def test_the_exam_is_passed(entry, scale):
    grows = math.isinf(entry.h.slopes[1])  # values grow with the square, and so does rounding
    cl.check_activation(entry.h, scale=min(scale, 10.0) if grows else scale)


@every_entry
@given(data=st.data(), size=floats(-3, 3))
def test_proximal_points_are_optimal(entry, data, size):
    h = entry.h
    y = torch.tensor([data.draw(st.lists(near_kinks, min_size=h.group, max_size=h.group))])
    eta = torch.tensor([[10.0**size]])
    p, step = decimals(h.prox(y, eta)), exact(float(eta))
    s = [(v - q) / step for v, q in zip(decimals(y), p, strict=True)]
    nearest = nearest_slope(h, s)
    far = max(abs(v - q) for v, q in zip(s, nearest, strict=True))
    rounding = Decimal("1e-14") * (1 + (1 + max(map(abs, p))) / step)
    assert far <= rounding
    assert loss(entry, p, nearest) <= 100 * rounding * (1 + max(map(abs, p)))


@every_entry
@given(data=st.data(), z=near_kinks, ratio=floats(-4, 4))
def test_projections_onto_the_epigraph_are_optimal(entry, data, z, ratio):
    """Of sigma_a/2 |a - y|^2 + sigma_z/2 (z' - z)^2: its multiplier t, and p = t s."""
    h = entry.h
    y = torch.tensor([data.draw(st.lists(near_kinks, min_size=h.group, max_size=h.group))])
    sigma_a, sigma_z = torch.ones(1, 1), torch.tensor([[10.0**ratio]])
    t = h.multiplier(y, torch.tensor([[z]]), sigma_a, sigma_z)
    p = h.scaled_slope(y, t, sigma_a)
    assert t.shape == (1, 1)
    a = [v - q for v, q in zip(decimals(y), decimals(p), strict=True)]
    multiplier = exact(float(t))
    top = exact(z) + multiplier / exact(float(sigma_z))
    assert multiplier >= 0
    assert height(entry, a) - top <= Decimal("1e-9")  # inside
    if height(entry, decimals(y)) <= exact(z):
        assert multiplier == 0
    assert multiplier * abs(height(entry, a) - top) <= Decimal("1e-8")  # and not moved too far
    if multiplier > Decimal("1e-8"):
        s = nearest_slope(h, [v / multiplier for v in decimals(p)])
        assert multiplier * loss(entry, a, s) <= Decimal("1e-8")


@every_entry
@pytest.mark.parametrize("eta", [0.03, 1.0, 7.0])
def test_brute_force_finds_nothing_nearer(entry, eta):
    h = entry.h
    y = arguments(h)
    t = torch.linspace(-8, 8, 4001)[:, None, None]
    grid = torch.cat([y + 0 * t, y * t]) if h.group > 1 else t.expand(-1, *y.shape)  # along y
    heights = h.value(grid.flatten(0, 1)).reshape(len(grid), -1, 1)
    distance = (grid - y).square().sum(-1, keepdim=True) / 2
    point = h.prox(y, torch.tensor(eta))
    ours = eta * h.value(point) + (point - y).square().sum(-1, keepdim=True) / 2
    assert (ours <= (eta * heights + distance).amin(0) + 1e-12).all()
    for level in (-1.5, 0.0, 0.4):
        a, z = h.project_epigraph(y, torch.full((len(y), 1), level))
        ours = (a - y).square().sum(1) + (z - level)[:, 0].square()
        theirs = 2 * distance + (heights - level).clamp_min(0).square()
        assert (h.value(a) <= z + 1e-9).all()
        assert (ours <= theirs.amin(0)[:, 0] + 1e-9).all()


def single(h: cl.Activation) -> cl.Activation:
    """With shares in single precision, if it has any."""
    return h if getattr(h, "shares", None) is None else h.to(dtype=torch.float32)


def column(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float32)


@every_entry
@given(
    data=st.data(), size=st.integers(-12, 12),
    steps=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)  # fmt: skip
def test_extreme_scales_in_single_precision(entry, data, size, steps):
    """Finite, of the right sign, with slopes in the domain: what bounds are built on."""
    h = single(entry.h)
    size = min(size, 6) if math.isinf(h.slopes[1]) else size
    numbers = st.lists(floats(-1, 1, width=32), min_size=h.group + 1, max_size=h.group + 1)
    drawn = torch.tensor([data.draw(numbers)], dtype=torch.float32) * 10.0**size
    y, z = drawn[:, 1:], drawn[:, :1]
    sigma_a, sigma_z = (column(10.0**k) for k in steps)
    t = h.multiplier(y, z, sigma_a, sigma_z)
    p = h.scaled_slope(y, t, sigma_a)
    assert t.dtype == p.dtype == torch.float32
    assert t.isfinite().all()
    assert p.isfinite().all()
    assert float(t) >= 0
    close = nearest_slope(h, [v / exact(float(t) or 1.0) for v in decimals(p)])
    for one, other in zip(decimals(p), close, strict=True):
        assert abs(one - exact(float(t)) * other) <= exact(float(t)) * Decimal("1e-6")
    kept = h.clip_to_slopes(y, t)
    again = nearest_slope(h, [v / exact(float(t) or 1.0) for v in decimals(kept)])
    for one, other in zip(decimals(kept), again, strict=True):
        assert abs(one - exact(float(t)) * other) <= exact(float(t)) * Decimal("1e-6")
    s = h.clip(h.derivative(y))
    found = h.fenchel_young(y, s)
    assert found.isfinite().all()
    assert float(found) >= 0


@every_entry
@given(data=st.data())
def test_losses_are_never_negative_in_single_precision(entry, data):
    h = entry.h
    numbers = st.lists(floats(-50, 50, width=32), min_size=h.group, max_size=h.group)
    a, s = (torch.tensor([data.draw(numbers)], dtype=torch.float32) for _ in range(2))
    s = h.clip(s / 16)
    found, true = single(h).fenchel_young(a, s), h.fenchel_young(a.double(), h.clip(s.double()))
    assert float(found) >= 0
    assert float(found) == pytest.approx(float(true), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("angle", [1e-2, 1e-3, 1e-4])
def test_losses_of_groups_do_not_cancel(angle):
    """|a| (1 - cos) is 5e-9 |a| at 1e-4, far below the rounding of |a| - <s, a> in float32."""
    a, s = torch.tensor([[7.0, 0.0]]), torch.tensor([[math.cos(angle), math.sin(angle)]])
    found = float(cl.GroupNorm(2).fenchel_young(a.float(), s.float()))
    found -= 7 * max(0.0, float(1 - s.float().norm()))
    assert found == pytest.approx(7 * (1 - math.cos(angle)), rel=2e-2)


# What is declared


@every_entry
def test_declarations_are_true(entry):
    """Nondecreasing, even, smooth; and c h(a / c) where it is said what that is."""
    h, grid = entry.h, torch.linspace(-3, 3, 6001)[:, None]
    if h.group == 1:
        rises, even = bool((h.value(grid).diff(dim=0) >= -1e-15).all()), h.slopes[0] == -h.slopes[1]
        assert h.nondecreasing == rises
        assert torch.allclose(h.value(grid), h.value(-grid)) == even
        jumps = bool((h.derivative(grid).diff(dim=0).abs() > 0.09).any())
        assert not (h.smooth and jumps)
        if even:
            assert cl.GroupNorm(1, h).value(grid).equal(h.value(grid.abs()))
        else:
            with pytest.raises(ValueError, match="GroupNorm needs an even profile"):
                cl.GroupNorm(2, h)
    other, a = h.scaled(2.5), arguments(h)
    if other is not None:
        torch.testing.assert_close(other.value(2.5 * a), 2.5 * h.value(a))
        assert other.slopes == h.slopes


@every_entry
def test_values_are_differentiable_as_often_as_training_needs(entry):
    """Once everywhere; twice where h'' is continuous, and finite where it is not."""
    h = entry.h
    a = (4 * torch.rand(60, 2 * h.group) - 2).requires_grad_()
    (slope,) = torch.autograd.grad(h.value(a).sum(), a, create_graph=True)
    torch.testing.assert_close(h.derivative(a.detach()), slope.detach())
    torch.testing.assert_close(h.mean_slope(a.detach()), slope.detach())
    if isinstance(h, cl.SmoothActivation):
        (bend,) = torch.autograd.grad(slope.sum(), a)
        torch.testing.assert_close(h.second_derivative(a.detach()), bend)
    for dtype in (torch.float32, torch.float64):
        for size in (0.0, 1e-30, 1e-17):
            at = torch.full((1, h.group), size, dtype=dtype).requires_grad_()
            (slope,) = torch.autograd.grad(h.value(at).sum(), at, create_graph=True)
            low, high = h.slopes
            assert ((slope >= low) & (slope <= high)).all()
            if slope.requires_grad:
                assert torch.autograd.grad(slope.sum(), at)[0].isfinite().all()
    if h.group > 1:
        generic = torch.randn(2, 2 * h.group, 2, requires_grad=True)
        assert torch.autograd.gradgradcheck(h.value, (generic,))


@every_entry
def test_files_hold_the_same_function(entry, tmp_path):
    h = entry.h
    layer = cl.ConvexLayer(h, channels=2 * h.group, skip=Convolution(1, 2 * h.group, 3))
    if layer.shares is not None:
        layer.shares.data.copy_(torch.rand(layer.shares.shape))
    net, x = cl.InputConvexNetwork([layer]), torch.rand(2, 1, 6, 5)
    again = cl.load(cl.save(net, tmp_path / "net"))
    assert again.layers[0].activation == h
    assert torch.equal(again(x), net(x))


# The paper's formulas


def printed_projection(p: float, q: float, alpha: float) -> tuple[float, float]:
    """The paper's formula for the leaky ReLU, case by case as printed in section 4."""
    if max(alpha * p, p) <= q:
        return p, q
    if abs(q) <= p:
        return (p + q) / 2, (p + q) / 2
    if q <= alpha * p and p <= -alpha * q:
        return (p + alpha * q) / (1 + alpha**2), alpha * (p + alpha * q) / (1 + alpha**2)
    return 0.0, 0.0


@given(p=floats(-5, 5), q=floats(-5, 5), alpha=st.sampled_from([0.0, 0.01, 0.2, 0.9]))
def test_the_papers_printed_projection(p, q, alpha):
    ours = cl.LeakyReLU(alpha).project_epigraph(torch.tensor([p]), torch.tensor([q]))
    assert [float(v) for v in ours] == pytest.approx(printed_projection(p, q, alpha), abs=1e-12)


def test_a_huber_mixture_is_a_spline():
    """Its curvature is the sum of c_j / t_j over t_j > |a|."""
    widths, c = (0.1, 0.3, 1.0), torch.tensor([[0.2, 0.5, 0.3]])
    knots = torch.tensor((0.0, *widths))
    bends = torch.stack([(c[0] / knots[1:])[j:].sum() for j in range(3)])
    same = cl.QuadraticSpline(widths).with_shares((bends * knots.diff())[None])
    a = torch.linspace(-2, 2, 101)[:, None]
    torch.testing.assert_close(same.value(a), cl.HuberMixture(widths).with_shares(c).value(a))


def test_channels_have_their_own_shares():
    shares, a = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 0.0]]), torch.randn(9, 3, 2)
    for h in (cl.HuberMixture((0.1, 0.5)), cl.QuadraticSpline((0.1, 0.5))):
        together = h.with_shares(shares).value(a)
        for i in range(3):
            alone = h.with_shares(shares[i : i + 1]).value(a[:, i : i + 1])
            torch.testing.assert_close(together[:, i : i + 1], alone)
        part = h.with_shares(shares).select(slice(1, 3)).value(a[:, 1:3])
        assert torch.equal(part, together[:, 1:3])


# Activations of one's own, and lies


@dataclass(frozen=True)
class Exponential(cl.SmoothActivation):
    """h(a) = exp(a), from nothing but the abstract methods: prox and projection by Newton."""

    @property
    def slopes(self):
        return (0.0, math.inf)

    def value(self, a):
        return torch.exp(a)

    derivative = second_derivative = value

    def conjugate(self, s):
        return torch.where(s >= 0, torch.xlogy(s, s) - s, math.inf)


def test_an_activation_of_ones_own_passes_the_exam():
    cl.check_activation(Exponential(), scale=1.0)


LIES = {
    "not convex": {"value": lambda h, a: -a.abs()},
    "derivative leaves": {"derivative": lambda h, a: 3 * a.sign()},
    "not a subgradient": {"derivative": lambda h, a: -a.clamp(-1, 1)},
    "Fenchel-Young at h'": {"fenchel_young": lambda h, a, s: torch.ones_like(a)},
    "fenchel_young and h": {"conjugate": lambda h, s: torch.where(s.abs() <= 1, s**2, math.inf)},
    "finite outside": {"conjugate": lambda h, s: 0.05 * s**2},
    "value_and_loss is off": {"value_and_loss": lambda h, a, p, t: (h.value(a), 0 * a)},
    "prox is not optimal": {"prox": lambda h, y, eta: y},
    "scaled_slope and prox": {"scaled_slope": lambda h, y, t, sigma: 0 * y},
    "multiplier is negative": {"multiplier": lambda h, y, z, *sigma: -torch.ones_like(y)},
    "leaves the epigraph": {"multiplier": lambda h, y, z, *sigma: torch.zeros_like(y)},
    "not complementary": {"multiplier": lambda h, y, z, *sigma: 1e3 + 0 * y},
    "clip_to_slopes": {"clip_to_slopes": lambda h, p, t: p},
}


@pytest.mark.parametrize("lie", LIES)
def test_the_exam_catches_lies(lie):
    liar = type("Liar", (cl.Huber,), LIES[lie])
    with pytest.raises(cl.CheckFailed, match=lie):
        cl.check_activation(liar(0.1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.LeakyReLU(-0.1), "0 <= slope < 1, got slope=-0.1"),
        (lambda: cl.LeakyReLU(1.0), "slope=1.0"),
        (lambda: cl.SmoothedReLU(smoothing=0.0), "smoothing > 0, got smoothing=0.0"),
        (lambda: cl.SmoothedLeakyReLU(0.2, math.inf), "smoothing=inf"),
        (lambda: cl.Huber(0.0), "delta > 0"),
        (lambda: cl.GroupNorm(0), "size >= 1, got size=0"),
        (lambda: cl.GroupNorm(2, cl.GroupNorm(2)), "an even profile"),
        (lambda: cl.GroupNorm(2).output_shape((5, 4, 4)), "do not divide 5 channels"),
        (lambda: cl.HuberMixture((1.0, 1.0)), "widths that are positive and increase"),
        (lambda: cl.HuberMixture(()), "widths that are positive and increase"),
        (lambda: cl.QuadraticSpline((0.0, 1.0)), "knots that are positive and increase"),
        (lambda: cl.QuadraticSpline((1.0, math.inf)), "knots that are positive and increase"),
        (lambda: cl.QuadraticSpline(tail=-1.0), "needs tail >= 0, got tail=-1"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()
