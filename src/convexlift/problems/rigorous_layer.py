"""The first layer of a claim, computed without storing it, with error bounds.

For a convolution V of images and an activation h whose slope is a ramp,

    values:     <W, h(a)>,  a = V x + b         (or means of h(a) over pooling blocks)
    minorant:   c = V* p,   beta = <p, b> - <t, h*(s)>,   p = s t,

in double precision: in two kernels on a GPU (``rigorous_kernels``), in strips on a CPU
(``rigorous_strips``). Error bounds are those of ``rounding``: a sum in which every term passes
through at most n additions errs by at most gamma_n times the sum of the absolute values, in any
order. Fused multiply-adds leave out rounding errors, and ``claims`` accounts for underflow.

Where ``rounding`` looks for the largest |a| of each channel, in another pass, the bounds here use
|a| <= ||V||_1 max |x| + max |b|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.problems.fused_pass import POOLS
from convexlift.problems.lifting import above_pooling
from convexlift.problems.packed_slopes import Dual
from convexlift.problems.rigorous_kernels import KernelSums
from convexlift.problems.rigorous_strips import StripSums
from convexlift.problems.rigorous_sums import Bend, LayerSums
from convexlift.problems.rounding import Rounded, channel_means, gamma, largest
from convexlift.tensors import Scalar

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
        if isinstance(self.sums, StripSums):
            return True
        return isinstance(dual, Tensor) and dual.dtype == torch.float32

    def value(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """<W, h(V x + b)> for each image, and a bound on its error."""
        parts = self.sums.values(x, weights)
        each = (channel_means(weights) * self._reach(x)).flatten(1).sum(1)
        rate = self._rate(self.sums.additions)
        return parts.sum(1), (self._pixels * rate * SPARE) * each

    def means(self, x: Tensor) -> Rounded:
        """The means of h(V x + b) over pooling blocks, (B, C, H/pool, W/pool)."""
        reach, rate = self._reach(x), self._rate(self.sums.additions_of_means)
        return Rounded(self.sums.means(x), rate * reach, (SPARE * self.sums.h.steepest) * reach)

    def minorant(self, t: Rounded, v: Dual) -> tuple[Rounded, Tensor, Tensor]:
        """c, beta and a bound on the error of beta, from multipliers t and a dual variable v.

        There is one t for each channel, for each pixel, or for each pooling block; in the last
        case the multipliers of pixels are t / pool^2.
        """
        h, V, pool, bias = self.sums.h, self.sums.V, self.sums.pool, self.sums.layer.bias
        if pool:  # exact: a power of 2
            t = Rounded(t.value / pool**2, t.error / pool**2)
        parts, steepest, c = self.sums.minorants(t.value, v)
        steepest = steepest.amax(1).reshape(-1, 1, 1, 1)
        t_size, t_error = largest(t.value), largest(t.error)
        # p = s t errs with t, and by its own rounding.
        p_size = steepest * t_size
        p_error = steepest * t_error + gamma(2) * p_size
        shape = V._resolve(None)
        rate = gamma(V.roundings(shape, adjoint=True) + 1)
        c_error = V.magnitude(rate * p_size + p_error, shape, adjoint=True) * SPARE
        size: Scalar = h.conjugate_size  # of s b - h*(s)
        if bias is not None:
            size = size + steepest * largest(bias)
        each = (gamma(STEPS + self.sums.additions) * t_size + t_error) * size
        error = (self._pixels * SPARE) * each.flatten(1).sum(1)
        return Rounded(c, c_error), parts.sum(1), error

    def _reach(self, x: Tensor) -> Tensor:
        """Bounds on |V x + b|, (B, C, 1, 1)."""
        V, bias = self.sums.V, self.sums.layer.bias
        reach = V.magnitude(largest(x), tuple(x.shape[1:]))
        return reach if bias is None else reach + largest(bias)

    def _rate(self, additions: int) -> float:
        """Errors of a sum of h(V x + b), relative to the sum of ``_reach``.

        The errors of V x + b, one for each tap, grow by the slope of h. Those of h are relative to
        the size of its terms, and those of the sum to |h(a)| <= steepest |a|.
        """
        h, taps = self.sums.h, self.sums.V.weight[0].numel()
        return gamma(taps + additions) * h.steepest + gamma(STEPS) * h.size

    @property
    def _pixels(self) -> int:
        return math.prod(self.sums.layer.shape[1:])
