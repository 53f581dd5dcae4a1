"""Dual variables repaired, so that their bound no longer lags behind the images.

For x >= lower alone, <g, x> with g = A* v + sum_i V_i* p_i is bounded below only if g >= 0 at every
pixel. A solver's dual variables violate this a little, mostly at single pixels. A multiple of d
(``upward``) that lifts the worst pixel lifts all others as much, so that bounds lag far behind the
images. Two moves lift only the pixels in question and keep (v, p) feasible:

    p_1 <- Pi(p_1 + V_1 (m - g)_+ / |V_1|^2)    takes the deficit from the pixels around,
    v   <- v + A (-g - theta)_+ / q             lifts the remainder, by the data of the pixel,

where m > 0 is a small margin, q = |A e_j|^2 at the worst pixel j, and theta the level below which d
is cheaper. Everything is mirrored for x <= upper. For any box behind an operator, ``tightened``
makes |g| small where it costs much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.networks.bound_network import IMAGE, BackwardPass
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.network_duals import DATA_DUAL, dual_names, made_feasible
from convexlift.problems.packed_slopes import feasible
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, converted, expand_per_image, sum_per_image

STEPS = 20
"""Steps of accelerated gradients for p; each costs a product with V and one with V*."""
CLOSE = 0.1
"""Distance from a bound, relative to the range of the image, below which g matters less."""
MOVE = 100.0
"""mu times the mean of |g|, relative to the range of the image (measured)."""
MARGIN = 1e-3
"""m, relative to the deficit of the worst pixel."""
ROUNDING = 64
"""Units in the last place of the largest c that m leaves to rounding errors."""
LEVELS = tuple(2.0**-k for k in range(13))
"""Candidates for theta, relative to the deficit of the worst pixel."""


def repaired(
    problem: VariationalProblem, at: Evaluation, witness: Blocks, clearance: float | None = None
) -> Blocks:
    """The dual variables with g >= 0, or nearly so, for a box that is one-sided.

    g gets a ``clearance`` from 0, relative to the largest c; by default that of rounding errors.
    """
    if clearance is None:
        clearance = ROUNDING * torch.finfo(at.x.dtype).eps
    A, sign = problem.operator, 1.0 if math.isfinite(problem.bounds.lower) else -1.0
    v = witness.get(DATA_DUAL)
    if v is not None:
        v = problem.fidelity.clip_to_conjugate_domain(v)
        witness, seen = Blocks({**witness, DATA_DUAL: v}), A.adjoint(v)
        unseen = ~(problem.upward[1] > 0)
        witness = _with_p(problem, at, witness, seen, torch.ones_like(unseen), sign, clearance)
    else:
        seen = _slope_at_infinity(problem, at.x, sign)
        unseen = seen.isfinite()
        seen = torch.where(unseen, seen, 0.0)
    if decided(unseen.any()):  # only p can lift these pixels
        witness = _with_p(problem, at, witness, seen, unseen, sign, clearance)
    if v is not None and A.nonnegative:
        c = made_feasible(problem.network, problem.weight, at.x, witness).c
        witness = Blocks({**witness, DATA_DUAL: _with_v(problem, at, v, seen + c, sign)})
    return witness


def tightened(problem: VariationalProblem, at: Evaluation, witness: Blocks) -> Blocks:
    """The dual variables with another p_1, which makes g small where it costs much.

    A pixel adds g (x - lower) or -g (upper - x) to the gap. These terms are nearly all of it: v and
    p fit the image long before A* v and V* p fit each other. In their place, mu/2 <g, r g> with r
    from 0 at a bound to 1, plus the Fenchel-Young terms of p_1, decreases by accelerated proximal
    gradient steps

        p_1 <- prox_{sigma f_1*}(p_1 + sigma V_1 (x - mu r g)),    sigma = 1 / (mu |V_1|^2).
    """
    v, box = problem.fidelity.clip_to_conjugate_domain(witness[DATA_DUAL]), problem.bounds
    slopes = made_feasible(problem.network, problem.weight, at.x, witness)
    first, t, p = problem.network.layers[0], slopes.t[0], slopes.p[0]
    h, V = first.activation, first.operators[IMAGE]
    seen = problem.operator.adjoint(v) + slopes.c
    tiny = torch.finfo(at.x.dtype).tiny
    flat = at.x.flatten(1)
    far = MOVE * (flat.amax(1) - flat.amin(1)).clamp_min(tiny)
    mu = far / seen.abs().flatten(1).mean(1).clamp_min(tiny)
    close = expand_per_image(CLOSE * far / MOVE, at.x)
    above, below = (((at.x - end).abs() / close).clamp_max(1.0) for end in (box.lower, box.upper))
    norm = V.norm(problem.image_shape)
    if not norm or not decided((mu.isfinite() & (mu > 0)).all()):
        return witness
    sigma, mu = expand_per_image(1 / (mu * norm**2), p), expand_per_image(mu, at.x)
    ahead, others = p, seen - V.adjoint(p)
    for k in range(STEPS):
        g = others + V.adjoint(ahead)
        inside = at.x - mu * torch.where(g > 0, above, below) * g
        a = V(inside) if first.bias is None else V(inside) + first.bias
        p, before = h.scaled_slope(a + ahead / sigma, t, sigma), p
        ahead = p + k / (k + 3) * (p - before)
    return Blocks({**witness, dual_names(1, len(problem.network.layers))[0]: p})


def _slope_at_infinity(problem: VariationalProblem, x: Tensor, sign: float) -> Tensor:
    """The slope of D(d x) where x is not bounded; infinite where D alone bounds a pixel."""
    assert problem.operator.diagonal is not None
    d = converted(problem.operator.diagonal, x).expand_as(x)
    low, high = problem.fidelity.conjugate_domain
    slope = torch.where(sign * d > 0, high * d, low * d)
    return torch.where(problem.fidelity.measured & (d != 0), slope, 0.0)


def _with_p(
    problem: VariationalProblem,
    at: Evaluation,
    witness: Blocks,
    seen: Tensor,
    exposed: Tensor,
    sign: float,
    clearance: float,
) -> Blocks:
    """New dual variables of the first layer, by the accelerated projected gradient method."""
    slopes = made_feasible(problem.network, problem.weight, at.x, witness)
    lacking = torch.where(exposed, -sign * (seen + slopes.c), 0.0)
    least = clearance * slopes.c.abs().flatten(1).amax(1)
    margin = MARGIN * lacking.flatten(1).amax(1).clamp_min(0) + least
    margin = expand_per_image(margin, seen)

    def pull(g: Tensor) -> Tensor:
        return torch.where(exposed, sign * (margin - sign * g).clamp_min(0), 0.0)

    return _pulled(problem, witness, slopes, seen, pull)


def _pulled(
    problem: VariationalProblem,
    witness: Blocks,
    slopes: BackwardPass,
    seen: Tensor,
    pull: Callable[[Tensor], Tensor],
) -> Blocks:
    """p_1 <- Pi(p_1 + V_1 pull(g) / |V_1|^2), accelerated, for a pull of slope -1 or less steep."""
    layers = problem.network.layers
    h, t, V = layers[0].activation, slopes.t[0], layers[0].operators[IMAGE]
    if not (norm := V.norm(problem.image_shape)):
        return witness
    p = ahead = slopes.p[0]
    others = seen + slopes.c - V.adjoint(p)
    for k in range(STEPS):
        g = others + V.adjoint(ahead)
        p, before = feasible(h, ahead + V(pull(g)) / norm**2, t), p
        ahead = p + k / (k + 3) * (p - before)
    return Blocks({**witness, dual_names(1, len(layers))[0]: p})


def _with_v(
    problem: VariationalProblem, at: Evaluation, v: Tensor, g: Tensor, sign: float
) -> Tensor:
    """v + A (lacking - theta)_+ / q. Raising g by u costs the bound <u, |x - end of the box|>."""
    A, box = problem.operator, problem.bounds
    lacking = (-sign * g).clamp_min(0)
    worst, place = lacking.flatten(1).max(1)
    point = torch.zeros_like(g).flatten(1).scatter_(1, place[:, None], 1.0).reshape(g.shape)
    q = sum_per_image(A(point).square()).clamp_min(torch.finfo(g.dtype).tiny)
    room = (at.x - (box.lower if sign > 0 else box.upper)).abs()
    price = A.adjoint(A(room)) / expand_per_image(q, g).to(g)
    push = problem.upward[1]
    lift = torch.where(push > 0, lacking / push, math.inf)  # multiples of d that lift a pixel
    lift = torch.where(lacking > 0, lift, 0.0)
    everywhere = sum_per_image(push * room)
    best, least = worst, torch.full_like(everywhere, math.inf)
    for level in LEVELS:
        theta = level * worst
        above = (lacking - expand_per_image(theta, g)).clamp_min(0)
        rest = torch.where(above > 0, lift * (1 - above / lacking), lift)
        cost = rest.flatten(1).amax(1) * everywhere + sum_per_image(above * price)
        better = cost < least
        best, least = torch.where(better, theta, best), torch.where(better, cost, least)
    above = (lacking - expand_per_image(best, g)).clamp_min(0)
    return v + sign * A(above) / expand_per_image(q, v).to(v)
