"""Lower bounds on the objective from dual variables that hold in spite of rounding errors.

Solvers are steered by certificates (``certificate``), which measure the gap without cancellation in
the precision of the problem. Final claims are computed here, in double precision and with error
bounds (``rounding``): beta + inf_x [D(A x) + <c, x>], rounded down, for slopes s_i in
dom h_i* and

        p_i = s_i t_i,   t_{i-1} = W_{i-1}* p_i,   c = sum_i V_{i-1}* p_i,
        beta = sum_i <p_i, b_{i-1}> - <t_i, h_i*(s_i)>,       weight R(x) >= <c, x> + beta.

Where the infimum is -inf, the minorant is mixed with the constant one, weight min R:
theta (c, beta) + (1 - theta) (0, weight min R). The infimum is concave in c: if c is known up to
an error, the smallest value is at an end. Only the objective and local bounds need x itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.functionals.fidelity import Fidelity, by_rows
from convexlift.functionals.terms import Box
from convexlift.operators.linear import LinearOperator
from convexlift.problems.data_bound import MIXTURES, Scopes, best_of, levels
from convexlift.problems.network_duals import DATA_DUAL
from convexlift.problems.packed_slopes import Duals
from convexlift.problems.rigorous_data import RigorousData
from convexlift.problems.rigorous_regularizer import RoundedMinorant, minorant_below
from convexlift.problems.rounding import (
    UNIT,
    Rounded,
    gamma,
    largest,
    product,
    total,
    underflow,
)
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import converted, expand_per_image, foreign_parts

SPARE = 8.0
"""Numbers that must not be negative exceed their error bounds by this factor, since other checkers
may have larger error bounds."""


@dataclass(frozen=True, eq=False)
class ProvenBound:
    """A lower bound for each image, and the numbers beside p_i that prove it.

    Attributes:
        value: (B,); -inf if there is no bound.
        theta: (B,), the mixture of minorants.
        v: the dual variable of the data, behind an operator that is not diagonal.
    """

    value: Tensor
    theta: Tensor
    v: Tensor | None


def bounds_below(
    problem: VariationalProblem, x: Tensor, duals: Duals, radius: float
) -> Scopes[ProvenBound]:
    """The best lower bounds that dual variables prove, everywhere and near x.

    Problem and x are in double precision. ``duals`` are p_i for each layer, and v for data behind
    an operator that is not diagonal. The radius applies to pixels that nothing else bounds.
    """
    minorant = minorant_below(problem, duals)
    if problem.operator.diagonal is not None:
        candidates = _behind_diagonal(problem, x, minorant, radius)
    else:
        v = duals[DATA_DUAL].to(problem.fidelity.y)
        candidates = _behind_operator(problem, x, minorant, v, radius)
    return best_of(candidates, lambda first, second: ~(second.value > first.value))


def _mixed(minorant: RoundedMinorant, theta: Tensor) -> Tensor:
    """theta beta + (1 - theta) weight min R, rounded down."""
    rest = 1 - theta  # exact for theta >= 1/2, otherwise with a relative error
    constant = torch.where(rest > 0, rest * minorant.constant, 0.0)
    value = theta * minorant.beta + constant
    return value - gamma(4) * ((theta * minorant.beta).abs() + constant.abs())


def _behind_diagonal(
    problem: VariationalProblem, x: Tensor, minorant: RoundedMinorant, radius: float
) -> Iterator[Scopes[ProvenBound]]:
    """A = diag(d): every pixel by itself."""
    assert problem.operator.diagonal is not None
    d = converted(problem.operator.diagonal, x).expand_as(x)
    whole, bounded = _box_around(problem.bounds, x, None), problem.bounds.is_bounded

    def infima(c: Rounded, *ends: Tensor, bounded: bool) -> Tensor:
        def few(fidelity: Fidelity, value: Tensor, error: Tensor, *others: Tensor) -> tuple[Tensor]:
            rounded = Rounded(value, error)
            return (_pixel_infima(fidelity, rounded, problem.bounds, *others, bounded=bounded),)

        return by_rows(few, problem.fidelity, c.value, c.error, d, *ends)[0]

    def bounds(c: Rounded, mixed: Tensor, theta: Tensor) -> Scopes[ProvenBound]:
        pixels = infima(c, *whole, bounded=bounded)
        everywhere = locally = ProvenBound(_sum_below(pixels) + mixed, theta, None)
        if not bounded and decided((free := pixels.isinf()).any()):
            near = _box_around(problem.bounds, x, radius)
            nearby = infima(c, *near, bounded=True)
            pixels = torch.where(free, nearby, pixels)
            locally = ProvenBound(_sum_below(pixels) + mixed, theta, None)
        return Scopes(everywhere, locally)

    beta = minorant.beta - gamma(4) * minorant.beta.abs()
    fused = RigorousData.of(problem.fidelity, problem.operator, x.shape)
    one_error = minorant.c.error.flatten(1).shape[1] == 1
    if fused is not None and one_error and bounded and problem.bounds.lower >= 0:
        value = fused.below(minorant.c, problem.bounds) + beta
        proven = ProvenBound(value, torch.ones_like(beta), None)
        yield Scopes(proven, proven)
        return
    direct = bounds(minorant.c, beta, torch.ones_like(beta))
    yield direct
    if bounded or decided(
        minorant.constant.isinf().any() | direct.everywhere.value.isfinite().all()
    ):
        return
    # The slope -theta c/d of the fidelity must lie in the domain of its conjugate, in spite of
    # rounding, except at pixels that the box bounds.
    low, high = problem.fidelity.conjugate_domain
    seen = d != 0
    safe = torch.where(seen, d, 1.0)
    v, reach = -minorant.c.value / safe, (SPARE * minorant.c.error / safe.abs()).expand_as(x)
    limit = torch.minimum(_ratio(high, v + reach), _ratio(low, v - reach))
    free = infima(minorant.c, *whole, bounded=False).isinf() & seen
    limit = torch.where(free, limit, 1.0).flatten(1).amin(1) * (1 - 1e-10)
    for fraction in MIXTURES:
        theta = fraction * limit
        yield bounds(minorant.c.times(theta), _mixed(minorant, theta), theta)


def _ratio(end: float, v: Tensor) -> Tensor:
    """The largest factor <= 1 that brings v to this side of the end of an interval around 0."""
    return torch.where(v / end > 1, end / v, 1.0) if end != 0 else (v * 0 + 1)


def _box_around(box: Box, x: Tensor, radius: float | None) -> tuple[Tensor, Tensor]:
    """The box, or its part within a radius of x, a little larger."""
    lower, upper = (x.new_full((), end).expand_as(x) for end in (box.lower, box.upper))
    if radius is None:
        return lower, upper
    rounding = gamma(2) * (x.abs() + radius)
    return torch.maximum(lower, x - radius - rounding), torch.minimum(upper, x + radius + rounding)


def infimum_below(fidelity: Fidelity, operator: LinearOperator, box: Box, c: Rounded) -> Tensor:
    """inf D(A x) + <c, x> over the box for each image, rounded down, for a diagonal A."""
    assert operator.diagonal is not None
    d = converted(operator.diagonal, c.value).expand_as(c.value)
    lower, upper = (torch.full_like(d, end) for end in (box.lower, box.upper))
    return _sum_below(_pixel_infima(fidelity, c, box, d, lower, upper, bounded=box.is_bounded))


def _pixel_infima(
    fidelity: Fidelity,
    c: Rounded,
    box: Box,
    d: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    bounded: bool,
) -> Tensor:
    """Lower bounds on f(d x) + c x over lower <= x <= upper, for every c within its error.

    These bounds are inside the ``box``. They are concave in c, hence smallest at an end of the
    error's interval; in a box without negative numbers they grow with c, and the lower end is
    enough.

    Unless both ends are ``bounded``, a bound may be -inf. It is -inf if any c within SPARE times
    the error makes it so: a checker with larger error bounds then finds the same pixels bounded.
    """
    signs = [-1.0] if box.lower >= 0 else [1.0] if box.upper <= 0 else [-1.0, 1.0]
    seen = d != 0
    safe = torch.where(seen, d, 1.0)
    unseen = fidelity.density(torch.zeros_like(d)) * (1 - fidelity.density_rounding)
    ends = safe * lower, safe * upper
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    low, high = low - gamma(1) * low.abs(), high + gamma(1) * high.abs()
    uneven = torch.sign(safe) * (safe.abs() != 1)
    # What c has lost by underflow may matter after a division by a small d.
    error = c.error + underflow(c.error.abs() + c.value.abs())

    def at_ends(reach: float) -> Tensor:
        reached = (reach * (1 + gamma(1))) * error
        ends = torch.stack([c.value + sign * reached for sign in signs])
        slopes = ends / safe
        # Divisions by 1 or -1 are exact; others are rounded outwards.
        outwards = torch.stack([sign * uneven for sign in signs])
        rounding = outwards * (gamma(2) * slopes.abs() + underflow(ends))
        of_seen = _infima(fidelity, slopes + rounding, low, high)
        found = torch.where(seen, of_seen, _linear_infima(ends, lower, upper) + unseen)
        return found.amin(0) if len(signs) > 1 else found[0]

    infima = at_ends(1.0)
    if bounded:
        return infima
    spared = at_ends(SPARE)
    return torch.where(spared.isinf(), spared, infima)


def _infima(fidelity: Fidelity, slopes: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``infimum_below`` for several slopes, (n, B, ...); a user's f gets them one by one."""
    if any(True for _ in foreign_parts(fidelity)):  # its code may count dimensions
        return torch.stack([fidelity.infimum_below(each, low, high) for each in slopes])
    return fidelity.infimum_below(slopes, low, high)


