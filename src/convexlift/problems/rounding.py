"""Arithmetic with error bounds, in double precision.

The sum of n products, in any order, errs by at most gamma_n sum |a_i b_i| with
gamma_n = n u / (1 - n u) and u = 2^-53 (Higham, Accuracy and Stability of Numerical Algorithms,
sections 3.1 and 4.2). The sums of absolute values are bounded channel by channel
(``LinearOperator.magnitude``), without a second pass over the pixels. What underflows is off by up
to 2^-1075 in place of a relative error: products that later ones multiply add ``TINY``, and
``claims`` accounts for all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from convexlift.networks.activations import Activation, conjugate_at
from convexlift.operators.linear import LinearOperator
from convexlift.strips import at_once, channel_slices
from convexlift.tensors import Shape, channel_extent, converted

UNIT = 2.0**-53
"""Half the distance from 1 to the next number: the largest relative error of one operation."""
TINY = 1e-300
"""More than what the products in one entry of a result lose by underflow."""
FAINT = 1e-150
"""Added to sizes of errors that are multiplied with weights, so that they do not underflow."""
CACHED = 2**17
"""Numbers processed at once on a CPU (1 MB)."""
LARGE = 2**26
"""Numbers of one image that a GPU divides, too (0.5 GB), since several such arrays are needed."""
PART = 2**22
"""Numbers of a layer that are computed at once (32 MB); larger ones are divided into channels."""
BLOCK = 1024
"""Sums are taken in blocks of this size: n numbers collect n/BLOCK + BLOCK errors, not n."""


def gamma(count: int) -> float:
    """2 n u: the factor 2 covers 1/(1 - n u) and the rounding of the error bounds themselves."""
    return 2 * count * UNIT


def largest(values: Tensor) -> Tensor:
    """The largest |value| of each channel, (B, C, 1, 1); features (B, n) stay as they are."""
    if values.ndim == 2 or math.prod(values.shape[2:]) == 1:
        return values.abs()
    if not any(values.stride()[2:]):  # one number for each channel, expanded
        return values[(...,) + (slice(1),) * (values.ndim - 2)].abs()
    low, high = channel_extent(values)
    return torch.maximum(-low, high).reshape(*values.shape[:2], *([1] * (values.ndim - 2)))


def _size(value: Tensor, error: Tensor) -> Tensor:
    """|value| at the resolution of the errors, since entries that are exactly zero may matter."""
    return value.abs() if error.shape == value.shape else largest(value)


def underflow(*factors: Tensor, tiny: float = TINY) -> Tensor:
    """TINY where all factors are nonzero; else their product is exactly 0."""
    some = reduce(torch.logical_and, [factor != 0 for factor in factors])
    return tiny * some.to(factors[0].dtype)  # not in torch's default precision


@dataclass(frozen=True, eq=False)
class Rounded:
    """|value - exact| <= error; the error has a shape that broadcasts to the value's.

    ``known`` is a bound on |value| for each channel, or None.
    """

    value: Tensor
    error: Tensor
    known: Tensor | None = None

    @staticmethod
    def exact(value: Tensor) -> Rounded:
        """A stored number, without error."""
        return Rounded(value, value.new_zeros((1,) * value.ndim))

    def __add__(self, other: Rounded) -> Rounded:
        value, error = self.value + other.value, self.error + other.error
        return Rounded(value, error + gamma(1) * _size(value, error))

    def times(self, factor: Tensor) -> Rounded:
        """The product with stored numbers, one for each image."""
        factor = factor.reshape(-1, *([1] * (self.value.ndim - 1)))
        value, error = factor * self.value, factor.abs() * self.error
        lost = underflow(factor, _size(self.value, self.error))
        return Rounded(value, error + gamma(1) * _size(value, error) + lost)

    @property
    def size(self) -> Tensor:
        """The largest |value| of each channel, or a bound on it."""
        return largest(self.value) if self.known is None else self.known


def product(K: LinearOperator, z: Rounded, input_shape: Shape, *, adjoint: bool = False) -> Rounded:
    """K z, or K* z: the errors of z pass through |K|, and every product adds its own."""
    steps = K.steps(input_shape)
    for factor, shape in reversed(steps) if adjoint else steps:
        z = _product(factor, z, shape, adjoint)
    return z


def _product(K: LinearOperator, z: Rounded, input_shape: Shape, adjoint: bool) -> Rounded:
    if (d := K.diagonal) is not None:  # errors stay in their pixels
        value = (d := converted(d, z.value)) * z.value
        lost = underflow(d, z.value)
        rounding = (gamma(K.roundings(input_shape)) * value.abs() + lost) * (d.abs() != 1)
        return Rounded(value, d.abs() * z.error * (1 + gamma(1)) + rounding)
    value = K.adjoint(z.value) if adjoint else K(z.value)
    rate = gamma(K.roundings(input_shape, adjoint=adjoint))
    if value.dtype != z.value.dtype:  # an operator for single precision only
        value, rate = value.to(z.value.dtype), rate * 2.0**29
    if K.nonnegative:  # then |K| |z| is K |z|, entry by entry
        sizes = (z.value.abs() * rate + z.error).expand_as(z.value) + underflow(z.value, tiny=FAINT)
        error = (K.adjoint(sizes) if adjoint else K(sizes)).to(value) * (1 + rate)
        return Rounded(value, error + underflow(error))
    inherited = largest(z.error).expand(-1, z.value.shape[1], *([-1] * (z.value.ndim - 2)))
    if K.single_operation and not adjoint:  # errors are then relative to the result
        passed = K.magnitude(inherited, input_shape)
        return Rounded(value, gamma(1) * value.abs() + passed * (1 + 1e-9))
    sizes = rate * z.size + inherited + underflow(z.size, tiny=FAINT)
    error = K.magnitude(sizes, input_shape, adjoint=adjoint) * (1 + 1e-9)
    return Rounded(value, error + underflow(error))


def pieces(h: Activation, a: Tensor) -> Iterator[tuple[slice, slice]]:
    """A few channels of h(a) at a time, where that is faster or saves memory; and those of a."""
    channels = a.shape[1] // h.group
    if a.is_cuda and a[0].numel() < LARGE:
        return channel_slices(h.group, channels, channels)
    some = max(1, at_once(CACHED, a.device) * channels // max(1, a.numel()))
    return channel_slices(h.group, channels, some)


def activated(h: Activation, a: Rounded, weights: Tensor | None = None) -> Rounded:
    """h(a): errors grow by the steepest slope, and evaluating h adds its own.

    With ``weights``, the value is their product with h(a) summed over the pixels of each channel,
    (B, C), and the error is the error of one pixel.
    """
    low, high = h.extent(a.value, a.error)
    steepest, reach = h.steepest(low, high), torch.maximum(low.abs(), high.abs())
    size = (steepest * reach + h.height(low, high)) * (1 + 1e-9)  # a bound on |h(a)|
    error = steepest * h.join(largest(a.error)) + 2 * elementary(h) * size
    error = error + underflow(steepest, reach)
    parts = []
    for outputs, inputs in pieces(h, a.value):
        z = h.select(outputs).value(a.value[:, inputs])
        parts.append(z if weights is None else channel_sums(weights[:, outputs] * z))
    return Rounded(torch.cat(parts, 1) if len(parts) > 1 else parts[0], error, size)


def slopes(h: Activation, p: Tensor, t: Tensor) -> Tensor:
    """s with p = s t as nearly as the domain of h* allows, inside it to the last digit."""
    inverse = h.spread(torch.where(t > 0, 1 / t, 0.0))
    s = h.clip(p * inverse)
    return s * (1 - elementary(h)) if h.group > 1 else s  # lengths of vectors are rounded


def is_curved(h: Activation) -> bool:
    """Whether h* is nonzero on its domain; for piecewise linear functions it is zero."""
    return h.ramp is None or h.ramp.width > 0 or h.ramp.offset != 0


def conjugate_at_ends(h: Activation, like: Tensor) -> Tensor | float:
    """The largest |h*| at the ends of its domain: rounding errors of h* are relative to it."""
    low, high = h.slopes
    ends = [end for end in (low, high) if abs(end) < 1e150] or [0.0]
    if h.plain:
        inside = (min(max(end * (1 - elementary(h)), low), high) for end in ends)
        return max(abs(conjugate_at(h, s, like.dtype)) for s in inside)
    lone = torch.cat([like.new_full((1, h.group), end) for end in ends]) / h.group**0.5
    return h.conjugate(h.clip(lone * (1 - elementary(h)))).abs().max()


def elementary(h: Activation) -> float:
    """The relative error of an evaluation of h or h*."""
    return gamma(h.roundings)


def total(values: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over everything but the batch, and a bound on its error; (B,) both."""
    return block_sum(values), sum_rate(values[0].numel()) * block_sum(values.abs())


def sum_rate(count: int) -> float:
    """The error of a sum of ``count`` numbers, relative to the sum of their absolute values."""
    return gamma(min(BLOCK, count) + count // BLOCK + 2)


def channel_sums(values: Tensor) -> Tensor:
    """The sum over the pixels of each channel, (B, C, ...) -> (B, C), in two steps."""
    flat = values.reshape(*values.shape[:2], -1)
    block = min(BLOCK, flat.shape[2])
    if flat.shape[2] % block:
        flat = torch.nn.functional.pad(flat, (0, -flat.shape[2] % block))
    return flat.reshape(*flat.shape[:2], -1, block).sum(3).sum(2)


def channel_means(values: Tensor) -> Tensor:
    """The mean over the pixels of each channel, (B, C, H, W) -> (B, C, 1, 1)."""
    return values if values.ndim == 2 else values.mean(tuple(range(2, values.ndim)), keepdim=True)


def block_sum(values: Tensor) -> Tensor:
    """The sum for each image, in two steps."""
    return channel_sums(values.flatten(1)[:, None])[:, 0]
