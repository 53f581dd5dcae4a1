"""Float64 numbers with a bound on their rounding error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
U = 2.0**-53
"""The relative error of one operation."""
ROUNDINGS = 16 * U
"""The error of a short formula relative to its terms, if exp and log err by at most 4 ulp."""
TINY = 1e-200
"""The error that underflow makes in a short formula."""
BLOCK = 64
"""So many numbers are added in any order; the sums of blocks are added exactly."""


class ProofRejected(ValueError):
    """A proof file that is damaged, or proves less than it claims; one sentence says why."""


def require(condition: Any, reason: str) -> None:
    """Reject the file unless the condition holds."""
    if not condition:
        raise ProofRejected(reason)


def size_of(a: Array | float) -> Array:
    """|a|, at least 1e-150 where a is not zero: products of sizes do not underflow."""
    return np.where(a != 0, np.maximum(np.abs(a), 1e-150), 0.0)


@dataclass(frozen=True)
class Ball:
    """Numbers within ``error`` of ``value``.

    Sums of products with zero have no error: unseen pixels, where c = 0, depend on it.
    """

    value: Array
    error: Array | float = 0.0

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error)

    def __add__(self, other: Ball) -> Ball:
        value = self.value + other.value
        return Ball(value, (self.error + other.error + 2 * U * np.abs(value)) * (1 + ROUNDINGS))

    def __mul__(self, other: Ball) -> Ball:
        a, b = size_of(self.value), size_of(other.value)
        error = a * size_of(other.error + 2 * U * b)
        if np.any(self.error):
            error = error + size_of(self.error) * size_of(b + other.error)
        return Ball(self.value * other.value, error * (1 + ROUNDINGS))

    def total(self) -> Ball:
        """The sum over everything but the batch, (B, ...) -> (B,)."""
        flat = self.value.reshape(len(self.value), -1)
        error = np.broadcast_to(self.error, self.value.shape).reshape(flat.shape)
        finite = np.isfinite(flat).all() and np.isfinite(error).all()
        require(finite, "its objective or its lower bound is not finite")
        blocks = np.pad(flat, ((0, 0), (0, -flat.shape[1] % BLOCK))).reshape(len(flat), -1, BLOCK)
        value = np.array([math.fsum(sums) for sums in blocks.sum(-1)])
        errors = 2 * BLOCK * U * np.abs(flat).sum(1) + error.sum(1) + 2 * U * np.abs(value)
        return Ball(value, errors * (1 + 4 * flat.shape[1] * U))


def formula(terms: Sequence[Array]) -> Ball:
    """The sum of terms that are short formulas of exact numbers."""
    return Ball(reduce(np.add, terms), ROUNDINGS * reduce(np.add, map(np.abs, terms)) + TINY)


def concave(function: Callable[[Array], Ball], at: Ball) -> Ball:
    """A concave function of a ball: it is lowest at one of the ends."""
    exact = np.equal(at.error, 0)
    low = np.where(exact, at.value, np.nextafter(at.value - at.error, -np.inf))
    high = np.where(exact, at.value, np.nextafter(at.value + at.error, np.inf))
    middle, *ends = (function(point) for point in (at.value, low, high))
    lowest = reduce(np.minimum, [end.value - end.error for end in (middle, *ends)])
    slack = 4 * U * (np.abs(middle.value) + np.abs(lowest))
    return Ball(middle.value, (middle.value - lowest + slack) * (1 + ROUNDINGS))