def _linear_infima(g: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """g x at its smallest over lower <= x <= upper, rounded down; -inf where there is none."""
    value = torch.where(g > 0, g * lower, torch.where(g < 0, g * upper, 0.0))
    value = torch.where(g.isfinite(), value, -math.inf)
    return torch.where(value.isinf(), value, value - gamma(1) * value.abs())


def _sum_below(values: Tensor) -> Tensor:
    """The sum for each image, rounded down; -inf if any term is."""
    infinite = values.isinf()
    value, error = total(torch.where(infinite, 0.0, values))
    return torch.where(infinite.flatten(1).any(1), -math.inf, value - error)


def _behind_operator(
    problem: VariationalProblem, x: Tensor, minorant: RoundedMinorant, v: Tensor, radius: float
) -> Iterator[Scopes[ProvenBound]]:
    """Any A:  D(A x) >= <v, A x> - f*(v), then the box decides about <A* v + c, x>."""
    A, box, shape = problem.operator, problem.bounds, problem.image_shape
    whole, near = _box_around(problem.bounds, x, None), _box_around(problem.bounds, x, radius)

    def bounds(v: Tensor, g: Rounded, theta: Tensor) -> Scopes[ProvenBound]:
        ends = [g.value - g.error * (1 + gamma(1)), g.value + g.error * (1 + gamma(1))]
        everywhere = torch.minimum(*(_linear_infima(end, *whole) for end in ends))
        locally = torch.minimum(*(_linear_infima(end, *near) for end in ends))
        locally = torch.where(everywhere.isinf(), locally, everywhere)
        rest = _sum_below(-problem.fidelity.conjugate_above(v)) + _mixed(minorant, theta)
        return Scopes(*(
            ProvenBound(_sum_below(pixels) + rest, theta, v) for pixels in (everywhere, locally)
        ))  # fmt: skip

    v = problem.fidelity.clip_to_conjugate_domain(v)
    one = torch.ones_like(minorant.beta)
    seen = product(A, Rounded.exact(v), shape, adjoint=True)
    g = seen + minorant.c
    direct = bounds(v, g, one)
    yield direct
    if math.isinf(box.lower) == math.isinf(box.upper):
        return

    # With x >= lower only, <g, x> is bounded iff g >= 0 (mirrored for x <= upper). Adding
    # delta d to v moves g by delta A* d.
    sign = 1.0 if math.isfinite(box.lower) else -1.0
    missing = SPARE * g.error - sign * g.value
    if not decided((missing > 0).any()):
        return
    d = sign * problem.upward[0]
    push = product(A, Rounded.exact(d.contiguous()), shape, adjoint=True)
    usable = sign * push.value > 2 * SPARE * push.error
    # Sums of v and multiples of d, |d| <= 1, are rounded, which changes A* of them by at most this.
    off_by = A.magnitude(torch.ones_like(largest(v)), shape, adjoint=True)
    if A.nonnegative:  # pixel by pixel: pixels that no datum sees receive nothing
        off_by = A.adjoint(torch.ones_like(v)) * (1 + 1e-9)

    def moved(v: Tensor, share: Tensor, level: Tensor) -> tuple[Tensor, Rounded]:
        """share v + level d and its g, by linearity, without another product with A*."""
        new = expand_per_image(share, v) * v + expand_per_image(level, v) * d
        parts = seen.times(share) + push.times(level) + minorant.c.times(share)
        size = largest(v) + expand_per_image(level.abs(), v)
        size = expand_per_image(size.flatten(1).amax(1), off_by)
        return new, Rounded(parts.value, parts.error + gamma(3) * size * off_by)

    need = torch.where(missing > 0, missing / (sign * push.value - SPARE * push.error), 0.0)
    need = torch.where((missing > 0) & ~usable, math.inf, need).flatten(1).amax(1)
    delta = torch.where(need.isfinite(), need * (1 + 1e-5), 0.0)
    shifted, gradient = moved(v, one, delta)
    inside = problem.fidelity.clip_to_conjugate_domain(shifted)
    if not decided((inside == shifted).all()):
        gradient = product(A, Rounded.exact(inside), shape, adjoint=True) + minorant.c
    yield bounds(inside, gradient, one)
    if decided(minorant.constant.isinf().any()):
        return
    for level in levels(problem.fidelity, v):
        # With (v, p) = (level d, 0).
        gain = expand_per_image(level, x) * (sign * push.value - SPARE * push.error)
        keep = torch.where(missing > 0, gain / (gain + missing), 1.0)
        keep = torch.where((missing > 0) & ~usable, 0.0, keep)
        theta = keep.flatten(1).amin(1)
        theta = (theta - 1e-3 * (1 - theta) - 8 * UNIT).clamp_min(0)
        mixed, gradient = moved(v, theta, (1 - theta) * level)
        inside = problem.fidelity.clip_to_conjugate_domain(mixed)
        # They differ where an end of the domain is 0, or differs with the data.
        if not decided((inside == mixed).all()):
            gradient = product(A, Rounded.exact(inside), shape, adjoint=True)
            gradient = gradient + minorant.c.times(theta)
        yield bounds(inside, gradient, theta)
