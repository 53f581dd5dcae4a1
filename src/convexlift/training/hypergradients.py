"""Hypergradients: derivatives of the reconstruction error in the weights of the network.

    x(theta) = argmin_x J(x, theta) = D(A x, y) + weight R_theta(x)   (the lower level)
    l(x) = 1/2 ||x - truth||^2                                        (the upper level)

Every strategy returns a *surrogate*: one number for each image whose gradient in theta is, or
approximates, the gradient of l(x(theta)); the training loop calls ``backward`` on it. The tests
compare each strategy with finite differences, which shows where it can be trusted:

    ValueFunction   smooth and non-smooth networks, every pixel-wise data term
    Implicit        smooth networks; the best choice for them, and wrong for others
    Unrolled        smooth networks and data terms, as the number of steps grows
    JacobianFree    a direction of descent at best, and of ascent at worst (the paper's choice,
                    and the cheapest)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from convexlift.functionals.data_terms import SquaredL2
from convexlift.functionals.fidelity import Anchored, Fidelity
from convexlift.networks import bound_network
from convexlift.networks.bound_network import Apply, BoundNetwork
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Diagonal
from convexlift.parts import require_positive
from convexlift.problems.lifting import dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Solution, StopWhen
from convexlift.solvers.solve import solve_roughly
from convexlift.tensors import Blocks, expand_per_image, full_precision, sum_per_image
from convexlift.training.linear_solvers import conjugate_gradients, minimal_residuals

Weight = Tensor | None
"""The regularization weight as a tensor if it is learned too; None for the problem's."""


def lagrangian(
    problem: VariationalProblem, x: Tensor, duals: Blocks, weight: Weight = None
) -> Tensor:
    """J(x, theta) for each image, with the gradient in theta of  min_x J(., theta).

    It is the gradient of

        weight <W_L, z_L> + sum_i <p_i, sum_j K_ij z_j + b_{i-1}>,

    where x, the layers z_i at x and the dual variables p_i are held fixed, plus <t_i, h_i(a_i)>
    where h_i has trainable shares, with a_i and t_i held fixed. For smooth networks,
    p_i = t_i h_i'(a_i), this is the gradient of J itself. At a kink of h_i the solution determines
    which slope counts, which autograd cannot know.

    Args:
        problem: whose ``regularizer`` holds theta.
        x: its solution.
        duals: ``solution.duals``.
        weight: replaces the problem's.
    """
    gamma = problem.weight if weight is None else weight
    network = problem.regularizer.bind(problem.image_shape, detach=False)
    with torch.no_grad():
        values = (x, *network.forward(x).z)
        objective = problem.objective(x)
    total = sum_per_image(gamma * network.output * values[-1])
    for i, layer in enumerate(network.layers, start=1):
        p = duals[dual_names(i, len(network.layers))[0]]
        total = total + sum_per_image(p * layer.affine(values))
    if any(layer.shares is not None for layer in problem.regularizer.layers):
        total = total + _of_shares(network, x, duals, float(gamma))
    return objective + (total - total.detach())  # this difference is 0, its gradient is not


def _of_shares(network: BoundNetwork, x: Tensor, duals: Blocks, weight: float) -> Tensor:
    """sum_i <t_i, h_i(a_i)> for each image, with t_i and a_i held fixed."""
    count, fixed = len(network.layers), network.detach()
    with torch.no_grad():
        a = fixed.hidden(x).a
        t = fixed.backward(weight, x, lambda i, _: duals[dual_names(i, count)[0]], to_image=False).t
    layers = zip(network.layers, t, a, strict=True)
    terms = [sum_per_image(t_i * layer.activation.value(a_i)) for layer, t_i, a_i in layers]
    return torch.stack(terms).sum(0)


def gradient(problem: VariationalProblem, x: Tensor, weight: Weight = None) -> Tensor:
    """grad_x J(x, theta) = A* f'(A x) + weight grad R(x), differentiable in all three."""
    network = problem.regularizer.bind(problem.image_shape, detach=False)
    a = problem.operator
    slope = _slope(problem.fidelity, _linear(x, a, a.adjoint))
    penalty = _times(problem, weight, bound_network.gradient(network, x))
    return _linear(slope, a.adjoint, a) + penalty


