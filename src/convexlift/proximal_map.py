"""Proximal maps of regularizers, for the algorithms of other libraries.

    prox(v) = argmin_x  1/2 ||x - v||^2 + step R(x)

The objective J is strongly convex, so that a certified lower bound on its minimum also bounds the
distance to the exact proximal point:

    1/2 ||x - prox(v)||^2  <=  J(x) - min J  <=  objective - lower bound.

Algorithms take small steps if A is large. A proximal point is then near its argument, and must be
accurate relative to the distance between the two, which is at most step ||s|| for every subgradient
s of R at v, since subdifferentials are monotone.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.functionals.data_terms import SquaredL2
from convexlift.functionals.terms import Box
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.parts import require_positive
from convexlift.precision import has_double
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.solution import Solution, Status, StopWhen
from convexlift.solvers.solve import solve
from convexlift.tensors import sum_per_image

ATTEMPTS = 6
"""The most solves of one proximal map, each to a smaller gap."""
SHARE = 0.1
"""The largest distance to the exact point, relative to the distance from the argument."""


class ProximalMap:
    """R(x), a subgradient of R, and prox_{step R}(v) to a certified accuracy.

    Calls on images of one shape continue from the dual variables of the last call, since the
    images of an iterative algorithm change little from step to step.

    Args:
        regularizer: R; a network that reads the data must be conditioned on them first.
        accuracy: largest distance to the exact proximal point, relative to ||v||, image by image.
            It is also at most a tenth of the distance to v, as far as the precision allows.
        box: bounds on the image, as in ``VariationalProblem``: the map of R plus their indicator.
        max_iterations: limit for one call.

    Attributes:
        error: a certified bound on the distance to the exact point in the last call, (B,).
    """

    def __init__(
        self,
        regularizer: InputConvexNetwork,
        *,
        accuracy: float = 1e-3,
        box: Box | tuple[float | None, float | None] | None = None,
        max_iterations: int = 5000,
    ) -> None:
        require_fixed(regularizer)
        require_positive(self, accuracy=accuracy)
        self.regularizer, self.accuracy, self.box = regularizer, accuracy, box
        self.max_iterations = max_iterations
        self.error: Tensor | None = None
        self._state: Any = None

    def value(self, x: Tensor) -> Tensor:
        """R(x), one number for each image; differentiable in x and in the network's parameters."""
        network = self.regularizer
        tensors = (*network.named_parameters(), *network.named_buffers())
        floats = {name: each.to(x) for name, each in tensors if each.is_floating_point()}
        value: Tensor = torch.func.functional_call(network, floats, (x,))
        return value

    def subgradient(self, x: Tensor) -> Tensor:
        """An element of the subdifferential of R at each image: the gradient, if R is smooth.

        It carries no gradients; see ``gradient``.
        """
        with torch.no_grad():
            network = matching(self.regularizer, x).bind(tuple(x.shape[1:]))
            return network.tangent(1.0, x, network.forward(x).a).c

    def gradient(self, x: Tensor) -> Tensor:
        """A subgradient; where autograd records, it carries gradients to x and R's parameters."""
        parameters = any(each.requires_grad for each in self.regularizer.parameters())
        if not torch.is_grad_enabled() or not (x.requires_grad or parameters):
            return self.subgradient(x)
        at = x if x.requires_grad else x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.value(at).sum(), at, create_graph=True)
        return slope

    def __call__(self, v: Tensor, step: float) -> Tensor:
        """prox_{step R}(v), without gradients: an error where autograd would need them."""
        if torch.is_grad_enabled() and v.requires_grad:
            raise ValueError(
                "the argument of a proximal map requires gradients, which the map does not carry: "
                ".detach() it, or compute under torch.no_grad(); cl.solve(problem, "
                "differentiable=True) has gradients"
            )
        with torch.no_grad():
            return self._nearest(v, step)

    def _nearest(self, v: Tensor, step: float) -> Tensor:
        if not has_double(v.device.type):
            return self(v.cpu(), step).to(v.device)
        problem = VariationalProblem(
            fidelity=SquaredL2(v), regularizer=matching(self.regularizer, v), weight=step,
            box=self.box,
        )  # fmt: skip
        size = sum_per_image(v**2).cpu()
        farthest = sum_per_image((step * self.subgradient(v)) ** 2).cpu()
        # Algorithms start at images of zeros, where an accuracy relative to ||v|| is impossible.
        tolerated = self.accuracy**2 * torch.where(size > 0, size, farthest) / 2
        near = SHARE**2 * farthest / 2
        # Points that move less than the rounding of v: no solve finds a nearer one.
        still = (farthest <= torch.finfo(v.dtype).eps ** 2 * size) & (self.box is None)
        if bool(still.all()):
            self.error = farthest.sqrt()
            return v.clone()
        solution = self._solve(
            problem, tolerated.masked_fill(still, math.inf), near.masked_fill(still, math.inf)
        )
        self._state = solution.state
        excess = torch.where(still, farthest / 2, _excess(solution))
        self.error = (2 * excess).sqrt()
        if not bool((still | (excess <= tolerated * (1 + 1e-6))).all()):
            limits = {status.name for status in solution.status if status is not Status.CONVERGED}
            times = float((excess / tolerated)[~still].max().sqrt())
            warnings.warn(
                f"a proximal map is known to {times:.1f} times "
                f"accuracy={self.accuracy:g} ({', '.join(sorted(limits)) or 'CONVERGED'}); allow a "
                "larger accuracy, more max_iterations, or use double precision",
                stacklevel=2,
            )
        return torch.where(still.to(v.device).reshape(-1, *[1] * (v.ndim - 1)), v, solution.x)

    def _solve(self, problem: VariationalProblem, tolerated: Tensor, near: Tensor) -> Solution:
        """Solve until objective - lower bound is at most both numbers, if possible.

        ``near`` follows from the largest possible distance from v, and shrinks with it. Both are
        infinite for images without a required accuracy.
        """
        v = problem.fidelity.y
        objective = problem.objective(problem.bounds.project(v)).cpu()
        state, gap = self._state, 0.1
        for _ in range(ATTEMPTS):
            gap = min(gap, _gap(torch.minimum(tolerated, near), objective))
            stop = StopWhen(gap=gap, max_iterations=self.max_iterations)
            solution = solve(problem, stop=stop, start=state)
            moved = SHARE**2 * sum_per_image((solution.x - v) ** 2).cpu() / 2
            done = near.isinf() | (_excess(solution) <= torch.minimum(tolerated, moved))
            if bool(done.all()) or any(s is not Status.CONVERGED for s in solution.status):
                break
            # Not too fast: an image that has not moved yet may still move.
            near = torch.maximum(moved, near / 16)
            state, objective, gap = solution.state, solution.objective, gap / 2
        return solution


