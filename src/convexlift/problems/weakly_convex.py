"""Weakly convex regularizers:  min_x  D(x) + weight R(x)  over a box, D a weighted L2 distance.

    R(x) = N(x) - 1/2 sum_c rho_c |V_c x|^2,   N convex,   M = weight sum_c rho_c V_c* V_c.

The objective is J(x) = [D(x) - 1/2 <x, M x>] + weight N(x). With an affine minorant
weight N(x) >= <c, x> + beta from dual variables, as everywhere, and the quadratic function
Q(x) = D(x) - 1/2 <x, M x> + <c, x>, whose Hessian is diag(w) - M >= m I,

    J(u) >= beta + Q(z) + <grad Q(z), u - z> + m/2 |u - z|^2        for all images u and any z,

whose minimum over u is taken pixel by pixel. If m > 0, or at least hardly below 0 and the box is
finite, that is a bound for all images: the objective is convex, or convex but for a little that the
bound accounts for. Otherwise kappa/2 |u - x|^2 is added, which makes it convex, and the bound says
that x is critical up to a gap: it minimises J(u) + kappa/2 |u - x|^2 up to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from convexlift.functionals.data_terms import SquaredL2, WeightedL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.networks.weakly_convex import WeaklyConvexNetwork
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.problems.claims import Claim, Guarantee, objective_above, relative_gap
from convexlift.problems.filter_norms import largest_eigenvalue
from convexlift.problems.lifting import feasible_duals
from convexlift.problems.rigorous_bounds import RoundedMinorant, minorant_below
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
from convexlift.tensors import Blocks, Shape, TensorRecord, full_precision, sum_per_image

SLIGHT = 0.01
"""How far below zero m may be, relative to the data term, for a bound over all images of a box."""
CENTRING = 200
"""The most steps of conjugate gradients towards the minimum of Q."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WeaklyConvexProblem(TensorRecord):
    """min_x  D(x, y) + weight R(x)   subject to  lower <= x <= upper,  R weakly convex.

    Args:
        fidelity: ``cl.SquaredL2(y)``, or ``cl.WeightedL2(y, weights)``, as for missing pixels.
        regularizer: R, from ``cl.interop.load`` for example.
        weight: gamma > 0.
        box: (lower, upper), each a number or None; None for no bounds.
    """

    fidelity: Fidelity
    regularizer: WeaklyConvexNetwork
    weight: float
    box: Box | tuple[float | None, float | None] | None = None
    convex: VariationalProblem = field(init=False, repr=False)
    """The problem without the concave part of R."""

    def __post_init__(self) -> None:
        if not isinstance(self.regularizer, WeaklyConvexNetwork):
            raise TypeError(
                "regularizer must be a WeaklyConvexNetwork, got a "
                f"{type(self.regularizer).__name__}; convex ones belong to cl.VariationalProblem"
            )
        if type(self.fidelity) not in (SquaredL2, WeightedL2):
            raise TypeError(
                "weakly convex regularizers need fidelity=cl.SquaredL2(y) or cl.WeightedL2(y, "
                f"weights), got {type(self.fidelity).__name__}"
            )
        self.regularizer.check_convexity()
        convex = VariationalProblem(
            fidelity=self.fidelity, regularizer=self.regularizer.convex_part(),
            weight=self.weight, box=self.box,
        )  # fmt: skip
        object.__setattr__(self, "convex", convex)
        object.__setattr__(self, "weight", convex.weight)

    @property
    def bounds(self) -> Box:
        """The box."""
        return self.convex.bounds

    @property
    def operator(self) -> LinearOperator:
        """The identity."""
        return Identity()

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
    def steepest(self) -> float:
        """A proven upper bound on the largest eigenvalue of M."""
        rho = self.regularizer.concavity.detach().double()
        filters = self.filters.to(dtype=torch.float64)
        return largest_eigenvalue(filters, self.weight * rho, self.image_shape)

    @property
    def curvature(self) -> float:
        """m, a proven lower bound on the smallest eigenvalue of diag(w) - M."""
        least = float(torch.as_tensor(self.fidelity.weights).min())
        return (least - self.steepest) - 1e-12 * (least + self.steepest)

    @property
    def kappas(self) -> tuple[float, ...]:
        """0 where a bound over all images can be had; then what more than makes J convex."""
        m, data = self.curvature, float(torch.as_tensor(self.fidelity.weights).max())
        if m > 0:
            return (0.0,)
        if math.isinf(m):
            return (math.inf,)
        enough = 2 * abs(m) + SLIGHT * data
        finite = math.isfinite(self.bounds.lower) and math.isfinite(self.bounds.upper)
        return (0.0, enough) if finite and m >= -SLIGHT * data else (enough,)

    def pull(self, x: Tensor) -> Tensor:
        """M x."""
        return self.filters.adjoint(self.concavity * self.filters(x))

    def objective(self, x: Tensor) -> Tensor:
        """J(x) for each image, +inf outside the box."""
        with torch.no_grad(), full_precision():
            responses = self.filters(x)
            concave = sum_per_image(self.concavity * responses.square())
            return self.convex.objective(x) - 0.5 * concave

    def surrogate(self, x: Tensor, damping: float = 0.0) -> VariationalProblem:
        """D(u) - <M x, u> + damping/2 |u - x|^2 + weight N(u), with a constant above J, tight at x.

        It is a problem with other data and weights.
        """
        w = torch.as_tensor(self.fidelity.weights).to(x) + damping
        known = torch.as_tensor(self.fidelity.weights).to(x) * self.fidelity.y
        data = (known + self.pull(x) + damping * x) / w
        plain = isinstance(self.fidelity, SquaredL2) and not damping
        fidelity = SquaredL2(data) if plain else WeightedL2(data, w.expand_as(data).contiguous())
        return self.convex.with_data(fidelity)


