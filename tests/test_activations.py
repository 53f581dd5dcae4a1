"""Every activation against its definition, by brute force, and at the kinks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from strategies import floats
from zoo import ACTIVATIONS, GROUPS

import convexlift as cl

every_activation = pytest.mark.parametrize("h", ACTIVATIONS, ids=repr)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor([value])


@pytest.mark.parametrize("h", [*ACTIVATIONS, *GROUPS.values()], ids=repr)
@pytest.mark.parametrize("scale", [0.05, 3.0, 100.0])
def test_exam(h, scale):
    if cl.HalfSquare() in (h, getattr(h, "profile", h)) and scale > 10:
        scale = 10.0  # its values grow with the square
    cl.check_activation(h, scale=scale)


@every_activation
def test_derivative_is_that_of_autograd(h):
    a = (4 * torch.rand(500) - 2).requires_grad_()
    (gradient,) = torch.autograd.grad(h.value(a).sum(), a)
    torch.testing.assert_close(h.derivative(a.detach()), gradient)


@pytest.mark.parametrize(
    "h", [h for h in ACTIVATIONS if isinstance(h, cl.SmoothActivation)], ids=repr
)
def test_second_derivative_is_that_of_autograd(h):
    """Training differentiates a gradient; flat regions of an image make a = 0 exactly."""
    a = (4 * torch.rand(500) - 2).requires_grad_()
    if not isinstance(h, cl.SmoothedLeakyReLU | cl.ELU):  # its second derivative jumps there
        a.data[:5] = 0.0
    (gradient,) = torch.autograd.grad(h.value(a).sum(), a, create_graph=True)
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient.sum(), a)
        torch.testing.assert_close(h.second_derivative(a.detach()), second)


@every_activation
def test_conjugate_is_the_supremum(h):
    low, high = max(h.slopes[0], -2.0), min(h.slopes[1], 2.0)
    grid = torch.linspace(-60, 60, 1_200_001)
    inside = 1e-3 if low < high else 0.0
    for s in torch.linspace(low + inside, high - inside, 7):
        brute = float((s * grid - h.value(grid)).max())
        assert float(h.conjugate(s)) == pytest.approx(brute, abs=1e-4)


@every_activation
@pytest.mark.parametrize("eta", [0.03, 1.0, 7.0])
def test_prox_by_brute_force(h, eta):
    for y in (-2.0, -0.3, 0.0, 0.004, 0.05, 0.2, 1.0, 1.03, 5.0):
        brute = minimize_scalar(
            lambda a, y=y: eta * float(h.value(scalar(a))) + (a - y) ** 2 / 2,
            bounds=(y - 2 * eta - 1, y + 2 * eta + 1),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert float(h.prox(scalar(y), scalar(eta))) == pytest.approx(brute.x, abs=1e-5)


@every_activation
def test_projection_by_brute_force(h):
    generator = torch.Generator().manual_seed(0)
    points = 2 * torch.randn((40, 2), generator=generator)
    grid = torch.linspace(-8, 8, 400_001)
    height = h.value(grid)
    p, q = h.project_epigraph(points[:, 0], points[:, 1])
    for (p0, q0), p1, q1 in zip(points, p, q, strict=True):
        nearest = ((grid - p0) ** 2 + (height.clamp_min(q0) - q0) ** 2).min()
        ours = (p1 - p0) ** 2 + (q1 - q0) ** 2
        assert float(h.value(p1)) <= float(q1) + 1e-9
        assert float(ours) == pytest.approx(float(nearest), abs=1e-3, rel=1e-4)


def printed_projection(p: float, q: float, alpha: float) -> tuple[float, float]:
    """The paper's formula for the leaky ReLU, case by case as printed in section 4."""
    if max(alpha * p, p) <= q:
        return p, q
    if abs(q) <= p:
        return (p + q) / 2, (p + q) / 2
    if q <= alpha * p and p <= -alpha * q:
        return (p + alpha * q) / (1 + alpha**2), alpha * (p + alpha * q) / (1 + alpha**2)
    return 0.0, 0.0


@given(
    p=floats(-5, 5), q=floats(-5, 5), alpha=st.sampled_from([0.0, 0.01, 0.2, 0.9])
)  # fmt: skip
def test_the_papers_printed_projection(p, q, alpha):
    ours = cl.LeakyReLU(alpha).project_epigraph(scalar(p), scalar(q))
    assert [float(v) for v in ours] == pytest.approx(printed_projection(p, q, alpha), abs=1e-12)


def test_smoothed_relu_is_the_papers():
    nu = 0.3
    a = torch.tensor([-1.0, 0.0, 0.15, 0.3, 2.0])
    expected = torch.tensor([0.0, 0.0, 0.15**2 / (2 * nu), 0.3 - nu / 2, 2.0 - nu / 2])
    torch.testing.assert_close(cl.SmoothedReLU(smoothing=nu).value(a), expected)
    leaky = cl.SmoothedLeakyReLU(0.2, nu)
    torch.testing.assert_close(leaky.value(a), 0.2 * a + 0.8 * expected)


KINKS = [0.0, -0.0, 1e-30, -1e-30, 0.05, 0.1, 1.0, -1.0, 0.7, math.nextafter(0.1, 1.0)]
near_kinks = st.one_of(st.sampled_from(KINKS), floats(-2, 2))