def _gap(tolerated: Tensor, objective: Tensor) -> float:
    """The relative gap that keeps every image with at most this objective within ``tolerated``."""
    return float((tolerated / objective.abs().clamp_min(1e-300)).min().clamp(0, 0.1))


def _excess(solution: Solution) -> Tensor:
    return (solution.objective - solution.lower_bound).clamp_min(0).cpu()


def require_fixed(regularizer: InputConvexNetwork) -> None:
    """Raise unless the network is one convex function for all images."""
    if not isinstance(regularizer, InputConvexNetwork):
        raise TypeError(
            "regularizer must be an InputConvexNetwork, for example cl.TotalVariation() or "
            f"cl.load('photo-any-size'), got {type(regularizer).__name__}"
        )
    if regularizer.reads_data:
        raise ValueError(
            "this regularizer reads the data, so it is a function of x only once it is conditioned "
            "on them: regularizer.condition(image, noise)"
        )


def matching(regularizer: InputConvexNetwork, like: Tensor) -> InputConvexNetwork:
    """The network in the precision and on the device of a tensor; copied only if necessary."""
    place = regularizer.output
    if (place.dtype, place.device) == (like.dtype, like.device):
        return regularizer
    return copy.deepcopy(regularizer).to(dtype=like.dtype, device=like.device)


def images_in(array: NDArray[Any], channels: int) -> Tensor:
    """A NumPy array as a batch of images, without a copy if possible.

    (H, W) is one image, (channels, H, W) one image of several channels, and (N, H, W) for networks
    of one channel are N slices, each of them an image.
    """
    if array.ndim not in (2, 3) or (channels > 1 and array.shape[:-2] != (channels,)):
        form = "(H, W), or slices (N, H, W)" if channels == 1 else f"({channels}, H, W)"
        raise ValueError(
            f"the regularizer takes images of shape {form}, got an array {array.shape}"
        )
    if np.iscomplexobj(array):
        raise TypeError(
            f"the regularizer takes real images, got {array.dtype}; write complex ones as two "
            "channels, with a regularizer of two channels"
        )
    if array.dtype not in (np.float32, np.float64) or not array.flags.writeable:
        array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(-1, channels, *array.shape[-2:])