@dataclass(frozen=True, eq=False)
class WeakClaim(Claim):
    """A claim about a weakly convex problem.

    Attributes:
        centre: z, any images.
        kappa: 0 for bounds on J; else of the proximal problem that x solves up to the gap.
    """

    centre: Tensor
    kappa: float


@torch.no_grad()
def weak_claim(
    problem: WeaklyConvexProblem, x: Tensor, witness: Blocks, tolerance: float = 0.0
) -> WeakClaim:
    """The claim about x that dual variables of the convex part prove.

    About all images where that can be, and, if m < 0, where the gap is then within the tolerance;
    else that x is critical.
    """
    y = problem.fidelity.y
    witness = Blocks({name: part.to(y.dtype) for name, part in witness.items()})
    duals = feasible_duals(problem.network, problem.weight, x.to(y.dtype), witness)
    double, exact = problem.to(dtype=torch.float64), x.double()
    objective, minorant = _objective_above(double, exact), minorant_below(double.convex, duals)
    for kappa in problem.kappas:
        lower, centre = torch.full_like(objective, -math.inf), exact
        for z in (exact, _centre(double, exact, minorant, kappa)):
            value = _bound(double, exact, minorant, z, problem.curvature, kappa)
            better = value > lower  # False for NaN
            lower = torch.where(better, value, lower)
            centre = torch.where(better.reshape(-1, 1, 1, 1), z, centre)
        gap = relative_gap(objective, lower)
        if bool((gap <= tolerance).all()):
            break
    lower = torch.minimum(lower, objective)
    proven = objective.isfinite() & lower.isfinite()
    kind = Guarantee.CRITICAL if kappa else Guarantee.GLOBAL
    guarantee = tuple(kind if ok else Guarantee.NONE for ok in proven.tolist())
    one = torch.ones_like(lower)
    return WeakClaim(
        x, objective, lower, gap, guarantee, 1.0, duals, one, None, centre=centre, kappa=kappa
    )


