"""Weakly convex regularizers:  min_x  D(A x, y) + weight R(x)  over a box.

    R(x) = N(x) - 1/2 sum_c rho_c |V_c x|^2,   N convex,   M = weight sum_c rho_c V_c* V_c.

The objective is J(x) = D(A x) + weight N(x) - 1/2 <x, M x>. Its convex part has a quadratic
minorant: weight N(x) >= <c, x> + beta from dual variables, as for convex R; the data term is

    D(x) = 1/2 sum w (x - y)^2           itself, if A is the identity and D a weighted L2 distance,
    D(A x) >= <A* v, x> - D*(v)          for any v, otherwise (w = 0).

With the quadratic function Q(x) = minorant - 1/2 <x, M x>, whose Hessian is diag(w) - M >= m I,

    J(u) >= Q(z) + <grad Q(z), u - z> + m/2 |u - z|^2        for all images u and any z,

whose minimum over u is taken pixel by pixel. If m > 0, or at least hardly below 0 and the box is
finite, this bound holds for all images: the objective is convex, or so nearly convex that the bound
accounts for the rest. Otherwise kappa/2 |u - x|^2 is added, which makes it convex, and the bound
says that x is critical up to a gap: it minimises J(u) + kappa/2 |u - x|^2 up to that gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from convexlift.double_precision import has_double
from convexlift.functionals.data_terms import SquaredL2, WeightedL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.networks.weakly_convex import WeaklyConvexNetwork
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.problems.banded_norms import Level, factored_bound
from convexlift.problems.claims import Claim, Guarantee, in_double, objective_above, relative_gap
from convexlift.problems.filter_norms import largest_eigenvalue
from convexlift.problems.network_duals import DATA_DUAL, feasible_duals
from convexlift.problems.rigorous_regularizer import minorant_below
from convexlift.problems.rounding import (
    Rounded,
    block_sum,
    gamma,
    largest,
    product,
    sum_rate,
    total,
)
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, Shape, TensorRecord, expand_per_image, sum_per_image
from convexlift.tf32 import full_precision

SLIGHT = 0.01
"""The most negative m, relative to the data term, that admits a bound over all images of a box."""
CENTRING = 200
"""The most steps of conjugate gradients towards the minimum of Q."""
WASTE = 0.01
"""The tolerated loss of a bound, relative to the gap that is wanted."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WeaklyConvexProblem(TensorRecord):
    """min_x  D(A x, y) + weight R(x)   subject to  lower <= x <= upper,  R weakly convex.

    In denoising with squared distances the objective may be convex, and bounds global; behind other
    operators and data terms x is a critical point.

    Args:
        fidelity: D with its data, for example ``cl.SquaredL2(y)``.
        regularizer: R, from ``cl.interop.load`` for example.
        weight: gamma > 0.
        operator: A; the identity (denoising) unless given.
        box: (lower, upper), each a number or None; None for no bounds.
    """

    fidelity: Fidelity
    regularizer: WeaklyConvexNetwork
    weight: float
    operator: LinearOperator = field(default_factory=Identity)
    box: Box | tuple[float | None, float | None] | None = None
    convex: VariationalProblem = field(init=False, repr=False)
    """The problem without the concave part of R."""

    def __post_init__(self) -> None:
        if not isinstance(self.regularizer, WeaklyConvexNetwork):
            raise TypeError(
                "regularizer must be a WeaklyConvexNetwork, got a "
                f"{type(self.regularizer).__name__}; convex ones belong to cl.VariationalProblem"
            )
        self.regularizer.check_convexity()
        convex = VariationalProblem(
            fidelity=self.fidelity, regularizer=self.regularizer.convex_part(),
            weight=self.weight, operator=self.operator, box=self.box,
        )  # fmt: skip
        object.__setattr__(self, "convex", convex)
        object.__setattr__(self, "weight", convex.weight)

    @property
    def bounds(self) -> Box:
        """The box."""
        return self.convex.bounds

    @property
    def quadratic(self) -> bool:
        """Whether D is a (weighted) squared distance to images, which may make J convex."""
        kind = type(self.fidelity), type(self.operator)
        return kind in ((SquaredL2, Identity), (WeightedL2, Identity))

    @property
    def image_shape(self) -> Shape:
        """(C, H, W) of the images."""
        return self.convex.image_shape

    @property
    def batch_size(self) -> int:
        """The number of problems."""
        return self.convex.batch_size

    @property
    def network(self) -> BoundNetwork:
        """The convex part of R on images of this shape."""
        return self.convex.network

    @property
    def filters(self) -> LinearOperator:
        """V."""
        return self.network.layers[0].operators[IMAGE]

    @property
    def concavity(self) -> Tensor:
        """weight rho_c, (1, C, 1, 1)."""
        return self.weight * self.regularizer.concavity.detach().reshape(1, -1, 1, 1)

    @cached_property
    def level(self) -> Level:
        """lambda, and a proven upper bound on the largest eigenvalue of M.

        lambda belongs to a factorisation, made where it may prove J convex; otherwise it is NaN.
        """
        rho = self.weight * self.regularizer.concavity.detach().double()
        filters = self.filters.to(dtype=torch.float64)
        bound = largest_eigenvalue(filters, rho, self.image_shape)
        if bound < (least := self.least) or not least:
            return Level(math.nan, bound)
        slack = SLIGHT if self.bounds.is_bounded else 0.0
        found = factored_bound(filters, rho, self.image_shape, least, slack)
        return Level(math.nan, bound) if found is None or found.bound >= bound else found

    @property
    def steepest(self) -> float:
        """A proven upper bound on the largest eigenvalue of M."""
        return self.level.bound

    @property
    def least(self) -> float:
        """The smallest weight of the data if they are images; else 0."""
        return float(torch.as_tensor(self.fidelity.weights).min()) if self.quadratic else 0.0

    @property
    def curvature(self) -> float:
        """m, a proven lower bound on the smallest eigenvalue of diag(w) - M."""
        return (self.least - self.steepest) - 1e-12 * (self.least + self.steepest)

    @property
    def kappas(self) -> tuple[float, ...]:
        """0 if a bound over all images may exist, then a kappa that more than makes J convex."""
        m = self.curvature
        if m > 0:
            return (0.0,)
        if math.isinf(m):
            return (math.inf,)
        if not self.quadratic:
            return (2 * abs(m) or 1.0,)
        data = float(torch.as_tensor(self.fidelity.weights).max())
        enough = 2 * abs(m) + SLIGHT * data
        slight = self.bounds.is_bounded and m >= -SLIGHT * data
        return (0.0, enough) if slight else (enough,)

    def with_double(self) -> WeaklyConvexProblem:
        """This problem in double precision: on its device, or on a CPU."""
        return self if has_double(self.fidelity.y.device.type) else self.to(device="cpu")

    def pull(self, x: Tensor) -> Tensor:
        """M x."""
        return self.filters.adjoint(self.concavity * self.filters(x))

    def objective(self, x: Tensor) -> Tensor:
        """J(x) for each image, +inf outside the box."""
        with torch.no_grad(), full_precision():
            responses = self.filters(x)
            concave = sum_per_image(self.concavity * responses.square())
            return self.convex.objective(x) - 0.5 * concave


