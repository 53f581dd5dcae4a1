"""Networks: the paper's formulas, convexity, Assumption 1, and no writing in forward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from zoo import ARCHITECTURES, FIRST_LAYER_ONLY, MONOTONE, SIZE, clean_images, network

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense

ALL = {**MONOTONE, **FIRST_LAYER_ONLY}
every_network = pytest.mark.parametrize(
    ("architecture", "activation"),
    [(a, h) for a in (*ARCHITECTURES, "residual last") for h in ALL],
)


@every_network
def test_midpoint_convexity(architecture, activation):
    net = network(architecture, ALL[activation])
    x, y = 2 * torch.randn(50, 1, SIZE, SIZE), 2 * torch.randn(50, 1, SIZE, SIZE)
    with torch.no_grad():
        for weight in (0.5, 0.1, 0.93):
            chord = weight * net(x) + (1 - weight) * net(y)
            assert (net(weight * x + (1 - weight) * y) <= chord + 1e-10).all()


@every_network
def test_the_tangent_is_the_gradient_of_autograd(architecture, activation):
    net = network(architecture, ALL[activation])
    x = torch.randn(3, 1, SIZE, SIZE, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(x).sum(), x)
    bound = net.bind((1, SIZE, SIZE))
    with torch.no_grad():
        layers = bound.forward(x)
        tangent = bound.tangent(1.0, x, layers.a)
        torch.testing.assert_close(tangent.c, gradient)
        torch.testing.assert_close(bound.value(layers.z[-1]), net(x))
        assert (net(x) >= bound.minimum_bound() - 1e-12).all() or not bound.bounded_below


def test_baseline_is_the_papers_formula():
    net = cl.networks.baseline(image_size=32, channels=6, pool=8, hidden=10)
    net.layers[0].bias.data.normal_()
    net.layers[1].bias.data.normal_()
    x = torch.rand(2, 1, 32, 32)
    V0, b0 = net.layers[0].skip.weight, net.layers[0].bias
    pool, dense = net.layers[1].previous.maps
    z = F.leaky_relu(F.conv2d(x, V0, b0, padding=2), 0.2)
    hidden = F.relu(F.avg_pool2d(z, 8).flatten(1) @ dense.weight.T + net.layers[1].bias)
    assert isinstance(pool, AveragePool)
    torch.testing.assert_close(net(x), hidden @ net.output)


def test_deep_is_the_papers_formula():
    net = cl.networks.deep(image_size=(16, 32), channels=4, pool=8, hidden=5, smoothing=0.1)
    x = torch.rand(2, 1, 16, 32)
    h = net.layers[0].activation.value
    z = h(F.conv2d(x, net.layers[0].skip.weight, net.layers[0].bias, padding=2))
    for layer in (net.layers[1], net.layers[2]):
        z = h(F.conv2d(z, layer.previous.weight, layer.bias, padding=2))
    a = F.avg_pool2d(z, 8).flatten(1) @ net.layers[3].previous.maps[1].weight.T
    expected = cl.SmoothedReLU(smoothing=0.1).value(a + net.layers[3].bias) @ net.output
    torch.testing.assert_close(net(x), expected)


def test_the_papers_sizes():
    net = cl.networks.baseline(image_size=256)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert shapes["layers.0.skip.weight"] == (32, 1, 5, 5)
    assert shapes["layers.1.previous.maps.1.weight"] == (256, 32 * 16 * 16)
    assert shapes["output"] == (256,)
    assert len(cl.networks.deep(image_size=64).layers) == 4


def test_any_size_and_many_channels():
    net = cl.networks.convolutional(in_channels=3, channels=4, kernel=3)
    for size in ((8, 8), (5, 11), (32, 7)):
        assert net(torch.rand(2, 3, *size)).shape == (2,)
    assert cl.networks.baseline(16, in_channels=2, pool=4)(torch.rand(1, 2, 16, 16)).shape == (1,)


@pytest.mark.parametrize("padding", ["zero", "circular", "reflect", "replicate"])
def test_padding_of_every_architecture(padding):
    mode = {"zero": "constant"}.get(padding, padding)
    net = cl.networks.convolutional(channels=3, kernel=5, padding=padding)
    x = torch.rand(2, 1, 9, 8)

    def pad(z):
        return F.pad(z, (2, 2, 2, 2), mode=mode)

    z = F.leaky_relu(F.conv2d(pad(x), net.layers[0].skip.weight), 0.2)
    z = F.relu(F.conv2d(pad(z), net.layers[1].previous.weight))
    torch.testing.assert_close(net(x), z.mean(1).sum((1, 2)))
    for build in (cl.networks.baseline, cl.networks.deep):
        other = build(16, channels=2, pool=4, hidden=3, padding=padding)
        maps = [m for m in other.modules() if isinstance(m, Convolution)]
        assert {m.padding for m in maps} == {padding}
        assert other(torch.rand(1, 1, 16, 16)).shape == (1,)


def test_strides_of_networks_for_any_size():
    """Built with a small image, which must be large enough for every margin."""
    layers = [layer(skip=conv(kernel_size=5, stride=2, padding="reflect"))]
    layers += [
        layer(previous=conv(3, 3, kernel_size=5, stride=2, padding="reflect", nonnegative=True))
        for _ in range(3)
    ]
    assert cl.InputConvexNetwork(layers)(torch.rand(1, 1, 48, 50)).shape == (1,)


def test_residual_and_links_by_hand():
    net = network("residual last", cl.ReLU())
    x = clean_images(2)
    first, second = net.layers
    z1 = F.relu(F.conv2d(x, first.skip.weight, first.bias, padding=1))
    a2 = F.conv2d(x, second.skip.weight, padding=1) + F.conv2d(
        z1, second.previous.weight, second.bias, padding=1
    )
    z2 = z1 + F.relu(a2)
    torch.testing.assert_close(net(x), (z2 * net.output[:, None, None]).sum((1, 2, 3)))


@every_network
def test_forward_leaves_the_state_dict_unchanged(architecture, activation):
    net = network(architecture, ALL[activation])
    before = copy.deepcopy(net.state_dict())
    net(clean_images(2)).sum().backward()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_projection_keeps_a_trained_network_convex():
    net = network("skips", cl.LeakyReLU(0.2))
    optimiser = torch.optim.SGD(net.parameters(), lr=500.0)
    net(clean_images(2)).sum().backward()
    optimiser.step()
    with pytest.raises(ValueError, match="must be nonnegative"):
        net.check_convexity()
    net.project_()
    net.check_convexity()
    assert (net.layers[0].skip.weight < 0).any()  # V is free


def layer(activation=None, **kwargs):
    kwargs.setdefault("channels", 3)
    return cl.ConvexLayer(activation or cl.ReLU(), **kwargs)


def conv(out=3, into=1, kernel_size=3, **kwargs):
    return Convolution(into, out, kernel_size, **kwargs)


def positive_conv():
    return conv(3, 3, nonnegative=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (list, "at least one layer"),
        (lambda: [layer()], "needs a map"),
        (lambda: [layer(previous=conv())], "layer 1 has no previous layer"),
        (lambda: [layer(skip=conv(), residual=True)], "layer 1 has no previous layer"),
        (
            lambda: [layer(skip=conv()), layer(previous=conv(3, 3))],
            r"layer 2, map from layer 1, has the weight -0\.\d+",
        ),
        (
            lambda: [layer(skip=conv()), layer(cl.Abs(), previous=positive_conv())],
            r"layer 2: Abs\(\) decreases \(its slopes start at -1\)",
        ),
        (
            lambda: [layer(skip=conv()), layer(links={2: positive_conv()})],
            "layer 2 has a link from layer 2, which is not an earlier layer",
        ),
        (
            lambda: [
                layer(skip=conv()),
                layer(
                    previous=positive_conv(),
                    links={1: positive_conv()},
                ),
            ],
            "both previous=... and a link from layer 1",
        ),
        (
            lambda: [layer(skip=conv()), layer(previous=conv(3, 4, nonnegative=True))],
            r"layer 2, map from layer 1: a convolution with 4 input channels",
        ),
        (
            lambda: [layer(skip=conv()), layer(skip=conv(2), previous=positive_conv())],
            r"layer 2: the map from layer 1 gives \(3, .*, the one from the image gives \(2",
        ),
        (lambda: [layer(skip=conv(), channels=5)], r"layer 1 has channels=5, but its maps give"),
        (
            lambda: [
                layer(skip=conv()),
                layer(
                    previous=conv(2, 3, nonnegative=True), channels=2, residual=True
                ),
            ],
            "layer 2 is residual, but its shape",
        ),
        (
            lambda: [
                layer(skip=conv()),
                layer(previous=Dense(10, 4, nonnegative=True), channels=4),
            ],
            "a dense map from 10 features does not fit",
        ),
    ],
)  # fmt: skip
def test_assumption_1_and_shapes_are_checked_when_built(build, message):
    with pytest.raises(ValueError, match=message):
        cl.InputConvexNetwork(build())


def test_assumption_1_is_checked_when_loaded():
    net = network("plain", cl.ReLU())
    state = net.state_dict()
    state["layers.1.previous.maps.1.weight"][0, 0] = -0.25
    with pytest.raises(ValueError, match=r"layer 2, map from layer 1, has the weight -0.25"):
        net.load_state_dict(state)
    state["layers.1.previous.maps.1.weight"][0, 0] = 0.25
    state["output"][1] = float("nan")
    with pytest.raises(ValueError, match=r"regularizer.output is not finite"):
        net.load_state_dict(state)


def test_a_first_layer_may_decrease():
    net = cl.InputConvexNetwork([layer(cl.HalfSquare(), skip=conv())])
    assert float(net(torch.ones(1, 1, 8, 8)).detach()) > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.networks.baseline(image_size=100), "multiple of the pooling size 16"),
        (lambda: cl.networks.baseline(32)(torch.rand(1, 1, 16, 16)), r"\(1, 32, 32\), got"),
        (lambda: cl.networks.convolutional()(torch.rand(1, 2, 8, 8)), r"\(1, H, W\), got"),
        (lambda: cl.networks.convolutional()(torch.rand(8, 8)), "batch, channels, H, W"),
        (lambda: Convolution(1, 3, 4), "odd kernel_size, got 4"),
        (lambda: Convolution(1, 3, 3, padding="mirror"), "padding must be one of.*'reflect'"),
        (
            lambda: cl.networks.convolutional(padding="reflect")(torch.rand(1, 1, 2, 8)),
            r"a reflect margin of \(2, 2\) does not fit an image of 2 x 8",
        ),
        (lambda: Convolution(0, 3), "in_channels must be at least 1"),
        (lambda: Chain(), "at least one map"),
        (lambda: AveragePool(0), "size must be at least 1"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()