def _objective_above(double: WeaklyConvexProblem, x: Tensor) -> Tensor:
    a = product(double.filters, Rounded.exact(x), double.image_shape)
    least = (a.value.abs() - a.error).clamp_min(0).square() * (0.5 * double.concavity)
    value, error = total(Rounded.exact(least))
    concave = value * (1 - gamma(8)) - error
    convex = objective_above(double.convex, x)
    return (convex - concave) + gamma(2) * (convex.abs() + concave.abs())


def _centre(
    double: WeaklyConvexProblem, x: Tensor, minorant: RoundedMinorant, kappa: float
) -> Tensor:
    """About the minimiser of Q(u) + kappa/2 |u - x|^2, by conjugate gradients, in the box."""
    if math.isinf(kappa):
        return x
    c = minorant.c.value
    w = torch.as_tensor(double.fidelity.weights).to(x) + kappa
    z = x
    r = w * double.fidelity.y - kappa * double.fidelity.y + kappa * x - c - (w * z - double.pull(z))
    p, square = r, _dots(r, r)
    start = square
    for _ in range(CENTRING):
        if bool((square <= 1e-24 * start).all()):
            break
        curved = w * p - double.pull(p)
        bend = _dots(p, curved)
        step = torch.where(bend > 0, square / bend.clamp_min(1e-300), 0.0)
        z, r = z + step * p, r - step * curved
        last, square = square, _dots(r, r)
        p = r + torch.where(last > 0, square / last.clamp_min(1e-300), 0.0) * p
    return double.bounds.project(torch.where(z.isfinite(), z, x))


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).reshape(-1, 1, 1, 1)


def _bound(
    double: WeaklyConvexProblem,
    x: Tensor,
    minorant: RoundedMinorant,
    z: Tensor,
    m: float,
    kappa: float,
) -> Tensor:
    """beta + Q(z) + kappa/2 |z - x|^2 + the infimum of the rest, rounded down."""
    shape, concavity = double.image_shape, double.concavity
    c, c_error = minorant.c.value, minorant.c.error.expand_as(z)
    a = product(double.filters, Rounded.exact(z), shape)
    scaled = concavity * a.value
    q = Rounded(scaled, concavity * largest(a.error) + gamma(2) * largest(scaled))
    g = product(double.filters, q, shape, adjoint=True)
    most = (a.value.abs() + a.error).square() * (0.5 * concavity)
    concave, error = total(Rounded.exact(most))
    concave = concave * (1 + gamma(8)) + error
    density, error = total(Rounded.exact(double.fidelity.density(z)))
    density = density * (1 - double.fidelity.density_rounding) - error
    linear = block_sum(c * z)
    rounding = sum_rate(z[0].numel()) * block_sum((c * z).abs())
    linear = linear - rounding - block_sum(c_error * z.abs()) * (1 + 1e-9)
    move, error = total(Rounded.exact((z - x).square() * (0.5 * kappa)))
    move = move * (1 - gamma(8)) - error

    w, y = torch.as_tensor(double.fidelity.weights).to(z), double.fidelity.y
    r = w * (z - y) - g.value + c + kappa * (z - x)
    sizes = w * (z.abs() + y.abs()) + g.value.abs() + c.abs() + kappa * (z.abs() + x.abs())
    r_error = g.error + c_error + gamma(8) * sizes
    m = (m + kappa) - 1e-12 * (abs(m) + kappa)
    low, high = double.bounds.lower - z, double.bounds.upper - z
    infima = _least(r, r_error, m, low - gamma(2) * low.abs(), high + gamma(2) * high.abs())
    rest, error = total(Rounded.exact(infima))
    parts = (minorant.beta, density, -concave, linear, move, rest - error)
    value = torch.stack(parts).sum(0)
    return value - gamma(16) * torch.stack(parts).abs().sum(0)


def _least(r: Tensor, error: Tensor, m: float, low: Tensor, high: Tensor) -> Tensor:
    """The infimum of (r +- error) d + m/2 d^2 over low <= d <= high, low <= 0 <= high; below it."""

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