def hessian(problem: VariationalProblem, x: Tensor, weight: Weight = None) -> Apply:
    """v -> H v, with the Hessian H of J in x."""
    a, regularizer = problem.operator, bound_network.hessian(problem.network, x.detach())
    w = a(x.detach()).detach().requires_grad_()
    (second,) = torch.autograd.grad(_slope(problem.fidelity, w).sum(), w, materialize_grads=True)

    @torch.no_grad()
    def apply(v: Tensor) -> Tensor:
        return a.adjoint(second * a(v)) + _times(problem, weight, regularizer(v))

    return apply


def upper_loss(x: Tensor, truth: Tensor) -> Tensor:
    """l(x) = 1/2 ||x - truth||^2 for each image."""
    _require_same_shape(x, truth)
    return ((x - truth) ** 2).flatten(1).sum(1) / 2


class Hypergradient(ABC):
    """A way to differentiate l(x(theta)) in theta."""

    @abstractmethod
    def surrogate(
        self, problem: VariationalProblem, solution: Solution, truth: Tensor, weight: Weight = None
    ) -> Tensor:
        """One number for each image, whose gradient in theta approximates grad l(x(theta)).

        Args:
            problem: the lower level, whose ``regularizer`` holds theta.
            solution: of the lower level.
            truth: the ground truth.
            weight: replaces the problem's.
        """


@dataclass(frozen=True)
class JacobianFree(Hypergradient):
    """l(x - step grad_x J(x, theta)), differentiated in theta with x held fixed.

    One more gradient step, as in the paper: the inverse Hessian is replaced by ``step`` times
    the identity (Fung et al. 2022, Bolte et al. 2023).

    Args:
        step: step size; None for 1 / ||grad R(truth)||, the norm of all images of the batch
            together. In training it is the largest such norm of all batches, found again every
            fifth step (``Bilevel.prepare``), as in the authors' ``bilevel_training.py``.
    """

    step: float | None = 1.0

    def __post_init__(self) -> None:
        if self.step is not None:
            require_positive(self, step=self.step)

    def surrogate(
        self, problem: VariationalProblem, solution: Solution, truth: Tensor, weight: Weight = None
    ) -> Tensor:
        """l after one gradient step."""
        step = self.step or 1 / bound_network.steepness(problem.network, truth)
        return upper_loss(_descend(problem, solution.x.detach(), step, weight), truth)


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

    def surrogate(
        self, problem: VariationalProblem, solution: Solution, truth: Tensor, weight: Weight = None
    ) -> Tensor:
        """l after all gradient steps."""
        x = solution.x.detach()
        step = 1 / _largest_curvature(problem, x) if self.step is None else self.step
        for _ in range(self.steps):
            x = _descend(problem, x, step, weight)
        return upper_loss(x, truth)


@dataclass(frozen=True)
class Implicit(Hypergradient):
    """-<q, grad_x J(x, theta)> with (H + damping) q = grad l(x): the implicit function theorem.

    H is the Hessian of J in x, restricted to the pixels that can move: pixels on the boundary of
    the box, and pixels that an L1 data term holds at its kink x = y, cannot.

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

    def surrogate(
        self, problem: VariationalProblem, solution: Solution, truth: Tensor, weight: Weight = None
    ) -> Tensor:
        """-<q, grad_x J>, with q from a linear solver."""
        _require_same_shape(solution.x, truth)
        x = solution.x.detach()
        free = movable(problem, x)
        with full_precision():
            curvature = hessian(problem, x, weight)

            def damped(v: Tensor) -> Tensor:
                return free * curvature(v) + self.damping * v

            method = conjugate_gradients if self.linear_solver == "cg" else minimal_residuals
            right = free * (x - truth)
            q = method(
                damped,
                right,
                start=torch.zeros_like(right),
                iterations=self.iterations,
                tolerance=self.tolerance,
            )
            return -(q * gradient(problem, x, weight)).flatten(1).sum(1)


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
        gap: tolerance of both solves.
        max_iterations: limit of each solve.
        method: of both solves.
    """

    b: float = 1e-2
    gap: float = 1e-5
    max_iterations: int = 500
    method: Method | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_positive(self, b=self.b, gap=self.gap)
        if self.max_iterations < 1:
            raise ValueError(f"ValueFunction needs max_iterations >= 1, got {self.max_iterations}")

    def surrogate(
        self, problem: VariationalProblem, solution: Solution, truth: Tensor, weight: Weight = None
    ) -> Tensor:
        """The difference quotient in b of the value function."""
        stop = StopWhen(gap=self.gap, max_iterations=self.max_iterations)
        second = pull_towards(problem, truth, self.b)
        if not bool((solution.gap <= self.gap).all()):
            solution = solve_roughly(problem, method=self.method, stop=stop, start=solution.state)
        pulled = solve_roughly(second, method=self.method, stop=stop, start=solution.state)
        with full_precision():  # a difference of close values
            return (
                lagrangian(problem, pulled.x, pulled.duals, weight)
                - lagrangian(problem, solution.x, solution.duals, weight)
            ) / self.b


