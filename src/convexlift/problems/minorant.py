"""Affine minorants of the regularizer, with their slack at the images at hand.

For slopes s_i in dom h_i*, a backward pass (``BoundNetwork.backward``) gives

    weight R(x) = <c, x> + const + sum_i <t_i, h_i(a_i) + h_i*(s_i) - s_i a_i>,

whose last sum, of nonnegative local terms, is the slack of the minorant <c, x> + const at x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.networks.bound_network import BackwardPass, BoundNetwork, ForwardPass
from convexlift.problems.saddle import dual_names
from convexlift.tensors import Blocks, sum_per_image

CACHED = 2**18
"""Numbers that are handled at a time."""


@dataclass(frozen=True, eq=False)
class Minorant:
    """<c, x> + const <= weight R(x).

    Attributes:
        c: the slope, (B, C, H, W).
        witness: dual variables which, made feasible, are the p_i = s_i t_i.
        losses: the local terms of each layer, summed over channels; () if they were not kept.
        slack: the sum of all of them, (B,).
    """

    c: Tensor
    witness: Blocks
    losses: tuple[Tensor, ...]
    slack: Tensor

    @staticmethod
    def of(network: BoundNetwork, layers: ForwardPass, backward: BackwardPass) -> Minorant:
        """From a forward pass at the images and a backward pass."""
        losses, slack = layer_losses(network, layers, backward)
        count = len(network.layers)
        witness = {dual_names(i, count)[0]: p for i, p in enumerate(backward.p, start=1)}
        return Minorant(backward.c, Blocks(witness), losses, slack)


def layer_losses(
    network: BoundNetwork, layers: ForwardPass, backward: BackwardPass
) -> tuple[tuple[Tensor, ...], Tensor]:
    """t_i (h_i(a_i) + h_i*(s_i) - s_i a_i) summed over channels, and over everything."""
    parts = [
        _layer_loss(layer.activation, a, t, p)
        for layer, a, t, p in zip(network.layers, layers.a, backward.t, backward.p, strict=True)
    ]
    return tuple(loss for loss, _ in parts), torch.stack([total for _, total in parts]).sum(0)


def _layer_loss(h: Activation, a: Tensor, t: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """A few channels at a time, so that what is computed on the way stays in a cache."""
    count = t.shape[1]
    some = max(1, CACHED * count // t.numel())
    place, total = torch.zeros_like(t[:, :1]), t.new_zeros(t.shape[0], dtype=torch.float64)
    for first in range(0, count, some):
        outputs = slice(first, first + some)
        inputs = slice(h.group * first, h.group * (first + some))
        _, loss = h.value_and_loss(a[:, inputs], p[:, inputs], t[:, outputs])
        place += loss.sum(1, keepdim=True)
        total += sum_per_image(loss)
    return place, total