@every_activation
@given(y=near_kinks, z=near_kinks, ratio=floats(-4, 4))
def test_projection_at_the_kinks(h, y, z, ratio):
    """The dual step (p, -t) satisfies the optimality conditions of the projection."""
    sigma_a, sigma_z = scalar(1.0), scalar(10.0**ratio)
    t = h.multiplier(scalar(y), scalar(z), sigma_a, sigma_z)
    p = h.scaled_slope(scalar(y), t, sigma_a)
    a, height = scalar(y) - p / sigma_a, scalar(z) + t / sigma_z
    assert float(t) >= 0
    assert float(h.value(a) - height) <= 1e-8
    low, high = h.slopes
    assert low * float(t) - 1e-12 <= float(p) <= high * float(t) + 1e-12 or float(t) == 0
    if float(t) > 1e-8:
        slope = (p / t).clamp(low, high)
        assert float(t * h.fenchel_young(a, slope)) <= 1e-7
        assert float(h.value(a)) == pytest.approx(float(height), abs=1e-7)


@every_activation
@given(
    y=floats(-1, 1, width=32),
    z=floats(-1, 1, width=32),
    size=st.integers(-12, 12),
    steps=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)
def test_extreme_scales_in_single_precision(h, y, z, size, steps):
    """Finite, of the right sign, with slopes in the domain: what the certificate builds on."""
    if isinstance(h, cl.HalfSquare):
        size = min(size, 6)
    y32 = torch.tensor([y * 10.0**size], dtype=torch.float32)
    z32 = torch.tensor([z * 10.0**size], dtype=torch.float32)
    sigma_a, sigma_z = (torch.tensor([10.0**k], dtype=torch.float32) for k in steps)
    t = h.multiplier(y32, z32, sigma_a, sigma_z)
    p = h.scaled_slope(y32, t, sigma_a)
    assert t.dtype == p.dtype == torch.float32
    assert torch.isfinite(t).all()
    assert torch.isfinite(p).all()
    assert float(t) >= 0
    low, high = h.slopes
    if math.isfinite(low):
        rounding = 1e-6 * float(t)
        assert low * float(t) - rounding <= float(p) <= high * float(t) + rounding
    loss = h.fenchel_young(y32, h.derivative(y32).clamp(*h.slopes))
    assert torch.isfinite(loss).all()
    assert float(loss) >= 0


@every_activation
@given(a=floats(-50, 50, width=32), position=floats(0, 1))
def test_fenchel_young_is_never_negative_in_single_precision(h, a, position):
    low, high = max(h.slopes[0], -3.0), min(h.slopes[1], 3.0)
    s = torch.tensor([low + position * (high - low)], dtype=torch.float32).clamp(*h.slopes)
    loss = h.fenchel_young(torch.tensor([a], dtype=torch.float32), s)
    exact = h.fenchel_young(torch.tensor([a], dtype=torch.float64), s.double())
    assert float(loss) >= 0
    assert float(loss) == pytest.approx(float(exact), rel=1e-4, abs=1e-5)


def test_softplus_projection_matches_a_grid():
    h = cl.Softplus(2.0)
    p, q = h.project_epigraph(scalar(1.0), scalar(-1.0))
    grid = np.linspace(-3, 3, 600_001)
    height = np.log1p(np.exp(2 * grid)) / 2
    best = np.argmin((grid - 1) ** 2 + (height + 1) ** 2)
    assert float(p) == pytest.approx(grid[best], abs=1e-4)
    assert float(q) == pytest.approx(height[best], abs=1e-4)


def test_a_wrong_conjugate_is_caught():
    class Wrong(cl.LeakyReLU):
        def fenchel_young(self, a, s):
            return cl.Activation.fenchel_young(self, a, s)

        def conjugate(self, s):
            return super().conjugate(s) + 0.1

    with pytest.raises(cl.CheckFailed, match="Fenchel-Young"):
        cl.check_activation(Wrong())


def test_a_concave_function_is_caught():
    class Concave(cl.Softplus):
        def value(self, a):
            return -super().value(a)

    with pytest.raises(cl.CheckFailed, match="not convex"):
        cl.check_activation(Concave())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.LeakyReLU(-0.1), "0 <= slope < 1, got slope=-0.1"),
        (lambda: cl.LeakyReLU(1.0), "slope=1.0"),
        (lambda: cl.SmoothedReLU(smoothing=0.0), "smoothing > 0, got smoothing=0.0"),
        (lambda: cl.SmoothedLeakyReLU(0.2, math.inf), "smoothing=inf"),
        (lambda: cl.Softplus(-1.0), "sharpness > 0"),
        (lambda: cl.ELU(1.5), "0 < alpha <= 1"),
        (lambda: cl.Huber(0.0), "delta > 0"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@every_activation
def test_ramp_describes_the_activation(h):
    """With u = clip((a - left)/width, 0, 1), both the derivative and the value."""
    if h.ramp is None:
        pytest.skip("no ramp")
    ramp, a = h.ramp, torch.linspace(-3, 3, 1001)
    rise = (a > ramp.left).to(a) if ramp.width == 0 else (a - ramp.left) / ramp.width
    u = rise.clamp(0, 1)
    torch.testing.assert_close(h.derivative(a), ramp.low + (ramp.high - ramp.low) * u)
    bent = u * (a - ramp.left) - u**2 * ramp.width / 2
    torch.testing.assert_close(
        h.value(a), ramp.low * a + (ramp.high - ramp.low) * bent + ramp.offset
    )


@pytest.mark.parametrize("h", [cl.ReLU(), cl.LeakyReLU(0.2), cl.Abs()], ids=repr)
def test_one_step_for_all_numbers(h):
    y = torch.linspace(-1, 1, 5)
    expected = h.prox(y, torch.full_like(y, 0.5))
    torch.testing.assert_close(h.prox(y, torch.tensor(0.5)), expected, rtol=0, atol=0)


def test_ramps_consist_of_floats_whose_bits_kernels_take():
    for h in (cl.Huber(1), cl.LeakyReLU(0), cl.SmoothedReLU(smoothing=1)):
        assert all(type(number) is float for number in vars(h.ramp).values())
