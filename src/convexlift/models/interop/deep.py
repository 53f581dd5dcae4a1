"""Input-convex networks of several layers.

Sources: ``priors/ICNN.py`` of github.com/johertrich/LearnedRegularizers; ``models.py`` of
github.com/hsw43/icnn_primal_dual (commit 873d50b); ``models/icnn.py`` of github.com/deepinv/
deepinv. Weights that must be nonnegative are clipped at zero, as the authors' networks do before
they are evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from convexlift.models.interop.state_dicts import (
    LEARNED_REGULARIZERS,
    ORIGINAL,
    Format,
    Source,
    filled,
    filled_layer,
    unwrapped,
    zero_mean,
)
from convexlift.networks.activations import LeakyReLU, Linear
from convexlift.networks.architectures import baseline, deep
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import Chain, Convolution, LinearMap, PixelSum
from convexlift.networks.smooth_activations import HalfSquare, SmoothedReLU
from convexlift.operators.convolution import Boundary

PAPER = "Wong et al., github.com/hsw43/icnn_primal_dual"
DEEPINV = "github.com/deepinv/deepinv"
POOL, SLOPE, SMOOTHING = 16, 0.2, 0.01
"""Constants of the authors' code that state dicts do not contain."""
STRONG_CONVEXITY = 0.5
"""deepinv's default."""


def _convolution(weight: Tensor, padding: Boundary = "zero") -> LinearMap:
    outputs, inputs, *kernel = weight.shape
    if kernel[0] != kernel[1] or kernel[0] % 2 == 0:
        raise ValueError(f"its kernels have the size {tuple(kernel)}; they must be odd squares")
    return filled(Convolution(inputs, outputs, kernel[0], padding=padding), weight)


def _finished(layers: Sequence[ConvexLayer], output: Tensor, channels: int) -> InputConvexNetwork:
    network = InputConvexNetwork(layers, in_channels=channels).double()
    network.output.data.copy_(output)
    network.check_convexity()
    return network


# LearnedRegularizers


def _is_learned_icnn(names: Collection[str]) -> bool:
    bare = {name.removeprefix("regularizer.") for name in names}
    return {"icnn.smoothing", "icnn.scaling", f"icnn.wx.{ORIGINAL}"} <= bare


def _learned_icnn(source: Source) -> InputConvexNetwork:
    """sum_c e^(g_c) psi(W psi(V x + b) + b')_c, psi the smoothed ReLU with nu = e^smoothing."""
    source, factor, zoom = unwrapped(source)
    names = [f"wx.{ORIGINAL}", "wx.bias", "wz.weight", "wz.bias", "smoothing", "scaling"]
    source.require([f"icnn.{name}" for name in names])
    filters = zero_mean(source.take(f"icnn.wx.{ORIGINAL}", None, None, None, None))
    channels = len(filters)
    mixing = source.take("icnn.wz.weight", channels, channels, None, None).clamp_min(0)
    scaling = source.take("icnn.scaling", 1, channels, 1, 1).flatten()
    h = SmoothedReLU(smoothing=math.exp(source.number("icnn.smoothing")))
    layers = [
        ConvexLayer(h, channels=channels, skip=_convolution(zoom * filters)),
        ConvexLayer(h, channels=channels, previous=_convolution(mixing)),
    ]
    for layer, name in zip(layers, ("wx", "wz"), strict=True):
        filled_layer(layer, source.take(f"icnn.{name}.bias", channels))
    return _finished(layers, factor * scaling.exp(), filters.shape[1])


# The paper's networks


def _is_paper(names: Collection[str]) -> bool:
    bare = {name.removeprefix("icnn.") for name in names}
    return {"wx.weight", "fc1.weight", "fc2.weight"} <= bare


def _paper(source: Source) -> InputConvexNetwork:
    """The network without the constant ``fc2.bias``, which does not change minimisers.

    Activations are smoothed if the file name says so, as in the authors' names
    (``reg_smoothed_icnn_ip_BL-PD.pt``).
    """
    tensors = {name.removeprefix("icnn."): each for name, each in source.tensors.items()}
    source = Source(source.path, tensors)
    names = ["wx", "fc1", "fc2"]
    if any(name.startswith("wz.") for name in tensors):
        names[1:1] = ["wz.0", "wz.1"]
    source.require([f"{name}.{kind}" for name in names for kind in ("weight", "bias")])
    filters = source.take("wx.weight", None, None, None, None)
    dense = source.take("fc1.weight", None, None)
    channels, side = len(filters), math.isqrt(dense.shape[1] // len(filters))
    make = baseline if len(names) == 3 else deep
    network = make(
        POOL * max(side, 1), in_channels=filters.shape[1], channels=channels,
        kernel=filters.shape[-1], pool=POOL, hidden=len(dense), slope=SLOPE,
        smoothing=SMOOTHING if "smoothed" in source.path.name else 0.0,
    ).double()  # fmt: skip
    state = {"output": tensors["fc2.weight"].flatten().clamp_min(0)}
    for i, name in enumerate(names[:-1]):
        weight = tensors[f"{name}.weight"]
        place = "skip" if i == 0 else "previous.maps.1" if name == "fc1" else "previous"
        state[f"layers.{i}.bias"] = tensors[f"{name}.bias"]
        state[f"layers.{i}.{place}.weight"] = weight if i == 0 else weight.clamp_min(0)
    for name, tensor in network.state_dict().items():
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"its tensors do not fit together: {name} would be {tuple(state[name].shape)} "
                f"instead of {tuple(tensor.shape)}"
            )
        if not bool(state[name].isfinite().all()):
            raise ValueError(f"{name} has entries that are not finite")
    network.load_state_dict(state)
    return network


