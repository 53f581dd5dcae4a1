"""Networks of every architecture: convex, differentiable, exact in files, refused if not convex.

Those that read the data are convex networks once these are given.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zoo
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from zoo import MONOTONE, NAMED, NOISE, SIZE, clean_images

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense, ForwardDifferences, PixelSum

FIXED = [(a, h) for a in (*zoo.ARCHITECTURES, "residual last") for h in NAMED]
READING = [(a, h) for a in zoo.ADAPTIVE for h in ("huber", "abs", "group huber", "mixture")]
every_network = pytest.mark.parametrize(("architecture", "activation"), FIXED + READING)


def made(architecture: str, activation: str, channels: int = 1) -> cl.InputConvexNetwork:
    build = zoo.adaptive if architecture in zoo.ADAPTIVE else zoo.network
    return build(architecture, NAMED[activation], channels)


def given_data(net: cl.InputConvexNetwork, batch: int = 1) -> cl.InputConvexNetwork:
    """With its weights for certain data, if it reads any."""
    return net.condition(clean_images(batch, net.in_channels), NOISE) if net.reads_data else net


def stated(net: cl.InputConvexNetwork, y: Tensor, weight: float = 0.5) -> cl.VariationalProblem:
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=net, weight=weight,
        noise=NOISE if net.reads_data else None,
    )  # fmt: skip


@torch.no_grad()
def assert_convex(net: cl.InputConvexNetwork, shape: tuple[int, ...]) -> None:
    """Along segments of all lengths."""
    x = torch.randn(40, *shape)
    for size in (1e-3, 0.3, 3.0):
        y = x + size * torch.randn(40, *shape)
        for share in (0.5, 0.07):
            chord = share * net(x) + (1 - share) * net(y)
            assert (net(share * x + (1 - share) * y) <= chord + 1e-12 * (1 + chord.abs())).all()


@every_network
def test_values_are_convex_along_segments(architecture, activation):
    assert_convex(given_data(made(architecture, activation)), (1, SIZE, SIZE))


@every_network
def test_gradients_are_those_of_differences_and_of_autograd(architecture, activation):
    """Also where half of an image is flat and there are no biases: a_1 = 0 exactly."""
    net = made(architecture, activation)
    y = clean_images(2)
    problem = stated(net, y)
    x, d = torch.randn(2, 1, SIZE, SIZE), torch.randn(2, 1, SIZE, SIZE)
    objective = problem.objective
    ends = [objective(x + sign * 1e-6 * d) for sign in (1, -1)]
    slope = problem.subgradient(problem.evaluate(x))
    found = (slope * d).sum((1, 2, 3))
    torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-4)
    if net.layers[0].bias is not None:
        net.layers[0].bias.data.zero_()
    x[0, :, : SIZE // 2] = 0.0
    problem = stated(net, y)
    x.requires_grad_()
    regularizer = problem.regularizer(x)
    (theirs,) = torch.autograd.grad(regularizer.sum(), x, create_graph=True)
    ours = problem.subgradient(problem.evaluate(x.detach()), data_term=False)
    same = slice(0 if all(layer.activation.smooth for layer in net.layers) else 1, 2)
    torch.testing.assert_close(ours[same], 0.5 * theirs[same].detach(), atol=1e-11, rtol=1e-9)
    assert theirs.isfinite().all()
    parameters = [p for p in net.parameters() if p.requires_grad]
    if theirs.requires_grad:  # the penalty |grad R| of adversarial training
        for each in torch.autograd.grad(theirs.square().sum(), parameters, allow_unused=True):
            assert each is None or each.isfinite().all()


@every_network
def test_images_of_a_batch_do_not_meet(architecture, activation):
    net = given_data(made(architecture, activation, 2), 3)
    x = torch.randn(3, 2, SIZE, SIZE)
    whole = net(x)
    problem = stated(made(architecture, activation, 2), clean_images(3, 2))
    for i in range(3):
        one = problem.select(torch.tensor([i]))
        torch.testing.assert_close(one.regularizer(x[i : i + 1])[0], whole[i], rtol=1e-12, atol=0)


@every_network
def test_files_hold_the_same_network(architecture, activation, tmp_path):
    """To the last bit, with the same solution."""
    net = made(architecture, activation, 2)
    again = cl.load(cl.save(net, tmp_path / "net"))
    assert str(again) == str(net)
    assert type(again) is type(net)
    for name, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    y, stop = clean_images(1, 2), cl.StopWhen(gap=None, max_iterations=5)
    first, second = (cl.solve(stated(each, y), stop=stop) for each in (net, again))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.lower_bound, second.lower_bound)


@every_network
def test_projection_keeps_a_trained_network_convex(architecture, activation):
    net = made(architecture, activation)
    before = copy.deepcopy(net.state_dict())
    x = clean_images(2)
    value = given_data(net, 2)(x)
    for name, number in net.state_dict().items():
        assert torch.equal(number, before[name])  # nothing is written by forward
    value.sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(500 * parameter.grad if parameter.grad is not None else 0)
    with pytest.raises(ValueError, match="must be nonnegative"):
        net.check_convexity()
    net.project_()
    net.check_convexity()
    projected = copy.deepcopy(net.state_dict())
    net.project_()
    assert all(torch.allclose(v, projected[n]) for n, v in net.state_dict().items())
    assert_convex(given_data(net), (1, SIZE, SIZE))


# The general form


@st.composite
def general_networks(draw) -> cl.InputConvexNetwork:
    """Up to four layers with maps from the image and from any earlier layer."""
    torch.manual_seed(draw(st.integers(0, 9)))
    channels = draw(st.sampled_from([1, 2]))
    nonnegative = partial(Convolution, nonnegative=True)
    layers: list[cl.ConvexLayer] = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        h = draw(st.sampled_from(list((NAMED if number == 1 else MONOTONE).values())))
        width = 2 * h.group
        skip = number == 1 or draw(st.booleans())
        options = {"padding": draw(st.sampled_from(["zero", "reflect", "circular"]))}
        maps: dict = {"skip": Convolution(channels, width, 3, **options)} if skip else {}
        if number > 1 and (not skip or draw(st.booleans())):
            maps["previous"] = nonnegative(2, width, draw(st.sampled_from([1, 3])), **options)
            maps["residual"] = draw(st.booleans())
        for source in range(1, number - 1):
            if draw(st.booleans()):
                maps.setdefault("links", {})[source] = nonnegative(2, width, 1)
        layers.append(cl.ConvexLayer(h, channels=width, bias=draw(st.booleans()), **maps))
    if draw(st.booleans()):
        top = draw(st.sampled_from([
            Chain(AveragePool(2), Dense(2 * 4 * 3, 3, nonnegative=True)),
            Chain(nonnegative(2, 3, 3, stride=2), PixelSum(mean=True)),
        ]))  # fmt: skip
        layers.append(cl.ConvexLayer(cl.ReLU(), channels=3, previous=top))
    net = cl.InputConvexNetwork(layers, in_channels=channels, image_size=(8, 6))
    for layer in layers:
        if layer.bias is not None:
            layer.bias.data.normal_()
    return net


@given(net=general_networks())
def test_any_network_of_the_general_form(net, tmp_path_factory):
    """Convex, the same in files, and certified: the bound is below every objective."""
    shape = (net.in_channels, 8, 6)
    assert_convex(net, shape)
    x = torch.rand(6, *shape)
    again = cl.load(cl.save(net, tmp_path_factory.mktemp("general") / "net"))
    assert torch.equal(again(x), net(x))
    problem = stated(net, x[:1], 0.1)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=40))
    certificate = cl.certify(problem, solution.x, solution.duals)  # and the checker agrees
    near = solution.x + torch.logspace(-4, 0, 6)[:, None, None, None] * torch.randn(6, *shape)
    values = torch.cat([problem.objective(each[None]) for each in near])
    assert (values >= certificate.lower_bound).all()


# The paper's networks, by hand


def test_the_papers_baseline():
    net = cl.networks.baseline(image_size=32, channels=6, pool=8, hidden=10)
    net.layers[0].bias.data.normal_()
    net.layers[1].bias.data.normal_()
    x = torch.rand(2, 1, 32, 32)
    z = F.leaky_relu(F.conv2d(x, net.layers[0].skip.weight, net.layers[0].bias, padding=2), 0.2)
    dense = net.layers[1].previous.maps[1].weight
    hidden = F.relu(F.avg_pool2d(z, 8).flatten(1) @ dense.T + net.layers[1].bias)
    torch.testing.assert_close(net(x), hidden @ net.output)
    large = cl.networks.baseline(image_size=256)
    shapes = {name: tuple(p.shape) for name, p in large.named_parameters()}
    assert shapes["layers.0.skip.weight"] == (32, 1, 5, 5)
    assert shapes["layers.1.previous.maps.1.weight"] == (256, 32 * 16 * 16)


def test_the_papers_deep_network():
    net = cl.networks.deep(image_size=(16, 32), channels=4, pool=8, hidden=5, smoothing=0.1)
    x = torch.rand(2, 1, 16, 32)
    h = net.layers[0].activation.value
    z = h(F.conv2d(x, net.layers[0].skip.weight, net.layers[0].bias, padding=2))
    for layer in (net.layers[1], net.layers[2]):
        z = h(F.conv2d(z, layer.previous.weight, layer.bias, padding=2))
    a = F.avg_pool2d(z, 8).flatten(1) @ net.layers[3].previous.maps[1].weight.T
    expected = cl.SmoothedReLU(smoothing=0.1).value(a + net.layers[3].bias) @ net.output
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize("padding", ["zero", "circular", "reflect", "replicate"])
def test_convolutional_networks_take_images_of_any_size(padding):
    mode = {"zero": "constant"}.get(padding, padding)
    net = cl.networks.convolutional(channels=3, kernel=5, padding=padding)
    for size in ((9, 8), (5, 11)):
        x = torch.rand(2, 1, *size)
        z = F.leaky_relu(F.conv2d(F.pad(x, (2,) * 4, mode=mode), net.layers[0].skip.weight), 0.2)
        z = F.relu(F.conv2d(F.pad(z, (2,) * 4, mode=mode), net.layers[1].previous.weight))
        torch.testing.assert_close(net(x), z.mean(1).sum((1, 2)))


def test_residual_layers_and_links():
    net, x = zoo.network("residual last", cl.ReLU()), clean_images(2)
    first, second = net.layers
    z = F.relu(F.conv2d(x, first.skip.weight, first.bias, padding=1))
    a = F.conv2d(x, second.skip.weight, padding=1)
    a = a + F.conv2d(z, second.previous.weight, second.bias, padding=1)
    expected = ((z + F.relu(a)) * net.output[:, None, None]).sum((1, 2, 3))
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 7), (1, 1, 5), (2, 5, 1), (1, 1, 1)])
def test_total_variation(isotropic, shape):
    """sum |grad x| by loops over pixels."""
    net, image = cl.TotalVariation(isotropic, in_channels=shape[0]), torch.randn(1, *shape)
    image[:, :, :2] = 0.5  # flat somewhere
    x, total = image[0].numpy(), 0.0
    for c, i, j in np.ndindex(*shape):
        down = x[c, i + 1, j] - x[c, i, j] if i + 1 < shape[1] else 0.0
        right = x[c, i, j + 1] - x[c, i, j] if j + 1 < shape[2] else 0.0
        total += np.hypot(down, right) if isotropic else abs(down) + abs(right)
    assert float(net(image)) == pytest.approx(total, rel=1e-13)
    assert_convex(net, shape)
    assert not any(p.requires_grad for p in net.parameters())
    net.project_()
    assert net.float().output.eq(1).all()


# Assumption 1, and shapes


def layer(activation=None, **kwargs):
    kwargs.setdefault("channels", 3)
    return cl.ConvexLayer(activation or cl.ReLU(), **kwargs)


def conv(out=3, into=1, kernel_size=3, **kwargs):
    return Convolution(into, out, kernel_size, **kwargs)


def positive_conv(out=3):
    return conv(out, 3, nonnegative=True)


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
            lambda: [layer(skip=conv()), layer(previous=Chain(ForwardDifferences()), channels=6)],
            "layer 2, map from layer 1, has the weight -1",
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
                layer(skip=conv()), layer(previous=positive_conv(), links={1: positive_conv()})
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
                layer(skip=conv()), layer(previous=positive_conv(2), channels=2, residual=True)
            ],
            "layer 2 is residual, but its shape",
        ),
        (
            lambda: [layer(skip=conv()), layer(previous=Dense(9, 4, nonnegative=True), channels=4)],
            "a dense map from 9 features does not fit",
        ),
        (lambda: [layer(cl.GroupNorm(2), channels=5, skip=conv(5))], "does not divide channels=5"),
    ],
)  # fmt: skip
def test_networks_that_are_not_convex_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        cl.InputConvexNetwork(build())


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("layers.1.previous.maps.1.weight", -0.25, "map from layer 1, has the weight -0.25"),
        ("output", math.nan, "output is not finite"),
        ("output", -1.0, "output weights contain -1"),
        ("layers.0.shares", -1.0, "shares of layer 1 must be nonnegative"),
    ],
)
def test_so_are_weights_when_loaded(name, number, message):
    net = zoo.network("plain", NAMED["mixture"])
    state = copy.deepcopy(net.state_dict())
    state[name].view(-1)[0] = number
    with pytest.raises(ValueError, match=message):
        net.load_state_dict(state)


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


# Networks that read the data


def constant(architecture: str, number: float, h: cl.Activation = cl.Huber(0.3), **options):  # noqa: B008
    count = zoo.adaptive(architecture, h).guide.outputs
    return zoo.adaptive(architecture, h, guide=zoo.Constant(number, count), **options)


@pytest.mark.parametrize("number", [-math.inf, -1e4, 0.0, 1e4, math.inf])
@pytest.mark.parametrize("architecture", zoo.ADAPTIVE)
def test_what_is_read_stays_in_its_bounds_whatever_the_guide_says(architecture, number):
    net = constant(architecture, number, floor=0.01, largest_bias=2.0)
    share = 0.01 + 0.99 * float(torch.sigmoid(torch.tensor(number))) ** 2
    fixed = net.condition(clean_images(1), NOISE)
    for name, read in fixed.readings.items():
        expected = 2 * NOISE * math.tanh(number) if name.startswith("bias") else share
        if name == "output":
            own = share if "output" in net.reads else 1.0
            expected = own * NOISE * net.output.detach()[:, None, None].expand_as(read[0])
            torch.testing.assert_close(read[0].detach(), expected)
        else:
            torch.testing.assert_close(read, torch.full_like(read, expected))
    solution = cl.solve(stated(net, clean_images(1)))
    assert solution.status == (cl.Status.CONVERGED,)


def test_the_value_is_that_of_the_formula():
    net, y, x = zoo.adaptive("adaptive deep"), clean_images(2), torch.rand(2, 1, SIZE, SIZE)
    first, second = net.layers
    read = net.readings(y, NOISE)
    assert list(read) == ["output", "bias_1", "bias_2", "link_2_1"]
    a = F.conv2d(F.pad(x, (1,) * 4, mode="reflect"), first.skip.weight) + read["bias_1"]
    z = cl.Huber(0.3 * NOISE).value(a) * read["link_2_1"]
    a = F.conv2d(z, second.previous.weight, padding=1) + read["bias_2"]
    expected = (read["output"] * F.relu(a)).sum((1, 2, 3))
    torch.testing.assert_close(net.condition(y, NOISE)(x), expected)


@pytest.mark.parametrize("activation", ["huber", "abs", "group huber", "mixture"])
@pytest.mark.parametrize("architecture", zoo.ADAPTIVE)
def test_other_noise_levels_are_other_units(architecture, activation):
    """With a guide that does not read the level, R(c x; c y, c noise) = c^2 R(x; y, noise)."""
    net = constant(architecture, 0.3, NAMED[activation])
    x, y, c = torch.rand(1, 1, SIZE, SIZE), clean_images(1), 2.5
    scaled = net.condition(c * y, c * NOISE)(c * x)
    torch.testing.assert_close(scaled, c**2 * net.condition(y, NOISE)(x))


@pytest.mark.parametrize("guide", ["u-net", "noise", "scattered"])
def test_images_have_their_own_noise_levels(guide, tmp_path):
    """Where nothing is smoothed by the level; and guides are the same in files."""
    net = zoo.adaptive("adaptive biases", cl.Abs(), guide=guide)
    levels, y = torch.tensor([0.05, 0.4]), clean_images(2)
    whole = net.condition(y, levels).readings
    again = cl.load(cl.save(net, tmp_path / "net")).condition(y, levels).readings
    for i in range(2):
        alone = net.condition(y[i : i + 1], float(levels[i])).readings
        for name, read in alone.items():
            torch.testing.assert_close(whole[name][i : i + 1], read, rtol=1e-12, atol=1e-14)
            assert torch.equal(again[name], whole[name])
            assert read.shape[2:] == ((1, 1) if guide == "noise" else (SIZE, SIZE))
    with pytest.raises(ValueError, match="one problem for each noise level"):
        zoo.adaptive().condition(y, levels)


def test_weights_are_interpolated_in_the_logarithm_and_constant_beyond():
    guide = cl.networks.NoiseGuide(1, 2, levels=(0.01, 0.1, 0.4))
    guide.numbers.data.copy_(torch.tensor([[1.0, 0.0], [3.0, 1.0], [7.0, -1.0]]))
    noise = torch.tensor([0.001, 0.01, 0.1 / 10**0.5, 0.1, 0.2, 0.4, 2.0])
    pictures = torch.zeros(7, 1, 5, 5)
    found = guide(pictures, noise.reshape(-1, 1, 1, 1), torch.ones_like(pictures))[:, :, 0, 0]
    first, second = [1, 1, 2, 3, 5, 7, 7], [0, 0, 0.5, 1, 0, -1, -1]
    torch.testing.assert_close(found, torch.tensor([first, second], dtype=found.dtype).T)


def test_networks_of_certain_data_belong_to_them(tmp_path):
    y, net = clean_images(3), zoo.adaptive()
    of_two = net.condition(y[:2], NOISE)
    with pytest.raises(ValueError, match="weights of 2 images, and these are data of 3"):
        cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=of_two, weight=1.0)
    with pytest.raises(ValueError, match="save the adaptive network"):
        cl.save(of_two, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="Constant is not registered for files"):
        cl.save(constant("adaptive", 0.0), tmp_path / "net")
    for number in (-1e-9, 1.1, math.nan):
        deep = zoo.adaptive("adaptive deep").condition(y[:1], NOISE)
        deep.link_2_1.data[0, 1, 2, 3] = number
        with pytest.raises(ValueError, match="link_2_1"):
            deep.check_convexity()


Y = torch.rand(1, 1, 8, 8, dtype=torch.float64)
LAYERS = partial(zoo.adaptive_layers, "two layers", cl.Huber(0.3))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *((lambda n=n: zoo.adaptive().condition(torch.cat([Y, Y]), n), "noise must be a positive")
          for n in (0.0, -1.0, 1e-200, 1e200, math.nan, math.inf, torch.ones(3))),
        (lambda: constant("adaptive", math.nan).condition(Y), "weights that are not finite"),
        (lambda: zoo.adaptive()(Y), "reads its weights off the data"),
        (lambda: zoo.adaptive().condition(Y.expand(-1, 3, -1, -1)), r"\(batch, 1, H, W\), got"),
        (lambda: zoo.adaptive().condition(Y / 0 * 0), r"picture for the guide is nan at \(0, 0, 0"),
        (lambda: zoo.adaptive().condition(Y)(torch.rand(1, 1, 9, 9)), "condition the network on"),
        (
            lambda: cl.VariationalProblem(
                fidelity=cl.SquaredL2(Y), regularizer=zoo.adaptive(), weight=1.0
            ),
            "give noise=",
        ),
        (
            lambda: cl.VariationalProblem(
                fidelity=cl.SquaredL2(Y), regularizer=cl.TotalVariation(), weight=1.0, noise=NOISE
            ),
            "leave it out",
        ),
        (lambda: zoo.adaptive(guide=zoo.Constant(0.0, 5)), "gives 5 numbers"),
        (lambda: zoo.adaptive(floor=0.0), r"floor must be in \(0, 1\]"),
        (lambda: zoo.adaptive(largest_bias=0.0), "needs largest_bias > 0"),
        *((lambda r=r: cl.networks.AdaptiveNetwork(LAYERS(), zoo.Scattered(), reads=r),
           "one or several of output, biases, links, bias_1, bias_2, link_2_1; got ")
          for r in ((), ("weights",), "biases", ("output", "bias_3"), ("link_1_2",))),
        (
            lambda: cl.networks.AdaptiveNetwork([layer(skip=conv())], zoo.Scattered(1, 3)),
            "no biases",
        ),
        (
            lambda: cl.networks.AdaptiveNetwork(
                [layer(skip=conv(stride=2), bias=False)], zoo.Scattered(1, 3)
            ),
            "without strides, pooling or dense maps",
        ),
        (lambda: cl.networks.adaptive(depth=0), "depth must be at least 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_data_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
