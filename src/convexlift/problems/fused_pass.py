"""``minorant.OnePass`` of a network with one layer, on a GPU: one kernel (``first_layer.cu``)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.kernels import first_layer
from convexlift.kernels.availability import current
from convexlift.networks.activations import Ramp
from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.tensors import Scalar


class FusedPass:
    """R, the slack of a minorant and its slope on the padded image, from x and dual variables."""

    def __init__(
        self,
        kernel: Any,
        tile: tuple[int, int],
        network: BoundNetwork,
        ramp: Ramp,
        filters: Tensor,
    ) -> None:
        self._kernel, self._tile = kernel, tile
        self._ramp, self._filters = ramp, filters.contiguous()
        bias = network.layers[0].bias
        self._bias = filters.new_zeros(len(filters)) if bias is None else bias.contiguous()
        self._outputs, (_, *self._size) = network.output.contiguous(), network.layers[0].shape

    @staticmethod
    def of(network: BoundNetwork, x: Tensor, v: Tensor) -> FusedPass | None:
        """The kernel for these tensors, or None if there is none."""
        (layer,) = network.layers
        convolution, ramp = layer.operators[IMAGE].convolution, layer.activation.ramp
        output, bias = network.output, layer.bias
        single = all(each.dtype == torch.float32 for each in (x, v, output))
        if convolution is None or ramp is None or ramp.low == ramp.high or not single:
            return None
        if v[0].numel() >= first_layer.LARGEST:
            return None
        filters = convolution.weight.detach()
        tile = first_layer.tile_for(layer.shape[1:], len(v))
        kernel = first_layer.compiled(
            "one_pass", x.device, filters.shape, tile=tile, coarse=int(output[0, 0].numel() > 1),
            biased=bias is not None and bias.numel() > len(filters),
        )  # fmt: skip
        return None if kernel is None else FusedPass(kernel, tile, network, ramp, filters)

    def __call__(self, weight: Scalar, padded: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """R(x), the slack of the minorant, and its slope; ``padded`` is x with its margins."""
        batch, ramp, sides = len(v), self._ramp, self._filters.shape[-2:]
        tile = self._tile
        tiles = [-(-n // side) for n, side in zip(self._size, tile, strict=True)]
        around = [side + k - 1 for side, k in zip(tile, sides, strict=True)]
        spill = padded.new_empty((batch, math.prod(tiles), math.prod(around)))
        totals = padded.new_empty((batch, math.prod(tiles), 2), dtype=torch.float64)
        weights = (padded.new_ones((batch, 1, 1, 1)) * weight).to(padded)
        apart = (t[0].numel() if len(t) == batch else 0 for t in (self._outputs, self._bias))
        with current(padded.device):
            self._kernel(
                grid=(math.prod(tiles), batch, 1), block=first_layer.BLOCK,
                args=[padded.contiguous(), v.contiguous(), spill, totals, self._filters, self._bias,
                      self._outputs, weights,
                      ramp.low, ramp.high, ramp.left, ramp.width, ramp.offset, *apart, *self._size],
            )  # fmt: skip
        value, slack = totals.sum(1).unbind(1)
        whole = [n * side + k - 1 for n, side, k in zip(tiles, tile, sides, strict=True)]
        c = F.fold(spill.mT, tuple(whole), tuple(around), stride=tile)
        return value, slack, c[..., : padded.shape[-2], : padded.shape[-1]]