@dataclass(frozen=True, eq=False)
class WeakClaim(Claim):
    """A claim about a weakly convex problem.

    Attributes:
        centre: z, any images.
        kappa: 0 for bounds on J; else kappa of the proximal problem that x solves up to the gap.
        level: lambda of the factorisation of lambda I - M that m comes from; NaN for other bounds.
    """

    centre: Tensor
    kappa: float
    level: float = math.nan


@dataclass(frozen=True, eq=False)
class _Minorant:
    """D(A u) + weight N(u)  >=  beta + 1/2 sum w (u - y)^2 + <c, u>; v if there is a D*(v)."""

    w: Tensor
    y: Tensor
    c: Rounded
    beta: Tensor
    v: Tensor | None = None


@torch.no_grad()
@full_precision()
def weak_claim(
    problem: WeaklyConvexProblem, x: Tensor, witness: Blocks, tolerance: float = 0.0
) -> WeakClaim:
    """The claim about x that dual variables of the convex part prove.

    It covers all images where possible (if m < 0, only where the gap is then within the tolerance);
    otherwise it states that x is critical.
    """
    y = problem.fidelity.y
    witness = Blocks({name: part.to(y.dtype) for name, part in witness.items()})
    duals = feasible_duals(problem.network, problem.weight, x.to(y.dtype), witness)
    double, exact = problem.to(dtype=torch.float64), x.double()
    object.__setattr__(double, "convex", in_double(problem.convex))
    objective, minorants = _objective_above(double, exact), list(_minorants(double, exact, duals))
    for kappa in problem.kappas:
        lower, centre, v = torch.full_like(objective, -math.inf), exact, minorants[0].v
        for minorant in minorants:
            enough = WASTE * tolerance * objective.abs()
            for z in (exact, _centre(problem, exact, minorant, kappa, enough)):
                value = _bound(double, exact, minorant, z, problem.curvature, kappa)
                better = value > lower  # False for NaN
                lower = torch.where(better, value, lower)
                centre = torch.where(expand_per_image(better, z), z, centre)
                if v is not None and minorant.v is not None:
                    v = torch.where(expand_per_image(better, v), minorant.v, v)
        gap = relative_gap(objective, lower)
        if bool((gap <= tolerance).all()):
            break
    lower = torch.minimum(lower, objective)
    proven = objective.isfinite() & lower.isfinite()
    kind = Guarantee.CRITICAL if kappa else Guarantee.GLOBAL
    guarantee = tuple(kind if ok else Guarantee.NONE for ok in proven.tolist())
    one = torch.ones_like(lower)
    return WeakClaim(
        x,
        objective,
        lower,
        gap,
        guarantee,
        1.0,
        duals,
        one,
        v,
        centre=centre,
        kappa=kappa,
        level=problem.level.level,
    )


