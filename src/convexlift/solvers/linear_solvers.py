"""H q = r for symmetric positive semidefinite H, one system for each image of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.networks.bound_network import Apply
from convexlift.tensors import expand_per_image


def conjugate_gradients(
    apply: Apply, r: Tensor, *, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Minimise 1/2 <q, H q> - <r, q> over growing Krylov spaces.

    Args:
        apply: H, positive definite.
        r: the right-hand side.
        start: the initial q.
        iterations: maximum number.
        tolerance: an image stops at ||r - H q|| <= tolerance ||r||.
    """
    q = start
    residual = r - apply(q)
    direction = residual
    squared = _dot(residual, residual)
    goal = tolerance**2 * _dot(r, r)
    for _ in range(iterations):
        active = squared > goal  # other images take steps of length zero from here on
        if not active.any():
            break
        image = apply(direction)
        alpha = _ratio(squared, _dot(direction, image), active)
        q = q + alpha * direction
        residual = residual - alpha * image
        previous, squared = squared, _dot(residual, residual)
        direction = residual + _ratio(squared, previous, active) * direction
    return q


def minimal_residuals(
    apply: Apply, r: Tensor, *, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Minimise ||r - H q|| over growing Krylov spaces; also for singular H.

    The recurrence is the method of conjugate residuals, whose iterates coincide with MINRES for
    positive semidefinite H; the residual never grows. If no q solves the system, an image stops
    when H (r - H q) vanishes up to rounding: the residual is then minimal. The arguments are as in
    :func:`conjugate_gradients`.
    """
    q = start
    residual = r - apply(q)
    image = apply(residual)
    direction, direction_image = residual, image
    product = _dot(residual, image)
    goal = tolerance**2 * _dot(r, r)
    largest = torch.zeros_like(goal)  # Rayleigh quotient so far, a lower bound on ||H||
    rounding = 10 * torch.finfo(r.dtype).eps
    for _ in range(iterations):
        squared = _dot(residual, residual)
        largest = torch.maximum(largest, _ratio(product, squared, squared > goal))
        active = (squared > goal) & (product > rounding * largest * squared)
        if not active.any():
            break
        alpha = _ratio(product, _dot(direction_image, direction_image), active)
        q = q + alpha * direction
        residual = residual - alpha * direction_image
        image = apply(residual)
        previous, product = product, _dot(residual, image)
        beta = _ratio(product, previous, active)
        direction = residual + beta * direction
        direction_image = image + beta * direction_image
    return q


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """<left, right> for each image, as (B, 1, ..., 1)."""
    return expand_per_image((left * right).flatten(1).sum(1), left)


def _ratio(numerator: Tensor, denominator: Tensor, active: Tensor) -> Tensor:
    """numerator / denominator for the active images, 0 for the others."""
    usable = active & (denominator > 0)
    return torch.where(usable, numerator / torch.where(usable, denominator, 1.0), 0.0)
