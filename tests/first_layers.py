"""Networks whose first layer the kernels can take."""

from __future__ import annotations

import torch
import zoo

import convexlift as cl
from convexlift.networks import Convolution

RAMPS = [name for name, h in zoo.NAMED.items() if h.ramp is not None and h.group == 1]


def ridge(name: str, padding: str) -> cl.InputConvexNetwork:
    """One layer with biases, and a channel that does not count."""
    layer = cl.ConvexLayer(zoo.NAMED[name], channels=3, skip=Convolution(1, 3, 5, padding=padding))
    torch.nn.init.normal_(layer.bias, std=0.2)
    net = cl.InputConvexNetwork([layer])
    torch.nn.init.uniform_(net.output, 0.1, 1.0)
    net.output.data[1] = 0.0
    return net


def adaptive(reads: tuple[str, ...]) -> cl.InputConvexNetwork:
    """Weights, and perhaps biases, of every pixel and image."""
    net = cl.networks.adaptive(channels=3, kernel=5, widths=(4,), blocks=1, reads=reads)
    for parameter in net.guide.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return net


def several_levels() -> cl.InputConvexNetwork:
    """Weights that depend on the noise level of the image."""
    net = cl.networks.ridge(channels=3, kernel=5, smoothing=0.0, levels=[0.05, 0.2])
    torch.nn.init.normal_(net.guide.numbers)
    return net


def pooled(smoothing: float) -> cl.InputConvexNetwork:
    """A convolution, means over blocks of 4 x 4, and a dense layer, some of whose units are on."""
    net = cl.networks.baseline(
        image_size=(24, 40), channels=3, kernel=5, pool=4, hidden=6, smoothing=smoothing
    )
    for parameter in net.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    net.output.data *= 1e3
    net.project_()
    return net


NETWORKS = {
    **{name: (lambda name=name: ridge(name, "reflect")) for name in RAMPS},
    **{p: (lambda p=p: ridge("huber", p)) for p in ("zero", "circular", "replicate")},
    "weights of pixels": lambda: adaptive(("output",)),
    "biases of pixels": lambda: adaptive(("output", "biases")),
    "weights of images": several_levels,
}
POOLED = {
    "pooled, smooth": lambda: pooled(0.02),
    "pooled, kinks": lambda: pooled(0.0),
}