def suitable_hypergradient(network: InputConvexNetwork) -> Hypergradient:
    """``Implicit()`` for smooth networks, ``ValueFunction()`` for networks with kinks."""
    return Implicit() if network.smooth else ValueFunction()


def pull_towards(problem: VariationalProblem, truth: Tensor, b: float) -> VariationalProblem:
    """min_x D(A x, y) + b/2 ||x - truth||^2 + weight R(x), up to a constant.

    For D = 1/2 sum omega (m x - y)^2 the two squares make one, behind diag(sqrt(omega m^2 + b)).
    """
    diagonal = problem.operator.diagonal
    y = problem.fidelity.y
    if diagonal is not None:
        _require_same_shape(y, truth)
    omega = problem.fidelity.curvature
    if omega is not None and diagonal is not None:
        m = diagonal.to(y).expand_as(y)
        d = torch.sqrt(omega * m**2 + b)
        data = SquaredL2((omega * m * y + b * truth) / d)
        return replace(problem, fidelity=data, operator=Diagonal(d))
    if diagonal is not None and bool((diagonal == 1).all()):
        return replace(problem, fidelity=Anchored(problem.fidelity, truth, b))
    raise ValueError(
        f"ValueFunction needs a squared L2 data term behind a diagonal operator, or the identity "
        f"with any data term; got {type(problem.fidelity).__name__} behind "
        f"{type(problem.operator).__name__}: use Implicit() there"
    )


def movable(problem: VariationalProblem, x: Tensor) -> Tensor:
    """1 where a pixel can move with theta, 0 where the box or the kink of an L1 term holds it."""
    box = problem.bounds
    margin = 10 * torch.finfo(x.dtype).eps  # a solver leaves pixels on a bound up to rounding
    free = (x > box.lower + margin) & (x < box.upper - margin)
    if not problem.fidelity.smooth and problem.operator.diagonal is not None:
        at_kink = problem.fidelity.at_kink(problem.operator(x), margin)
        free = free & ~(at_kink & (problem.operator.diagonal != 0))
    return free.to(x.dtype)


def _descend(
    problem: VariationalProblem, x: Tensor, step: float | Tensor, weight: Weight
) -> Tensor:
    """P_box(x - step grad_x J(x, theta)), differentiable in theta (and x, if it is)."""
    return problem.bounds.project(x - step * gradient(problem, x, weight))


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


def _require_same_shape(x: Tensor, truth: Tensor) -> None:
    if x.shape != truth.shape:
        raise ValueError(
            f"the ground truth has shape {tuple(truth.shape)}, "
            f"the reconstructions have {tuple(x.shape)}"
        )


class _Linear(torch.autograd.Function):
    """A x, whose derivative is the operator's A*, and whose second derivative is A again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Apply, adjoint: Apply) -> Tensor:
        ctx.pair = apply, adjoint
        return apply(x)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor, None, None]:
        apply, adjoint = ctx.pair
        return _linear(y, adjoint, apply), None, None


def _linear(x: Tensor, apply: Apply, adjoint: Apply) -> Tensor:
    image: Tensor = _Linear.apply(x, apply, adjoint)  # type: ignore[no-untyped-call]
    return image


def _slope(fidelity: Fidelity, w: Tensor) -> Tensor:
    """f'(w), differentiable in w if w requires gradients.

    By autograd, pixel by pixel: the derivative of ``fidelity.gradient`` may divide by zero.
    """
    at = w if w.requires_grad else w.detach().requires_grad_()
    (slope,) = torch.autograd.grad(fidelity.value(at).sum(), at, create_graph=w.requires_grad)
    return slope


def _times(problem: VariationalProblem, weight: Weight, c: Tensor) -> Tensor:
    """weight c, for the problem's weight unless another is given."""
    return (problem.weight if weight is None else expand_per_image(weight, c).to(c)) * c