# deepinv: squares and linear functions of the image in every layer, circular


def _is_deepinv(names: Collection[str]) -> bool:
    return {"wx_quad.0.weight", "wx_lin.0.weight"} <= set(names)


def _deepinv(source: Source) -> InputConvexNetwork:
    """z_i = h(W_i z_{i-1} + (Q_i x)^2 + V_i x + b_i), R the mean of W z, plus mu/2 |x|^2.

    All Q_i are one first layer, a^2/2, whose channels the others select. For a network with several
    outputs R is their sum, as in deepinv's gradient, with mu/2 |x|^2 once for each output.
    """
    count = sum(name.startswith("wz.") for name in source.tensors)
    final = "final_conv.weight" if "final_conv.weight" in source.tensors else "final_conv2d.weight"
    each = range(count + 1)
    linear = [f"wx_lin.{i}.{kind}" for i in each for kind in ("weight", "bias")]
    squares = [f"wx_quad.{i}.weight" for i in each]
    source.require([*linear, *squares, final, *(f"wz.{i}.weight" for i in range(count))])
    if source.tensors[squares[0]].ndim == 5:
        raise ValueError("it is a network of volumes; networks of two-dimensional images are known")
    channels, image, *kernel = source.take(squares[0], None, None, None, None).shape
    last = source.take(final, None, channels, *kernel).clamp_min(0)
    mu = STRONG_CONVEXITY if source.strong_convexity is None else source.strong_convexity
    if not 0 <= mu < math.inf:
        raise ValueError(f"strong_convexity must not be negative, got {mu:g}")
    quadratic = torch.cat([source.take(name, channels, image, *kernel) for name in squares])
    impulses = torch.zeros(image, image, *kernel, dtype=quadratic.dtype)
    impulses[..., kernel[0] // 2, kernel[1] // 2] = torch.eye(image)
    stacked = torch.cat((quadratic, impulses))
    layers = [
        ConvexLayer(HalfSquare(), channels=len(stacked), bias=False,
                    skip=_convolution(stacked, "circular"))
    ]  # fmt: skip
    for i in each:
        select = torch.zeros(channels, len(stacked), 1, 1)
        select[:, i * channels : (i + 1) * channels, 0, 0] = 2 * torch.eye(channels)
        links: dict[int, LinearMap] = {1: _convolution(select)}
        if i > 0:
            mixing = source.take(f"wz.{i - 1}.weight", channels, channels, *kernel).clamp_min(0)
            links[i + 1] = _convolution(mixing, "circular")
        skip = _convolution(source.take(f"wx_lin.{i}.weight", channels, image, *kernel), "circular")
        layer = ConvexLayer(LeakyReLU(SLOPE), channels=channels, skip=skip, links=links)
        layers.append(filled_layer(layer, source.take(f"wx_lin.{i}.bias", channels)))
    norm = torch.zeros(len(last), len(stacked), 1, 1)
    norm[:, -image:] = mu
    links = {1: Chain(_convolution(norm), PixelSum())}
    mean = Chain(_convolution(last, "circular"), PixelSum(mean=True))
    top = ConvexLayer(Linear(), channels=len(last), previous=mean, links=links, bias=False)
    return _finished([*layers, top], torch.ones(len(last)), image)


FORMATS = (
    Format(
        "learned-regularizers-icnn", LEARNED_REGULARIZERS, "input-convex network of two layers",
        _is_learned_icnn, _learned_icnn,
    ),
    Format(
        "paper", PAPER, "the paper's networks, plain or deeper, smoothed or not", _is_paper, _paper,
        terms="the code is MIT",
    ),
    Format(
        "deepinv-icnn", DEEPINV, "models.ICNN: quadratic and linear skips, circular padding",
        _is_deepinv, _deepinv, terms="the code is BSD 3-Clause", options=("strong_convexity",),
    ),
)  # fmt: skip
