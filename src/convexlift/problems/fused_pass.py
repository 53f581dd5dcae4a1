"""The first layer of ``minorant.OnePass`` on a GPU, in one kernel (``first_layer.cu``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.kernels import first_layer
from convexlift.kernels.availability import current
from convexlift.networks.activations import Ramp
from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.tensors import Scalar

POOLS = (4, 8, 16, 32)
"""Sides of the pooling blocks that the kernel can sum over."""


@dataclass(frozen=True, eq=False)
class FusedPass:
    """The value and slack of a layer, and the slope of its minorant, from x and dual variables."""

    kernel: Any
    tile: tuple[int, int]
    size: tuple[int, int]
    ramp: Ramp
    filters: Tensor
    bias: Tensor
    pool: int

    @staticmethod
    def of(
        network: BoundNetwork, x: Tensor, v: Tensor, multipliers: Tensor, pool: int = 0
    ) -> FusedPass | None:
        """The kernel for these tensors, or None if there is none.

        ``multipliers`` are those of the layer, or of its blocks of ``pool`` x ``pool`` pixels.
        """
        layer = network.layers[0]
        convolution, ramp = layer.operators[IMAGE].convolution, layer.activation.ramp
        bias, (_, height, width) = layer.bias, layer.shape
        single = all(each.dtype == torch.float32 for each in (x, v, multipliers))
        if convolution is None or ramp is None or ramp.low == ramp.high or not single:
            return None
        if v[0].numel() >= first_layer.LARGEST:
            return None
        if pool and (pool not in POOLS or height % pool or width % pool):
            return None
        filters = convolution.weight.detach().contiguous()
        tile = first_layer.tile_for((height, width), len(v))
        coarse = pool or int(multipliers[0, 0].numel() > 1)
        kernel = first_layer.compiled(
            "one_pass", x.device, filters.shape, tile=tile, coarse=coarse, pool=pool,
            aligned=width % 4 == 0,
            biased=bias is not None and bias.numel() > len(filters),
        )  # fmt: skip
        if kernel is None:
            return None
        bias = filters.new_zeros(len(filters)) if bias is None else bias.contiguous()
        return FusedPass(kernel, tile, (height, width), ramp, filters, bias, pool)

    def __call__(
        self, weight: Scalar, multipliers: Tensor, padded: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """<W, h(a)> or means of h(a) over blocks, the slack and the slope of the minorant.

        The multipliers of the layer are the ``weight`` times W, here ``multipliers``; ``padded`` is
        x with its margins.
        """
        batch, ramp, sides = len(v), self.ramp, self.filters.shape[-2:]
        tile, (height, width) = self.tile, self.size
        tiles = [-(-n // side) for n, side in zip(self.size, tile, strict=True)]
        around = [side + k - 1 for side, k in zip(tile, sides, strict=True)]
        spill = padded.new_empty((batch, math.prod(tiles), math.prod(around)))
        totals = padded.new_empty((batch, math.prod(tiles), 2), dtype=torch.float64)
        rows = tile[0] // first_layer.WARPS  # of a thread
        blocks = (height // rows, len(self.filters), width // self.pool) if self.pool else (0,)
        sums = padded.new_empty((batch, *blocks))
        weights = (padded.new_ones((batch, 1, 1, 1)) * weight).to(padded)
        multipliers = multipliers.contiguous()
        apart = (t[0].numel() if len(t) == batch else 0 for t in (multipliers, self.bias))
        with current(padded.device):
            self.kernel(
                grid=(math.prod(tiles), batch, 1), block=first_layer.BLOCK,
                args=[padded.contiguous(), v.contiguous(), spill, totals, sums, self.filters,
                      self.bias, multipliers, weights,
                      ramp.low, ramp.high, ramp.left, ramp.width, ramp.offset, *apart, *self.size],
            )  # fmt: skip
        value, slack = totals.sum(1).unbind(1)
        if self.pool:
            sums = sums.reshape(batch, height // self.pool, self.pool // rows, *blocks[1:])
            value = sums.sum(2).transpose(1, 2) / self.pool**2
        whole = [n * side + k - 1 for n, side, k in zip(tiles, tile, sides, strict=True)]
        c = F.fold(spill.mT, tuple(whole), tuple(around), stride=tile)
        return value, slack, c[..., : padded.shape[-2], : padded.shape[-1]]
