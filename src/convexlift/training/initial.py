"""Where training starts: a network that is a total variation of many filters.

    z_1 = h(+-k_c * x),   z_2 = h(w_j + sum over one block of the channels of z_1)

With a leaky ReLU h of slope s, h(a) + h(-a) = (1 - s)|a|: pairs of opposite filters measure the
size of the response, and filters of mean zero ignore brightness. Random weights have neither
property, and training from them tends to end in a network that is nearly linear in brightness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import AveragePool, Chain, Convolution, Dense, LinearMap


def cosine_filters(count: int, size: int) -> Tensor:
    """The first ``count`` of the size^2 - 1 non-constant DCT waves, low frequencies first.

    They are orthonormal, (count, size, size); asked for more, small random ones of mean zero
    follow.
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
    order = torch.argsort(frequency, stable=True)[1:]
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

    Exactly so with Abs; within 3% for ``deep`` and ``convolutional``; 1 - s times this, with the
    slope s of the leaky ReLU, for ``baseline``, whose pooling adds up both signs. Smoothed
    activations give a little less. Works for networks whose first layer is a convolution and
    whose further layers are nonnegative convolutions or dense layers, as those of
    ``convexlift.networks``.

    Args:
        network: changed in place.
        strength: of the first regularization.
    """
    first, *others = network.layers
    assert isinstance(first, ConvexLayer)
    if not isinstance(first.skip, Convolution):
        raise ValueError(
            "start_from_filters_ needs a first layer with a convolution, "
            f"got {type(first.skip).__name__}"
        )
    weight = first.skip.weight
    count, in_channels, size, _ = weight.shape
    paired = first.activation.nondecreasing
    filters = cosine_filters(-(-count // 2) if paired else count, size)
    if paired:
        filters = torch.stack([filters, -filters], 1).flatten(0, 1)[:count]
    weight.copy_(filters[:, None].expand(-1, in_channels, -1, -1))
    if first.bias is not None:
        first.bias.zero_()
    scale, channels = strength, first.outputs
    for layer in others:
        assert isinstance(layer, ConvexLayer)
        if layer.previous is None:
            raise ValueError("start_from_filters_ needs layers that follow one another")
        scale /= _pass_on_(layer.previous, channels)
        channels = layer.outputs
        if layer.bias is not None:
            layer.bias.zero_()
    network.output.fill_(scale)


def _pass_on_(linear_map: LinearMap, channels: int) -> float:
    """Make a map sum what it is given, unit by unit; returns what it does to a sum over pixels."""
    if isinstance(linear_map, Convolution):
        weight = linear_map.weight
        weight.mul_(_VARIETY / weight.mean().clamp_min(1e-12) / weight[0].numel())
        for c in range(min(weight.shape[:2])):
            weight[c, c, weight.shape[2] // 2, weight.shape[3] // 2] += 1
        return 1 + _VARIETY
    if isinstance(linear_map, Chain) and len(linear_map.maps) == 2:
        pool, dense = linear_map.maps
        if isinstance(pool, AveragePool) and isinstance(dense, Dense):
            return _read_blocks_(dense, channels) / pool.size**2
    raise ValueError(f"start_from_filters_ cannot set a {type(linear_map).__name__}")


_VARIETY = 0.02  # how much of the first random weights remains, so that units differ


def _read_blocks_(dense: Dense, channels: int) -> float:
    """Unit j reads all channels of block j (modulo their number), and a little of the rest."""
    weight = dense.weight
    units, features = weight.shape
    blocks = features // channels
    block = torch.arange(features, device=weight.device) % blocks
    unit = torch.arange(units, device=weight.device)[:, None]
    own = (block[None] % units == unit % blocks).to(weight)
    readers = own.sum(0)  # differ by one where blocks do not divide units
    own = own * (readers.mean() / readers)
    weight.mul_(_VARIETY / weight.mean().clamp_min(1e-12) / features).add_(own)
    return float(readers.mean()) + _VARIETY * units / features


@torch.no_grad()
def subtract_means_(network: InputConvexNetwork) -> None:
    """Filters on the image get mean zero: brightness is not penalised."""
    for layer in network.layers:
        assert isinstance(layer, ConvexLayer)
        if isinstance(layer.skip, Convolution):
            weight = layer.skip.weight
            weight.sub_(weight.mean((-2, -1), keepdim=True))


@torch.no_grad()
def absorb_weight_(network: InputConvexNetwork, weight: float) -> None:
    """R becomes weight R, so that bilevel learning goes on where a search for the weight ended."""
    network.output.mul_(weight)