def _minorants(double: WeaklyConvexProblem, x: Tensor, duals: Blocks) -> Iterator[_Minorant]:
    """Minorants of the convex part of J: one, or one for each promising v."""
    f, A, shape = double.fidelity, double.convex.operator, double.image_shape
    network = minorant_below(double.convex, duals)
    if double.quadratic:
        yield _Minorant(torch.as_tensor(f.weights).to(x), f.y, network.c, network.beta)
        return
    zero, prediction = torch.zeros_like(x), A(x).to(f.y)
    candidates = [f.gradient(prediction)]
    if DATA_DUAL in duals:
        candidates.append(duals[DATA_DUAL].to(f.y))
    if (d := A.diagonal) is not None:  # the slope at a kink at which all forces cancel
        balanced = (double.pull(x) - network.c.value) / torch.where(d != 0, d, 1.0).to(x)
        candidates.append(torch.where(d != 0, balanced, candidates[0]))
    for v in candidates:
        v = f.clip_to_conjugate_domain(torch.where(v.isfinite(), v, 0.0))
        conjugate, error = total(f.conjugate_above(v))
        beta = (network.beta - conjugate) - error
        beta = beta - gamma(4) * (network.beta.abs() + conjugate.abs() + error)
        c = product(A, Rounded.exact(v), shape, adjoint=True) + network.c
        yield _Minorant(zero, zero, c, beta, v)


def _objective_above(double: WeaklyConvexProblem, x: Tensor) -> Tensor:
    a = product(double.filters, Rounded.exact(x), double.image_shape)
    least = (a.value.abs() - a.error).clamp_min(0).square() * (0.5 * double.concavity)
    value, error = total(least)
    concave = value * (1 - gamma(8)) - error
    convex = objective_above(double.convex, x)
    return (convex - concave) + gamma(2) * (convex.abs() + concave.abs())


