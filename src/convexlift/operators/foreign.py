"""Operators of other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape


class ForeignOperator(LinearOperator):
    """A x and A* y by the code of another library.

    Like an operator that a user wrote, it is examined for linearity and for its adjoint when a
    problem is stated, it cannot be divided between the images of a batch, and proof files cannot
    describe it.

    Args:
        input_shape: the shape of one input.
        output_shape: the shape of one output.
        nonnegative: whether A x >= 0 for every x >= 0, which makes bounds on rounding errors finer.
        terms: the largest number of products that are summed up in an entry of A x or A* y; by
            default the number of pixels (of data for A*). It bounds rounding errors, which matters
            for libraries that compute in single precision.
    """

    foreign = True

    def __init__(
        self,
        input_shape: Shape,
        output_shape: Shape,
        *,
        nonnegative: bool = False,
        terms: int | None = None,
    ) -> None:
        self.input_shape, self.data_shape = tuple(input_shape), tuple(output_shape)
        self.nonnegative, self.terms = nonnegative, terms

    def output_shape(self, input_shape: Shape) -> Shape:
        """The shape of the data."""
        return self.data_shape

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The number of terms, if it is known."""
        return self.terms or math.prod(self.data_shape if adjoint else input_shape)


def linear(apply: Callable[[Tensor, bool], Tensor], values: Tensor, transposed: bool) -> Tensor:
    """``apply(values, transposed)``, A x or A* y, for autograd: the derivative of one is the other.

    For libraries that compute outside of torch, where gradients would be lost without a word.
    """
    return _Linear.apply(values, apply, transposed)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, apply: Any, transposed: bool) -> Tensor:
        ctx.function, ctx.transposed = apply, transposed
        result: Tensor = apply(values, transposed)
        return result

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return linear(ctx.function, slope, not ctx.transposed), None, None
