"""The first layer of ``minorant.OnePass`` on a GPU, in two kernels, and its tangent in one.

``one_pass`` of ``one_pass.cu`` leaves V* p in tiles, which ``gathered.cu`` adds up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from convexlift.kernels import first_layer
from convexlift.kernels.availability import current
from convexlift.networks.activations import Ramp
from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.operators.convolution import BOUNDARIES
from convexlift.problems.packed_slopes import CODES
from convexlift.tensors import Scalar

POOLS = (4, 8, 16, 32)
"""Sides of the pooling blocks that the kernel can sum over."""


@dataclass(frozen=True, eq=False)
class FusedPass:
    """The value and slack of a layer, and the slope of its minorant, from x and dual variables."""

    kernels: tuple[Any, Any, Any]
    tile: tuple[int, int]
    size: tuple[int, int]
    ramp: Ramp
    filters: Tensor
    bias: Tensor
    pool: int
    boundary: int
    stored: torch.dtype

    @staticmethod
    def of(
        network: BoundNetwork, x: Tensor, dtype: torch.dtype, multipliers: Tensor, pool: int = 0
    ) -> FusedPass | None:
        """The kernels for images, and dual variables of a type, or None if there are none.

        Dual variables may be packed (``packed_slopes``). ``multipliers`` are those of the layer, or
        of its blocks of ``pool`` x ``pool`` pixels.
        """
        layer = network.layers[0]
        convolution, ramp = layer.operators[IMAGE].convolution, layer.activation.ramp
        bias, (_, height, width) = layer.bias, layer.shape
        coded = dtype is CODES
        single = {x.dtype, torch.float32 if coded else dtype, multipliers.dtype} == {torch.float32}
        if convolution is None or ramp is None or ramp.low == ramp.high or not single:
            return None
        if math.prod(layer.shape) >= first_layer.LARGEST:
            return None
        if pool and (pool not in POOLS or height % pool or width % pool):
            return None
        filters = convolution.weight.detach().contiguous()
        tile = first_layer.tile_for((height, width), len(x))
        coarse = pool or int(multipliers[0, 0].numel() > 1)
        kernels = tuple(
            first_layer.compiled(
                name, x.device, filters.shape, tile=tile, coarse=coarse, pool=pool,
                aligned=width % 4 == 0, coded=coded,
                biased=bias is not None and bias.numel() > len(filters),
            )
            for name in ("one_pass", "gathered", "tangent")
        )  # fmt: skip
        if None in kernels:
            return None
        bias = filters.new_zeros(len(filters)) if bias is None else bias.contiguous()
        boundary = BOUNDARIES.index(convolution.boundary)
        return FusedPass(
            kernels, tile, (height, width), ramp, filters, bias, pool, boundary,
            CODES if coded else torch.float32,
        )  # fmt: skip

    def __call__(
        self, weight: Scalar, multipliers: Tensor, padded: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """<W, h(a)> or means of h(a) over blocks, the slack and the slope of the minorant.

        The multipliers of the layer are the ``weight`` times W, here ``multipliers``; ``padded`` is
        x with its margins.
        """
        around = first_layer.spill_for(self.tile, self.filters.shape[-2:])
        spill = padded.new_empty((len(v), self._tiles, around))
        value, slack = self._sums(weight, multipliers, padded, v, spill)
        c = padded.new_empty((len(v), 1, *self.size))
        with current(padded.device):
            first_layer.gather(self.kernels[1], spill, self.tile, c, self.boundary)
        return value, slack, c

    def value(self, multipliers: Tensor, padded: Tensor) -> Tensor:
        """<W, h(a)> or means of h(a) over blocks."""
        none = padded.new_empty(0)  # a null pointer
        return self._sums(1.0, multipliers, padded, none, none)[0]

    def _sums(
        self, weight: Scalar, multipliers: Tensor, padded: Tensor, v: Tensor, spill: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Value and slack; ``spill`` receives V* p in tiles. No slack without v."""
        batch, ramp, (height, width) = len(padded), self.ramp, self.size
        totals = padded.new_empty((batch, self._tiles, 2), dtype=torch.float64)
        blocks = (height, len(self.filters), width // self.pool) if self.pool else (0,)
        sums = padded.new_empty((batch, *blocks))
        weights, multipliers, apart = self._multipliers(weight, multipliers, padded)
        with current(padded.device):
            self.kernels[0](
                grid=(self._tiles, batch, 1), block=first_layer.BLOCK,
                args=[padded.contiguous(), v.contiguous(), spill, totals, sums, self.filters,
                      self.bias, multipliers, weights,
                      ramp.low, ramp.high, ramp.left, ramp.width, ramp.offset, *apart, *self.size],
            )  # fmt: skip
        value, slack = totals.sum(1).unbind(1)
        if self.pool:
            sums = sums.reshape(batch, -1, self.pool, *blocks[1:])
            value = sums.sum(2).transpose(1, 2) / self.pool**2
        return value, slack

    def tangent(self, weight: Scalar, multipliers: Tensor, padded: Tensor) -> Tensor:
        """t h'(a), without pooling; packed, if dual variables are."""
        batch, ramp = len(padded), self.ramp
        p = padded.new_empty((batch, len(self.filters), *self.size), dtype=self.stored)
        weights, multipliers, apart = self._multipliers(weight, multipliers, padded)
        with current(padded.device):
            self.kernels[2](
                grid=(self._tiles, batch, 1), block=first_layer.BLOCK,
                args=[padded.contiguous(), p, self.filters, self.bias, multipliers, weights,
                      ramp.low, ramp.high, ramp.left, ramp.width, *apart, *self.size],
            )  # fmt: skip
        return p

    @property
    def _tiles(self) -> int:
        return math.prod(-(-n // side) for n, side in zip(self.size, self.tile, strict=True))

    def _multipliers(
        self, weight: Scalar, multipliers: Tensor, padded: Tensor
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Both as kernels read them; distances of the multipliers and biases of two images."""
        batch, multipliers = len(padded), multipliers.contiguous()
        weights = (padded.new_ones((batch, 1, 1, 1)) * weight).to(padded)
        biased = self.bias.numel() > len(self.filters)  # else there is one for each channel
        of_images = multipliers, self.bias if biased else self.bias[None]
        apart = [t[0].numel() if len(t) == batch > 1 else 0 for t in of_images]
        return weights, multipliers, apart
