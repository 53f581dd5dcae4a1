"""Solutions as functions that autograd can differentiate:  theta -> x(theta).

    d/dtheta <g, x(theta)>  =  the gradient of a hypergradient's surrogate with target x - g

for theta the tensors of the problem that require gradients: of the fidelity, the operator and the
bound network, and the weight. They are the inputs of one ``torch.autograd.Function``; from there,
autograd continues to their sources (parameters, a guide, an earlier layer of a model).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.hypergradients import Hypergradient, accurate_hypergradient
from convexlift.solvers.solution import Solution, Status
from convexlift.tensors import TensorRecord, expand_per_image, sum_per_image

PULL, LARGEST_PULL = 10.0, 100.0
"""The root mean square of x - target and its largest value, relative to the root mean square of x:
gradients have any scale, but strategies that move x need a sensible one."""


def refuse_gradients(problem: VariationalProblem) -> None:
    """Raise ValueError if anything except the network's own parameters requires gradients.

    Parameters require gradients in every module, and so do the weights that a guide read.
    Parameters computed from others are refused, since only a user can have put them there. Under
    ``torch.no_grad()`` nothing is refused.
    """
    if not torch.is_grad_enabled():
        return
    found = [name for name, tensors in _data(problem).items() if _any_require(tensors)]
    if any(not parameter.is_leaf for parameter in problem.regularizer.parameters()):
        found.append("regularizer")
    if found:
        verb = "requires" if len(found) == 1 else "require"
        raise ValueError(
            f"the {' and the '.join(found)} of the problem {verb} gradients, which solve does not "
            "give by default: write cl.solve(problem, differentiable=True) to get them, or "
            ".detach() the tensors, or solve under torch.no_grad()"
        )


def attach_gradients(
    problem: VariationalProblem,
    run: Callable[[VariationalProblem], Solution],
    hypergradient: Hypergradient | None,
) -> Solution:
    """The solution that ``run`` finds, whose x carries gradients to the problem's tensors."""
    theta = _Theta(problem)
    theta.require_reached()
    solution = run(problem)
    missed = sum(s not in (Status.CONVERGED, Status.STATIONARY) for s in solution.status)
    if missed:
        warnings.warn(
            f"{missed} of {len(solution.status)} images did not converge, and their gradients are "
            f"inexact: {next(s.value for s in solution.status if s is not Status.CONVERGED)}",
            RuntimeWarning,
            stacklevel=3,
        )
    if not theta.inputs:
        return solution
    strategy = hypergradient or accurate_hypergradient(problem)
    x: Tensor = _Solved.apply(theta, solution, strategy, *theta.inputs)  # type: ignore[no-untyped-call]
    return replace(solution, x=x)


class _Theta:
    """The tensors of a problem that require gradients, and the problem as a function of them.

    Attributes:
        inputs: the tensors, each once.
        leaves: copies without their graphs, which share memory.
        problem: the problem, made of the leaves.
    """

    def __init__(self, problem: VariationalProblem) -> None:
        copies: dict[int, tuple[Tensor, Tensor]] = {}

        def leaf(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            both = tensor, tensor.detach().requires_grad_()
            return copies.setdefault(id(tensor), both)[1]

        made = problem.with_data(problem.fidelity._map(leaf), problem.operator._map(leaf))
        made = made.with_network(problem.trainable_network._map(leaf))
        if isinstance(problem.weight, Tensor):
            object.__setattr__(made, "weight", leaf(problem.weight))
        self.problem, self._given = made, problem
        self.inputs = [tensor for tensor, _ in copies.values()]
        self.leaves = [copied for _, copied in copies.values()]

    def require_reached(self) -> None:
        """Raise ValueError if autograd does not connect J to a tensor, or bypasses theta.

        J(0) is computed once for its graph.
        """
        problem = self.problem
        with torch.enable_grad():
            zero = problem.fidelity.y.new_zeros((problem.batch_size, *problem.image_shape))
            penalty = problem.trainable_network.value(problem.trainable_network.forward(zero).z[-1])
            data = problem.fidelity.value(problem.operator(zero))
            graph = set(_upstream([(data + problem.weight * penalty).sum()]))
        known = {id(each) for each in self.leaves}
        ends = [node.variable for node in graph if hasattr(node, "variable")]
        if hidden := [end for end in ends if id(end) not in known]:
            raise ValueError(
                f"the problem depends on a tensor of shape {tuple(hidden[0].shape)} that requires "
                "gradients and is not an attribute of its fidelity or operator, so that solve "
                "cannot differentiate in it: make it an attribute, or detach it"
            )
        used = {id(end) for end in ends}
        reached = set(
            _upstream(t for t, e in zip(self.inputs, self.leaves, strict=True) if id(e) in used)
        )
        for name, tensors in _data(self._given).items():
            for tensor in tensors:
                if tensor.requires_grad and get_gradient_edge(tensor).node not in reached:
                    raise ValueError(
                        f"the {name} has a tensor of shape {tuple(tensor.shape)} that requires "
                        "gradients, but autograd finds no way to it: compute with it in torch "
                        "operations, or detach it"
                    )


class _Solved(torch.autograd.Function):
    """theta -> x(theta), differentiated by a hypergradient."""

    @staticmethod
    def forward(
        ctx: Any, theta: _Theta, solution: Solution, strategy: Hypergradient, *inputs: Tensor
    ) -> Tensor:
        ctx.theta, ctx.solution, ctx.strategy = theta, solution, strategy
        ctx.save_for_backward(*inputs)
        return solution.x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a second derivative would silently be zero
            raise RuntimeError(
                "solutions of cl.solve can be differentiated once; leave out create_graph=True"
            )
        _ = ctx.saved_tensors  # raises if a tensor was changed in place since the solve
        x, theta = ctx.solution.x, ctx.theta
        wanted = slope.flatten(1).any(1)
        if not bool(wanted.any()):
            return None, None, None, *(torch.zeros_like(leaf) for leaf in theta.leaves)
        scale = _scale(x, slope)
        target = x - slope * expand_per_image(scale, x)
        with torch.enable_grad():
            surrogate = ctx.strategy.surrogate(theta.problem, ctx.solution, target)
            total = torch.where(wanted, surrogate / scale, 0.0).sum()
            found = torch.autograd.grad(total, theta.leaves, allow_unused=True)
        return None, None, None, *found


def _scale(x: Tensor, slope: Tensor) -> Tensor:
    """Factors that make the slopes of a batch short compared with x."""
    size = (sum_per_image(x**2) / x[0].numel()).sqrt()
    mean = (sum_per_image(slope**2) / x[0].numel()).sqrt()
    largest = slope.abs().flatten(1).amax(1)
    factor = torch.where(size > 0, size, 1.0) * torch.minimum(PULL / mean, LARGEST_PULL / largest)
    return torch.where(mean > 0, factor, 1.0).to(x)


def _data(problem: VariationalProblem) -> dict[str, list[Tensor]]:
    """The tensors of a problem outside its regularizer."""
    weight = [problem.weight] if isinstance(problem.weight, Tensor) else []
    parts: dict[str, TensorRecord] = {"fidelity": problem.fidelity, "operator": problem.operator}
    return {name: list(part.tensors()) for name, part in parts.items()} | {"weight": weight}


def _any_require(tensors: Iterable[Tensor]) -> bool:
    return any(tensor.requires_grad for tensor in tensors)


def _upstream(tensors: Iterable[Tensor]) -> Iterator[Node]:
    """The nodes of the autograd graph behind the tensors, including their leaves."""
    waiting = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions if following is not None]
