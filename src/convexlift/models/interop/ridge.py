"""Ridge regularizers: sums over channels and pixels of psi_c((W x)_c), W a chain of convolutions.

Sources: ``priors/wcrr.py`` and ``priors/parameter_learning_wrapper.py`` of
github.com/johertrich/LearnedRegularizers; ``models/`` of github.com/axgoujon/
convex_ridge_regularizers and github.com/axgoujon/weakly_convex_ridge_regularizer, whose convex
models are read. Convolutions of a chain are zero-padded one by one, unlike one merged convolution:
the chain stays a chain, and factors of channels are multiplied into its last convolution.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.models.interop.state_dicts import (
    LEARNED_REGULARIZERS,
    ORIGINAL,
    WEAKLY_CONVEX,
    Format,
    Source,
    filled,
    unwrapped,
    zero_mean,
)
from convexlift.networks.activations import Activation
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import Chain, Convolution, LinearMap
from convexlift.networks.quadratic_spline import QuadraticSpline
from convexlift.networks.smooth_activations import Huber

GREY_LEVELS = 255
GOUJON_2023 = "Goujon et al. 2023, github.com/axgoujon/convex_ridge_regularizers"
GOUJON_2024 = "Goujon, Neumayer, Unser 2024, github.com/axgoujon/weakly_convex_ridge_regularizer"


# Parts that the formats share


def _chain(source: Source, names: Sequence[str], centred: Collection[int]) -> list[Tensor]:
    """The kernels of a chain of convolutions without bias; the centred ones with mean zero."""
    weights: list[Tensor] = []
    for i, name in enumerate(names):
        inputs = weights[-1].shape[0] if weights else 1  # grey images
        weight = source.take(name, None, inputs, None, None)
        if weight.shape[2] != weight.shape[3] or weight.shape[2] % 2 == 0:
            raise ValueError(f"{name} has kernels {tuple(weight.shape[2:])}, not odd squares")
        weights.append(zero_mean(weight) if i in centred else weight)
    return weights


def _squared_norm(weights: Sequence[Tensor], size: int) -> float:
    """max |F(W* W delta)| on a torus of this side: ||W||^2 as the authors compute it."""
    reach = sum(weight.shape[-1] // 2 for weight in weights)
    image = weights[0].new_zeros((1, weights[0].shape[1], 4 * reach + 1, 4 * reach + 1))
    image[:, :, 2 * reach, 2 * reach] = 1
    for weight in weights:
        image = torch.nn.functional.conv2d(image, weight, padding=weight.shape[-1] // 2)
    for weight in reversed(weights):
        image = torch.nn.functional.conv_transpose2d(image, weight, padding=weight.shape[-1] // 2)
    found = float(torch.fft.fft2(image, s=[size, size]).abs().max())
    if not 0 < found < math.inf:
        raise ValueError(f"its filters have the squared norm {found:g}; it must be positive")
    return found


def _scaled(weights: Sequence[Tensor], factor: Tensor | float) -> list[Tensor]:
    """The chain with channels of its result multiplied by the factors."""
    *others, last = weights
    return [*others, last * (factor.reshape(-1, 1, 1, 1) if isinstance(factor, Tensor) else factor)]


def _map(weights: Sequence[Tensor]) -> LinearMap:
    maps = [
        filled(Convolution(weight.shape[1], weight.shape[0], weight.shape[-1]), weight)
        for weight in weights
    ]
    return Chain(*maps) if len(maps) > 1 else maps[0]


def _network(
    h: Activation,
    weights: Sequence[Tensor],
    output: Tensor,
    *,
    shares: Tensor | None = None,
    bias: Tensor | None = None,
) -> InputConvexNetwork:
    """sum_c output_c sum_pixels h((W x)_c + bias_c)."""
    layer = ConvexLayer(h, channels=len(output), skip=_map(weights), bias=bias is not None).double()
    if shares is not None and layer.shares is not None:
        layer.shares.data.copy_(shares)
    if bias is not None and layer.bias is not None:
        layer.bias.data.copy_(bias)
    network = InputConvexNetwork([layer], in_channels=weights[0].shape[1]).double()
    network.output.data.copy_(output)
    network.check_convexity()
    return network


@dataclass(frozen=True, eq=False)
class _Profile:
    """Increments of the slope of a potential from each knot to the next, (channels, J)."""

    knots: Tensor
    gains: Tensor

    def activation(self, even: bool) -> tuple[QuadraticSpline, Tensor, Tensor]:
        """The activation with slope 1 at the last knot, its shares, and the inverse factor."""
        total = self.gains.sum(1)
        # A potential that is zero has no shares; its weight will be zero.
        shares = torch.where(total[:, None] > 0, self.gains, 1.0)
        return QuadraticSpline(tuple(self.knots.tolist()), even=even), shares, total


# LearnedRegularizers


def _is_learned_ridge(names: Collection[str]) -> bool:
    bare = {name.removeprefix("regularizer.") for name in names}
    return {"scaling", "beta", f"filters.0.{ORIGINAL}"} <= bare


def _learned_crr(source: Source) -> InputConvexNetwork:
    """sum_c e^(-2 g_c) H_d(u_c), u = e^g W x / ||W||, H_d the Huber function, d = e^-beta."""
    source, factor, zoom = unwrapped(source)
    count = sum(name.startswith("filters.") for name in source.tensors)
    names = [f"filters.{i}.{'weight' if i else ORIGINAL}" for i in range(count)]
    source.require(["scaling", "beta", *names])
    weights = _chain(source, names, centred=(0,))
    channels = weights[-1].shape[0]
    scaling = source.take("scaling", 1, channels, 1, 1).flatten()
    delta = math.exp(-source.number("beta"))
    weights = _scaled(weights, scaling.exp() * (zoom / math.sqrt(_squared_norm(weights, 256))))
    return _network(Huber(delta), weights, factor * torch.exp(-2 * scaling))


# Goujon et al. 2023: splines for each channel, lambda / mu R(mu x)


def _is_goujon_crr(names: Collection[str]) -> bool:
    return {"lmbd", "mu", f"conv_layer.conv_layers.0.{ORIGINAL}"} <= set(names)


def _goujon_crr(source: Source) -> InputConvexNetwork:
    """lambda / mu R(mu x) with sigma_c = psi_c' a linear spline, or the ReLU of W x + b."""
    prefix = "conv_layer.conv_layers."
    count = sum(name.startswith(prefix) for name in source.tensors)
    names = [f"{prefix}{i}.{ORIGINAL}" for i in range(count)]
    splines = "activation.coefficients_vect" in source.tensors
    source.require(
        ["lmbd", "mu", "L", *names, "activation.coefficients_vect" if splines else "bias"]
    )
    weights = _chain(source, names, centred=range(count))
    mu = max(source.number("mu"), 0.01)
    factor = max(source.number("lmbd"), 1e-4) / mu
    weights = _scaled(weights, mu)
    channels = weights[-1].shape[0]
    if not splines:  # psi(t) = max(t, 0)^2 / 2
        h = QuadraticSpline((1.0,), even=False, tail=1.0)
        bias = source.take("bias", 1, channels, 1, 1).flatten()
        return _network(h, weights, bias.new_full((channels,), factor), bias=bias)
    reach = float(source.setting("activation_params", "knots_range"))
    flat = source.take("activation.coefficients_vect", None)
    size = len(flat) // channels
    if size * channels != len(flat) or size < 5 or size % 2 == 0:
        raise ValueError(
            f"activation.coefficients_vect has {len(flat)} numbers for {channels} channels; each "
            "spline must have an odd number of knots, 5 or more"
        )
    gains = flat.reshape(channels, size).diff(dim=1).clamp_min(0)
    gains[:, 0] = gains[:, -1] = 0  # constant beyond the last knots but one
    middle, step = size // 2, 2 * reach / (size - 1)
    knots = step * torch.arange(1, middle + 1, dtype=torch.float64)
    right, left = (_Profile(knots, side) for side in (gains[:, middle:], gains[:, :middle].flip(1)))
    if torch.equal(right.gains, left.gains):
        h, shares, total = right.activation(even=True)
        return _network(h, weights, factor * total, shares=shares)
    # psi(t) = psi_+(t) + psi_-(-t), each of them flat on the left: twice the channels.
    *others, last = weights
    h, shares, total = _Profile(knots, torch.cat((right.gains, left.gains))).activation(even=False)
    doubled = [*others, torch.cat((last, -last))]
    return _network(h, doubled, factor * total, shares=shares)


