"""The sums of a claim over the first layer on a CPU, in strips of rows that fit its cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.networks.bound_network import BoundLayer
from convexlift.operators.convolution import FEW_CHANNELS, ConvolutionOperator
from convexlift.problems.packed_slopes import Dual
from convexlift.problems.rigorous_sums import Bend, Extent, LayerSums
from convexlift.problems.rounding import BLOCK, CACHED, block_sum, channel_sums
from convexlift.strips import give_back, local
from convexlift.tensors import channel_extent

ALL = slice(None)
Strip = tuple[slice, slice, slice]
"""Some images, some rows of V x, and the rows of the padded images that these depend on."""
MANY = 64
"""Strips after which freed memory is given back; only large layers without pooling have so many."""


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

    def values(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Extent]:
        """Numbers for each channel multiply its sum."""
        padded = self.V.padding(x)

        def part(here: Strip) -> tuple[Tensor, Extent]:
            (z, extent), w = self._activated(padded, here), local(weights, here[0], ALL, here[1])
            if w[0, 0].numel() == 1:
                return (channel_sums(z) * w.flatten(1)).sum(1, keepdim=True), extent
            return block_sum(z.mul_(w))[:, None], extent

        return self._joined(part, len(x), 1)

    def means(self, x: Tensor) -> tuple[Tensor, Extent]:
        """Strips consist of blocks."""
        padded = self.V.padding(x)

        def part(here: Strip) -> tuple[Tensor, Extent]:
            z, extent = self._activated(padded, here)
            return F.avg_pool2d(z, self.pool), extent

        return self._joined(part, len(x), 2)

    def minorants(self, t: Tensor, v: Dual) -> tuple[Tensor, Extent, Tensor]:
        """V* p is added up."""
        h, bias, pool = self.h, self.layer.bias, max(1, self.pool)
        t = t.repeat_interleave(pool, 3) if self.pool else t
        least = torch.finfo(t.dtype).tiny
        c = self.V.padding(t.new_zeros((v.shape[0], *self.V._resolve(None))))

        def part(here: Strip) -> tuple[Tensor, Extent]:
            images, rows, halo = here
            place = images, ALL, slice(rows.start // pool, rows.stop // pool)
            t_here = local(t, *place)
            s = v[images, ALL, rows].to(t) * t_here.clamp_min(least).reciprocal_()
            s.clamp_(h.low, h.high)
            extent, p = channel_extent(s), s * t_here
            c[images, :, halo] += self.V.adjoint_on_padded(p)
            height = s.sub_(h.middle).square_().mul_(-h.conjugate * t_here)
            if bias is not None:
                height.addcmul_(p, local(bias, images, ALL, rows))
            return block_sum(height)[:, None], extent

        return *self._joined(part, v.shape[0], 1), self.V.padding.adjoint(c)

    def _activated(self, padded: Tensor, here: Strip) -> tuple[Tensor, Extent]:
        """h(V x + b)."""
        (images, rows, halo), h, bias = here, self.h, self.layer.bias
        bias = None if bias is None else local(bias, images, ALL, rows)
        a = self.V.on_padded(padded[images, :, halo], bias)
        extent, inside = channel_extent(a), a.clamp(h.left, h.right)
        beyond = a.sub_(inside)
        # One of the two is zero. (torch.where takes twenty times as long in double precision.)
        z = beyond.clamp_min(0).mul_(h.high).add_(beyond.clamp_max_(0).mul_(h.low))
        return z.addcmul_(inside, inside.mul(h.bend).add_(h.middle)), extent

    def _joined(
        self, part: Callable[[Strip], tuple[Tensor, Extent]], batch: int, dim: int
    ) -> tuple[Tensor, Extent]:
        """The parts of all strips, side by side in a dimension, and the extent of all."""
        images = []
        for strips in self._strips(batch):
            found = []
            for number, strip in enumerate(strips, start=1):
                found.append(part(strip))
                if number % MANY == 0 and not self.pool:
                    give_back()  # holes between what is kept of the strips
            parts, extents = zip(*found, strict=True)
            lows, highs = (torch.stack(ends) for ends in zip(*extents, strict=True))
            images.append((torch.cat(parts, dim), lows.amin(0), highs.amax(0)))
        joined, low, high = map(torch.cat, zip(*images, strict=True))
        return joined, (low, high)

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
