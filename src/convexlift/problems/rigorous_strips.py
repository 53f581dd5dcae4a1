"""The sums of a claim over the first layer on a CPU, in strips of rows that fit its cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.networks.bound_network import BoundLayer
from convexlift.operators.convolution import FEW_CHANNELS, ConvolutionOperator
from convexlift.problems.packed_slopes import Dual
from convexlift.problems.rigorous_sums import Bend, LayerSums
from convexlift.problems.rounding import BLOCK, CACHED, block_sum, channel_sums
from convexlift.tensors import local

Strip = tuple[slice, slice, slice]
"""Some images, some rows of V x, and the rows of the padded images that these depend on."""


@dataclass(frozen=True, eq=False)
class StripSums(LayerSums):
    """For images with few channels; a part of each sum for each strip."""

    @staticmethod
    def of(layer: BoundLayer, V: ConvolutionOperator, h: Bend, pool: int) -> StripSums | None:
        """The sums, if the network is on a CPU; else None."""
        fits = V.weight.device.type == "cpu" and V.weight.shape[1] <= FEW_CHANNELS
        return StripSums(layer, V, h, pool) if fits else None

    @property
    def additions(self) -> int:
        """In a block of numbers, over the blocks of a strip, over its channels, and all strips."""
        channels, height, width = self.layer.shape
        numbers = channels * self._rows * width
        return min(BLOCK, numbers) + numbers // BLOCK + channels - (-height // self._rows)

    @property
    def additions_of_means(self) -> int:
        """Over all pixels of a block."""
        return self.pool**2

    def values(self, x: Tensor, weights: Tensor) -> Tensor:
        """Numbers for each channel multiply its sum."""
        padded = self.V.padding(x)

        def part(here: Strip) -> Tensor:
            z, w = self._activated(padded, here), local(weights, here[0], slice(None), here[1])
            same = w[0, 0].numel() == 1
            return (channel_sums(z) * w.flatten(1)).sum(1) if same else block_sum(z.mul_(w))

        return torch.cat(
            [torch.stack(list(map(part, strips)), 1) for strips in self._strips(len(x))]
        )

    def means(self, x: Tensor) -> Tensor:
        """Strips consist of blocks."""
        padded = self.V.padding(x)

        def part(here: Strip) -> Tensor:
            return F.avg_pool2d(self._activated(padded, here), self.pool)

        return torch.cat([torch.cat(list(map(part, strips)), 2) for strips in self._strips(len(x))])

    def minorants(self, t: Tensor, v: Dual) -> tuple[Tensor, Tensor, Tensor]:
        """Slopes are not searched for the largest one; but 0 is exact."""
        h, bias, pool = self.h, self.layer.bias, max(1, self.pool)
        t = t.repeat_interleave(pool, 3) if self.pool else t
        inverse = torch.where(t > 0, 1 / t, 0.0)
        c = self.V.padding(t.new_zeros((v.shape[0], *self.V._resolve(None))))

        def part(here: Strip) -> tuple[Tensor, Tensor]:
            images, rows, halo = here
            place = images, slice(None), slice(rows.start // pool, rows.stop // pool)
            s = v[images, slice(None), rows].to(t) * local(inverse, *place)
            s.clamp_(h.low, h.high)
            steepest = s.flatten(1).any(1).to(s) * h.steepest
            t_here = local(t, *place)
            p = s * t_here
            c[images, :, halo] += self.V.adjoint_on_padded(p)
            height = s.sub_(h.middle).square_().mul_(-h.conjugate * t_here)
            if bias is not None:
                height.addcmul_(p, local(bias, images, slice(None), rows))
            return block_sum(height), steepest

        parts = (map(torch.stack, map(part, strips)) for strips in self._strips(v.shape[0]))
        sums, steepest = torch.cat([torch.stack(list(some)) for some in parts], 2).unbind(1)
        return sums.T, steepest.T, self.V.padding.adjoint(c)

    def _activated(self, padded: Tensor, here: Strip) -> Tensor:
        """h(V x + b)."""
        (images, rows, halo), h, bias = here, self.h, self.layer.bias
        bias = None if bias is None else local(bias, images, slice(None), rows)
        a = self.V.on_padded(padded[images, :, halo], bias)
        inside = a.clamp(h.left, h.right)
        beyond = a.sub_(inside)
        # One of the two is zero. (torch.where takes twenty times as long in double precision.)
        z = beyond.clamp_min(0).mul_(h.high).add_(beyond.clamp_max_(0).mul_(h.low))
        return z.addcmul_(inside, inside.mul(h.bend).add_(h.middle))

    def _strips(self, batch: int) -> Iterator[list[Strip]]:
        """All strips of a few images at a time."""
        some = self._images
        for first in range(0, batch, some):
            images = slice(first, first + some)
            yield [(images, *each) for each in self.V.strips(self._rows)]

    @property
    def _images(self) -> int:
        """Images at a time: several small ones."""
        return max(1, CACHED // math.prod(self.layer.shape))

    @property
    def _rows(self) -> int:
        """Rows of a strip."""
        channels, _, width = self.layer.shape
        return self.pool or max(1, CACHED // (self._images * channels * width))
