"""The problem that a proof file states, with the evidence beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .balls import Array, require
from .files import ProofFile, fields, part
from .functions import ACTIVATIONS, EVEN, FIDELITIES, Activation, Fidelity
from .maps import (
    PADDINGS,
    Map,
    Shape,
    added,
    average_pool,
    chain,
    convolution,
    dense,
    diagonal,
    differences,
    rays,
)

EXTRA = {"WeightedL2": "fidelity.weights", "KullbackLeibler": "fidelity.background"}
OPERATORS = (
    "Identity", "Diagonal", "Blur", "Scaled", "Composition", "Sum", "ParallelBeam", "FanBeam",
)  # fmt: skip
MAPS = ("Convolution", "Dense", "AveragePool", "ForwardDifferences", "Chain")
LAYER = "activation channels skip previous links bias residual"


@dataclass(frozen=True)
class Layer:
    """z_i = h(sum_j maps[j] z_j + bias) (+ z_{i-1} if residual), where z_0 is the image.

    ``p`` is its dual variable, of the shape of the preactivation.
    """

    h: Activation
    maps: Mapping[int, Map]
    bias: Array
    residual: bool
    p: Array


@dataclass(frozen=True)
class Problem:
    """J(x) = D(A x, y) + weight <output, z_L> for lower <= x <= upper.

    ``theta`` mixes the minorant of R with a constant; ``v`` is the dual variable of the data,
    None if A is diagonal.
    """

    x: Array
    lower: float
    upper: float
    weight: float
    operator: Map
    fidelity: Fidelity
    layers: tuple[Layer, ...]
    output: Array
    theta: Array
    v: Array | None
    radius: float


def read_problem(file: ProofFile) -> Problem:
    """Everything that the file states; all its tensors must have a part in it."""
    names = "image_shape weight box fidelity operator network"
    shape, weight, box, data, operator, network = fields(file.problem, "problem", names)
    x = file.tensor("x")
    image = x.shape[1:]
    require(x.ndim == 4 and list(image) == shape, "the tensor 'x' does not fit problem.image_shape")
    lower, upper = _box(box)
    inside = (x >= lower) & (x <= upper)
    require(inside.all(), "the tensor 'x' has pixels outside the box, so its objective is infinite")
    A = _operator(file, operator, "problem.operator", image)
    fidelity = _fidelity(file, data, (file.batch, *A.shape))
    layers, output = _network(file, network, image)
    theta = file.tensor("theta", (file.batch,))
    low, high = layers[-1].h.slopes
    bounded_below = low <= 0 <= high and not layers[-1].residual
    allowed = (theta >= 0) & (theta <= 1) & (bounded_below | (theta == 1))
    require(allowed.all(), "the tensor 'theta' must be 1, or in [0, 1] if R is bounded below")
    v = None if A.diagonal else file.tensor("dual.data", (file.batch, *A.shape))
    file.finish()
    return Problem(
        x, lower, upper, float(weight), A, fidelity, layers, output, theta, v, file.radius
    )


def _box(box: Any) -> tuple[float, float]:
    pair = isinstance(box, list) and len(box) == 2
    numbers = pair and all(
        end is None or (type(end) in (int, float) and abs(end) <= 1e100) for end in box
    )
    require(numbers, "problem.box must hold two numbers, or null for no bound")
    lower, upper = -np.inf if box[0] is None else box[0], np.inf if box[1] is None else box[1]
    require(lower < upper, "problem.box must have a lower bound below the upper one")
    return float(lower), float(upper)


def _fidelity(file: ProofFile, value: Any, shape: Shape) -> Fidelity:
    kind, options = part(value, "problem.fidelity", *FIDELITIES)
    y, q = file.tensor("y", shape), np.array(float(options[0]) if options else 1.0)
    if kind in EXTRA:
        q = file.tensor(EXTRA[kind], fits=shape)
        require(q.min() >= 0, f"the tensor {EXTRA[kind]!r} has negative entries")
    if kind == "KullbackLeibler":
        require(y.min() >= 0, "the tensor 'y' has negative entries, which are no counts")
    return Fidelity(kind, np.where(q > 0, y, 0.0) if kind == "WeightedL2" else y, q)


def _operator(file: ProofFile, value: Any, place: str, shape: Shape) -> Map:
    file.spend(0, shape)
    kind, options = part(value, place, *OPERATORS)
    place = f"{place}.{kind}"
    if kind == "Identity":
        return chain([], shape)
    if kind == "Diagonal":
        return diagonal(file.tensor(options[0], fits=(file.batch, *shape)), shape)
    if kind == "Blur":
        kernel = file.tensor(options[0])
        odd = kernel.ndim == 2 and all(n % 2 for n in kernel.shape)
        require(odd, f"{place}.kernel must have two dimensions of odd size")
        flipped = kernel[None, None, ::-1, ::-1]
        return _convolution(file, flipped, shape, 1, options[1], place)
    if kind == "Scaled":
        inner = _operator(file, options[1], place, shape)
        return chain([inner, diagonal(np.array(float(options[0])), inner.shape)], shape)
    if kind in ("ParallelBeam", "FanBeam"):
        return _scanner(file, kind, options, place, shape)
    require(isinstance(options[0], list) and options[0], f"{place} must hold a list of operators")
    if kind == "Sum":
        maps = [_operator(file, each, place, shape) for each in options[0]]
        require(len({each.shape for each in maps}) == 1, f"{place} has terms of different shapes")
        return added(maps)
    maps = []
    for each in reversed(options[0]):  # the last factor is the first to act
        maps.append(_operator(file, each, place, maps[-1].shape if maps else shape))
    return chain(maps, shape)


def _scanner(file: ProofFile, kind: str, options: list[Any], place: str, shape: Shape) -> Map:
    size, pixel, *names = options[:4]
    fits = len(shape) == 3 and isinstance(size, list) and [1, *size] == list(shape)
    require(fits, f"{place} does not take images of the shape {shape}")
    lengths = isinstance(pixel, list) and len(pixel) == 2
    lengths = lengths and all(type(p) in (int, float) and 1e-100 <= p <= 1e100 for p in pixel)
    require(lengths, f"{place}.pixel_size must hold two positive numbers")
    angles, bins = (file.tensor(name).ravel() for name in names)
    # At most two pixels at each step of each ray, in tables: memory counts more than work.
    file.spend(2**14 * len(angles) * len(bins) * sum(shape[1:]) // file.batch, shape)
    t = angles[:, None]
    if kind == "ParallelBeam":
        lines = [bins * np.cos(t), bins * np.sin(t), np.sin(t), -np.cos(t)]
        return rays(lines, (shape[1], shape[2]), pixel)
    source, detector, surface = options[4:]
    require(surface in ("flat", "curved"), f"{place}.detector must be flat or curved")
    along = bins / (source + detector)
    fan = t - (np.arctan(along) if surface == "flat" else along)
    lines = [source * np.sin(t), -source * np.cos(t), -np.sin(fan), np.cos(fan)]
    return rays(lines, (shape[1], shape[2]), pixel)


def _convolution(
    file: ProofFile, weight: Array, shape: Shape, stride: int, padding: Any, place: str
) -> Map:
    known = padding in PADDINGS and padding != "none"
    require(known, f"{place} must continue images by zero, circular, reflect or replicate")
    smallest = [n // 2 + 1 if padding == "reflect" else n // 2 - 64 for n in weight.shape[2:]]
    fits = all(n >= least for n, least in zip(shape[1:], smallest, strict=True))
    require(fits, f"{place} has kernels too large for images of the shape {shape}")
    file.spend(weight.size * math.prod(shape) // (weight.shape[1] * stride**2), shape)
    return convolution(weight, shape, stride, padding)


def _map(file: ProofFile, value: Any, name: str, shape: Shape, nonnegative: bool) -> Map:
    file.spend(0, shape)
    kind, options = part(value, name, *MAPS)
    if kind == "Chain":
        require(isinstance(options[0], list) and options[0], f"{name}.maps must be a list")
        maps: list[Map] = []
        for i, each in enumerate(options[0]):
            source = maps[-1].shape if maps else shape
            maps.append(_map(file, each, f"{name}.maps.{i}", source, nonnegative))
        return chain(maps, shape)
    if kind == "AveragePool":
        divides = all(n % options[0] == 0 for n in shape[1:])
        require(divides, f"{name} must divide images of the shape {shape}")
        return average_pool(options[0], shape)
    if kind == "ForwardDifferences":
        require(not nonnegative, f"{name} has negative weights, so R need not be convex")
        return differences(shape)
    if kind == "Dense":
        expected: Shape = (options[1], options[0])
    else:
        inputs, outputs, kernel, stride, padding = options
        expected = (outputs, inputs, kernel, kernel)
        require(kernel % 2, f"{name}.kernel_size must be odd")
    weight = file.tensor(f"network.{name}.weight", expected)
    taken = math.prod(shape) if kind == "Dense" else shape[0]
    require(weight.shape[1] == taken, f"{name} does not fit inputs of the shape {shape}")
    convex = not nonnegative or weight.min() >= 0
    require(
        convex, f"the tensor 'network.{name}.weight' has negative entries: R need not be convex"
    )
    if kind == "Dense":
        return dense(weight, shape)
    return _convolution(file, weight, shape, stride, padding, name)


def _activation(value: Any, place: str) -> Activation:
    kind, options = part(value, place, *ACTIVATIONS, "GroupNorm")
    if kind != "GroupNorm":
        return Activation(kind, options)
    profile, inner = part(options[1], f"{place}.profile", *EVEN)
    return Activation(profile, inner, options[0])


def _network(file: ProofFile, value: Any, image: Shape) -> tuple[tuple[Layer, ...], Array]:
    listed, channels, size = fields(value, "problem.network", "layers in_channels image_size")
    fits = channels == image[0] and size in (None, list(image[1:]))
    require(fits, f"problem.network does not take images of the shape {image}")
    require(isinstance(listed, list) and listed, "problem.network.layers must be a list")
    shapes, layers = [image], []
    for i, content in enumerate(listed):
        layer, shape = _layer(file, content, i, shapes)
        layers.append(layer)
        shapes.append(shape)
    output = file.tensor("network.output", (shapes[-1][0],))
    require(output.min() >= 0, "the tensor 'network.output' has negative entries")
    return tuple(layers), np.broadcast_to(output[:, None, None], (file.batch, *shapes[-1]))


def _layer(file: ProofFile, value: Any, i: int, shapes: list[Shape]) -> tuple[Layer, Shape]:
    """Layer i, counted from 0, and the shape of its z; ``shapes`` are those of z_0, ..., z_i."""
    name = f"layers.{i}"
    described, channels, skip, previous, links, bias, residual = fields(value, name, LAYER)
    h = _activation(described, f"{name}.activation")
    require(i == 0 or h.slopes[0] >= 0, f"{name}.activation decreases; only the first layer's may")
    sources = [(0, "skip", skip), (i, "previous", previous)]
    sources += [(int(j), f"links.{j}", link) for j, link in links.items()]
    maps: dict[int, Map] = {}
    for j, which, content in sources:
        if content is not None:
            earlier = j == 0 if which == "skip" else 1 <= j <= i
            require(
                earlier and j not in maps, f"{name}.{which} must have an earlier layer of its own"
            )
            maps[j] = _map(file, content, f"{name}.{which}", shapes[j], nonnegative=j > 0)
    made = {each.shape for each in maps.values()}
    require(len(made) == 1, f"{name} must have maps, all to the same shape")
    (shape,) = made
    fits = shape[0] == channels and channels % h.group == 0
    require(fits, f"{name}.channels must fit its maps, of shape {shape}, and its activation")
    z = (channels // h.group, *shape[1:])
    require(not residual or (i > 0 and shapes[-1] == z), f"{name} cannot be residual")
    b = file.tensor(f"network.{name}.bias", (channels,)) if bias else np.zeros(channels)
    dual = f"dual.{i + 1}"
    p = file.tensor(dual)
    flat = shape[1:] == (1, 1) and p.shape == (file.batch, channels)  # a dense layer
    fits = flat or p.shape == (file.batch, *shape)
    require(fits, f"the tensor {dual!r} has the shape {p.shape}, which does not fit {name}")
    p = p.reshape(file.batch, *shape)
    return Layer(h, maps, b[:, None, None], bool(residual), p), z
