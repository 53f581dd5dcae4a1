"""The first layer of a claim, computed without storing it, with error bounds.

For a convolution V of images and an activation h whose slope is a ramp,

    values:     <W, h(a)>,  a = V x + b         (or means of h(a) over pooling blocks)
    minorant:   c = V* p,   beta = <p, b> - <t, h*(s)>,   p = s t,

in double precision: in two kernels on a GPU (``rigorous_kernels``), in strips on a CPU
(``rigorous_strips``). Error bounds are those of ``rounding``: a sum in which every term passes
through at most n additions errs by at most gamma_n times the sum of the absolute values, in any
order. Fused multiply-adds leave out rounding errors, and ``claims`` accounts for underflow.

Kernels do not look for the smallest and the largest a of each channel, as ``rounding`` and strips
do: in their place |a| <= ||V||_1 max |x| + max |b|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.problems.fused_pass import POOLS
from convexlift.problems.packed_slopes import Dual
from convexlift.problems.pooled_layers import above_pooling
from convexlift.problems.rigorous_kernels import KernelSums
from convexlift.problems.rigorous_strips import StripSums
from convexlift.problems.rigorous_sums import Bend, Extent, LayerSums
from convexlift.problems.rounding import Rounded, channel_means, gamma, largest, underflow

STEPS = 16
"""More than the rounding errors of W h(a) from a, and of t (s b - h*(s)) from s and t."""
SPARE = 1 + 1e-9
"""Covers the rounding of error bounds."""


@dataclass(frozen=True, eq=False)
class RigorousLayer:
    """The first layer of a network in double precision, either the only one or pooled.

    Attributes:
        sums: how sums over the layer are computed.
        above: the pooling and the layers above, as a network of block means; or None.
    """

    sums: LayerSums
    above: tuple[LinearOperator, BoundNetwork] | None

    @staticmethod
    def of(network: BoundNetwork, batch: int) -> RigorousLayer | None:
        """For a batch of images, if this network is of that kind; else None."""
        layer, *others = network.layers
        ramp = layer.activation.ramp
        # A user's ramp may equal the slope of h up to rounding only.
        h = Bend.of(ramp) if ramp is not None and layer.activation.plain else None
        V = layer.operators[IMAGE].convolution if IMAGE in layer.operators else None
        if V is None or h is None or V.weight.dtype != torch.float64:
            return None
        above = above_pooling(network) if others else None
        if len(layer.operators) > 1 or layer.residual or (others and above is None):
            return None
        pool = 0 if above is None else above[0].pool_size
        if pool and (pool not in POOLS or any(side % pool for side in layer.shape[1:])):
            return None
        kernels = KernelSums.of(layer, V, h, pool, network.output, batch)
        sums = kernels or StripSums.of(layer, V, h, pool)
        return None if sums is None else RigorousLayer(sums, above)

    def reads(self, dual: Dual) -> bool:
        """Whether the dual variable is of a type that it takes."""
        return self.sums.reads(dual)

    def value(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """<W, h(V x + b)> for each image, and a bound on its error."""
        parts, extent = self.sums.values(x, weights)
        error, _ = self._of_an_entry(x, extent, self.sums.additions)
        return parts.sum(1), (self._pixels * channel_means(weights) * error).flatten(1).sum(1)

    def means(self, x: Tensor) -> Rounded:
        """The means of h(V x + b) over pooling blocks, (B, C, H/pool, W/pool)."""
        means, extent = self.sums.means(x)
        return Rounded(means, *self._of_an_entry(x, extent, self.sums.additions_of_means))

    def minorant(self, t: Rounded, v: Dual) -> tuple[Rounded, Tensor, Tensor]:
        """c, beta and a bound on the error of beta, from multipliers t and a dual variable v.

        There is one t for each channel, for each pixel, or for each pooling block; in the last
        case the multipliers of pixels are t / pool^2.
        """
        h, V, pool, bias = self.sums.h, self.sums.V, self.sums.pool, self.sums.layer.bias
        if pool:  # exact: a power of 2
            t = Rounded(t.value / pool**2, t.error / pool**2)
        parts, extent, c = self.sums.minorants(t.value, v)
        low, high = (end[..., None, None] for end in extent)
        steepest = torch.maximum(-low, high)
        t_size, t_error = largest(t.value), largest(t.error)
        # p = s t errs with t, and by its own rounding.
        p_size = steepest * t_size
        p_error = steepest * t_error + gamma(2) * p_size
        shape = V._resolve(None)
        rate = gamma(V.roundings(shape, adjoint=True) + 1)
        c_error = V.magnitude(rate * p_size + p_error, shape, adjoint=True) * SPARE
        size = h.conjugate_between(low, high)  # of s b - h*(s)
        if bias is not None:
            size = size + steepest * largest(bias)
        each = (gamma(STEPS + self.sums.additions) * t_size + t_error) * size
        error = (self._pixels * SPARE) * each.flatten(1).sum(1)
        return Rounded(c, c_error), parts.sum(1), error

    def _of_an_entry(
        self, x: Tensor, extent: Extent | None, additions: int
    ) -> tuple[Tensor, Tensor]:
        """Bounds on the error of h(V x + b) and on its size, (B, C, 1, 1), channel by channel.

        The errors of a = V x + b, one for each tap, grow by the slope of h. Those of h are relative
        to the size of its terms, and those of a sum of them to |h(a)|, which is smaller.
        """
        h, V, bias = self.sums.h, self.sums.V, self.sums.layer.bias
        reach = V.magnitude(largest(x), tuple(x.shape[1:]))
        reach = reach if bias is None else reach + largest(bias)
        error = gamma(V.weight[0].numel() + 1) * reach + underflow(reach)
        low, high = (-reach, reach) if extent is None else (end[..., None, None] for end in extent)
        steepest, size = h.between((low - error).clamp_max(0), (high + error).clamp_min(0))
        return SPARE * (steepest * error + gamma(STEPS + additions) * size), SPARE * size

    @property
    def _pixels(self) -> int:
        return math.prod(self.sums.layer.shape[1:])
