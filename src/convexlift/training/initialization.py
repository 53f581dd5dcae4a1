"""Initial weights: a network that is a total variation of many filters, or the authors' start.

    z_1 = h(+-k_c * x),   z_2 = h(sum of one block of z_1 over all channels)

With a leaky ReLU h of slope s, h(a) + h(-a) = (1 - s)|a|: pairs of opposite filters measure the
size of the response, and filters of mean zero ignore brightness. Random weights have neither
property, and training from them tends to end in a network that is nearly linear in brightness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.networks.activations import Activation, Ramp
from convexlift.networks.architectures import ridge
from convexlift.networks.bound_network import IMAGE
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork

_VARIETY = 0.02  # share of the random weights that is kept, so that units differ


def cosine_filters(count: int, size: int) -> Tensor:
    """The first ``count`` of the size^2 - 1 non-constant DCT waves, low frequencies first.

    They are orthonormal, (count, size, size). If ``count`` is larger, random filters of mean zero
    and norm 1 follow.
    """
    if count < 1 or size < 2:
        raise ValueError(
            f"filters of mean zero need count >= 1 and size >= 2, got count={count}, size={size}"
        )
    places = torch.arange(size, dtype=torch.float64) + 0.5
    waves = torch.stack([torch.cos(math.pi * places * k / size) for k in range(size)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    bank = torch.einsum("ai,bj->abij", waves, waves).reshape(size**2, size, size)
    frequency = (torch.arange(size)[:, None] ** 2 + torch.arange(size) ** 2).flatten()
    order = torch.argsort(frequency, stable=True)[1:]  # stable: the same on every platform
    filters = bank[order][:count]
    missing = count - len(filters)
    if missing > 0:
        generator = torch.Generator().manual_seed(0)
        more = torch.randn(missing, size, size, generator=generator, dtype=torch.float64)
        more = more - more.mean((1, 2), keepdim=True)
        filters = torch.cat([filters, more / more.flatten(1).norm(dim=1)[:, None, None]])
    return filters


@torch.no_grad()
def start_from_filters_(network: InputConvexNetwork, strength: float = 0.02) -> None:
    """Make R(x) = strength sum_pixels sum_c |k_c * x| (about), with cosine filters k_c.

    This is exact with Abs, and within 3% for ``deep`` and ``convolutional``; it is (1 - s) times as
    much, with the slope s of the leaky ReLU, for ``baseline``, whose pooling adds both signs.
    Smoothed activations give a little less. Works for networks whose first layer is a convolution
    and whose further layers are nonnegative convolutions or dense layers, as in
    ``convexlift.networks``.

    Args:
        network: changed in place.
        strength: the strength of the initial regularization.
    """
    first, *others = network.layers
    weight = _filters(first)
    if weight is None:
        raise ValueError(
            "start_from_filters_ needs a first layer with a convolution, "
            f"got {type(first.skip).__name__}"
        )
    count, in_channels, size, _ = weight.shape
    paired = first.activation.nondecreasing
    filters = cosine_filters(-(-count // 2) if paired else count, size)
    if paired:
        filters = torch.stack([filters, -filters], 1).flatten(0, 1)[:count]
    weight.copy_(_over_channels(filters, in_channels))
    if first.bias is not None:
        first.bias.zero_()
    if first.shares is not None:  # the narrowest Huber function, which is nearest to |a|
        first.shares.zero_()[:, 0] = 1
    scale, channels = strength, first.outputs
    for layer in others:
        if layer.previous is None:
            raise ValueError("start_from_filters_ needs layers that read the previous one")
        scale /= layer.previous.sum_inputs_(channels, _VARIETY)
        channels = layer.outputs
        if layer.bias is not None:
            layer.bias.zero_()
    network.output.fill_(scale)


@torch.no_grad()
def start_uniformly_(network: InputConvexNetwork, largest: float) -> None:
    """Nonnegative weights from U[0, largest], and biases as PyTorch's layers have them.

    The start of the authors' networks (``models.py`` in github.com/hsw43/icnn_primal_dual), with
    largest = 0.01, and 0.001 for the deep one: W_1, ..., W_L are drawn from U[0, largest], a bias
    from U[-1/sqrt(n), 1/sqrt(n)] with n inputs to each unit. Filters on the image keep their
    values, which have that distribution too. By default the rows of nonnegative weights, including
    W_L, sum to 1 on average: the gradients of ``baseline`` are then about 1/50 for 256 x 256
    pixels.

    Args:
        network: changed in place, by PyTorch's global generator.
        largest: the upper end of the interval.
    """
    if not 0 < largest < math.inf:
        raise ValueError(f"start_uniformly_ needs largest > 0, got {largest}")
    for number, layer in enumerate(network.layers, start=1):
        inputs = 0
        for source, linear_map in layer.sources(number).items():
            for weight in linear_map.parameters():
                inputs += weight[0].numel()
                if source != IMAGE:
                    weight.uniform_(0, largest)
        if layer.bias is not None and inputs:
            layer.bias.uniform_(-(inputs**-0.5), inputs**-0.5)
    network.output.uniform_(0, largest)


def _over_channels(filters: Tensor, in_channels: int) -> Tensor:
    """Filters on all channels alike; for RGB images half of them, the other half on chroma."""
    if in_channels != 3:
        return filters[:, None].expand(-1, in_channels, -1, -1)
    axes = torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=filters.dtype)
    axes = axes / axes.norm(dim=1, keepdim=True)
    luma = len(filters) - len(filters) // 2
    places = [(axes[0], k) for k in range(luma)]
    places += [(axes[1 + i % 2], i // 2) for i in range(len(filters) - luma)]
    return torch.stack([axis[:, None, None] * filters[k] for axis, k in places])


@torch.no_grad()
def deepened(
    network: InputConvexNetwork,
    depth: int,
    *,
    inner_channels: int = 16,
    inner_kernel: int = 3,
    variety: float = 0.0,
    scale: float = 1.0,
    threshold: float = 0.0,
    seed: int = 0,
) -> InputConvexNetwork:
    """A deeper ``ridge`` network with the same R, which sums groups of the responses z.

    R = <W_1, z> = sum_j sum_{c in group j} W_{1,c} z_c, and a ReLU leaves sums of z >= 0 unchanged;
    a smoothed one (of a smooth network) subtracts up to smoothing/2, little if the sums are large.

    Args:
        network: a ``ridge`` of one layer.
        depth: number of layers of the new network.
        inner_channels: number of groups.
        inner_kernel: size of the filters of further layers.
        variety: random weights added as a fraction of the sum of the others, and compensated in
            the output: without them new layers have no effect at first, and would learn little.
        scale: the scale of the sums, compensated in the output.
        threshold: subtracted from the sums by the units. ReLUs that are always on are linear:
            their biases only add a constant to R.
        seed: the seed of the random weights.
    """
    if depth < 2:
        raise ValueError(f"deepened makes networks of depth >= 2, got depth={depth}")
    if not 0 < scale < math.inf:
        raise ValueError(f"deepened needs scale > 0, got scale={scale}")
    first = network.layers[0]
    if (
        len(network.layers) > 1
        or first.skip is None
        or first.skip.filters is None
        or first.skip.reduction > 1
        or first.bias is not None
        or (smoothing := _huber_width(first.activation)) is None
    ):
        raise ValueError("deepened needs a one-layer network made by networks.ridge")
    if not bool(network.output.any()):
        raise ValueError("deepened needs a network with a positive output weight; here R = 0")
    filters = first.skip.arguments()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        deeper = ridge(
            in_channels=filters["in_channels"],
            channels=filters["out_channels"],
            kernel=filters["kernel_size"],
            smoothing=smoothing,
            padding=filters["padding"],
            depth=depth,
            inner_channels=inner_channels,
            inner_kernel=inner_kernel,
        ).to(network.output)
    start, *others = deeper.layers
    start.load_state_dict(first.state_dict())
    mean = network.output.mean()
    for i, layer in enumerate(others):
        assert layer.previous is not None
        assert layer.bias is not None
        factors = scale / mean * network.output if i == 0 else None
        layer.previous.sum_inputs_(first.outputs, variety, factors)
        layer.bias.fill_(-threshold)
    deeper.output.fill_(float(mean) / scale / (1 + variety) ** (depth - 1))
    return deeper


def _filters(layer: ConvexLayer) -> Tensor | None:
    """The filters of a layer on the image, if any."""
    return None if layer.skip is None else layer.skip.filters


def _huber_width(h: Activation) -> float | None:
    """The delta of a Huber function, 0 for |a|; None for any other activation."""
    if h.ramp is None:
        return None
    delta = h.ramp.width / 2
    return delta if h.ramp == Ramp(-1.0, 1.0, -delta, 2 * delta, -delta / 2) else None


@torch.no_grad()
def subtract_means_(network: InputConvexNetwork) -> None:
    """Subtract the means of the filters on the image, so that brightness is not penalised."""
    for layer in network.layers:
        if (weight := _filters(layer)) is not None:
            weight.sub_(weight.mean((-2, -1), keepdim=True))


@torch.no_grad()
def absorb_weight_(network: InputConvexNetwork, weight: float) -> None:
    """Replace R by weight R, so that bilevel learning starts from a weight found by a search."""
    network.output.mul_(weight)
