"""Norms of groups of channels: definition, cone programs, kinks, and derivatives of derivatives."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import floats
from zoo import GROUPS

import convexlift as cl
from convexlift.networks import Convolution, Dense

every_group = pytest.mark.parametrize("h", [*GROUPS.values(), cl.GroupNorm(4)], ids=repr)
PROFILES = {"abs": cl.Abs(), "huber": cl.Huber(0.3), "square": cl.HalfSquare()}
EPS = torch.finfo(torch.float64).eps


def column(value: float) -> torch.Tensor:
    return torch.tensor([[value]])


def test_definition_entry_by_entry():
    a = torch.randn(2, 6, 3, 4)
    z = cl.GroupNorm(3).value(a)
    assert z.shape == (2, 2, 3, 4)
    for b, g, i, j in np.ndindex(2, 2, 3, 4):
        expected = math.sqrt(sum(float(a[b, 3 * g + k, i, j]) ** 2 for k in range(3)))
        assert float(z[b, g, i, j]) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("name", PROFILES)
def test_groups_of_one_are_the_profile(name):
    phi, h = PROFILES[name], cl.GroupNorm(1, PROFILES[name])
    a, z = torch.randn(40, 5), torch.randn(40, 5)
    one, two = torch.ones(40, 1), 2 * torch.ones(40, 1)
    torch.testing.assert_close(h.value(a), phi.value(a))
    torch.testing.assert_close(h.derivative(a), phi.derivative(a))
    torch.testing.assert_close(h.prox(a, two), phi.prox(a, two))
    t = phi.multiplier(a, z, one, two)
    torch.testing.assert_close(h.multiplier(a, z, one, two), t)
    torch.testing.assert_close(h.scaled_slope(a, t, one), phi.scaled_slope(a, t, one))
    s = phi.clip(torch.randn(40, 5))
    torch.testing.assert_close(h.clip(s), s)
    torch.testing.assert_close(h.fenchel_young(a, s), phi.fenchel_young(a, s))


@pytest.mark.parametrize("name", PROFILES)
def test_projection_onto_the_epigraph_is_that_of_a_cone_solver(name):
    """min sigma_a/2 |a - y|^2 + sigma_z/2 (z' - z)^2 over the epigraph, stated to CVXPY."""
    h = cl.GroupNorm(3, PROFILES[name])
    generator = torch.Generator().manual_seed(1)
    for z0 in (-2.0, -0.4, 0.0, 0.3, 1.0):
        y = 1.5 * torch.randn((1, 3), generator=generator)
        sigma_a, sigma_z = (0.2 + torch.rand((2, 1, 1), generator=generator)).unbind()
        t = h.multiplier(y, column(z0), sigma_a, sigma_z)
        ours_a, ours_z = h.prox(y, t / sigma_a), z0 + t / sigma_z

        a, r, z = cp.Variable(3), cp.Variable(), cp.Variable()
        phi = {"abs": r, "huber": 0.15 * cp.huber(r / 0.3, 1), "square": cp.square(r) / 2}[name]
        distance = float(sigma_a) / 2 * cp.sum_squares(a - y[0].numpy()) + float(
            sigma_z
        ) / 2 * cp.square(z - z0)
        cone = cp.Problem(cp.Minimize(distance), [cp.norm(a, 2) <= r, phi <= z])
        cone.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
        np.testing.assert_allclose(ours_a[0].numpy(), a.value, atol=1e-4)
        assert float(ours_z) == pytest.approx(float(z.value), abs=1e-4)
        assert float(h.value(ours_a)) <= float(ours_z) + 1e-12
        value = float(sigma_a) / 2 * float((ours_a - y).square().sum())
        value += float(sigma_z) / 2 * float(ours_z - z0) ** 2
        assert value <= distance.value + 1e-8


@every_group
def test_conjugate_is_the_supremum(h):
    directions = torch.randn(4000, h.size)
    a = directions / directions.norm(dim=1, keepdim=True) * torch.linspace(0, 30, 4000)[:, None]
    for length in (0.0, 0.5, 0.9):
        s = torch.zeros(1, h.size)
        s[0, -1] = length
        a[:2000] = torch.linspace(0, 30, 2000)[:, None] * s  # along s, where it is attained
        brute = float(((s * a).sum(1, keepdim=True) - h.value(a)).max())
        assert float(h.conjugate(s)) == pytest.approx(brute, abs=1e-3)


def test_conjugate_of_the_norm_is_the_indicator_of_the_ball():
    s = torch.tensor([[0.0, 0.0], [0.6, 0.8], [1.0, 0.0], [0.7, 0.8], [0.0, 1.1]])
    expected = torch.tensor([[0.0], [0.0], [0.0], [math.inf], [math.inf]])
    torch.testing.assert_close(cl.GroupNorm(2).conjugate(s), expected)


@every_group
def test_moreau(h):
    """y = prox_{eta h}(y) + p, p a slope times eta; for the norm p is the projection to a ball."""
    y, eta = 2 * torch.randn(500, h.size), 0.1 + torch.rand(500, 1)
    y[:3] = 0
    p = h.scaled_slope(y, eta, torch.ones_like(eta))
    torch.testing.assert_close(h.prox(y, eta) + p, y)
    torch.testing.assert_close(h.clip_to_slopes(p, eta), p)
    loss = h.fenchel_young(h.prox(y, eta), h.clip(p / h.spread(eta)))
    assert float(loss.max()) <= 1e-14
    if isinstance(h.profile, cl.Abs):
        torch.testing.assert_close(p, h.clip_to_slopes(y, eta))
        shrink = (1 - eta / y.norm(dim=1, keepdim=True).clamp_min(1e-9)).clamp_min(0)
        torch.testing.assert_close(h.prox(y, eta), shrink * y)


@every_group
def test_fenchel_young_at_the_kink_and_on_the_sphere(h):
    zero, s = torch.zeros(100, h.size), torch.randn(100, h.size)
    unit = s / s.norm(dim=1, keepdim=True)
    torch.testing.assert_close(h.fenchel_young(zero, 0.5 * unit), h.conjugate(0.5 * unit))
    assert torch.equal(h.derivative(zero), zero)
    assert float(h.fenchel_young(zero, zero).abs().max()) == 0.0
    a = 5 * torch.randn(100, h.size)
    assert float(h.fenchel_young(a, h.derivative(a)).max()) <= 20 * EPS
    if isinstance(h.profile, cl.Abs):  # the opposite slope is the worst
        worst = h.fenchel_young(a, -h.derivative(a))
        torch.testing.assert_close(worst, 2 * h.value(a))


@pytest.mark.parametrize("angle", [1e-2, 1e-3, 1e-4])
def test_fenchel_young_does_not_cancel(angle):
    """|a| (1 - cos) is 5e-9 |a| at 1e-4, far below the rounding of |a| - <s, a> in float32."""
    h = cl.GroupNorm(2)
    a, s = torch.tensor([[7.0, 0.0]]), torch.tensor([[math.cos(angle), math.sin(angle)]])
    single = h.fenchel_young(a.float(), s.float())
    assert float(single) == pytest.approx(7 * (1 - math.cos(angle)), rel=2e-3, abs=1e-6 * 7)
    turned = float(single) - 7 * float((1 - s.float().norm()).clamp_min(0))
    assert turned == pytest.approx(7 * (1 - math.cos(angle)), rel=2e-2)


KINKS = [0.0, -0.0, 1e-30, -1e-30, 0.1, 1.0, -1.0, 0.6, 0.8, math.nextafter(0.1, 1.0)]
near_kinks = st.one_of(st.sampled_from(KINKS), floats(-2, 2))


@every_group
@given(data=st.data(), z=near_kinks, ratio=floats(-4, 4))
def test_projection_at_the_kinks(h, data, z, ratio):
    """The dual step (p, -t) satisfies the optimality conditions of the projection."""
    y = torch.tensor([data.draw(st.lists(near_kinks, min_size=h.size, max_size=h.size))])
    sigma_a, sigma_z = column(1.0), column(10.0**ratio)
    t = h.multiplier(y, column(z), sigma_a, sigma_z)
    p = h.scaled_slope(y, t, sigma_a)
    a, height = y - p / sigma_a, z + t / sigma_z
    assert t.shape == (1, 1)
    assert p.shape == y.shape
    assert float(t) >= 0
    assert float(h.value(a) - height) <= 1e-8
    assert float(p.norm()) <= h.slopes[1] * float(t) + 1e-12 or float(t) == 0
    if float(t) > 1e-8:
        assert float(t * h.fenchel_young(a, h.clip(p / t))) <= 1e-7
        assert float(h.value(a)) == pytest.approx(float(height), abs=1e-7)


@every_group
@given(
    data=st.data(),
    size=st.integers(-12, 12),
    steps=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)
def test_extreme_scales_in_single_precision(h, data, size, steps):
    """Finite, of the right sign, with slopes in the domain: what the certificate builds on."""
    if isinstance(h.profile, cl.HalfSquare):
        size = min(size, 6)
    values = st.lists(floats(-1, 1, width=32), min_size=h.size + 1, max_size=h.size + 1)
    scaled = torch.tensor([data.draw(values)], dtype=torch.float32) * 10.0**size
    y, z = scaled[:, 1:], scaled[:, :1]
    sigma_a, sigma_z = (torch.tensor([[10.0**k]], dtype=torch.float32) for k in steps)
    t = h.multiplier(y, z, sigma_a, sigma_z)
    p = h.scaled_slope(y, t, sigma_a)
    assert t.dtype == p.dtype == torch.float32
    assert torch.isfinite(t).all()
    assert torch.isfinite(p).all()
    assert float(t) >= 0
    if math.isfinite(h.slopes[1]):
        assert float(p.double().norm()) <= float(t) * (1 + 1e-6)
    loss = h.fenchel_young(y, h.clip(h.derivative(y)))
    assert torch.isfinite(loss).all()
    assert float(loss) >= 0


@every_group
@given(data=st.data())
def test_clipped_slopes_are_slopes(h, data):
    """The certificate divides p by t: what was clipped stays in the ball, up to rounding."""
    entries = st.lists(floats(-50, 50, width=32), min_size=h.size, max_size=h.size)
    p = torch.tensor([data.draw(entries)], dtype=torch.float32)
    t = torch.tensor([[data.draw(st.sampled_from([0.0, 1e-6, 0.3, 7.0]))]], dtype=torch.float32)
    clipped = h.clip_to_slopes(p, t)
    assert float(clipped.double().norm()) <= h.slopes[1] * float(t) * (1 + 1e-6) or (
        float(t) == 0 and not clipped.any()
    )
    a = torch.ones_like(p)
    s = h.clip(clipped / t.clamp_min(1e-6))
    loss = h.fenchel_young(a, s)
    exact = h.fenchel_young(a.double(), s.double())
    assert float(loss) >= 0
    assert float(loss) == pytest.approx(float(exact), rel=1e-4, abs=1e-5)


@every_group
def test_derivatives_of_derivatives(h):
    a = torch.randn(3, 2 * h.size, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(h.value(a).sum(), a)
    torch.testing.assert_close(h.derivative(a.detach()), gradient)
    assert torch.autograd.gradcheck(h.value, (a,))
    assert torch.autograd.gradgradcheck(h.value, (a,))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-17, 1e-14])
