"""Norms of linear operators, estimated from products with A and A*."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from convexlift.tensors import Shape, expand_per_image

if TYPE_CHECKING:
    from convexlift.operators.linear import LinearOperator


def power_iteration(
    operator: LinearOperator, shape: Shape, steps: int = 200, tolerance: float = 1e-5
) -> float:
    """A lower estimate of ||A||: the growth of x <- A* A x from a fixed random start.

    Operators that act differently on the images of a batch (a mask for each image) give the
    largest norm among them. After ``steps`` products with A* A, or once the estimate moves by less
    than ``tolerance``, relatively, it ends.
    """
    example = next((t for t in operator.tensors() if t.is_floating_point()), torch.ones(()))
    with torch.no_grad():
        batch = operator(example.new_zeros((1, *shape))).shape[0]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((batch, *shape), generator=generator, dtype=torch.float64)
    # A positive offset: nonnegative operators have nonnegative leading singular vectors.
    x = (x + 0.5).to(example)
    estimate = 0.0
    with torch.no_grad():
        for _ in range(steps):
            lengths = torch.linalg.vector_norm(x.flatten(1), dim=1)
            if float(lengths.max()) == 0.0:
                return 0.0
            tiny = torch.finfo(x.dtype).tiny
            unit = x / expand_per_image(lengths.clamp_min(tiny), x)
            x = operator.adjoint(operator(unit))
            growth = float(torch.linalg.vector_norm(x.flatten(1), dim=1).max())
            if abs(growth - estimate) <= tolerance * growth:
                estimate = max(growth, estimate)
                break
            estimate = growth
    return math.sqrt(estimate)
