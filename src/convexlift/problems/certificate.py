"""Certificates: lower bounds on the optimal value, from any images and any dual variables.

For slopes s_i in dom h_i*, a backward pass gives an affine minorant of the regularizer
(``minorant``); the data term plus that affine function is bounded below in closed form
(``data_bound``). The sum of the two slacks is the gap, written as a sum of nonnegative local
Fenchel-Young terms, so that nothing cancels:

    objective(x) - lower bound = [D(A x) + <c, x> - inf]
                                 + sum_i <t_i, h_i(a_i) + h_i*(s_i) - s_i a_i>.

The bound holds for any x and s_i; good ones make it tight. It needs W >= 0 and exact adjoints,
which are checked when a problem is stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.decisions import decided
from convexlift.precision import full_precision
from convexlift.problems.check_sums import check_sums
from convexlift.problems.claims import (
    RADIUS,
    Claim,
    Guarantee,
    InBoth,
    claim,
    in_double,
    prefer_near,
)
from convexlift.problems.data_bound import (
    DataBound,
    Scopes,
    Slack,
    best_of,
    bound_data,
    can_hold_everywhere,
)
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.minorant import minorant_at
from convexlift.problems.network_duals import DATA_DUAL, fitting_duals, made_feasible
from convexlift.problems.one_pass import Minorant, OnePass
from convexlift.problems.packed_slopes import CODES
from convexlift.problems.repairs import repaired, tightened
from convexlift.problems.variational import VariationalProblem, checked_image, require_problem
from convexlift.tensors import Blocks, choose_images, expand_per_image, sum_per_image

CLEARANCE = 1e-10
"""Of slopes from 0, relative to the largest: far above all bounds of rounding errors."""
ROUNDING = 64
"""Objectives and gaps have relative errors below this many units of the last place."""
CLOSE = 8.0
"""Gaps of at most this many tolerances are tightened, which leaves a tenth to a third of them."""


@dataclass(frozen=True, eq=False)
class Certificate(Claim):
    """A proof of near-optimality, for each image of a batch.

    Attributes:
        map: (B, 1, H, W), the absolute gap by pixel; it sums to objective - lower_bound, up to
            rounding.
        distance_bound: ||x - x*|| is at most this, where the data term is strongly convex
            (squared L2, weighted or not, with every pixel seen) and the guarantee global; +inf
            elsewhere.
    """

    map: Tensor
    distance_bound: Tensor


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound at some images: the absolute gap and the local terms that sum to it.

    ``witness`` holds the dual variables that prove it once they are feasible (``feasible_duals``),
    for every image.
    """

    gap: Tensor
    witness: Blocks
    data: DataBound
    layers: tuple[Tensor, ...]
    constant: Tensor


def certify(
    problem: VariationalProblem,
    x: Tensor,
    duals: Blocks | None = None,
    *,
    tolerance: float = 1e-3,
    radius: float = RADIUS,
) -> Certificate:
    """Certify images from anywhere: this library, another one, a network.

    Everything is computed in double precision from the stored numbers, also for problems in single
    precision, and holds in spite of rounding.

    Args:
        problem: the problem that x is claimed to solve.
        x: (B, C, H, W).
        duals: the witness of an earlier solve, ``solution.duals``, which makes the bound tight
            also where the network has kinks. Without it the network's tangent at x is used:
            still a proof, and tight for smooth networks.
        tolerance: local guarantees, in problems that need them, are given only where the
            global gap is above this.
        radius: the radius of local guarantees (see ``Guarantee.WITHIN_RADIUS``).
    """
    require_problem(problem)
    if (here := problem.with_double()) is not problem:
        return certify(here, x.cpu(), duals, tolerance=tolerance, radius=radius)
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    x = checked_image(problem, x, "x")
    if duals is not None and fitting_duals(problem.network, x, duals) is None:
        raise ValueError(
            "the duals do not have the shapes of this problem's layers; pass solution.duals of a "
            "solve of the same problem, or none"
        )
    problem.require_sound_numbers()
    problem.require_sound_operator()
    with torch.no_grad(), full_precision():
        double = in_double(problem)
        if duals is not None:
            duals = Blocks({name: part.to(torch.float64) for name, part in duals.items()})
        evaluation = double.evaluate(x.double())
        bounds = best_bounds(double, evaluation, duals, radius, tangent=True, tolerance=math.inf)
        scale = evaluation.objective.abs()
        gaps = bounds.everywhere.gap / scale, bounds.near.gap / scale
        bound = choose_images(
            prefer_near(can_hold_everywhere(problem), *gaps, tolerance),
            bounds.near,
            bounds.everywhere,
        )
        stated = partial(claim, problem, double, x, tolerance=tolerance, radius=radius)
        claimed = stated(bound.witness)
        is_global = _global(claimed)
        if problem.bounds.is_one_sided and not is_global.all():
            # Slopes may be too close to 0 for a proof in spite of rounding.
            clear = repaired(double, evaluation, bound.witness, CLEARANCE)
            better = _global(stated(clear)) & ~is_global
            if better.any():
                claimed = stated(choose_images(better.to(x.device), clear, bound.witness))
                is_global |= better
        absolute = claimed.objective - claimed.lower_bound
        distance = torch.where(
            is_global.to(x.device),
            torch.sqrt(2 * absolute / _strong_convexity(double)),
            math.inf,
        )
        if problem.bounds.is_one_sided:  # the claim's variables, rounded to the problem's precision
            kept = Blocks({name: part.to(torch.float64) for name, part in claimed.duals.items()})
            again = best_bounds(double, evaluation, kept, radius)
            bound = choose_images(is_global.to(x.device), again.everywhere, again.near)
        map = _gap_map(evaluation, bound)
        return Certificate(**vars(claimed), map=map, distance_bound=distance)