def test_derivatives_at_zero_are_finite(name, dtype, size):
    """Where a_g is (nearly) 0: the gradient is, the second one is that of phi, no NaN."""
    h = cl.GroupNorm(2, PROFILES[name])
    a = torch.tensor([[size, 0.0, 3.0, 4.0]], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(h.value(a).sum(), a, create_graph=True)
    direction = torch.tensor([[1.0, 2.0, 0.0, 0.0]], dtype=dtype)
    (second,) = torch.autograd.grad((gradient * direction).sum(), a)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(second).all()
    if size == 0.0:
        curvature = {"abs": 0.0, "huber": 1 / 0.3, "square": 1.0}[name]
        torch.testing.assert_close(gradient[:, :2], torch.zeros(1, 2, dtype=dtype))
        torch.testing.assert_close(second, curvature * direction)


def test_training_differentiates_a_network_twice():
    """The gradient penalty |grad_x R|, with respect to the weights, with flat regions in x."""
    net = cl.InputConvexNetwork(
        [
            cl.ConvexLayer(cl.GroupNorm(2), channels=6, skip=Convolution(1, 6, 3), bias=False),
            cl.ConvexLayer(
                cl.Softplus(), channels=2, previous=Convolution(3, 2, 3, nonnegative=True)
            ),
        ]
    )
    x = torch.zeros(2, 1, 8, 8)
    x[1, 0, 2:5] = 1
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    weights = [net.layers[0].skip.weight, net.layers[1].previous.weight, net.output]
    for weight in weights:
        assert torch.isfinite(weight.grad).all()
    assert weights[0].grad.abs().max() > 0
    generic = torch.randn(1, 1, 4, 4, requires_grad=True)
    assert torch.autograd.gradgradcheck(net, (generic,))


def test_a_dense_layer_has_groups_of_features():
    net = cl.InputConvexNetwork(
        [cl.ConvexLayer(cl.GroupNorm(3), channels=6, skip=Dense(16, 6))], image_size=(4, 4)
    )
    x = torch.randn(2, 1, 4, 4)
    layer = net.layers[0]
    a = x.flatten(1) @ layer.skip.weight.T
    expected = a.reshape(2, 2, 3).norm(dim=2) @ net.output
    assert net.output.shape == (2,)
    torch.testing.assert_close(net(x), expected)
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(x), regularizer=net, weight=0.5)
    assert cl.solve(problem, stop=cl.StopWhen(gap=1e-6)).status == (cl.Status.CONVERGED,) * 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.GroupNorm(0), "size >= 1, got size=0"),
        (lambda: cl.GroupNorm(2, cl.ReLU()), r"an even profile.*got ReLU\(\)"),
        (lambda: cl.GroupNorm(2, cl.Softplus()), "an even profile"),
        (lambda: cl.GroupNorm(2, cl.GroupNorm(2)), "an even profile"),
        (
            lambda: cl.ConvexLayer(cl.GroupNorm(2), channels=5, skip=Convolution(1, 5)),
            "takes 2 channels at a time, which does not divide channels=5",
        ),
        (lambda: cl.GroupNorm(2).output_shape((5, 4, 4)), "do not divide 5 channels"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()
