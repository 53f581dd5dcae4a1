"""Derivatives of objectives and of optimal values, in images and in all parameters.

    J(x, theta) = D(A x, y) + weight R(x),    theta: y, A, the weight and the numbers of R

Autograd follows theta through these functions: tensors of the fidelity and of the operator, the
weight, and ``problem.trainable_network``. Images and dual variables are held fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.networks import bound_network
from convexlift.networks.bound_network import Apply, BoundNetwork
from convexlift.problems.network_duals import DATA_DUAL, dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, TensorRecord, sum_per_image


def lagrangian(
    problem: VariationalProblem, x: Tensor, duals: Blocks, force: Tensor | float = 0.0
) -> Tensor:
    """J(x, theta) for each image, with the gradient in theta of  min_x J(., theta) + <force, .>.

    It is the gradient of

        weight <W_L, z_L> + sum_i <p_i, sum_j K_ij z_j + b_{i-1}> + D(A x, y),

    where x, the layers z_i at x and the dual variables p_i are held fixed, plus <t_i, h_i(a_i)>
    where h_i has trainable shares, with a_i and t_i held fixed. For smooth networks,
    p_i = t_i h_i'(a_i), this is the gradient of J itself. At a kink of h_i the solution determines
    which slope counts, which autograd cannot know. If D has kinks, <v, A x> - D*(v, y) replaces it,
    with the dual variable v of the data held fixed.

    Args:
        problem: the problem that x solves, apart from the force.
        x: its solution.
        duals: ``solution.duals``.
        force: the slope at x of the term added to J.
    """
    network = problem.trainable_network
    with torch.no_grad():
        values = (x, *problem.network.forward(x).z)
        objective = problem.objective(x)
    total = sum_per_image(problem.weight * network.output * values[-1])
    for i, layer in enumerate(network.layers, start=1):
        p = duals[dual_names(i, len(network.layers))[0]]
        total = total + sum_per_image(p * layer.affine(values))
    if any(layer.shares is not None for layer in problem.regularizer.layers):
        total = total + _of_shares(problem, network, x, duals)
    if is_learned(problem.fidelity) or is_learned(problem.operator):
        total = total + _of_data(problem, x, duals, force)
    return objective + (total - total.detach())  # the difference is 0, its gradient is not


def _of_shares(
    problem: VariationalProblem, network: BoundNetwork, x: Tensor, duals: Blocks
) -> Tensor:
    """sum_i <t_i, h_i(a_i)> for each image, with t_i and a_i held fixed."""
    with torch.no_grad():
        a = problem.network.hidden(x).a
        t = _backward(problem, x, duals, to_image=False).t
    layers = zip(network.layers, t, a, strict=True)
    terms = [sum_per_image(t_i * layer.activation.value(a_i)) for layer, t_i, a_i in layers]
    return torch.stack(terms).sum(0)


def _of_data(
    problem: VariationalProblem, x: Tensor, duals: Blocks, force: Tensor | float
) -> Tensor:
    """D(A x, y), or <v, A x> - D*(v, y) if D has kinks."""
    w, f = problem.operator(x), problem.fidelity
    if f.smooth:
        return f.value(w)
    with torch.no_grad():
        v = duals[DATA_DUAL] if DATA_DUAL in duals else _data_slope(problem, x, duals, force)
        v = f.clip_to_conjugate_domain(v)
    return sum_per_image(v * w - f.conjugate(v))


def _data_slope(
    problem: VariationalProblem, x: Tensor, duals: Blocks, force: Tensor | float
) -> Tensor:
    """f'(A x) behind A = diag(d), where kinks have the slope at which all forces cancel.

    d f' + c + force = 0, with the slope c of weight R that the dual variables determine.
    """
    d, w = problem.operator.diagonal, problem.operator(x)
    assert d is not None
    c = _backward(problem, x, duals).c
    held = at_kink(problem, x)
    balanced = -(c + force) / torch.where(held, d.to(x), 1.0)
    return torch.where(held, balanced, problem.fidelity.gradient(w))


def _backward(
    problem: VariationalProblem, x: Tensor, duals: Blocks, *, to_image: bool = True
) -> bound_network.BackwardPass:
    count = len(problem.network.layers)

    def known(i: int, _: Tensor) -> Tensor:
        return duals[dual_names(i, count)[0]]

    return problem.network.backward(problem.weight, x, known, to_image=to_image)


def gradient(problem: VariationalProblem, x: Tensor) -> Tensor:
    """grad_x J(x, theta) = A* f'(A x) + weight grad R(x), differentiable in x and theta."""
    a = problem.operator
    if is_learned(a):
        return a.adjoint(_slope(problem.fidelity, a(x))) + _penalty(problem, x)
    slope = _slope(problem.fidelity, _linear(a, a.adjoint)(x))
    return _linear(a.adjoint, a)(slope) + _penalty(problem, x)


