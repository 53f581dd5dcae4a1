"""Images inside the domain of the data term: count data without background need A x >= 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import choose_images, expand_per_image, sum_per_image

SHARES = tuple(4.0**-k for k in range(24))
"""Fractions of the way to an image inside the domain, down to 1e-14."""
HALVINGS = 6
"""Steps of bisection between two of them: the least fraction is then known up to 5 %."""
STEPS = 50
"""The most steps towards the domain, each with a product with A and one with A*."""
BEYOND = 0.5
"""How far steps aim beyond the edge of the domain, relative to the distance to it (measured)."""


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
    """Images near x at which the data term is finite; x itself if none is found.

    Iterates come closer and closer to the domain, but an image with A x = 0 somewhere is approached
    from outside, where the objective is infinite. First each datum outside pulls the pixels that it
    sees (``pulled``). A move towards another image is only for what remains: there the worst datum
    decides how far all pixels move.
    """
    return moved_towards(problem, pulled(problem, outside.x), places)


def moved_towards(problem: VariationalProblem, x: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """x + s (place - x) with the least s at which the data term is finite; x if none is."""
    w, best = problem.operator(x), x
    missing = ~torch.isfinite(problem.fidelity.value(w))
    for place in places:
        ahead = problem.operator(place) - w
        least = torch.full(missing.shape, math.inf, dtype=torch.float64, device=w.device)
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


def pulled(problem: VariationalProblem, x: Tensor) -> Tensor:
    """x <- P_box(x + A* e / |A|^2), accelerated, until A x is inside the domain of the data term.

    e = (1 + beyond) (P(w) - w), with the projection P of w = A x to the domain, the prox of a
    multiple of f that is next to nothing: gradient steps for the squared distance to the domain.
    """
    A, f = problem.operator, problem.fidelity
    norm = A.norm(problem.image_shape)
    if not norm:
        return x
    nothing = torch.full_like(f.y, torch.finfo(x.dtype).tiny)
    ahead, done = x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
    found: Tensor = x
    for k in range(STEPS):
        w = A(ahead)
        fine = ~done & torch.isfinite(f.value(w))
        found, done = choose_images(fine, ahead, found), done | fine
        if decided(done.all()):
            return found
        e = (1 + BEYOND) * (f.prox(w, nothing) - w)
        x, before = problem.bounds.project(ahead + A.adjoint(e) / norm**2), x
        ahead = problem.bounds.project(x + k / (k + 3) * (x - before))
    nearest: Tensor = choose_images(done, found, x)
    return nearest
