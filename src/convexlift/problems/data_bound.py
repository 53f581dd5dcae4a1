"""Lower bounds for  D(A x) + <c, x>  over the box: the data's half of a certificate.

The regularizer's half is an affine minorant weight R(x) >= <c, x> + const, with slack

    tangent  = weight R(x) - <c, x> - const              (of the minorant itself)
    constant = weight R(x) - weight min R                (of the constant minorant)

at a given image x. Where D(A .) + <c, .> is unbounded below, mixing the two minorants,
theta (c, const) + (1 - theta) (0, weight min R), may help; its slack is the mixture of theirs.
If it stays unbounded, there is a bound near x only: the guarantee is then a local one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Generic, TypeVar

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.functionals.fidelity import Fidelity, by_rows
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import choose_images, converted, expand_per_image, sum_per_image

B = TypeVar("B")
MIXTURES = (1.0, 0.99, 0.9, 0.5, 0.0)
"""Multiples of the largest admissible theta that are tried (the bound is concave in theta)."""
LEVELS = (0.001, 0.01, 0.1, 0.5)
"""Multiples of d (``upward``) to mix v with, relative to the largest admissible one."""


@dataclass(frozen=True, eq=False)
class Scopes(Generic[B]):
    """The best bound for all images of the box, and the best for images near x."""

    everywhere: B
    near: B


def best_of(candidates: Iterable[Scopes[B]], keep: Callable[[B, B], Tensor]) -> Scopes[B]:
    """The best bound of each scope; ``keep(first, second)`` masks images with a better first."""

    def better(first: B, second: B) -> B:
        chosen: B = choose_images(keep(first, second), first, second)
        return chosen

    return reduce(
        lambda one, other: Scopes(
            better(one.everywhere, other.everywhere), better(one.near, other.near)
        ),
        candidates,
    )


@dataclass(frozen=True, eq=False)
class Slack:
    """The distance of the two minorants of weight R below it at x; (B,) each."""

    tangent: Tensor
    constant: Tensor | None

    def mixed(self, theta: Tensor) -> Tensor:
        """The slack of the mixture."""
        if self.constant is None:
            return self.tangent
        return theta * self.tangent + (1 - theta) * self.constant


@dataclass(frozen=True, eq=False)
class DataBound:
    """The gap of the whole problem at x, as a sum over places.

    Attributes:
        pixels: the part of each pixel, (B, C, H, W).
        data: the part of each datum, where the data are not pixels behind a diagonal operator.
        theta: the mixture of minorants.
        gap: objective(x) - lower bound, for each image.
        everywhere: whether the bound holds for all images of the box, or near x only.
    """

    pixels: Tensor
    data: Tensor
    theta: Tensor
    gap: Tensor
    everywhere: Tensor


def can_hold_everywhere(problem: VariationalProblem) -> bool:
    """Whether this problem admits a tight bound over all images of the box.

    It does not if a pixel is neither seen nor bounded on both sides; if the operator is not
    diagonal and there is no box, or a one-sided box and no ``upward`` direction; or if the
    fidelity's conjugate has a bounded domain (or the box has one side) and R has no constant
    minorant to mix with.
    """
    box, diagonal = problem.bounds, problem.operator.diagonal
    if math.isfinite(box.lower) and math.isfinite(box.upper):
        return True
    if diagonal is None:
        if box.is_everything or not problem.network.bounded_below:
            return False
        return decided((problem.upward[1] >= 0).all())
    everywhere_finite = problem.fidelity.conjugate_domain == (-math.inf, math.inf)
    seen = problem.fidelity.measured & (diagonal != 0)
    return (everywhere_finite or problem.network.bounded_below) and decided(seen.all())


def bound_data(
    problem: VariationalProblem,
    evaluation: Evaluation,
    c: Tensor,
    v: Tensor | None,
    slack: Slack,
    radius: float,
) -> Iterator[DataBound]:
    """Bounds for the slope c of the minorant, mixed or shifted if it leaves pixels unbounded.

    v is a dual variable for the data, unused (and may be None) behind a diagonal operator. Pixels
    that neither data nor box bound are compared with values within the radius.
    """
    if problem.operator.diagonal is not None:
        yield from _diagonal_bounds(problem, evaluation, c, slack, radius)
    else:
        assert v is not None
        yield from _general_bounds(problem, evaluation, c, v, slack, radius)


def _diagonal_bounds(
    problem: VariationalProblem, at: Evaluation, c: Tensor, slack: Slack, radius: float
) -> Iterator[DataBound]:
    """A = diag(d): every pixel by itself, and exactly."""
    assert problem.operator.diagonal is not None
    d = converted(problem.operator.diagonal, c).expand_as(c)
    one = at.objective.new_ones(c.shape[0])

    def over_box(fidelity: Fidelity, x: Tensor, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        return _over_box(partial(_pixel_excess, fidelity, x, *slopes), problem, x, radius)

    def bound(c: Tensor, theta: Tensor) -> tuple[DataBound, Tensor]:
        pixels, free = by_rows(over_box, problem.fidelity, at.x, c, d)
        gap = sum_per_image(pixels) + slack.mixed(theta)
        nothing = pixels.new_zeros((pixels.shape[0], 0))
        return DataBound(pixels, nothing, theta, gap, ~free.flatten(1).any(1)), free

    direct, free = bound(c, one)
    yield direct
    if slack.constant is None or not decided(free.any()):
        return
    # The slope -c/d of the fidelity must lie in the domain of its conjugate, with a margin for
    # rounding, except at pixels that the box bounds.
    low, high = problem.fidelity.conjugate_domain
    v = torch.where(d != 0, -c / torch.where(d != 0, d, 1.0), 0.0)
    limit = torch.where(v > high, high / v, torch.where(v < low, low / v, 1.0))
    limit = torch.where(free, limit, 1.0).flatten(1).amin(1)
    limit = limit * (1 - 8 * torch.finfo(c.dtype).eps)
    for fraction in MIXTURES:
        theta = (fraction * limit).to(one.dtype)
        yield bound(expand_per_image(theta, c).to(c.dtype) * c, theta)[0]


def _over_box(
    excess: Callable[[Tensor, Tensor], Tensor],
    problem: VariationalProblem,
    x: Tensor,
    radius: float,
) -> tuple[Tensor, Tensor]:
    """The excess over the box (near x only, where that is infinite), and where it is infinite."""
    lower, upper = problem.bounds.lower, problem.bounds.upper
    whole = excess(*(x.new_full((), end).expand_as(x) for end in (lower, upper)))
    free = whole.isinf()
    if decided(free.any()):
        near = excess((x - radius).clamp_min(lower), (x + radius).clamp_max(upper))
        whole = torch.where(free, near, whole)
    return whole, free


def _pixel_excess(
    fidelity: Fidelity, x: Tensor, c: Tensor, d: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """f(d x) + c x minus its minimum over lower <= x' <= upper, pixel by pixel."""
    seen = d != 0
    everything = decided(seen.all())
    safe = d if everything else torch.where(seen, d, 1.0)
    ends = safe * lower, safe * upper
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    of_seen = fidelity.excess(safe * x, c / safe, low, high)
    return of_seen if everything else torch.where(seen, of_seen, linear_excess(c, x, lower, upper))


