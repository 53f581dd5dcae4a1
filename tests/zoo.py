"""Small problems of every kind: activations x architectures x fidelities x boxes."""

from __future__ import annotations

import parts
import torch
from torch import Tensor

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense

SIZE = 8

NAMED = {entry.name: entry.h for entry in parts.ACTIVATIONS if entry.name}
MONOTONE = {name: h for name, h in NAMED.items() if h.nondecreasing}
GROUPS = {name: h for name, h in NAMED.items() if h.group > 1}
FIRST_LAYER_ONLY = {name: h for name, h in NAMED.items() if not h.nondecreasing}
ACTIVATIONS = [entry.h for entry in parts.ONE_BY_ONE]

ARCHITECTURES = ("plain", "skips", "residual", "deep")
FIDELITIES = ("L1", "L2", "masked L2", "KL")
BOXES = {"no box": None, "box": (0.0, 1.0), "x >= 0": (0.0, None)}


def network(
    architecture: str, activation: cl.Activation, channels: int = 1
) -> cl.InputConvexNetwork:
    """A network with random weights; deterministic for each architecture."""
    monotone = activation if activation.nondecreasing else cl.LeakyReLU(0.2)
    image = channels
    width, pooled = 3, 3 * (SIZE // 2) ** 2

    def v(out: int) -> Convolution:
        return Convolution(image, out, 3)

    def w(stride: int = 1, padding: str = "zero") -> Convolution:
        return Convolution(width, width, 3, stride=stride, padding=padding, nonnegative=True)

    def top(**links: object) -> cl.ConvexLayer:
        head = Chain(AveragePool(2), Dense(pooled, 4, nonnegative=True))
        return cl.ConvexLayer(cl.ReLU(), channels=4, previous=head, **links)

    wide = width * activation.group
    first = cl.ConvexLayer(activation, channels=wide, skip=v(wide))
    if architecture == "plain":
        layers = [first, top()]
    elif architecture == "skips":
        second = cl.ConvexLayer(monotone, channels=width, skip=v(width), previous=w())
        third = top(links={1: Dense(3 * SIZE**2, 4, nonnegative=True)})
        layers = [first, second, third]
    elif architecture == "residual":
        second = cl.ConvexLayer(monotone, channels=width, previous=w(), residual=True)
        layers = [first, second, top()]
    elif architecture == "deep":
        second = cl.ConvexLayer(monotone, channels=width, previous=w(padding="circular"))
        third = cl.ConvexLayer(monotone, channels=width, previous=w())
        layers = [first, second, third, top()]
    elif architecture == "residual last":
        second = cl.ConvexLayer(
            cl.ReLU(), channels=width, skip=v(width), previous=w(), residual=True
        )
        layers = [first, second]
    else:
        raise ValueError(architecture)
    net = cl.InputConvexNetwork(layers, in_channels=image, image_size=(SIZE, SIZE))
    generator = torch.Generator().manual_seed(len(architecture))
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:  # biases and output weights
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
        net.project_()
        net.output.copy_(torch.rand(net.output.shape, generator=generator) + 0.2)
        net.layers[-1].bias.abs_().add_(1.5)  # units that are on
    # Scaled so that the gradient at an image is about one a pixel: regularizers that matter.
    image_batch = clean_images(1, channels).requires_grad_()
    (gradient,) = torch.autograd.grad(net(image_batch).sum(), image_batch)
    net.output.data /= gradient.abs().mean()
    return net


def clean_images(batch: int, channels: int = 1) -> Tensor:
    """Smooth blobs in [0.1, 0.9] with an edge."""
    generator = torch.Generator().manual_seed(3)
    grid = torch.linspace(0, 1, SIZE)
    x, y = torch.meshgrid(grid, grid, indexing="ij")
    phase = torch.rand((batch, channels, 1, 1), generator=generator) * 6
    waves = 0.5 + 0.25 * torch.sin(4 * x + phase) + 0.15 * (y > 0.5)
    return waves.clamp(0.1, 0.9)


def fidelity(name: str, batch: int = 1, channels: int = 1) -> tuple[cl.Fidelity, cl.LinearOperator]:
    """A fidelity with noisy data, and its operator."""
    generator = torch.Generator().manual_seed(5)
    clean = clean_images(batch, channels)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=generator)
    mask = torch.rand((SIZE, SIZE), generator=generator) > 0.3
    if name == "L1":
        hit = torch.rand(clean.shape, generator=generator) < 0.2
        return cl.L1(torch.where(hit, 1.0, clean), 0.3), cl.Identity()
    if name == "L2":
        return cl.SquaredL2(noisy), cl.Identity()
    if name == "masked L2":
        return cl.SquaredL2(mask * noisy), cl.Mask(mask.to(torch.get_default_dtype()))
    if name == "weighted L2":  # some pixels were not measured, and hold nonsense
        weights = mask * (0.2 + 3 * torch.rand(clean.shape, generator=generator))
        return cl.WeightedL2(torch.where(mask, noisy, 50.0), weights), cl.Identity()
    if name == "KL":
        counts = torch.poisson(20 * clean + 1, generator=generator)
        return cl.KullbackLeibler(counts, 1.0), 20 * cl.Identity()
    raise ValueError(name)


def problem(
    architecture: str = "plain",
    activation: cl.Activation = MONOTONE["leaky"],
    fidelity_name: str = "L2",
    box: str = "no box",
    batch: int = 1,
    channels: int = 1,
) -> cl.VariationalProblem:
    """One of all combinations."""
    data, operator = fidelity(fidelity_name, batch, channels)
    weight = {"L1": 0.3, "KL": 3.0}.get(fidelity_name, 0.1)
    return cl.VariationalProblem(
        fidelity=data,
        operator=operator,
        regularizer=network(architecture, activation, channels),
        weight=weight,
        box=BOXES[box],
    )
