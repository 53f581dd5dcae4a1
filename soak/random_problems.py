"""Random problems of every kind the library can state, most of them at unreasonable scales."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

import torch
from torch import Tensor

import convexlift as cl
from convexlift.networks import (
    AdaptiveNetwork,
    AveragePool,
    Chain,
    Convolution,
    Dense,
    ForwardDifferences,
    Guide,
    NoiseGuide,
    UNetGuide,
)
from convexlift.operators.imaging import Diagonal
from convexlift.parts import known_parts

BOUNDARIES = ("zero", "circular", "reflect", "replicate")


@dataclass(frozen=True)
class Case:
    """A problem, how it is to be solved, and what it is made of, in words."""

    seed: int
    problem: cl.VariationalProblem
    method: cl.Method | None
    stop: cl.StopWhen
    words: tuple[str, ...]
    tame: bool  # ordinary scales only
    autocast: bool
    threads: int


class Draw:
    """Random choices of one case, all from its seed."""

    def __init__(self, seed: int, tame: bool = False) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.words: list[str] = []
        self.tame = self.random.random() < 0.3 or tame

    def one_of(self, name: str, *options: str) -> str:
        """One option, remembered as ``name=option``."""
        chosen = self.random.choice(options)
        self.words.append(f"{name}={chosen}")
        return chosen

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return self.random.randint(low, high)

    def scale(self, decades: float = 8.0) -> float:
        """1 for a tame case; often a few decades away from it else, and up to 8."""
        if self.tame:
            return 10 ** self.random.uniform(-0.5, 0.5)
        reach = decades if self.chance(0.3) else 2.0
        return 10 ** self.random.uniform(-reach, reach)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.torch, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(shape, generator=self.torch, dtype=torch.float64)


def random_case(seed: int, tame: bool = False) -> Case:
    """The case with this number: always the same one; with ``tame``, at ordinary scales."""
    draw = Draw(seed, tame)
    batch = draw.random.choice((1, 1, 1, 2, 3))
    channels = draw.random.choice((1, 1, 1, 3))
    largest = 64 if draw.chance(0.05) else 12
    shape = (channels, draw.between(1, largest), draw.between(1, largest))
    dtype = (
        torch.float64 if draw.one_of("precision", "single", "double") == "double" else torch.float32
    )
    unit = draw.scale()
    network = _network(draw, shape, unit)
    operator, gain = _operator(draw, batch, shape)
    image = _images(draw, batch, shape, unit)
    fidelity = _fidelity(draw, operator.to(dtype=torch.float64)(image))
    noise = _noise(draw, network, fidelity, unit) if network.reads_data else None
    known = {} if noise is None else {"noise": noise}
    convex = network.condition(image, **known) if network.reads_data else network
    weight = _weight(draw, convex, fidelity, image, gain)
    box = _box(draw, image, isinstance(fidelity, cl.KullbackLeibler))
    problem = cl.VariationalProblem(
        fidelity=fidelity.to(dtype=dtype),
        operator=operator.to(dtype=dtype),
        regularizer=network.to(dtype),
        weight=weight,
        box=box,
        noise=noise,
    )
    stop = cl.StopWhen(
        gap=draw.random.choice((1e-2, 1e-3, 1e-3, 1e-5)),
        max_iterations=draw.random.choice((0, 20, 40, 40, 100)),
        check_every=draw.random.choice((1, 10, 10, 10)),
        seconds=5.0,
    )
    methods = {"default": None, "paper": None, "nmapg": cl.NMAPG(), "lbfgs": cl.LBFGS(),
               "subgradient": cl.Subgradient(0.1 * unit)}  # fmt: skip
    name = draw.one_of("method", "default", "default", "default", "lbfgs", "nmapg", "subgradient")
    autocast = draw.chance(0.1)
    return Case(seed, problem, methods[name], stop, tuple(draw.words), draw.tame, autocast,
                2 if draw.chance(0.05) else 1)  # fmt: skip


def _activation(draw: Draw, *, first: bool, unit: float, scaled: bool = False) -> cl.Activation:
    """One of the library's; arguments without a random value here have their defaults.

    With ``scaled``, one that can be scaled by a noise level.
    """
    width = unit * 10 ** draw.random.uniform(-3, 0)
    slope, alpha = draw.random.choice((0.1, 0.2, 0.9)), draw.random.choice((0.3, 1.0))
    size, profile = (2, cl.Abs()) if alpha == 1.0 else (3, cl.Huber(width))
    arguments = {
        "slope": slope, "smoothing": width, "delta": width, "sharpness": 1 / width,
        "alpha": alpha, "size": size, "profile": profile, "widths": (width, 2 * width, 9 * width),
    }  # fmt: skip
    usable: dict[str, cl.Activation] = {}
    for name, kind in known_parts(cl.Activation).items():
        if kind.__module__.startswith("convexlift."):  # not one that a test registered
            # A default of 0 is part of the formula: the slope of the smoothed ReLU.
            names = [each.name for each in fields(kind) if each.default != 0]
            h = kind(**{each: arguments[each] for each in names if each in arguments})
            if (first or h.nondecreasing) and not (scaled and h.scaled(2.0) is None):
                usable[name] = h
    return usable[draw.one_of("first" if first else "later", *usable)]


def _network(draw: Draw, shape: tuple[int, int, int], unit: float) -> cl.InputConvexNetwork:
    channels, height, width = shape
    kind = draw.one_of("network", "tv", "anisotropic tv", "ridge", "deep", "residual", "pooled",
                       "adaptive", "adaptive")  # fmt: skip
    if kind in ("tv", "anisotropic tv"):
        return cl.TotalVariation(kind == "tv", in_channels=channels).double()
    adaptive = kind == "adaptive"
    if adaptive:  # in units of the noise
        unit = 1.0
    h = _activation(draw, first=True, unit=unit, scaled=adaptive)
    filters = h.group * draw.between(1, 4)
    made = filters // h.group

    def convolution(inputs: int, outputs: int, **options: object) -> Convolution:
        fitting = [b for b in BOUNDARIES if b in ("zero", "replicate") or min(height, width) > 1]
        size = 3 if draw.chance(0.8) or min(height, width) < 5 else 5
        return Convolution(inputs, outputs, size, padding=draw.random.choice(fitting), **options)

    def differences() -> bool:
        return filters == 2 * channels and draw.chance(0.5)

    skip = ForwardDifferences() if differences() else convolution(channels, filters)

    def bias() -> bool:
        return draw.chance(0.7) and not adaptive

    layers = [cl.ConvexLayer(h, channels=filters, skip=skip, bias=bias())]
    deep = draw.between(1, 3)
    later = {"deep": deep, "residual": 1, "adaptive": deep - 1 if draw.chance(0.3) else 0}
    for number in range(2, 2 + later.get(kind, 0)):
        layers.append(
            cl.ConvexLayer(
                _activation(draw, first=False, unit=unit, scaled=adaptive),
                channels=made,
                previous=convolution(made, made, nonnegative=True),
                skip=convolution(channels, made) if draw.chance(0.3) else None,
                links={1: convolution(made, made, nonnegative=True)}
                if number > 2 and draw.chance(0.3)
                else None,
                bias=bias(),
                residual=kind == "residual",
            )
        )
    if kind == "pooled":
        size = draw.random.choice([n for n in (1, 2, 4) if height % n == 0 == width % n])
        features = made * (height // size) * (width // size)
        head = Chain(AveragePool(size), Dense(features, 3, nonnegative=True))
        layers.append(
            cl.ConvexLayer(_activation(draw, first=False, unit=unit), channels=3, previous=head)
        )
    image_size = (height, width) if kind == "pooled" else None
    if adaptive:
        floor = draw.random.choice((1e-12, 0.003, 0.003, 1.0))
        guide = _guide(draw, channels, layers[-1].outputs)
        network = AdaptiveNetwork(layers, guide, in_channels=channels, floor=floor)
    else:
        network = cl.InputConvexNetwork(layers, in_channels=channels, image_size=image_size)
    network.double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            size = draw.scale(3.0)
            values = draw.normal(*parameter.shape) / max(1, parameter[0].numel()) ** 0.5
            if name.endswith("bias"):
                values = unit * draw.normal(*parameter.shape)
                size = size * (1e6 if not draw.tame and draw.chance(0.03) else 1.0)
            parameter.copy_(size * values)
        network.output.copy_(draw.scale(3.0) * draw.uniform(*network.output.shape))
        if not draw.tame and draw.chance(0.3):  # channels that hardly count, and some that do not
            network.output.mul_(10 ** (-8 * draw.uniform(*network.output.shape)))
            network.output[draw.uniform(*network.output.shape) < 0.2] = 0.0
        network.project_()
    return network


class InTurn(Guide):
    """The same numbers in turn over channels and pixels, whatever the picture."""

    def __init__(self, in_channels: int, outputs: int, numbers: tuple[float, ...]) -> None:
        super().__init__()
        self.in_channels, self.outputs, self.numbers = in_channels, outputs, numbers

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """The numbers."""
        shape = (len(picture), self.outputs, *picture.shape[2:])
        order = torch.arange(math.prod(shape)) % len(self.numbers)
        return picture.new_tensor(self.numbers)[order].reshape(shape)


def _guide(draw: Draw, channels: int, outputs: int) -> Guide:
    """U-nets, whose weights are drawn later, and guides that give extreme numbers only."""
    kind = draw.one_of("guide", "u-net", "u-net", "noise", "bounds", "huge", "zeros")
    if kind == "u-net":
        widths = [draw.between(1, 4) for _ in range(draw.between(1, 3))]
        return UNetGuide(channels, outputs, widths=widths, blocks=1)
    if kind == "noise":
        return NoiseGuide(channels, outputs, levels=[0.001, 0.1, 3.0][: draw.between(1, 3)])
    numbers = {"bounds": (-math.inf, math.inf), "huge": (1e30, -1e30, 3.0), "zeros": (0.0,)}
    return InTurn(channels, outputs, numbers[kind])


def _noise(
    draw: Draw, network: cl.InputConvexNetwork, fidelity: cl.Fidelity, unit: float
) -> float | Tensor | None:
    """A level from 1e-4 to 10, or one for each image where activations allow it, or none."""
    if fidelity.likelihood != "gaussian" and draw.chance(0.3):
        return None
    shared = any(layer.activation.scaled(2.0) != layer.activation for layer in network.layers)
    count = 1 if shared or draw.chance(0.5) else len(fidelity.y)
    levels = 10 ** (5 * draw.uniform(count) - 4)
    levels *= unit if draw.tame or draw.chance(0.5) else 1.0
    return float(levels) if count == 1 else levels


def _operator(
    draw: Draw, batch: int, shape: tuple[int, int, int]
) -> tuple[cl.LinearOperator, float]:
    channels, height, width = shape
    names = ["identity", "identity", "scaled", "mask", "diagonal", "blur", "masked blur", "sum"]
    if channels == 1 and min(height, width) > 1:
        names += ["parallel", "fan"]
    kind = draw.one_of("operator", *names)
    gain = 1.0 if kind == "identity" else draw.scale()

    def kernel() -> Tensor:
        taps = draw.uniform(1 if height < 4 else 3, 1 if width < 4 else 3)
        return (taps - 0.3 * draw.chance(0.3)).to(torch.float64)

    def blur() -> cl.Blur:
        return cl.Blur(kernel(), draw.random.choice(BOUNDARIES))

    mask = (draw.uniform(height, width) < 0.7).double()
    own = (batch, channels, height, width)
    operators = {
        "identity": lambda: cl.Identity(),
        "scaled": lambda: gain * cl.Identity(),
        "mask": lambda: gain * cl.Mask(mask),
        "diagonal": lambda: Diagonal(gain * draw.normal(*own)),
        "blur": lambda: gain * blur(),
        "masked blur": lambda: gain * (cl.Mask(mask) @ blur()),
        "sum": lambda: gain * (cl.Identity() + 0.5 * blur()),
        "parallel": lambda: gain * cl.ParallelBeam((height, width), draw.between(1, 6), 7),
        "fan": lambda: (
            gain * cl.FanBeam((height, width), draw.between(1, 6), 7, 3.0 * max(height, width), 5.0)
        ),
    }
    return operators[kind](), gain


def _images(draw: Draw, batch: int, shape: tuple[int, int, int], unit: float) -> Tensor:
    """Images of one scale, or of unlike ones, with or without a large offset."""
    image = draw.uniform(batch, *shape)
    image = torch.where(image < 0.3, image.round(), image) * unit
    if not draw.tame and batch > 1 and draw.chance(0.5):
        image = image * 10 ** (4 * draw.uniform(batch, 1, 1, 1) - 2)
    if not draw.tame and draw.chance(0.25):
        draw.words.append("offset")
        image = image + unit * 10 ** draw.random.uniform(1, 8)
    return image


def _fidelity(draw: Draw, clean: Tensor) -> cl.Fidelity:
    size = max(float(clean.abs().max()), 1e-12)
    noisy = clean + size * draw.random.choice((0.0, 0.01, 0.2)) * draw.normal(*clean.shape)
    kind = draw.one_of("fidelity", "L2", "L2", "L1", "weighted", "KL", "KL without background")
    if kind == "L2":
        return cl.SquaredL2(noisy)
    if kind == "L1":
        return cl.L1(noisy, draw.scale())
    if kind == "weighted":
        weights = draw.scale() * draw.uniform(*clean.shape) * (draw.uniform(*clean.shape) > 0.2)
        return cl.WeightedL2(noisy, weights)
    counts = torch.poisson((20 * noisy / size).clamp_min(0), generator=draw.torch) * (size / 20)
    if kind == "KL":
        return cl.KullbackLeibler(counts, size * draw.random.choice((1e-3, 0.1, 10.0)))
    return cl.KullbackLeibler(counts * (clean > 0))


def _box(
    draw: Draw, image: Tensor, counts: bool
) -> tuple[float | None, float | None]:  # fmt: skip
    low, high = float(image.min()), float(image.max())
    span = max(high - low, 1e-3 * max(abs(low), abs(high)), 1e-30)
    boxes: dict[str, tuple[float | None, float | None]] = {
        "none": (None, None),
        "two sides": (low - 0.1 * span, high + 0.1 * span),
        "tight": (low + 0.2 * span, high - 0.2 * span),
        "lower": (min(low, 0.0), None),
        "upper": (None, high + 0.1 * span),
    }
    if counts:
        boxes = {"lower": (0.0, None), "two sides": (0.0, high + span)}
    return boxes[draw.one_of("box", *boxes)]


def _weight(
    draw: Draw,
    network: cl.InputConvexNetwork,
    fidelity: cl.Fidelity,
    image: Tensor,
    gain: float,
) -> float:
    """So that both terms matter, and then some decades more or less."""
    with torch.no_grad():
        noise = image.std(correction=0) + 1e-3 * image.abs().max() + 1e-30
        size = float(network(image + noise * draw.normal(*image.shape)).abs().mean())
        data = float(fidelity.value(fidelity.y + 0.1 * gain * noise).nan_to_num(0, 0, 0).mean())
    ratio = data / size if size > 0 and data > 0 else 1.0
    return min(max(draw.scale() * ratio, 1e-12), 1e12) if math.isfinite(ratio) else 1.0
