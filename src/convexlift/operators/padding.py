"""Images that continue past their edges."""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape

Boundary = Literal["zero", "circular", "reflect", "replicate"]
BOUNDARIES: tuple[Boundary, ...] = ("zero", "circular", "reflect", "replicate")
"""How an image continues past its edge; ``reflect`` does not repeat the edge pixel."""


class Padding(LinearOperator):
    """x continued past its edges by ``margin`` = (rows, columns); the adjoint folds back."""

    def __init__(self, input_shape: Shape, margin: tuple[int, int], boundary: Boundary) -> None:
        height, width = input_shape[-2:]
        limits = {"circular": (height, width), "reflect": (height - 1, width - 1)}
        if any(m > n for m, n in zip(margin, limits.get(boundary, margin), strict=True)):
            raise ValueError(
                f"a {boundary} margin of {margin} does not fit an image of {height} x {width}"
            )
        self.input_shape = input_shape
        self.margin = margin
        self.boundary: Boundary = boundary

    def forward(self, x: Tensor) -> Tensor:
        """The larger image."""
        rows, columns = self.margin
        mode = "constant" if self.boundary == "zero" else self.boundary
        return F.pad(x, (columns, columns, rows, rows), mode=mode)

    def adjoint(self, y: Tensor) -> Tensor:
        """Every copy of a pixel added back to it."""
        folded = _fold(y, -1, self.margin[1], self.boundary)
        return _fold(folded, -2, self.margin[0], self.boundary)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Larger by twice the margin."""
        height, width = input_shape[-2:]
        return (*input_shape[:-2], height + 2 * self.margin[0], width + 2 * self.margin[1])


def most_copies(margin: tuple[int, int], boundary: Boundary) -> int:
    """How many times a pixel stands in the padded image at most: corners count by both axes."""
    if boundary == "zero":
        return 1
    # Wrapped or mirrored, a pixel has one copy on each side; repeated, it has all of a margin.
    return math.prod(min(3, 2 * m + 1) if boundary != "replicate" else 2 * m + 1 for m in margin)


def _fold(y: Tensor, axis: int, margin: int, boundary: Boundary) -> Tensor:
    """Add the two margins of one axis to the pixels that they are copies of."""
    size = y.shape[axis] - 2 * margin
    core = y.narrow(axis, margin, size)
    if margin == 0 or boundary == "zero":
        return core
    core = core.clone()
    before, after = y.narrow(axis, 0, margin), y.narrow(axis, margin + size, margin)
    if boundary == "circular":
        core.narrow(axis, size - margin, margin).add_(before)
        core.narrow(axis, 0, margin).add_(after)
    elif boundary == "reflect":
        core.narrow(axis, 1, margin).add_(before.flip(axis))
        core.narrow(axis, size - 1 - margin, margin).add_(after.flip(axis))
    else:
        core.narrow(axis, 0, 1).add_(before.sum(axis, keepdim=True))
        core.narrow(axis, size - 1, 1).add_(after.sum(axis, keepdim=True))
    return core
