"""The first layer of a claim on a GPU, in two kernels (``rigorous_pass.cu``), with error bounds.

For a convolution V of images with one channel and an activation h whose slope is a ramp,

    values:     <W, h(a)>,  a = V x + b         (or means of h(a) over pooling blocks)
    minorant:   c = V* p,   beta = <p, b> - <t, h*(s)>,   p = s t,

in double precision, without an array of the size of the layer. Error bounds are those of
``rounding``: a sum in which every term passes through at most n additions errs by at most gamma_n
times the sum of the absolute values, in any order. Fused multiply-adds leave out rounding errors,
and ``claims`` accounts for underflow.

Where ``rounding`` looks for the largest |a| of each channel, in another pass, the bounds here use
|a| <= ||V||_1 max |x| + max |b|.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor

from convexlift.kernels import first_layer, rigorous_pass
from convexlift.kernels.availability import current
from convexlift.networks.activations import Ramp
from convexlift.networks.bound_network import IMAGE, BoundLayer, BoundNetwork
from convexlift.operators.convolution import BOUNDARIES, ConvolutionOperator
from convexlift.operators.linear import LinearOperator
from convexlift.problems.fused_pass import POOLS
from convexlift.problems.lifting import above_pooling
from convexlift.problems.rounding import Rounded, channel_means, gamma, largest
from convexlift.tensors import Scalar

STEPS = 16
"""More than the rounding errors of W h(a) from a, and of t (s b - h*(s)) from s and t."""
SPARE = 1 + 1e-9
"""Covers the rounding of error bounds."""


@dataclass(frozen=True)
class Bend:
    """An activation with h(0) = 0 whose slope rises on an interval around 0, or at 0.

        h(a)  = m (middle + bend m) + (a - m) (hi if a > m else lo),   m = clip(a, left, right),
        h*(s) = conjugate (s - middle)^2   on [lo, hi].

    Nothing cancels: errors of h(a) are relative to |a|.
    """

    low: float
    high: float
    left: float
    right: float
    middle: float
    bend: float
    conjugate: float

    @staticmethod
    @cache
    def of(ramp: Ramp) -> Bend | None:
        """The same function, if it is of this kind; numbers are rounded once."""
        low, high, left, width, offset = map(Fraction, astuple(ramp))
        rise, right = high - low, left + width
        if not rise or not left <= 0 <= right:
            return None
        share = -left / width if width else Fraction(0)
        if rise * (-share * left - share**2 * width / 2) + offset != 0:  # h(0)
            return None
        bend = rise / (2 * width) if width else 0
        numbers = low, high, left, right, low + rise * share, bend, width / (2 * rise)
        return Bend(*map(float, numbers))

    @property
    def steepest(self) -> float:
        """The largest |slope|."""
        return max(abs(self.low), abs(self.high))

    @property
    def size(self) -> float:
        """The sum of the absolute values of the terms of h(a) is at most this times |a|."""
        return 2 * self.steepest + (self.high - self.low)

    @property
    def conjugate_size(self) -> float:
        """Errors of h*(s) are relative to this."""
        rise = self.high - self.low
        return self.conjugate * rise * (rise + 2 * self.steepest)


@dataclass(frozen=True, eq=False)
class RigorousLayer:
    """The first layer of a network in double precision, either the only one or pooled.

    Attributes:
        layer: the layer, its operator and the slope of its activation.
        above: the pooling and the layers above, as a network of block means; or None.
        pool: the side of the pooling blocks; 0 if there are none.
        tile: rows and columns of a program.
        kernels: ``values``, ``minorants`` and ``gathered``.
    """

    layer: BoundLayer
    convolution: ConvolutionOperator
    h: Bend
    above: tuple[LinearOperator, BoundNetwork] | None
    pool: int
    tile: tuple[int, int]
    kernels: tuple[Any, ...]

    @staticmethod
    def of(network: BoundNetwork, batch: int) -> RigorousLayer | None:
        """For a batch of images, if there are kernels for this network; else None."""
        layer, *others = network.layers
        ramp = layer.activation.ramp
        # A user's ramp may equal the slope of h up to rounding only.
        h = Bend.of(ramp) if ramp is not None and layer.activation.plain else None
        convolution = layer.operators[IMAGE].convolution if IMAGE in layer.operators else None
        if convolution is None or h is None:
            return None
        above = above_pooling(network) if others else None
        if len(layer.operators) > 1 or layer.residual or (others and above is None):
            return None
        (channels, height, width), weight = layer.shape, convolution.weight
        pool = 0 if above is None else above[0].pool_size
        if pool and (pool not in POOLS or height % pool or width % pool):
            return None
        if weight.dtype != torch.float64 or channels * height * width >= first_layer.LARGEST:
            return None
        tile = first_layer.tile_for((height, width), batch)
        kernels = tuple(
            rigorous_pass.compiled(
                name, weight.device, weight.shape, tile=tile, pool=pool,
                coarse=pool or int(network.output[0, 0].numel() > 1),
                biased=layer.bias is not None and layer.bias.numel() > channels,
            )
            for name in rigorous_pass.NAMES
        )  # fmt: skip
        if None in kernels:
            return None
        return RigorousLayer(layer, convolution, h, above, pool, tile, kernels)

    def value(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """<W, h(V x + b)> for each image, and a bound on its error."""
        totals = x.new_empty((len(x), math.prod(self._tiles), 2))
        self._launch_values(x, totals, totals, weights.contiguous())
        each = (channel_means(weights) * self._reach(x)).flatten(1).sum(1)
        rate = self._rate(self._additions)
        return totals[..., 0].sum(1), (self._pixels * rate * SPARE) * each

    def means(self, x: Tensor) -> Rounded:
        """The means of h(V x + b) over pooling blocks, (B, C, H/pool, W/pool)."""
        channels, height, width = self.layer.shape
        sums = x.new_empty((len(x), height // self._rows, channels, width // self.pool))
        self._launch_values(x, sums, sums, self.convolution.weight)
        rows = height // self.pool, self.pool // self._rows
        blocks = sums.reshape(len(x), *rows, channels, -1)
        value = blocks.sum(2).transpose(1, 2) / self.pool**2  # exact: a power of 2
        # Over the pixels of a thread, the threads beside it as a tree, and those below.
        additions = self._rows + self.pool.bit_length() + self.pool // self._rows
        reach = self._reach(x)
        return Rounded(value, self._rate(additions) * reach, (SPARE * self.h.steepest) * reach)

    def minorant(self, t: Rounded, v: Tensor) -> tuple[Rounded, Tensor, Tensor]:
        """c, beta and a bound on the error of beta, from multipliers t and a dual variable v.

        There is one t for each channel, for each pixel, or for each pooling block; in the last
        case the multipliers of pixels are t / pool^2.
        """
        if self.pool:  # exact: a power of 2
            t = Rounded(t.value / self.pool**2, t.error / self.pool**2)
        h, V, shape = self.h, self.convolution, self.convolution._resolve(None)
        totals, c = self._minorants(t.value.contiguous(), v.contiguous())
        steepest = totals[..., 1].amax(1).reshape(-1, 1, 1, 1)
        t_size, t_error = largest(t.value), largest(t.error)
        # p = s t errs with t, and by its own rounding.
        p_size = steepest * t_size
        p_error = steepest * t_error + gamma(2) * p_size
        rate = gamma(V.roundings(shape, adjoint=True) + 1)
        c_error = V.magnitude(rate * p_size + p_error, shape, adjoint=True) * SPARE
        size: Scalar = h.conjugate_size  # of s b - h*(s)
        if self.layer.bias is not None:
            size = size + steepest * largest(self.layer.bias)
        each = (gamma(STEPS + self._additions) * t_size + t_error) * size
        error = (self._pixels * SPARE) * each.flatten(1).sum(1)
        return Rounded(c, c_error), totals[..., 0].sum(1), error

    def _reach(self, x: Tensor) -> Tensor:
        """Bounds on |V x + b|, (B, C, 1, 1)."""
        reach = self.convolution.magnitude(largest(x), tuple(x.shape[1:]))
        return reach if self.layer.bias is None else reach + largest(self.layer.bias)

    def _rate(self, additions: int) -> float:
        """Errors of a sum of h(V x + b), relative to the sum of ``_reach``.

        The errors of V x + b, one for each tap, grow by the slope of h. Those of h are relative to
        the size of its terms, and those of the sum to |h(a)| <= steepest |a|.
        """
        taps = math.prod(self.convolution.weight.shape[-2:])
        return gamma(taps + additions) * self.h.steepest + gamma(STEPS) * self.h.size

    @property
    def _additions(self) -> int:
        """Additions that a term passes through in a sum over everything.

        Over the pixels of a thread, its channels, the threads of a tile as a tree, and all tiles.
        """
        threads = math.prod(first_layer.BLOCK)
        return 2 * self._rows + self.layer.shape[0] + threads.bit_length() + math.prod(self._tiles)

    @property
    def _rows(self) -> int:
        """Pixels of a thread."""
        return self.tile[0] // first_layer.WARPS

    @property
    def _pixels(self) -> int:
        return math.prod(self.layer.shape[1:])

    @property
    def _tiles(self) -> list[int]:
        return [-(-n // side) for n, side in zip(self.layer.shape[1:], self.tile, strict=True)]

    def _launch_values(self, x: Tensor, totals: Tensor, pooled: Tensor, weights: Tensor) -> None:
        h, bias = self.h, self._bias()
        padded = self.convolution.padding(x).contiguous()
        self._launch(
            self.kernels[0], len(x), weights, bias,
            [padded, totals, pooled, self.convolution.weight.contiguous(), bias, weights,
             h.low, h.high, h.left, h.right, h.middle, h.bend],
        )  # fmt: skip

    def _minorants(self, t: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Terms of beta and the largest |s|, one for each tile; and c."""
        h, bias, V = self.h, self._bias(), self.convolution
        sides, size = V.weight.shape[-2:], self.layer.shape[1:]
        around = math.prod(side + k - 1 for side, k in zip(self.tile, sides, strict=True))
        spill = t.new_empty((len(v), math.prod(self._tiles), around))
        totals = t.new_empty((len(v), math.prod(self._tiles), 2))
        self._launch(
            self.kernels[1], len(v), t, bias,
            [v, spill, totals, V.weight.contiguous(), bias, t,
             h.low, h.high, h.middle, h.conjugate],
        )  # fmt: skip
        c = t.new_empty((len(v), 1, *size))
        with current(t.device):
            self.kernels[2](
                grid=(math.prod(self._tiles), len(v), 1), block=first_layer.BLOCK,
                args=[spill, c, BOUNDARIES.index(V.boundary), *size],
            )  # fmt: skip
        return totals, c

    def _bias(self) -> Tensor:
        channels, bias = self.layer.shape[0], self.layer.bias
        return self.convolution.weight.new_zeros(channels) if bias is None else bias.contiguous()

    def _launch(self, kernel: Any, batch: int, t: Tensor, bias: Tensor, args: list[Any]) -> None:
        """With the distances between the multipliers and biases of two images."""
        apart = (each[0].numel() if len(each) == batch else 0 for each in (t, bias))
        with current(t.device):
            kernel(
                grid=(math.prod(self._tiles), batch, 1), block=first_layer.BLOCK,
                args=[*args, *apart, *self.layer.shape[1:]],
            )  # fmt: skip
