"""First and second derivatives in x of J(x, theta) = D(A x, y) + weight R_theta(x)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.networks import derivatives
from convexlift.networks.derivatives import Apply
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import expand_per_image


def gradient(problem: VariationalProblem, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """grad_x J(x, theta) = A* f'(A x) + weight grad R(x), differentiable in all three."""
    network = problem.regularizer.bind(problem.image_shape, detach=False)
    a = problem.operator
    slope = _slope(problem.fidelity, _linear(x, a, a.adjoint))
    return _linear(slope, a.adjoint, a) + _times(problem, weight, derivatives.gradient(network, x))


def hessian(problem: VariationalProblem, x: Tensor, weight: Tensor | None = None) -> Apply:
    """v -> H v, with the Hessian H of J in x."""
    a, regularizer = problem.operator, derivatives.hessian(problem.network, x.detach())
    w = a(x.detach()).detach().requires_grad_()
    (second,) = torch.autograd.grad(_slope(problem.fidelity, w).sum(), w, materialize_grads=True)

    @torch.no_grad()
    def apply(v: Tensor) -> Tensor:
        return a.adjoint(second * a(v)) + _times(problem, weight, regularizer(v))

    return apply


class _Linear(torch.autograd.Function):
    """A x, with A* as its derivative and A as that of A*, as the operator has them."""

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
    """f'(w), differentiable in w if that is asked for.

    By autograd, pixel by pixel: the derivative of ``fidelity.gradient`` may divide by zero.
    """
    at = w if w.requires_grad else w.detach().requires_grad_()
    (slope,) = torch.autograd.grad(fidelity.value(at).sum(), at, create_graph=w.requires_grad)
    return slope


def _times(problem: VariationalProblem, weight: Tensor | None, c: Tensor) -> Tensor:
    """weight c, for the problem's weight unless another is given."""
    return (problem.weight if weight is None else expand_per_image(weight, c).to(c)) * c
