"""Gradients that are written out, against those that autograd differentiates twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import parts
import pytest
import torch
import zoo
from hypergradient_cases import energy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import convexlift as cl
from convexlift.networks import bound_network
from convexlift.networks.activations import PiecewiseLinear
from convexlift.networks.architectures import baseline, ridge
from convexlift.solvers.derivatives import gradient, hessian, movable
from convexlift.solvers.hypergradients import upper_loss
from convexlift.solvers.linear_solvers import conjugate_gradients
from convexlift.tasks import GaussianDenoising
from convexlift.training import (
    Adversarial,
    BatchSampler,
    Hypergradient,
    ImageSet,
    Implicit,
    JacobianFree,
    Unrolled,
)

EVERY_H = [entry.h for entry in parts.ACTIVATIONS]
KINKED = [h for h in EVERY_H if isinstance(h, PiecewiseLinear)]
NAMED_KINDS = {type(h) for h in zoo.NAMED.values()}
# A network of linear layers has no kinks or bends to test.
OTHERS = [h for h in EVERY_H if type(h) not in {*NAMED_KINDS, cl.Linear}]
ACTIVATIONS = zoo.NAMED | {type(h).__name__: h for h in OTHERS}
"""Of whole networks: those with a name in ``parts``, and one of each class without."""
CURVED = [  # at 0, where preactivations are likely to be
    name
    for name, h in ACTIVATIONS.items()
    if h.smooth and getattr(h, "profile", h).curvature_at_zero > 0
]


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
    ours = bound_network.gradient(net.bind((1, zoo.SIZE, zoo.SIZE), detach=False), x)
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
    ours = bound_network.hessian(net.bind((1, zoo.SIZE, zoo.SIZE)), x.detach())(v)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)
    if activation in CURVED:
        assert ours.abs().max() > 0


@pytest.mark.parametrize("h", EVERY_H, ids=repr)
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


@pytest.mark.parametrize("h", KINKED, ids=repr)
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


# Hypergradients


class Referee(Hypergradient):
    """The strategies, with autograd's derivatives of autograd's gradient of the energy."""

    def __init__(self, strategy: Hypergradient) -> None:
        self.strategy = strategy

    @staticmethod
    def gradient(problem, x):
        x = x if x.requires_grad else x.detach().requires_grad_()
        total = energy(problem, x).sum()
        return x, torch.autograd.grad(total, x, create_graph=True)[0]

    def surrogate(self, problem, solution, truth):
        x = solution.x.detach()
        if isinstance(self.strategy, Implicit):
            free = movable(problem, x)
            x, slope = self.gradient(problem, x)

            def apply(v):
                (image,) = torch.autograd.grad(slope, x, v, retain_graph=True)
                return free * image + self.strategy.damping * v

            right = free * (x.detach() - truth)
            options = {"iterations": self.strategy.iterations, "tolerance": self.strategy.tolerance}
            q = conjugate_gradients(apply, right, start=torch.zeros_like(right), **options)
            return -(q * slope).flatten(1).sum(1)
        steps = self.strategy.steps if isinstance(self.strategy, Unrolled) else 1
        for _ in range(steps):
            x, slope = self.gradient(problem, x)
            x = problem.bounds.project(x - self.strategy.step * slope)
        return upper_loss(x, truth)


def problem_of(architecture: str, activation: str, data: str) -> cl.VariationalProblem:
    problem = zoo.problem(architecture, ACTIVATIONS[activation], "L2", "box", batch=2)
    y = problem.fidelity.y
    if data == "blurred L2":
        blur = cl.Blur(torch.rand(3, 3) / 9)
        return replace(problem, fidelity=cl.SquaredL2(blur(y)), operator=blur)
    if data == "L2":
        return problem
    if data == "dark KL":  # where y = 0 = A x there is no background either
        counts = torch.poisson(20 * y.clamp_min(0))
        counts[:, :, :2] = 0.0
        mask = torch.ones(zoo.SIZE, zoo.SIZE)
        mask[:2] = 0.0
        operator = 20 * cl.Identity() @ cl.Mask(mask)
        return replace(problem, fidelity=cl.KullbackLeibler(counts), operator=operator, weight=3.0)
    fidelity, operator = zoo.fidelity(data, batch=2)
    weight = 1.0 if data == "L1" else 0.1  # enough for some pixels to leave the data
    return replace(problem, fidelity=fidelity, operator=operator, weight=weight)


STRATEGIES = [JacobianFree(0.05), Unrolled(3, step=0.05), Implicit(iterations=5, tolerance=1e-12)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("data", ["L2", "masked L2", "L1", "KL", "dark KL", "blurred L2"])
@pytest.mark.parametrize(
    ("architecture", "activation"),
    [("plain", "smoothed"), ("skips", "leaky"), ("deep", "softplus"), ("plain", "group huber")],
)
def test_hypergradients_are_those_of_two_backward_passes(strategy, data, architecture, activation):
    problem = problem_of(architecture, activation, data)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=20))
    truth = zoo.clean_images(2)
    results = []
    for each in (strategy, Referee(strategy)):
        weight = torch.tensor(problem.weight, requires_grad=True)
        surrogate = each.surrogate(replace(problem, weight=weight), solution, truth)
        inputs = [weight, *problem.regularizer.parameters()]
        gradients = torch.autograd.grad(surrogate.sum(), inputs, materialize_grads=True)
        results.append((surrogate.detach(), *gradients))
    scale = max(float(g.abs().max()) for g in results[1][1:])
    assert scale > 0
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9 * scale, rtol=1e-8)


def test_the_gradient_of_the_objective_is_differentiable_in_the_weight():
    weight = torch.tensor(0.7, requires_grad=True)
    problem = replace(problem_of("plain", "smoothed", "L2"), weight=weight)
    x = zoo.clean_images(2).requires_grad_()
    (expected,) = torch.autograd.grad(energy(problem, x).sum(), x, create_graph=True)
    ours = gradient(problem, x)
    torch.testing.assert_close(ours, expected)
    assert_same_derivatives(ours, expected, [x, weight])


class Opaque(cl.LinearOperator):
    """A blur that autograd cannot look into."""

    def __init__(self, blur: cl.Blur) -> None:
        self.blur = blur

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.blur(x)

    @torch.no_grad()
    def adjoint(self, y: Tensor) -> Tensor:
        return self.blur.adjoint(y)


def test_operators_need_no_autograd():
    problem = problem_of("plain", "smoothed", "blurred L2")
    assert isinstance(problem.operator, cl.Blur)
    hidden = replace(problem, operator=Opaque(problem.operator))
    x, v = zoo.clean_images(2), torch.randn(2, 1, zoo.SIZE, zoo.SIZE)
    torch.testing.assert_close(hessian(hidden, x)(v), hessian(problem, x)(v))
    slopes = []
    for each in (hidden, problem):
        at = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad((v * gradient(each, at)).sum(), at)[0])
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(slopes[0], hessian(problem, x)(v))


# Training


def batch_and_network(activation: str):
    torch.manual_seed(3)
    images = ImageSet.from_tensors([torch.rand(zoo.SIZE, zoo.SIZE) for _ in range(3)])
    batch = BatchSampler(images, 3).batch(0)
    return replace(batch, clean=batch.clean.double()), zoo.network("skips", ACTIVATIONS[activation])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_adversarial_loss_is_that_of_two_backward_passes(activation):
    batch, net = batch_and_network(activation)
    ours = Adversarial(GaussianDenoising(0.3), 7.0)(net, batch)
    damaged = GaussianDenoising(0.3).measure(batch.clean, batch.generators()).picture
    places = [torch.rand((), generator=g) for g in batch.generators(stream=1)]
    s = torch.stack(places).reshape(3, 1, 1, 1)
    between = (s * batch.clean + (1 - s) * damaged).requires_grad_()
    steepness = by_autograd(net, between).flatten(1).norm(dim=1)
    assert (steepness > 1).any()
    theirs = 7.0 * (steepness - 1).clamp_min(0).square().mean()
    theirs = theirs + (net(batch.clean) - net(damaged)).mean()
    torch.testing.assert_close(ours.surrogate, theirs)
    parameters = list(net.parameters())
    pairs = [torch.autograd.grad(loss, parameters) for loss in (ours.surrogate, theirs)]
    for left, right in zip(*pairs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-8)


class Kernels(TorchDispatchMode):
    """Remembers the largest kernel of all convolutions, those of backward passes included."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.convolution.default, torch.ops.aten.conv2d.default):
            self.largest = max(self.largest, *args[1].shape[-2:])
        return function(*args, **(kwargs or {}))


@contextmanager
def small_kernels_only(size: int) -> Iterator[None]:
    with Kernels() as kernels:
        yield
    assert 0 < kernels.largest <= size


def test_no_convolution_has_kernels_as_large_as_the_image():
    """What autograd's derivative of the derivative of a convolution is."""
    torch.manual_seed(0)
    images = ImageSet.from_tensors([torch.rand(16, 16) for _ in range(2)])
    batch = BatchSampler(images, 2).batch(0)
    batch = replace(batch, clean=batch.clean.double())
    for net in (baseline(16, pool=4, channels=4), baseline(16, pool=4, smoothing=0.1)):
        with small_kernels_only(5):
            Adversarial(GaussianDenoising(0.3))(net, batch).surrogate.backward()
    net = ridge(channels=4, kernel=3, smoothing=0.1)
    problem = GaussianDenoising(0.3).measure(batch.clean, batch.generators()).problem(net, 0.1)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=20))
    for strategy in (JacobianFree(), Unrolled(2), Implicit()):
        with small_kernels_only(3):
            strategy.surrogate(problem, solution, batch.clean).sum().backward()
    with pytest.raises(AssertionError), small_kernels_only(3):
        Referee(Implicit()).surrogate(problem, solution, batch.clean).sum().backward()
