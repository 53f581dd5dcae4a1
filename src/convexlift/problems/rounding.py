"""Arithmetic with error bounds: numbers in double precision, and how far off they may be.

The sum of n products, in any order, errs by at most gamma_n sum |a_i b_i| with
gamma_n = n u / (1 - n u) and u = 2^-53 (Higham, Accuracy and Stability of Numerical Algorithms,
sections 3.1 and 4.2). The sums of absolute values are bounded channel by channel
(``LinearOperator.magnitude``), which needs no second pass over the pixels. Underflow is left to
``claims``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape

UNIT = 2.0**-53
"""Half the distance of 1 to the next number: the largest relative error of one operation."""
ELEMENTARY = 32
"""Evaluating an activation or its conjugate errs by at most so many units of its terms."""
BLOCK = 1024
"""Numbers that are summed before sums are: n numbers collect n/BLOCK + BLOCK errors, not n."""


def gamma(count: int) -> float:
    """Twice n u: as much again for 1/(1 - n u) and for the rounding of error bounds themselves."""
    return 2 * count * UNIT


def largest(values: Tensor) -> Tensor:
    """The largest |value| of each channel, (B, C, 1, 1); features (B, n) stay as they are."""
    if values.ndim == 2:
        return values.abs()
    low, high = values.flatten(2).aminmax(dim=2)
    return torch.maximum(-low, high).reshape(*values.shape[:2], *([1] * (values.ndim - 2)))


def _size(value: Tensor, error: Tensor) -> Tensor:
    """|value|, as finely as the errors are known: entries that are exactly zero may matter."""
    return value.abs() if error.shape == value.shape else largest(value)


@dataclass(frozen=True, eq=False)
class Rounded:
    """|value - exact| <= error, whose shape broadcasts to that of value."""

    value: Tensor
    error: Tensor

    @staticmethod
    def exact(value: Tensor) -> Rounded:
        """A stored number, which is what it is."""
        return Rounded(value, value.new_zeros((1,) * value.ndim))

    def __add__(self, other: Rounded) -> Rounded:
        value, error = self.value + other.value, self.error + other.error
        return Rounded(value, error + gamma(1) * _size(value, error))

    def times(self, factor: Tensor) -> Rounded:
        """The product with stored numbers, one for each image."""
        factor = factor.reshape(-1, *([1] * (self.value.ndim - 1)))
        value, error = factor * self.value, factor.abs() * self.error
        return Rounded(value, error + gamma(1) * _size(value, error))

    def reach(self) -> Tensor:
        """No exact number of a channel is larger than this."""
        return (largest(self.value) + self.error) * (1 + gamma(1))


def product(K: LinearOperator, z: Rounded, input_shape: Shape, *, adjoint: bool = False) -> Rounded:
    """K z, or K* z: the errors of z pass through |K|, and every product adds its own."""
    value = K.adjoint(z.value) if adjoint else K(z.value)
    rate = gamma(K.roundings(input_shape, adjoint=adjoint))
    if value.dtype != z.value.dtype:  # an operator that knows single precision only
        value, rate = value.to(z.value.dtype), rate * 2.0**29
    inherited = largest(z.error).expand(-1, z.value.shape[1], *([-1] * (z.value.ndim - 2)))
    if K.single_operation and not adjoint:  # then errors are relative to the result
        passed = K.magnitude(inherited, input_shape)
        return Rounded(value, gamma(1) * value.abs() + passed * (1 + 1e-9))
    if K.nonnegative:  # then |K| |z| is K |z|, entry by entry
        sizes = (z.value.abs() * rate + z.error).expand_as(z.value)
        error = K.adjoint(sizes) if adjoint else K(sizes)
        return Rounded(value, error * (1 + rate))
    sizes = rate * largest(z.value) + inherited
    return Rounded(value, K.magnitude(sizes, input_shape, adjoint=adjoint) * (1 + 1e-9))


def activated(h: Activation, a: Rounded) -> Rounded:
    """h(a): errors grow by the steepest slope, and evaluating h adds its own."""
    value = h.value(a.value)
    low, high = h.extent(a.value, a.error)
    steepest, reach = h.steepest(low, high), torch.maximum(low.abs(), high.abs())
    at_zero = h.value(torch.zeros_like(a.value[:1])).abs().max()
    size = largest(value) + steepest * reach + at_zero
    return Rounded(value, steepest * h.join(largest(a.error)) + elementary(h) * size)


def slopes(h: Activation, p: Tensor, t: Tensor) -> Tensor:
    """s with p = s t as nearly as the domain of h* allows; inside of it to the last digit."""
    t = h.spread(t)
    usable = t > 0
    s = torch.where(usable, p / torch.where(usable, t, 1.0), 0.0)
    s = h.clip(s.nan_to_num(0.0, 1e150, -1e150))
    return s * (1 - elementary(h)) if h.group > 1 else s  # lengths of vectors are rounded


def conjugate(h: Activation, s: Tensor) -> Rounded:
    """h*(s), for slopes in its domain."""
    value = h.conjugate(s)
    low, high = h.slopes
    ends = s.new_tensor([end for end in (low, high) if abs(end) < 1e150] or [0.0])
    lone = ends.reshape(-1, 1) * s.new_ones((1, h.group)) / h.group**0.5
    at_ends = h.conjugate(h.clip(lone * (1 - elementary(h)))).abs().max()
    return Rounded(value, elementary(h) * (largest(value) + at_ends))


def elementary(h: Activation) -> float:
    """The relative error of an evaluation of h or h*."""
    return gamma(ELEMENTARY + 4 * h.group)


def total(terms: Rounded) -> tuple[Tensor, Tensor]:
    """The sum over everything but the batch, and a bound on its error; (B,) both."""
    return block_sum(terms.value), sum_error(terms)


def sum_error(terms: Rounded) -> Tensor:
    """The errors of all terms, and those of their sum."""
    values, count = terms.value, terms.value[0].numel()
    each = terms.error.expand(len(values), *terms.error.shape[1:]).flatten(1)
    each = each.sum(1) * (count / each[0].numel()) * (1 + 1e-9)
    return each + gamma(min(BLOCK, count) + count // BLOCK + 2) * block_sum(values.abs())


def block_sum(values: Tensor) -> Tensor:
    """The sum for each image, in two steps."""
    flat = values.flatten(1)
    padded = torch.nn.functional.pad(flat, (0, -flat.shape[1] % BLOCK))
    return padded.reshape(len(flat), -1, BLOCK).sum(2).sum(1)