def _global(claimed: Claim) -> Tensor:
    return torch.tensor([g is Guarantee.GLOBAL for g in claimed.guarantee])


def best_bounds(
    problem: VariationalProblem,
    evaluation: Evaluation,
    duals: Blocks | None,
    radius: float = RADIUS,
    *,
    tangent: bool = False,
    tolerance: float = 0.0,
) -> Scopes[Bound]:
    """The best of all candidates: a solver's duals made feasible, and the tangent at x.

    Duals are nearly always better: with duals, the tangent is tried only if ``tangent`` is set.
    ``tolerance`` is explained in ``judge``.
    """
    network, layers = problem.network, evaluation.layers
    minorants: list[tuple[Minorant, Tensor | None]] = []
    if tangent or duals is None:
        slopes = network.tangent(problem.weight, evaluation.x, layers.a)
        minorants.append((Minorant.of(network, layers, slopes), None))
    if duals is not None:
        feasible = made_feasible(network, problem.weight, evaluation.x, duals)
        minorants.append((Minorant.of(network, layers, feasible), duals.get(DATA_DUAL)))
    return _best_of(problem, evaluation, minorants, radius, tolerance)


def judge(
    problem: VariationalProblem, x: Tensor, duals: Blocks | None, tolerance: float = 0.0
) -> tuple[Evaluation, Scopes[Bound]]:
    """The objective at the images of a solver, and the best bounds there.

    Uses one pass over the first layer, without storing it, where possible. Dual variables are
    repaired, at the cost of a few iterations: behind an operator where the relative gap is a few
    tolerances, and where the gap near x is within the tolerance but the gap over all images is not.
    """
    one_pass = None if duals is None else OnePass.of(problem.network)
    if one_pass is None or duals is None:
        evaluation = problem.evaluate(x)
        return evaluation, best_bounds(problem, evaluation, duals, tolerance=tolerance)
    regularizer, minorant, last = one_pass(problem.weight, x, duals)
    evaluation = problem.evaluation(x, regularizer, last=last)
    minorants = [(minorant, duals.get(DATA_DUAL))]
    return evaluation, _best_of(problem, evaluation, minorants, RADIUS, tolerance)


Judged = tuple[Evaluation | None, Scopes[Blocks]]
"""An evaluation without its network, if it is wanted, and the witnesses of the bounds."""


def judged(
    both: InBoth, x: Tensor, duals: Blocks | None, tolerance: float, evaluated: bool = False
) -> tuple[Judged, tuple[Tensor, ...]]:
    """What a check reads of ``judge``, and its ``Evaluation.numbers``."""
    sums = None if evaluated or duals is None else check_sums(both.problem, x, duals)
    if sums is not None:
        witness, numbers = sums
        return (None, Scopes(witness, witness)), numbers
    evaluation, bounds = judge(both.problem, x, duals, tolerance)
    witnesses = Scopes(bounds.everywhere.witness, bounds.near.witness)
    in_data = sum_per_image(bounds.near.data.pixels)
    numbers = evaluation.numbers(bounds.everywhere.gap, bounds.near.gap, in_data)
    return (evaluation.on(None) if evaluated else None, witnesses), numbers


def _best_of(
    problem: VariationalProblem,
    evaluation: Evaluation,
    minorants: Sequence[tuple[Minorant, Tensor | None]],
    radius: float,
    tolerance: float,
) -> Scopes[Bound]:
    """The best over minorants of weight R, each with the dual variable of the data, if any.

    The gap is +inf where no bound holds everywhere.
    """
    candidates = (
        bounds
        for minorant, data_dual in minorants
        for v in _data_duals(problem, evaluation, data_dual)
        for bounds in _bounds(problem, evaluation, minorant, v, radius)
    )
    best = best_of(candidates, _keep)
    packed = any(part.dtype is CODES for part in best.near.witness.values())
    if not tolerance or packed:  # too large to be repaired
        return best
    enough = tolerance * evaluation.objective.abs()
    known = minorants[-1][1]
    if known is not None and problem.operator.diagonal is None:
        close = (best.near.gap > enough) & (best.near.gap <= CLOSE * enough)
        best = _with_repairs(problem, evaluation, best, close, radius, known)
    if problem.bounds.is_one_sided:
        everywhere, near = best.everywhere.gap, best.near.gap
        short = (everywhere > enough) | enough.isinf()
        best = _with_repairs(
            problem, evaluation, best, (near < everywhere) & (near <= enough) & short, radius
        )
    return best


