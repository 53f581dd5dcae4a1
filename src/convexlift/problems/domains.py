"""Images inside the domain of the data term: count data without background need A x >= 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.problems.evaluation import Evaluation
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import choose_images, expand_per_image, sum_per_image

SHARES = tuple(4.0**-k for k in range(24))
"""Fractions of the way to an image inside the domain, down to 1e-14."""
HALVINGS = 6
"""Steps of bisection between two of them: the least fraction is then known up to 5 %."""


def places_inside(problem: VariationalProblem, start: Tensor) -> tuple[Tensor, ...]:
    """Images that may lie inside the domain of the data term; two of them are constant."""
    d, push = problem.upward
    level = sum_per_image(d * problem.fidelity.y) / sum_per_image(push)  # fits <d, y>
    largest = start.abs().flatten(1).amax(1)
    level = torch.maximum(largest, level.nan_to_num(1.0, 1.0, 1.0).to(start))
    constant = problem.bounds.project(expand_per_image(level, start).expand_as(start))
    return start, torch.zeros_like(start), constant


def moved_inside(
    problem: VariationalProblem, outside: Evaluation, places: tuple[Tensor, ...]
) -> Tensor:
    """x + s (place - x) with the least s at which the data term is finite; x if none is.

    Iterates come closer and closer to the domain, but an image with A x = 0 somewhere is approached
    from outside, where the objective is infinite.
    """
    w, best = outside.prediction, outside.x
    missing = ~torch.isfinite(outside.data_term)
    for place in places:
        ahead = problem.operator(place) - w
        least = torch.full_like(outside.data_term, math.inf)
        for share in SHARES:
            fine = torch.isfinite(problem.fidelity.value(w + share * ahead))
            least = torch.where(fine, share, least)
        outer = least / 4  # outside, since the domain is convex and contains the place
        for _ in range(HALVINGS):
            middle = torch.where(least < math.inf, (least + outer) / 2, 1.0)
            there = w + expand_per_image(middle.to(w), w) * ahead
            fine = torch.isfinite(problem.fidelity.value(there)) & (least < math.inf)
            least, outer = torch.where(fine, middle, least), torch.where(fine, outer, middle)
        found = missing & torch.isfinite(least)
        way = expand_per_image(torch.where(found, least, 0.0).to(best), best) * (place - best)
        best = choose_images(found, problem.bounds.project(best + way), best)
        missing = missing & ~found
    return best
