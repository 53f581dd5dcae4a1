"""Gradients that are written out, against those that autograd differentiates twice."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import Tensor

import convexlift as cl

ACTIVATIONS = {
    **zoo.MONOTONE,
    **zoo.FIRST_LAYER_ONLY,
    "smoothed relu": cl.SmoothedReLU(smoothing=0.05),
}


def every_network(test):
    test = pytest.mark.parametrize("flat", [False, True], ids=["", "flat"])(test)
    test = pytest.mark.parametrize("activation", ACTIVATIONS)(test)
    return pytest.mark.parametrize("architecture", [*zoo.ARCHITECTURES, "residual last"])(test)


def network_and_images(architecture: str, activation: str, flat: bool):
    """If flat, half of an image is black and there are no biases: a_1 = 0 exactly."""
    net = zoo.network(architecture, ACTIVATIONS[activation])
    x = zoo.clean_images(2) + 0.1 * torch.randn(2, 1, zoo.SIZE, zoo.SIZE)
    if flat:
        net.layers[0].bias.data.zero_()
        x[0, :, : zoo.SIZE // 2] = 0.0
        assert (net.bind((1, zoo.SIZE, zoo.SIZE)).forward(x).a[0] == 0).any()
    return net, x


def by_autograd(net: cl.InputConvexNetwork, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return slope


def assert_same_derivatives(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Of <v, ours> and <v, theirs>; what has no derivative has the derivative zero."""
    v = torch.randn(ours.shape)
    pairs = []
    for slope in (ours, theirs):
        if slope.requires_grad:
            total = (v * slope).sum()
            options = {"retain_graph": True, "materialize_grads": True}
            pairs.append(torch.autograd.grad(total, inputs, **options))
        else:
            pairs.append(tuple(map(torch.zeros_like, inputs)))
    for left, right in zip(*pairs, strict=True):
        assert torch.isfinite(right).all()
        torch.testing.assert_close(left, right, atol=1e-11, rtol=1e-9)


@every_network
def test_the_gradient_and_its_derivatives_are_those_of_autograd(architecture, activation, flat):
    net, x = network_and_images(architecture, activation, flat)
    x.requires_grad_()
    ours = net.bind((1, zoo.SIZE, zoo.SIZE), detach=False).gradient(x)
    theirs = by_autograd(net, x)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)
    assert_same_derivatives(ours, theirs, [x, *net.parameters()])


@every_network
def test_the_hessian_is_that_of_autograd(architecture, activation, flat):
    net, x = network_and_images(architecture, activation, flat)
    x.requires_grad_()
    slope, v = by_autograd(net, x), torch.randn_like(x)
    expected = torch.zeros_like(x)
    if slope.requires_grad:
        (expected,) = torch.autograd.grad(slope, x, v, materialize_grads=True)
    ours = net.bind((1, zoo.SIZE, zoo.SIZE)).hessian(x.detach())(v)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)
    if activation in ("softplus", "square", "huber", "group huber", "group square"):
        assert ours.abs().max() > 0


@pytest.mark.parametrize("h", [*ACTIVATIONS.values(), cl.ELU(1.0)], ids=repr)
def test_the_mean_slope_is_that_of_autograd_and_so_is_its_derivative(h):
    """Flat regions of an image make a = 0 exactly."""
    a = 4 * torch.rand(3, 2 * h.group, 50) - 2
    a[:, :, :5] = 0.0
    a.requires_grad_()
    (theirs,) = torch.autograd.grad(h.value(a).sum(), a, create_graph=True)
    ours = h.mean_slope(a)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours[:, :, 5:], h.derivative(a.detach())[:, :, 5:])
    assert_same_derivatives(ours, theirs, [a])


@pytest.mark.parametrize("h", [cl.ReLU(), cl.LeakyReLU(0.2), cl.LeakyReLU(0.1), cl.Abs()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_that_autograd_sees_are_the_same(h, dtype):
    low, high = h.slopes
    a = (4 * torch.rand(500, dtype=torch.float64) - 2).to(dtype)
    a[:5] = 0.0
    a.requires_grad_()
    theirs = torch.maximum(low * a, high * a)
    ours = h.value(a)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(h.value(a.detach()), theirs.detach())
    slopes = [torch.autograd.grad(value.sum(), a)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*slopes)