def linear_excess(g: Tensor, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """g x minus the minimum of g x' over lower <= x' <= upper; +inf where there is none."""
    rising, falling = g * (x - lower), g * (x - upper)
    return torch.where(g > 0, rising, torch.where(g < 0, falling, 0.0))


def levels(fidelity: Fidelity, v: Tensor) -> list[Tensor]:
    """``LEVELS``, (B,) each, relative to the nearest end of the domain of f*, else to max |v|."""
    ends = [abs(end) for end in fidelity.conjugate_domain if math.isfinite(end) and end]
    largest = v.abs().flatten(1).amax(1)
    unit = torch.full_like(largest, min(ends)) if ends else largest
    return [fraction * unit for fraction in LEVELS]


def _general_bounds(
    problem: VariationalProblem, at: Evaluation, c: Tensor, v: Tensor, slack: Slack, radius: float
) -> Iterator[DataBound]:
    """Any A:  D(A x) >= <v, A x> - f*(v), then the box decides about <A* v + c, x>."""
    A, box = problem.operator, problem.bounds
    one = at.objective.new_ones(c.shape[0])

    def bound(v: Tensor, g: Tensor, theta: Tensor) -> DataBound:
        data = problem.fidelity.fenchel_young(at.prediction, v)
        pixels, free = _over_box(partial(linear_excess, g, at.x), problem, at.x, radius)
        gap = sum_per_image(pixels) + sum_per_image(data) + slack.mixed(theta)
        return DataBound(pixels, data, theta, gap, ~free.flatten(1).any(1))

    v = problem.fidelity.clip_to_conjugate_domain(v)
    g = A.adjoint(v) + c
    yield bound(v, g, one)
    if math.isinf(box.lower) == math.isinf(box.upper):
        return

    # With x >= lower only, <g, x> is bounded iff g >= 0 (mirrored for x <= upper).
    sign = 1.0 if math.isfinite(box.lower) else -1.0
    wrong = sign * g < 0
    if not decided(wrong.any()):
        return
    # Moving v by delta d moves g by delta A* d, towards where it is bounded. (Data that were not
    # measured stay: f* is finite at 0 only there.)
    d, push = (sign * part for part in problem.upward)
    usable = sign * push > 0
    need = torch.where(wrong, torch.where(usable, -g / push, math.inf), 0.0)
    delta = need.flatten(1).amax(1)
    if decided(torch.isfinite(delta).any()):
        # Larger by a few roundings, or the largest entry would miss its zero.
        delta = torch.where(torch.isfinite(delta), delta * (1 + 1e-5), 0.0)
        shifted = v + expand_per_image(delta, v) * d
        inside = problem.fidelity.clip_to_conjugate_domain(shifted)
        if decided((inside == shifted).all()):  # saves a product with A*, which may be expensive
            gradient = g + expand_per_image(delta, push) * push
        else:
            gradient = A.adjoint(inside) + c
        yield bound(inside, gradient, one)
    if slack.constant is None:
        return
    for size in levels(problem.fidelity, v):
        level = expand_per_image(size, v)
        # The gradient of the mixture's other end, (v, p) = (level d, 0).
        m = expand_per_image(size, push) * push
        keep = torch.where(wrong, torch.where(usable, m / (m - g), 0.0), 1.0)
        theta = keep.flatten(1).amin(1)
        # Again with a few roundings to spare, relative to the share that is given up.
        theta = (theta - 1e-3 * (1 - theta) - 8 * torch.finfo(v.dtype).eps).clamp_min(0)
        share = expand_per_image(theta, v)
        mixed = share * v + (1 - share) * level * d
        inside = problem.fidelity.clip_to_conjugate_domain(mixed)
        gradient = expand_per_image(theta, c) * g + expand_per_image(1 - theta, c) * m
        if not decided((inside == mixed).all()):
            gradient = A.adjoint(inside) + expand_per_image(theta, c) * c
        yield bound(inside, gradient, theta.to(one.dtype))
