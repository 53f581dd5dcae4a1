"""Hypergradients: derivatives of reconstructions in all parameters of a problem.

    x(theta) = argmin_x J(x, theta) = D(A x, y) + weight R(x)   (the lower level)
    l(x) = 1/2 ||x - target||^2                                 (the upper level)

theta is every tensor that requires gradients: those of R in bilevel learning, where the target is
the ground truth; also y, A and the weight in ``solve(problem, differentiable=True)``, where
target = x - g for a given slope g = grad l(x).

Every strategy returns a *surrogate*: one number for each image whose gradient in theta is, or
approximates, the gradient of l(x(theta)); autograd does the rest. The tests
compare each strategy with finite differences, which shows where it can be trusted:

    ValueFunction   smooth and non-smooth networks, every data term and operator
    Implicit        smooth networks; the best choice for them, and wrong for others
    Unrolled        smooth networks and data terms, as the number of steps grows
    JacobianFree    a direction of descent at best, and of ascent at worst (the paper's choice,
                    and the cheapest)
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.networks import bound_network
from convexlift.parts import require_positive
from convexlift.precision import full_precision
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.derivatives import (
    at_kink,
    gradient,
    hessian,
    inside_box,
    lagrangian,
    movable,
    slope_along,
)
from convexlift.solvers.linear_solvers import conjugate_gradients, minimal_residuals
from convexlift.solvers.loop import solve_roughly
from convexlift.solvers.method import Method
from convexlift.solvers.pulled import duals_of_data, pull_towards
from convexlift.solvers.solution import Solution, StopWhen
from convexlift.tensors import expand_per_image, sum_per_image

PRECISE, FINEST, ROUNDS = 1e-4, 1e-12, 4
"""Gaps relative to the change by a pull, the smallest gap that double precision allows, and the
number of attempts to find the size of the change."""
STRAIGHT, SHORTEST = 0.05, 1e-3
"""The largest relative change of (x_b - x)/b between two b, and the smallest b over the first."""


def upper_loss(x: Tensor, target: Tensor) -> Tensor:
    """l(x) = 1/2 ||x - target||^2 for each image."""
    _require_same_shape(x, target)
    return ((x - target) ** 2).flatten(1).sum(1) / 2


class Hypergradient(ABC):
    """A way to differentiate l(x(theta)) in theta."""

    @abstractmethod
    def surrogate(self, problem: VariationalProblem, solution: Solution, target: Tensor) -> Tensor:
        """One number for each image, whose gradient in theta approximates grad l(x(theta)).

        Args:
            problem: the lower level, whose tensors are theta.
            solution: the solution of the lower level.
            target: the target of the upper level, such as the ground truth.
        """


@dataclass(frozen=True)
class JacobianFree(Hypergradient):
    """l(x - step grad_x J(x, theta)), differentiated in theta with x held fixed.

    One more gradient step, as in the paper: the inverse Hessian is replaced by ``step`` times
    the identity (Fung et al. 2022, Bolte et al. 2023).

    Args:
        step: step size; None for 1 / ||grad R(target)||, the norm of all images of the batch
            together. In training it is the largest such norm of all batches, found again every
            fifth step (``Bilevel.prepare``), as in the authors' ``bilevel_training.py``.
    """

    step: float | None = 1.0

    def __post_init__(self) -> None:
        if self.step is not None:
            require_positive(self, step=self.step)

    def surrogate(self, problem: VariationalProblem, solution: Solution, target: Tensor) -> Tensor:
        """l after one gradient step."""
        step = self.step or 1 / bound_network.steepness(problem.network, target)
        return upper_loss(_descend(problem, solution.x.detach(), step), target)


@dataclass(frozen=True)
class Unrolled(Hypergradient):
    """l after ``steps`` gradient steps from the solution, differentiated through all of them.

    A truncated Neumann series of the inverse Hessian: exact in the limit for smooth J.

    Args:
        steps: number of steps; memory grows with it.
        step: step size; by default 1/L, with L from power iteration on the Hessian.
    """

    steps: int
    step: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"Unrolled needs steps >= 1, got {self.steps}")
        if self.step is not None:
            require_positive(self, step=self.step)

    def surrogate(self, problem: VariationalProblem, solution: Solution, target: Tensor) -> Tensor:
        """l after all gradient steps."""
        x = solution.x.detach()
        step = 1 / _largest_curvature(problem, x) if self.step is None else self.step
        for _ in range(self.steps):
            x = _descend(problem, x, step)
        return upper_loss(x, target)


@dataclass(frozen=True)
class Implicit(Hypergradient):
    """-<q, grad_x J(x, theta)> with (H + damping) q = grad l(x): the implicit function theorem.

    H is the Hessian of J in x, restricted to the pixels that can move: pixels on the boundary of
    the box, and pixels that an L1 data term holds at its kink x = y, cannot. The latter move with
    y: <grad l(x) - H q, y> over these pixels is added.

    Args:
        damping: added to H, which is singular where neither data nor curvature determine a pixel.
        linear_solver: ``cg``, or ``minres`` for (nearly) singular H.
        iterations: maximum number of iterations of the linear solver.
        tolerance: on its relative residual.
    """

    damping: float = 1e-3
    linear_solver: Literal["cg", "minres"] = "cg"
    iterations: int = 50
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.damping < math.inf:
            raise ValueError(f"Implicit needs damping >= 0, got {self.damping}")
        if self.linear_solver not in ("cg", "minres"):
            raise ValueError(f"linear_solver must be 'cg' or 'minres', got {self.linear_solver!r}")
        if self.iterations < 1:
            raise ValueError(f"Implicit needs iterations >= 1, got {self.iterations}")
        require_positive(self, tolerance=self.tolerance)

    def surrogate(self, problem: VariationalProblem, solution: Solution, target: Tensor) -> Tensor:
        """-<q, grad_x J>, with q from a linear solver."""
        _require_same_shape(solution.x, target)
        x = solution.x.detach()
        free = movable(problem, x)
        with full_precision():
            curvature = hessian(problem, x)

            def damped(v: Tensor) -> Tensor:
                return free * curvature(v) + self.damping * v

            method = conjugate_gradients if self.linear_solver == "cg" else minimal_residuals
            slope = x - target
            q = method(
                damped,
                free * slope,
                start=torch.zeros_like(x),
                iterations=self.iterations,
                tolerance=self.tolerance,
            )
            return _carried(problem, x, slope - curvature(q)) - slope_along(problem, x, q)


@dataclass(frozen=True)
class ValueFunction(Hypergradient):
    """[J(x_b, theta) - J(x, theta)] / b with x_b = argmin_x J(x, theta) + b l(x).

    The derivative of the value function min_x J + b l in b is l(x(theta)), and derivatives in b and
    theta commute: two solves and no second derivative, correct also where J has kinks. There J has
    no gradient in theta, but its saddle-point form does, at the dual variables of the two solves
    (see ``lagrangian``). The second problem is of the same kind and is solved in the same way,
    starting from x. The difference of two close values requires accuracy: a solution coarser than
    ``gap`` is refined first.

    Args:
        b: small, for an error of O(b), but large compared with the square root of the gap: 1e-2
            suits single precision; an L1 data term and a network with kinks need 1e-3, a gap of
            1e-7 and double precision.
        gap: tolerance of both solves. None computes in double precision, whatever the precision of
            the problem, until the gaps are below 1e-4 of the change by the pull: errors in x
            are then 1 % of the difference of the two solutions. With None, b is divided by ten
            until (x_b - x)/b stays the same: x moves along straight lines between kinks, and behind
            an ill-conditioned operator a small pull can move it across many kinks.
        max_iterations: limit of each solve.
        method: the method of both solves.
    """

    b: float = 1e-2
    gap: float | None = 1e-5
    max_iterations: int = 500
    method: Method | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_positive(self, b=self.b, gap=1.0 if self.gap is None else self.gap)
        if self.max_iterations < 1:
            raise ValueError(f"ValueFunction needs max_iterations >= 1, got {self.max_iterations}")

    def surrogate(self, problem: VariationalProblem, solution: Solution, target: Tensor) -> Tensor:
        """The difference quotient in b of the value function."""
        _require_same_shape(solution.x, target)
        if self.gap is None:
            problem = problem.with_network(problem.trainable_network).to(dtype=torch.float64)
            target = target.double()
        fixed = problem.detach()
        b, bend, kept = self.b, 0.0, self._pulled(fixed, solution, target, self.b)
        while self.gap is None and b > SHORTEST * self.b:
            again = self._pulled(fixed, kept.solution, target, b / 10)
            if not again.precise:  # the difference would contain rounding errors
                break
            bend = _bend(kept, again)
            b, kept = b / 10, again
            if bend <= STRAIGHT:
                break
        if bend > STRAIGHT:
            warnings.warn(
                f"reconstructions have kinks so close to these data that their gradients may be "
                f"wrong by {100 * bend:.0f} %",
                RuntimeWarning,
                stacklevel=2,
            )
        solution, pulled = kept.solution, kept.pulled
        force, duals = b * (pulled.x - target), duals_of_data(problem, pulled.duals)
        with full_precision():  # a difference of close values
            return (
                lagrangian(problem, pulled.x, duals, force)
                - lagrangian(problem, solution.x, solution.duals)
            ) / b

    def _pulled(
        self, fixed: VariationalProblem, solution: Solution, target: Tensor, b: float
    ) -> _Pull:
        """The solutions without and with the pull, accurate enough to be compared if possible."""
        second = pull_towards(fixed, target, b)
        if self.gap is not None:
            return _Pull(second, *self._pair(fixed, second, solution, self.gap))
        # For a Hessian of one the pull f changes the objective by f^2/2.
        usual = b**2 * upper_loss(solution.x.double(), target)
        gap = _precise(usual, second.objective(solution.x.double()))
        for _ in range(ROUNDS):
            pull = _Pull(second, *self._pair(fixed, second, solution, gap))
            solution, pulled, change = pull.solution, pull.pulled, pull.change
            # For an image that stays where it is, gaps must be able to tell that it stays.
            finer = _precise(torch.where(change > 0, change, usual), pulled.objective)
            if max(float(solution.gap.max()), float(pulled.gap.max())) <= finer:
                return replace(pull, precise=finer > FINEST)
            gap = finer / 2
        return pull

    def _pair(
        self, fixed: VariationalProblem, second: VariationalProblem, known: Solution, gap: float
    ) -> tuple[Solution, Solution]:
        """The solutions of both problems, from a known solution of the first."""
        stop = StopWhen(gap=gap, max_iterations=self.max_iterations)
        solve = partial(solve_roughly, method=self.method, stop=stop)
        if known.x.dtype != fixed.fidelity.y.dtype or not bool((known.gap <= gap).all()):
            known = solve(fixed, start=known.state)
        return known, solve(second, start=known.state)


@dataclass(frozen=True, eq=False)
class _Pull:
    """x = argmin J and x_b = argmin J + b l.

    Attributes:
        problem: min J + b l.
        solution: x.
        pulled: x_b.
        precise: whether gaps are small compared with the change of J + b l from x to x_b.
    """

    problem: VariationalProblem
    solution: Solution
    pulled: Solution
    precise: bool = False

    @cached_property
    def change(self) -> Tensor:
        """(J + b l)(x) - (J + b l)(x_b) for each image; positive, unless kinks hold x_b at x."""
        return self.problem.objective(self.solution.x) - self.problem.objective(self.pulled.x)


def _bend(first: _Pull, second: _Pull) -> float:
    """The largest relative difference of the directions of two pulls, one ten times weaker.

    Where kinks hold x_b at x, the computed x_b - x is an error of the solver and has no direction.
    No weaker pull moves x there: b (target - x) in dJ(x) also holds for all smaller b.
    """
    before, after = (each.pulled.x - each.solution.x for each in (first, second))
    distance, size = (each.flatten(1).norm(dim=1) for each in (before / 10 - after, after))
    return float(torch.where(second.change > 0, distance / size, 0.0).max())


def _precise(change: Tensor, objective: Tensor) -> float:
    """The relative gap that is small compared with the change of every image that changes."""
    relative = torch.where(change > 0, change / objective.abs(), math.inf)
    return min(max(PRECISE * float(relative.min()), FINEST), 1.0)


def suitable_hypergradient(problem: VariationalProblem) -> Hypergradient:
    """``Implicit()`` for smooth networks, ``ValueFunction()`` for networks with kinks.

    A data term with kinks needs the latter too, unless its kinks are known and hold single pixels.
    The accuracy suffices for the many steps of an optimiser.
    """
    return Implicit() if _has_hessian(problem) else ValueFunction()


def accurate_hypergradient(problem: VariationalProblem) -> Hypergradient:
    """The suitable hypergradient with errors of about 1 % or less, at a multiple of the cost."""
    if _has_hessian(problem):
        return Implicit(damping=1e-5, iterations=1000, tolerance=1e-5)
    return ValueFunction(b=1e-4, gap=None, max_iterations=10_000)


def _has_hessian(problem: VariationalProblem) -> bool:
    """Whether J has a Hessian in the pixels that can move."""
    kinks_known = type(problem.fidelity).at_kink is not Fidelity.at_kink
    harmless = problem.fidelity.smooth or (kinks_known and problem.operator.diagonal is not None)
    return problem.regularizer.smooth and harmless


def _carried(problem: VariationalProblem, x: Tensor, force: Tensor) -> Tensor:
    """0, with the gradient of <force, y / d> over the pixels that a kink holds at x = y / d."""
    held, d = at_kink(problem, x) & inside_box(problem, x), problem.operator.diagonal
    if d is None or not bool(held.any()):
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    place = problem.fidelity.y / torch.where(held, d.to(x), 1.0)
    return sum_per_image(torch.where(held, force * (place - place.detach()), 0.0))


def _descend(problem: VariationalProblem, x: Tensor, step: float | Tensor) -> Tensor:
    """P_box(x - step grad_x J(x, theta)), differentiable in theta (and x, if it is)."""
    return problem.bounds.project(x - step * gradient(problem, x))


def _largest_curvature(problem: VariationalProblem, x: Tensor, iterations: int = 20) -> Tensor:
    """The largest eigenvalue of the Hessian in x for each image, with a margin."""
    curvature = hessian(problem, x)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    size = torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
    for _ in range(iterations):
        image = curvature(v)
        size = image.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        v = image / expand_per_image(size, image)
    if not bool((size > torch.finfo(x.dtype).eps).all()):
        raise ValueError(
            "J has no curvature here (an L1 data term and a network with kinks?), so that no step "
            "size follows from it: write Unrolled(steps=..., step=...), or use ValueFunction()"
        )
    return expand_per_image(1.1 * size, x)


def _require_same_shape(x: Tensor, target: Tensor) -> None:
    if x.shape != target.shape:
        raise ValueError(
            f"the ground truth has shape {tuple(target.shape)}, "
            f"the reconstructions have {tuple(x.shape)}"
        )
