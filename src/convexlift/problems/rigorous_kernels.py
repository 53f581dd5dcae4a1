"""The sums of a claim over the first layer on a GPU, in two kernels (``rigorous_pass.cu``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from convexlift.kernels import first_layer, rigorous_pass
from convexlift.kernels.availability import current
from convexlift.networks.bound_network import BoundLayer
from convexlift.operators.convolution import BOUNDARIES, ConvolutionOperator
from convexlift.problems.packed_slopes import Dual, PackedDual
from convexlift.problems.rigorous_sums import Bend, Extent, LayerSums


@dataclass(frozen=True, eq=False)
class KernelSums(LayerSums):
    """For images with one channel.

    Attributes:
        tile: rows and columns of a program.
        kernels: ``values``, ``minorants`` and ``gathered``.
        coded_minorants: ``minorants`` for packed dual variables, compiled on demand; or None.
    """

    tile: tuple[int, int]
    kernels: tuple[Any, ...]
    coded_minorants: Callable[[], Any]

    @staticmethod
    def of(
        layer: BoundLayer, V: ConvolutionOperator, h: Bend, pool: int, weights: Tensor, batch: int
    ) -> KernelSums | None:
        """For a batch of images and weights like these, if there are kernels; else None."""
        channels, height, width = layer.shape
        if channels * height * width >= first_layer.LARGEST:
            return None
        tile = first_layer.tile_for((height, width), batch)

        def compiled(name: str, *, coded: bool = False) -> Any:
            return rigorous_pass.compiled(
                name, V.weight.device, V.weight.shape, tile=tile, pool=pool, coded=coded,
                coarse=pool or int(weights[0, 0].numel() > 1),
                biased=layer.bias is not None and layer.bias.numel() > channels,
            )  # fmt: skip

        kernels = tuple(map(compiled, rigorous_pass.NAMES))
        coded = partial(compiled, "minorants", coded=True)
        return None if None in kernels else KernelSums(layer, V, h, pool, tile, kernels, coded)

    def reads(self, dual: Dual) -> bool:
        """Numbers in single precision; codes of slopes between the same ends, if that compiles."""
        if not isinstance(dual, PackedDual):
            return dual.dtype == torch.float32
        same = dual.h.slopes == (self.h.low, self.h.high) and dual.t.dtype == torch.float32
        return same and self.coded_minorants() is not None

    @property
    def additions(self) -> int:
        """Over the pixels of a thread, its channels, the threads of a tile as a tree, all tiles."""
        threads = math.prod(first_layer.BLOCK)
        return 2 * self._rows + self.layer.shape[0] + threads.bit_length() + math.prod(self._tiles)

    @property
    def additions_of_means(self) -> int:
        """Over the pixels of a thread, the threads beside it as a tree, and those below."""
        return self._rows + self.pool.bit_length() + self.pool // self._rows

    def values(self, x: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """One part for each tile; extents are not looked for."""
        totals = x.new_empty((len(x), math.prod(self._tiles), 2))
        self._launch_values(x, totals, totals, weights.contiguous())
        return totals[..., 0], None

    def means(self, x: Tensor) -> tuple[Tensor, None]:
        """From sums over the pixels of neighbouring threads."""
        channels, height, width = self.layer.shape
        sums = x.new_empty((len(x), height // self._rows, channels, width // self.pool))
        self._launch_values(x, sums, sums, self.V.weight)
        rows = height // self.pool, self.pool // self._rows
        blocks = sums.reshape(len(x), *rows, channels, -1)
        return blocks.sum(2).transpose(1, 2) / self.pool**2, None  # exact: a power of 2

    def minorants(self, t: Tensor, v: Dual) -> tuple[Tensor, Extent, Tensor]:
        """One part for each tile; V* p is gathered from them."""
        kernel, codes, single_t = self.kernels[1], v, t  # the last one is not read
        if isinstance(v, PackedDual):
            kernel, codes, single_t = self.coded_minorants(), v.codes, v.t.contiguous()
        assert isinstance(codes, Tensor)
        h, bias, V, t = self.h, self._bias(), self.V, t.contiguous()
        around = first_layer.spill_for(self.tile, V.weight.shape[-2:])
        spill = t.new_empty((len(codes), math.prod(self._tiles), around))
        totals = t.new_empty((len(codes), math.prod(self._tiles), 2))
        self._launch(
            kernel, len(codes), t, bias,
            [codes.contiguous(), single_t, spill, totals, V.weight.contiguous(), bias, t,
             h.low, h.high, h.middle, h.conjugate],
        )  # fmt: skip
        c = t.new_empty((len(codes), 1, *self.layer.shape[1:]))
        with current(t.device):
            boundary = BOUNDARIES.index(V.boundary)
            first_layer.gather(self.kernels[2], spill, self.tile, c, boundary)
        steepest = totals[..., 1].amax(1, keepdim=True)
        return totals[..., 0], (-steepest, steepest), c

    @property
    def _rows(self) -> int:
        """Pixels of a thread."""
        return self.tile[0] // first_layer.WARPS

    @property
    def _tiles(self) -> list[int]:
        return [-(-n // side) for n, side in zip(self.layer.shape[1:], self.tile, strict=True)]

    def _launch_values(self, x: Tensor, totals: Tensor, pooled: Tensor, weights: Tensor) -> None:
        h, bias = self.h, self._bias()
        padded = self.V.padding(x).contiguous()
        self._launch(
            self.kernels[0], len(x), weights, bias,
            [padded, totals, pooled, self.V.weight.contiguous(), bias, weights,
             h.low, h.high, h.left, h.right, h.middle, h.bend],
        )  # fmt: skip

    def _bias(self) -> Tensor:
        channels, bias = self.layer.shape[0], self.layer.bias
        return self.V.weight.new_zeros(channels) if bias is None else bias.contiguous()

    def _launch(self, kernel: Any, batch: int, t: Tensor, bias: Tensor, args: list[Any]) -> None:
        """With the distances between the multipliers and biases of two images."""
        apart = (each[0].numel() if len(each) == batch else 0 for each in (t, bias))
        with current(t.device):
            kernel(
                grid=(math.prod(self._tiles), batch, 1), block=first_layer.BLOCK,
                args=[*args, *apart, *self.layer.shape[1:]],
            )  # fmt: skip