def slope_along(problem: VariationalProblem, x: Tensor, q: Tensor) -> Tensor:
    """<grad_x J(x, theta), q> = <f'(A x), A q> + weight <grad R(x), q>, differentiable in theta."""
    data = sum_per_image(_slope(problem.fidelity, problem.operator(x)) * problem.operator(q))
    return data + sum_per_image(q * _penalty(problem, x))


def hessian(problem: VariationalProblem, x: Tensor) -> Apply:
    """v -> H v, with the Hessian H of J in x."""
    fixed = problem.detach()
    a, regularizer = fixed.operator, bound_network.hessian(fixed.network, x.detach())
    w = a(x.detach()).detach().requires_grad_()
    (second,) = torch.autograd.grad(_slope(fixed.fidelity, w).sum(), w, materialize_grads=True)

    @torch.no_grad()
    def apply(v: Tensor) -> Tensor:
        return a.adjoint(second * a(v)) + fixed.weight * regularizer(v)

    return apply


def at_kink(problem: VariationalProblem, x: Tensor) -> Tensor:
    """A mask of the pixels that a data term holds at a kink, behind a diagonal operator."""
    diagonal = problem.operator.diagonal
    if problem.fidelity.smooth or diagonal is None:
        return torch.zeros_like(x, dtype=torch.bool)
    return problem.fidelity.at_kink(problem.operator(x), _margin(x)) & (diagonal != 0)


def movable(problem: VariationalProblem, x: Tensor) -> Tensor:
    """1 where a pixel can move with theta, 0 where the box or the kink of an L1 term holds it."""
    return (inside_box(problem, x) & ~at_kink(problem, x)).to(x.dtype)


def inside_box(problem: VariationalProblem, x: Tensor) -> Tensor:
    """A mask of the pixels that are not on a bound."""
    box, margin = problem.bounds, _margin(x)
    return (x > box.lower + margin) & (x < box.upper - margin)


def is_learned(part: TensorRecord) -> bool:
    """Whether a tensor of the part requires gradients."""
    return any(tensor.requires_grad for tensor in part.tensors())


def _margin(x: Tensor) -> float:
    return 10 * torch.finfo(x.dtype).eps  # a solver leaves pixels on a bound up to rounding


def _penalty(problem: VariationalProblem, x: Tensor) -> Tensor:
    return problem.weight * bound_network.gradient(problem.trainable_network, x)


class _Linear(torch.autograd.Function):
    """A x, whose derivative is the operator's A*, and whose second derivative is A again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Apply, adjoint: Apply) -> Tensor:
        ctx.pair = apply, adjoint
        return apply(x)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor, None, None]:
        apply, adjoint = ctx.pair
        return _linear(adjoint, apply)(y), None, None


def _linear(apply: Apply, adjoint: Apply) -> Apply:
    return lambda x: _Linear.apply(x, apply, adjoint)  # type: ignore[no-untyped-call]


def _slope(fidelity: Fidelity, w: Tensor) -> Tensor:
    """f'(w), differentiable in w and in the data.

    By autograd, pixel by pixel: the derivative of ``fidelity.gradient`` may divide by zero.
    """
    at = w if w.requires_grad else w.detach().requires_grad_()
    (slope,) = torch.autograd.grad(fidelity.value(at).sum(), at, create_graph=True)
    return slope