# Goujon, Neumayer, Unser 2024, the convex ones: one spline for all channels, scaled with the noise


def _is_goujon_2024(names: Collection[str]) -> bool:
    return {"mu_", "activation_cvx.coefficients", "spline_scaling.coefficients"} <= set(names)


def _odd_gains(source: Source, name: str, knots: int) -> Tensor:
    """Slopes in [0, 1] of an odd linear spline, zero on its first and last pieces, as gains."""
    reach = float(source.setting("spline_activation", "x_max"))
    if float(source.setting("spline_activation", "x_min")) != -reach or not reach > 0:
        raise ValueError("spline_activation must have the range from -x_max to x_max")
    if knots < 4:
        raise ValueError(f"{name} has {knots} knots, and 4 or more are needed")
    step = 2 * reach / (knots - 1)
    slopes = (source.take(name, 1, knots)[0].diff() / step).clamp(0, 1)
    slopes[0] = slopes[-1] = 0
    slopes = (slopes + slopes.flip(0)) / 2
    widths = torch.full_like(slopes, step)[knots // 2 - 1 if knots % 2 == 0 else knots // 2 :]
    if knots % 2 == 0:  # zero is in the middle of a piece
        widths[0] = step / 2
    return torch.stack((slopes[len(slopes) - len(widths) :], widths))


def _noise_scaling(source: Source, channels: int) -> Tensor:
    """exp(spline(sigma)) / (sigma + 1e-5) for each channel, sigma in grey levels."""
    low, high = (float(end) for end in source.setting("noise_range"))
    if source.noise is None:
        raise ValueError(
            "this regularizer depends on the noise: give noise=..., the standard deviation of the "
            f"noise in units of the image, such as noise=25/255 (at most {high:g}/255)"
        )
    sigma = source.noise * GREY_LEVELS
    table = source.take("spline_scaling.coefficients", channels, None)
    if not max(low, 0) <= sigma <= high * (1 + 1e-9) or sigma == 0 or table.shape[1] < 2:
        raise ValueError(
            f"noise={source.noise:g} is outside the range of this file, from {low:g}/255 to "
            f"{high:g}/255, and positive"
        )
    place = (sigma - low) / (high - low) * (table.shape[1] - 1)
    i = min(int(place), table.shape[1] - 2)
    between = table[:, i] + (place - i) * (table[:, i + 1] - table[:, i])
    return between.exp() / (sigma + 1e-5)


def _goujon_2024(source: Source) -> InputConvexNetwork:
    """sum_c mu P(s_c t_c) / s_c^2, t = W x / ||W||, P' an odd spline.

    The weakly convex ones have another spline, minus rho Q(s_c t_c), which also convex ones store.
    """
    prefix = "conv_layer.conv_layers."
    count = sum(name.startswith(prefix) for name in source.tensors)
    names = [f"{prefix}{i}.{'weight' if i else ORIGINAL}" for i in range(count)]
    splines = [f"{part}.coefficients" for part in ("activation_cvx", "activation_ccv")]
    source.require(["mu_", *names, *splines, "spline_scaling.coefficients"])
    rho = float(source.setting("rho_wcvx"))
    if rho != 0:
        raise ValueError(f"its rho_wcvx is {rho:g}: it is {WEAKLY_CONVEX}")
    weights = _chain(source, names, centred=(0,))
    channels, reach = weights[-1].shape[0], sum(each.shape[-1] // 2 for each in weights)
    s = _noise_scaling(source, channels)
    # The authors pad the kernel of W* W, 4 reach + 1 wide, by this much on both sides.
    size = 4 * reach + 1 + 2 * max((256 - 1) // 2 - reach, 0)
    weights = _scaled(weights, s / math.sqrt(_squared_norm(weights, size)))
    knots = source.take(splines[0], 1, None).shape[1]
    slopes, widths = _odd_gains(source, splines[0], knots)
    gains = math.exp(source.number("mu_")) * slopes * widths
    h, shares, total = _Profile(widths.cumsum(0), gains.expand(channels, -1)).activation(even=True)
    return _network(h, weights, total / s.square(), shares=shares)


FORMATS = (
    Format(
        "learned-regularizers-crr", LEARNED_REGULARIZERS, "convex ridge regularizer (CRR)",
        _is_learned_ridge, _learned_crr, clue="crr",
    ),
    Format(
        "goujon-crr", GOUJON_2023, "convex ridge regularizer (CRR-NN)", _is_goujon_crr, _goujon_crr,
    ),
    Format(
        "goujon-crr-2024", GOUJON_2024, "convex ridge regularizer for any noise (CRR-NN)",
        _is_goujon_2024, _goujon_2024, options=("noise",),
    ),
)  # fmt: skip