def _with_repairs(
    problem: VariationalProblem,
    evaluation: Evaluation,
    best: Scopes[Bound],
    images: Tensor,
    radius: float,
    known: Tensor | None = None,
) -> Scopes[Bound]:
    """The bounds, or those of repaired dual variables where they are better, for some images."""
    if not decided(images.any()):
        return best
    duals = best.near.witness
    if known is None:
        duals = repaired(problem, evaluation, duals)
    else:
        duals = tightened(problem, evaluation, Blocks({**duals, DATA_DUAL: known}))
    minorant, v = minorant_at(problem, evaluation, duals), duals.get(DATA_DUAL)
    others = _bounds(problem, evaluation, minorant, v, radius)
    # Images are independent: only these ones take another bound.
    return best_of([best, *others], lambda one, other: _keep(one, other) | ~images)


def _keep(first: Bound, second: Bound) -> Tensor:
    """A mask of the images whose first bound is the better one."""
    return ~(second.gap < first.gap)


def _data_duals(
    problem: VariationalProblem, evaluation: Evaluation, known: Tensor | None
) -> Iterator[Tensor | None]:
    """Candidates for the dual variable of the data; None behind a diagonal operator."""
    if problem.operator.diagonal is not None:
        yield None
        return
    slope = problem.fidelity.gradient(_precise_prediction(problem, evaluation))
    # Every v proves a bound: after an overflow, 0 is as good as any.
    yield slope.nan_to_num(0.0, 0.0, 0.0).to(evaluation.prediction)
    if known is not None and known.shape == problem.fidelity.y.shape:  # else of another scanner
        yield known


def _precise_prediction(problem: VariationalProblem, evaluation: Evaluation) -> Tensor:
    """A x, in double precision where that costs little.

    Without a box, every entry of A* f'(A x) + c enters the gap, and the rounding of A x alone may
    exceed a gap of 1e-3.
    """
    x = evaluation.x
    if problem.bounds.is_everything and x.dtype != torch.float64:
        transfer = problem.operator.transfer(problem.image_shape)
        if transfer is not None:
            blurred: Tensor = torch.fft.irfft2(
                transfer * torch.fft.rfft2(x.double()), s=x.shape[-2:]
            )
            return blurred
    return evaluation.prediction


def _bounds(
    problem: VariationalProblem,
    evaluation: Evaluation,
    minorant: Minorant,
    v: Tensor | None,
    radius: float,
) -> Iterator[Scopes[Bound]]:
    network = problem.network
    constant = None
    if network.bounded_below:
        constant = problem.weight * (evaluation.regularizer - network.minimum_bound())
        constant = constant.clamp_min(0)
    spare = torch.zeros_like(minorant.slack) if constant is None else constant
    slack = Slack(minorant.slack, constant)
    witness = minorant.witness if v is None else Blocks({**minorant.witness, DATA_DUAL: v})
    for data in bound_data(problem, evaluation, minorant.c, v, slack, radius):
        bound = Bound(data.gap, witness, data, minorant.losses, spare)
        yield Scopes(replace(bound, gap=torch.where(data.everywhere, data.gap, math.inf)), bound)


def _strong_convexity(problem: VariationalProblem) -> Tensor:
    """The modulus of strong convexity of D(A .) for each image; 0 where it is unknown."""
    curvature, diagonal = problem.fidelity.curvature, problem.operator.diagonal
    if curvature is None or diagonal is None:
        return torch.zeros((), dtype=torch.float64)
    y = problem.fidelity.y
    moduli = (curvature * diagonal.square()).to(y).expand_as(y)
    return moduli.flatten(1).amin(1).to(torch.float64)


def _gap_map(evaluation: Evaluation, bound: Bound) -> Tensor:
    """All local terms on the image's grid, (B, 1, H, W)."""
    x = evaluation.x
    size = x.shape[2:]
    theta = expand_per_image(bound.data.theta.to(x.dtype), x)
    total = bound.data.pixels.sum(1, keepdim=True)
    data = bound.data.data
    if data.shape != x.shape:  # data that are not pixels have no position on the grid
        data = data.flatten(1)
    total = total + _spread(data, size)
    for loss in bound.layers:
        total = total + theta * _spread(loss, size)
    rest = (1 - bound.data.theta) * bound.constant / size.numel()
    return total + expand_per_image(rest.to(total.dtype), total)


def _spread(values: Tensor, size: torch.Size) -> Tensor:
    """Local terms spread over the image's grid with the same sum; evenly if they have no grid."""
    coarse = values.shape[2:]
    if len(coarse) == len(size) and all(n % m == 0 for n, m in zip(size, coarse, strict=True)):
        blocks = values.sum(1, keepdim=True) * (coarse.numel() / size.numel())
        return F.interpolate(blocks, size=tuple(size), mode="nearest")
    flat = values.flatten(1).sum(1) / size.numel()
    return flat.reshape(-1, 1, 1, 1).expand(-1, 1, *size)
