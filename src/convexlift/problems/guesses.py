"""Images made from the data alone: initial images, and the pictures that guides read."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.inpaint_guess import (
    fill_from_neighbours,
    median_of_neighbours,
    without_impulses,
)
from convexlift.operators.linear import LinearOperator
from convexlift.tensors import converted, expand_per_image

IMPULSE = 0.15
"""A pixel in [0, 1] that differs this much from the median of its neighbours is an impulse."""


def images_from_data(fidelity: Fidelity, operator: LinearOperator) -> list[Tensor]:
    """One or two images, regardless of the box; the last one is the most elaborate."""
    y = fidelity.y
    measured = fidelity.measured
    free = torch.full_like(y, math.inf)
    best = fidelity.minimiser(torch.zeros_like(y), -free, free)
    diagonal = operator.diagonal
    if diagonal is not None:
        d = converted(diagonal, y).expand_as(y)
        seen = measured & (d != 0)
        known = torch.where(seen, best / torch.where(seen, d, 1.0), 0.0)
        guesses = [fill_from_neighbours(known, seen.to(y))]
        if fidelity.robust:
            guesses.append(without_impulses(guesses[0]))
    else:
        back = operator.adjoint(measured * best)
        scale = operator.adjoint(measured * operator(torch.ones_like(back)))
        largest = expand_per_image(scale.abs().flatten(1).amax(1), scale)
        # Pixels that A hardly sees would become very large.
        guesses = [torch.where(scale > 1e-3 * largest, back / scale, 0.0)]
        if operator.invertible:
            guesses.append(operator.approximate_inverse(best))
    return guesses


def picture_for_guide(fidelity: Fidelity, operator: LinearOperator) -> tuple[Tensor, Tensor]:
    """An image made from the data, and a map (B, 1, H, W): 1 where it holds data, 0 elsewhere.

    The noisy image itself; missing pixels filled in; medians in place of impulses; the approximate
    inverse of A.
    """
    first, *others = images_from_data(fidelity, operator)
    diagonal = operator.diagonal
    if diagonal is None:
        picture = others[-1] if others else first
        return picture, torch.ones_like(picture[:, :1])
    seen = fidelity.measured & (converted(diagonal, first).expand_as(first) != 0)
    if fidelity.robust:
        median = median_of_neighbours(first)  # as when guides were trained
        clean = (first - median).abs() <= IMPULSE
        first, seen = torch.where(clean, first, median), seen & clean
    return first, seen.to(first).amin(1, keepdim=True)
