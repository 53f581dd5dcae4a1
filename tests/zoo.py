"""Small problems of every kind: activations x architectures x fidelities x boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import parts
import torch
from torch import Tensor

import convexlift as cl
from convexlift.networks import (
    AdaptiveNetwork,
    AveragePool,
    Chain,
    Convolution,
    Dense,
    Guide,
    NoiseGuide,
    UNetGuide,
)

SIZE = 8

NAMED = {entry.name: entry.h for entry in parts.ACTIVATIONS if entry.name}
MONOTONE = {name: h for name, h in NAMED.items() if h.nondecreasing}
FIRST_LAYER_ONLY = {name: h for name, h in NAMED.items() if not h.nondecreasing}
ACTIVATIONS = [entry.h for entry in parts.ONE_BY_ONE]

ARCHITECTURES = ("plain", "skips", "residual", "deep")
NOISE = 0.1
EVERYTHING = ("output", "biases", "links")
ADAPTIVE: dict[str, tuple[str, tuple[str, ...]]] = {
    "adaptive": ("one layer", ("output",)),
    "adaptive biases": ("one layer", ("output", "biases")),
    "adaptive residual": ("residual", EVERYTHING),
    "adaptive deep": ("two layers", EVERYTHING),
    "adaptive links": ("linked", ("links", "bias_3")),
    "adaptive pooled": ("pooled", ("bias_1", "bias_2")),
}
"""Networks whose weights a guide reads off the data: their layers, and what is read."""
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


class Scattered(Guide, name="ScatteredOfTests"):
    """Random numbers, some of them infinite: other weights for neighbouring pixels."""

    def __init__(self, in_channels: int = 1, outputs: int = 4, spread: float = 3.0) -> None:
        super().__init__()
        self.in_channels, self.outputs, self.spread = in_channels, outputs, spread

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        numbers = []
        for image in picture.double():  # each has its own, alone and in a batch
            generator = torch.Generator().manual_seed(int(1e6 * float(image.mean())))
            numbers.append(torch.randn((self.outputs, *image.shape[1:]), generator=generator))
        drawn = self.spread * torch.stack(numbers).to(picture)
        return torch.where(drawn.abs() > 2 * self.spread, drawn * math.inf, drawn)


class Constant(Guide):
    """The same number everywhere."""

    def __init__(self, number: float, outputs: int = 4) -> None:
        super().__init__()
        self.number, self.in_channels, self.outputs = number, 1, outputs

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        return picture.new_full((len(picture), self.outputs, *picture.shape[2:]), self.number)


def adaptive_layers(kind: str, h: cl.Activation, channels: int = 1) -> list[cl.ConvexLayer]:
    """Layers with four outputs, and without biases."""
    wide = 4 * h.group
    filters = Convolution(channels, wide, 3, padding="reflect")
    made = [cl.ConvexLayer(h, channels=wide, skip=filters, bias=False)]
    if kind != "one layer":
        previous, residual = Convolution(4, 4, 3, nonnegative=True), kind == "residual"
        options = {"previous": previous, "residual": residual, "bias": False}
        made.append(cl.ConvexLayer(cl.ReLU(), channels=4, **options))
    maps = {"previous": Convolution(4, 4, 3, nonnegative=True)}
    if kind == "linked":
        links = {1: Convolution(4, 4, 1, nonnegative=True)}
        maps |= {"skip": Convolution(channels, 4, 3), "links": links}
    elif kind == "pooled":
        maps = {"previous": Chain(AveragePool(2), maps["previous"])}
    if kind in ("linked", "pooled"):
        third = cl.SmoothedReLU(smoothing=0.1)
        made.append(cl.ConvexLayer(third, channels=4, bias=False, **maps))
    return made


def numbers_read(layers: Sequence[cl.ConvexLayer], reads: Sequence[str]) -> int:
    """How many numbers for each pixel a guide gives."""
    counts = {"output": layers[-1].outputs}
    for i, layer in enumerate(layers, start=1):
        counts[f"bias_{i}"] = layer.channels
        sources = [i - 1] * (layer.previous is not None) + [int(j) for j in layer.links]
        counts |= {f"link_{i}_{j}": layers[j - 1].outputs for j in sources}
    starts = tuple({"biases": "bias_", "links": "link_"}.get(read, read) for read in reads)
    return sum(count for name, count in counts.items() if name.startswith(starts))


def adaptive(
    architecture: str = "adaptive",
    activation: cl.Activation = cl.Huber(0.3),  # noqa: B008 - frozen
    channels: int = 1,
    guide: str | Guide = "scattered",
    **options: object,
) -> AdaptiveNetwork:
    """A network that reads the data; deterministic."""
    torch.manual_seed(len(architecture))
    kind, reads = ADAPTIVE[architecture]
    layers = adaptive_layers(kind, activation, channels)
    count = numbers_read(layers, reads)
    if guide == "scattered":
        guide = Scattered(channels, count)
    elif guide == "noise":
        guide = NoiseGuide(channels, count, levels=[0.01, 1.0])
        guide.numbers.data.normal_()
    elif guide == "u-net":
        guide = UNetGuide(channels, count, widths=(3, 4), blocks=1)
        for parameter in guide.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    assert isinstance(guide, Guide)
    net = AdaptiveNetwork(layers, guide, in_channels=channels, reads=reads, **options)
    with torch.no_grad():
        net.output.copy_(torch.tensor([3.0, 1.0, 2.0, 0.0]))
        for layer in layers[1:]:
            for parameter in layer.parameters():
                parameter.mul_(3)
    return net


def guided(channels: int = 1, smoothing: float = 0.1, **options: object) -> AdaptiveNetwork:
    """An ordinary small network whose guide, a U-Net, answers to every pixel."""
    torch.manual_seed(channels)
    net = cl.networks.adaptive(
        in_channels=channels, channels=4, kernel=3, widths=(4, 6), blocks=1, smoothing=smoothing,
        **options,
    )  # fmt: skip
    with torch.no_grad():
        net.output.copy_(1 + torch.rand(net.output.shape))
        for parameter in net.guide.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape))
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
    reads = architecture in ADAPTIVE
    return cl.VariationalProblem(
        fidelity=data,
        operator=operator,
        regularizer=(adaptive if reads else network)(architecture, activation, channels),
        weight=20 * weight if reads else weight,
        box=BOXES[box],
        noise=NOISE if reads else None,
    )
