"""Operators of single images, applied to every slice of a volume."""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.parts import require_at_least
from convexlift.tensors import Shape


class Slices(LinearOperator, name="Slices"):
    """(A x)_k = A_2 x_k for every slice k: (B, C, D, H, W) -> (B, C', D, ...).

    ``Slices(ParallelBeam(...), depth=64)`` scans a volume with parallel rays, row by row of the
    detector; the data are (B, 1, D, angles, bins).

    Args:
        operator: A_2, the same for all slices and all volumes.
        depth: the number of slices, D.
    """

    def __init__(self, operator: LinearOperator, depth: int) -> None:
        require_at_least(1, depth=depth)
        d = operator.diagonal
        if d is not None and d.ndim == 4 and len(d) > 1:
            raise ValueError(
                "Slices takes one operator for all volumes, and this one differs from image to "
                "image; give a Mask of the shape (B, C, D, H, W) instead"
            )
        self.operator, self.depth = operator, depth
        flat = operator.input_shape
        self.input_shape = None if flat is None else (flat[0], depth, *flat[1:])

    def _apart(self, volumes: Tensor) -> Tensor:
        return volumes.transpose(1, 2).flatten(0, 1)

    def _together(self, slices: Tensor) -> Tensor:
        return slices.reshape(-1, self.depth, *slices.shape[1:]).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """A_2 of all slices at once."""
        return self._together(self.operator(self._apart(x)))

    def adjoint(self, y: Tensor) -> Tensor:
        """A_2* of all slices at once."""
        return self._together(self.operator.adjoint(self._apart(y)))

    def output_shape(self, input_shape: Shape) -> Shape:
        """That of a slice, with the depth after the channels."""
        if len(input_shape) != 4 or input_shape[1] != self.depth:
            raise ValueError(
                f"Slices takes volumes (channels, {self.depth}, H, W), got {input_shape}"
            )
        first, *rest = self.operator.output_shape(_flat(input_shape))
        return (first, self.depth, *rest)

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether A_2 is."""
        return self.operator.nonnegative

    @property
    def diagonal(self) -> Tensor | None:
        """That of A_2, for every slice."""
        d = self.operator.diagonal
        return d if d is None or d.ndim < 3 else d.unsqueeze(-3)

    @property
    def invertible(self) -> bool:  # type: ignore[override]
        """Whether A_2 is."""
        return self.operator.invertible

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """Slice by slice."""
        return self._together(self.operator.approximate_inverse(self._apart(y), window))

    def norm(self, input_shape: Shape | None = None) -> float:
        """||A_2||."""
        return self.operator.norm(None if input_shape is None else _flat(input_shape))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Of A_2, for the largest of all slices."""
        found = self.operator.magnitude(bound.amax(2), _flat(input_shape), adjoint=adjoint)
        return found.unsqueeze(2)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """Of A_2."""
        return self.operator.roundings(_flat(input_shape), adjoint=adjoint)

    def select(self, images: Tensor) -> LinearOperator | None:
        """The same, if A_2 is the same for all images."""
        inner = self.operator.select(torch.zeros(1, dtype=torch.long))
        return None if inner is None else self


def _flat(shape: Shape) -> Shape:
    """Of a slice."""
    return (shape[0], *shape[2:])
