"""The problem whose solution is pulled towards a target: J(x) + b/2 ||x - target||^2.

Behind a diagonal operator, data term and pull form one data term. Behind any other there are two,

    D(A x, y) + b/(2 s^2) ||s x - s target||^2,    s = ||A||,

one behind A and one behind s I, joined as one operator and one data term.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.functionals.data_terms import SquaredL2, WeightedL2
from convexlift.functionals.fidelity import Anchored, Fidelity
from convexlift.operators.imaging import Diagonal
from convexlift.operators.linear import LinearOperator
from convexlift.problems.network_duals import DATA_DUAL
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, Shape


def pull_towards(problem: VariationalProblem, target: Tensor, b: float) -> VariationalProblem:
    """min_x D(A x, y) + b/2 ||x - target||^2 + weight R(x), up to a constant.

    For D = 1/2 sum omega (m x - y)^2 the two squares form one, behind diag(sqrt(omega m^2 + b)).
    """
    data, operator = problem.fidelity, problem.operator
    y, omega, diagonal = data.y, data.curvature, operator.diagonal
    if omega is not None and diagonal is not None:
        m = diagonal.to(y).expand_as(y)
        d = torch.sqrt(omega * m**2 + b)
        return problem.with_data(SquaredL2((omega * m * y + b * target) / d), Diagonal(d))
    if diagonal is not None and bool((diagonal == 1).all()):
        return problem.with_data(Anchored(data, target, b), operator)
    scale = operator.norm(problem.image_shape)
    pull = WeightedL2(scale * target, b / scale**2)
    both = WithImage(operator, scale, problem.image_shape)
    return problem.with_data(Joined(data, pull), both)


def duals_of_data(problem: VariationalProblem, duals: Blocks) -> Blocks:
    """The dual variables of a pulled problem, without the part of the pull."""
    if DATA_DUAL not in duals:
        return duals
    y = problem.fidelity.y
    own = duals[DATA_DUAL][:, : y[0].numel()].reshape(y.shape)
    return Blocks({**duals, DATA_DUAL: own})


class WithImage(LinearOperator):
    """x -> (A x, s x), flat."""

    def __init__(self, operator: LinearOperator, scale: float, input_shape: Shape) -> None:
        self.operator, self.scale, self.input_shape = operator, scale, input_shape

    def forward(self, x: Tensor) -> Tensor:
        """(A x, s x)."""
        return torch.cat([self.operator(x).flatten(1), self.scale * x.flatten(1)], 1)

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y_1 + s y_2."""
        pixels = torch.Size(self._resolve(None)).numel()
        data, image = y[:, :-pixels], y[:, -pixels:]
        shape = self.operator.output_shape(self._resolve(None))
        back = self.operator.adjoint(data.reshape(-1, *shape))
        return back + self.scale * image.reshape(back.shape)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The number of data and pixels."""
        count = torch.Size(self.operator.output_shape(input_shape)).numel()
        return (count + torch.Size(input_shape).numel(),)

    def norm(self, input_shape: Shape | None = None) -> float:
        """sqrt(||A||^2 + s^2)."""
        return float(torch.tensor([self.operator.norm(self.input_shape), self.scale]).norm())


class Joined(Fidelity):
    """D_1(w_1) + D_2(w_2) for w = (w_1, w_2), flat; methods act on each part."""

    def __init__(self, first: Fidelity, second: Fidelity) -> None:
        super().__init__(torch.cat([first.y.flatten(1), second.y.flatten(1)], 1))
        self.parts = first, second
        self.smooth = first.smooth and second.smooth
        self.conjugate_domain = first.conjugate_domain
        self.weights = self._each("measured").to(self.y)

    def select(self, images: Tensor) -> Joined:
        """Both parts for these images."""
        first, second = (part.select(images) for part in self.parts)
        return Joined(first, second)

    def density(self, w: Tensor) -> Tensor:
        """f of each part."""
        return self._each("density", w)

    def gradient(self, w: Tensor) -> Tensor:
        """f' of each part."""
        return self._each("gradient", w)

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """The prox of each part."""
        return self._each("prox", w, step)

    def conjugate(self, v: Tensor) -> Tensor:
        """f* of each part."""
        return self._each("conjugate", v)

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """The prox of f* of each part."""
        return self._each("conjugate_prox", v, step)

    def clip_to_conjugate_domain(self, v: Tensor) -> Tensor:
        """v, clipped to the domain of each part."""
        return self._each("clip_to_conjugate_domain", v)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """The minimiser of each part."""
        return self._each("minimiser", c, lower, upper)

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """The excess of each part."""
        return self._each("excess", w, c, lower, upper)

    def _each(self, name: str, *values: Tensor) -> Tensor:
        """The results of a method, or the values of an attribute, of both parts, concatenated."""
        sizes = [part.y[0].numel() for part in self.parts]
        columns = [torch.split(value.expand_as(self.y), sizes, 1) for value in values]
        found = []
        for i, part in enumerate(self.parts):
            own = [column[i].reshape(part.y.shape) for column in columns]
            result = getattr(part, name)
            found.append((result(*own) if own else result).flatten(1))
        return torch.cat(found, 1)