def _centre(
    problem: WeaklyConvexProblem, x: Tensor, minorant: _Minorant, kappa: float, enough: Tensor
) -> Tensor:
    """About the minimiser of Q(u) + kappa/2 |u - x|^2, by conjugate gradients, in the box.

    A residual r costs the bound at most |r|^2 / 2m. The iteration ends when this is ``enough``, a
    tenth of the distance of the bound from J(x), or the limit of the problem's precision. (Any z
    is valid.)
    """
    if math.isinf(kappa):
        return x
    own = problem.fidelity.y.dtype
    z, y, c = (each.to(own) for each in (x, minorant.y, minorant.c.value))
    w, m = minorant.w.to(own) + kappa, problem.curvature + kappa
    r = minorant.w.to(own) * y + kappa * z - c - (w * z - problem.pull(z))
    p, square = r, _dots(r, r)
    limit, drop = (16 * torch.finfo(own).eps) ** 2 * square, torch.zeros_like(square)
    enough = enough.to(own).reshape_as(square)
    for _ in range(CENTRING):
        if bool((square <= torch.maximum(limit, 2 * m * torch.maximum(enough, 0.1 * drop))).all()):
            break
        curved = w * p - problem.pull(p)
        bend = _dots(p, curved)
        step = torch.where(bend > 0, square / bend.clamp_min(1e-30), 0.0)
        z, r, drop = z + step * p, r - step * curved, drop + 0.5 * step * square
        last, square = square, _dots(r, r)
        p = r + torch.where(last > 0, square / last.clamp_min(1e-30), 0.0) * p
    z = z.double()
    return problem.bounds.project(torch.where(z.isfinite(), z, x))


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).reshape(-1, 1, 1, 1)


def _bound(
    double: WeaklyConvexProblem, x: Tensor, minorant: _Minorant, z: Tensor, m: float, kappa: float
) -> Tensor:
    """Q(z) + kappa/2 |z - x|^2 + the infimum of the rest, rounded down."""
    shape, concavity, w, y = double.image_shape, double.concavity, minorant.w, minorant.y
    c, c_error = minorant.c.value, minorant.c.error.expand_as(z)
    a = product(double.filters, Rounded.exact(z), shape)
    scaled = concavity * a.value
    q = Rounded(scaled, concavity * largest(a.error) + gamma(2) * largest(scaled))
    g = product(double.filters, q, shape, adjoint=True)
    most = (a.value.abs() + a.error).square() * (0.5 * concavity)
    concave, error = total(most)
    concave = concave * (1 + gamma(8)) + error
    distance, error = total((z - y).square() * (0.5 * w))
    distance = distance * (1 - gamma(8)) - error
    linear = block_sum(c * z)
    rounding = sum_rate(z[0].numel()) * block_sum((c * z).abs())
    linear = linear - rounding - block_sum(c_error * z.abs()) * (1 + 1e-9)
    move, error = total((z - x).square() * (0.5 * kappa))
    move = move * (1 - gamma(8)) - error

    r = w * (z - y) - g.value + c + kappa * (z - x)
    sizes = w * (z.abs() + y.abs()) + g.value.abs() + c.abs() + kappa * (z.abs() + x.abs())
    r_error = g.error + c_error + gamma(8) * sizes
    m = (m + kappa) - 1e-12 * (abs(m) + kappa)
    low, high = double.bounds.lower - z, double.bounds.upper - z
    infima = _least(r, r_error, m, low - gamma(2) * low.abs(), high + gamma(2) * high.abs())
    rest, error = total(infima)
    parts = (minorant.beta, distance, -concave, linear, move, rest - error)
    value = torch.stack(parts).sum(0)
    return value - gamma(16) * torch.stack(parts).abs().sum(0)


def _least(r: Tensor, error: Tensor, m: float, low: Tensor, high: Tensor) -> Tensor:
    """A lower bound on (r +- error) d + m/2 d^2 over low <= d <= high, low <= 0 <= high."""

    def one_sided(slope: Tensor, end: Tensor) -> Tensor:  # over 0 <= d <= end
        if m > 0:
            inside = torch.where(slope < 0, -slope.square() / (2 * m), 0.0)
            reached = torch.where(end.isinf(), 0.0, end)
            at_end = slope * reached + 0.5 * m * reached.square()
            value = torch.where(-slope > m * end, at_end, inside) * (1 + 1e-12)
            return value - 1e-14 * (slope * reached).abs() * (slope < 0)
        at_end = slope * end + 0.5 * m * end.square()
        at_end = at_end - 1e-14 * ((slope * end).abs() + abs(m) * end.square())
        flat = (slope >= 0) & (m == 0) | (end == 0)
        return torch.where(flat, 0.0, torch.where(end.isinf(), -math.inf, at_end.clamp_max(0)))

    right = one_sided(r - error, high.clamp_min(0))
    left = one_sided(-(r + error), (-low).clamp_min(0))
    return torch.minimum(right, left)
