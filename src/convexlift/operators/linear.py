"""Linear operators: A(x), A.adjoint(y), their algebra and their norms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convexlift.operators.lanczos import lanczos_norm as lanczos_norm
from convexlift.parts import ProblemPart
from convexlift.tensors import Shape, TensorRecord, is_own, plain_number

if TYPE_CHECKING:
    from convexlift.operators.convolution import ConvolutionOperator

NORM_MARGIN = 1.02
"""Lanczos' method approaches a norm from below; reported norms are larger by this factor."""


class LinearOperator(ProblemPart, TensorRecord, ABC):
    """A linear map between batches of images (or of anything else), with its exact adjoint.

    <A x, y> = <x, A* y> for all x and y, image by image. Subclasses write ``forward`` and
    ``adjoint``; ``check_operator`` examines them.

    Attributes:
        input_shape: the shape of one input, without the batch; None if any shape is accepted.
        nonnegative: whether A x >= 0 for every x >= 0, as for integrals along rays.
        single_operation: whether every entry of A x takes one operation, as a difference does.
        pool_size: the side of the blocks that A averages, if it is a pooling; else 1.
        convolution: A itself, if it is a convolution of stride 1, which can be done in strips.
        invertible: whether there is an ``approximate_inverse``.
        symbol_bounds: whether F^-1 s F >= A* A for the ``symbol`` s, without another factor.
    """

    capabilities = ProblemPart.capabilities | {
        "nonnegative", "single_operation", "pool_size", "convolution", "invertible",
        "approximate_inverse", "symbol", "symbol_bounds", "patch", "transfer", "norm", "_norm",
        "magnitude", "roundings", "steps", "select",
    }  # fmt: skip
    input_shape: Shape | None = None
    nonnegative: bool = False
    single_operation: bool = False
    pool_size: int = 1
    convolution: ConvolutionOperator | None = None
    invertible: bool = False
    symbol_bounds: bool = False

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """A x, for x of shape (batch, ...input_shape)."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """A* y, for y of shape (batch, ...output_shape)."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """The shape of A x for one x of ``input_shape``; the same shape unless overridden."""
        return input_shape

    @property
    def diagonal(self) -> Tensor | None:
        """d with A x = d * x where A is diagonal, else None.

        Behind a diagonal operator every fidelity keeps its closed-form proximal map and its
        exact certificate.
        """
        return None

    def transfer(self, input_shape: Shape) -> Tensor | None:
        """k with rfft2(A x) = k * rfft2(x) where A is a circular convolution, else None.

        Complex, in double precision, (H, W//2 + 1). Squared L2 fidelities then have a closed prox.
        """
        return None

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """x with A x about y, by a formula; ``window`` damps high frequencies (see ``fbp``)."""
        raise ValueError(
            f"fbp inverts ParallelBeam, FanBeam and multiples of them, not {type(self).__name__}"
        )

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor | None:
        """s > 0, (H, W//2 + 1), with A* A about F^-1 s F up to boundaries and a factor; or None."""
        return None

    def patch(self, size: int) -> LinearOperator:
        """A on images of at most ``size`` x ``size``, where that makes sense; else A."""
        return self

    def norm(self, input_shape: Shape | None = None) -> float:
        """An upper estimate of ||A||, computed once for each shape.

        By Lanczos' method, times ``NORM_MARGIN``, unless a subclass knows better.
        """
        shape = self._resolve(input_shape)
        # Made on first use: subclasses need not call a constructor of this class.
        known: dict[Shape, float] = self.__dict__.setdefault("_norms", {})
        if shape not in known:
            known[shape] = self._norm(shape)
        return known[shape]

    def _norm(self, shape: Shape) -> float:
        return NORM_MARGIN * lanczos_norm(self, shape)

    def edits(self) -> tuple[int, ...]:
        """How often its tensors were edited in place; what was known of A before is forgotten."""
        found = tuple(each._version for each in self.tensors() if not each.is_inference())
        if self.__dict__.setdefault("_edits", found) != found:
            self.__dict__["_edits"] = found
            for known in ("_norms", "_adjoint_errors"):
                self.__dict__.pop(known, None)
        for part in vars(self).values():
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, LinearOperator):
                    each.edits()
        return found

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """An upper bound on |A| |x|, channel by channel, for all |x| <= bound (|A*| if adjoint).

        It bounds rounding errors. By the norm of A, unless a subclass knows better.

        Args:
            bound: one number for each channel or feature of an image, (B, C, 1, 1) or (B, n).
            input_shape: the shape of one input of A.
            adjoint: whether to bound |A*| |y| instead, for all |y| <= bound.
        """
        shapes = input_shape, self.output_shape(input_shape)
        source, target = reversed(shapes) if adjoint else shapes
        lengths: Tensor = torch.linalg.vector_norm(bound.expand(-1, *source).flatten(1), dim=1)
        return self.norm(input_shape) * lengths.reshape(-1, *([1] * len(target)))

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The largest number of rounding errors in an entry of A x (of A* y)."""
        return math.prod(self.output_shape(input_shape) if adjoint else input_shape)

    def steps(self, input_shape: Shape) -> list[tuple[LinearOperator, Shape]]:
        """The factors of A in the order of application, with the shapes of their inputs."""
        return [(self, input_shape)]

    def select(self, images: Tensor) -> LinearOperator | None:
        """The operator for some images of a batch only, by their indices; None if unknown."""
        return self if is_own(self) else None

    def _resolve(self, input_shape: Shape | None) -> Shape:
        if (shape := self.input_shape or input_shape) is None:
            raise ValueError(
                f"{type(self).__name__} works on images of any shape; "
                "say for which one: norm(input_shape=(channels, height, width))"
            )
        return shape

    def __call__(self, x: Tensor) -> Tensor:
        """A x, after a check of the shape."""
        if self.input_shape is not None and tuple(x.shape[1:]) != self.input_shape:
            raise ValueError(
                f"{type(self).__name__} expects inputs of shape (batch, "
                f"{', '.join(map(str, self.input_shape))}), got {tuple(x.shape)}"
            )
        return self.forward(x)

    def __matmul__(self, other: LinearOperator) -> Composition:
        return Composition((self, other))

    def __add__(self, other: LinearOperator) -> Sum:
        return Sum((self, other))

    def __mul__(self, factor: float) -> Scaled:
        return Scaled(plain_number(factor, "factor"), self)

    __rmul__ = __mul__

    def __neg__(self) -> Scaled:
        return Scaled(-1.0, self)


class Identity(LinearOperator, name="Identity"):
    """A x = x, for images of any shape."""

    nonnegative = single_operation = symbol_bounds = True

    def forward(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        """y itself."""
        return y

    @property
    def diagonal(self) -> Tensor:
        """One, for every pixel; in double precision, so that factors keep all their digits."""
        return torch.ones((), dtype=torch.float64)

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor:
        """One for each frequency."""
        return torch.ones((height, width // 2 + 1), dtype=like.dtype, device=like.device)

    def norm(self, input_shape: Shape | None = None) -> float:
        """One, exactly."""
        return 1.0

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """The bound itself."""
        return bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """Zero: nothing is computed."""
        return 0


class Scaled(LinearOperator, name="Scaled"):
    """(c A) x = c (A x)."""

    def __init__(self, factor: float, operator: LinearOperator) -> None:
        if not math.isfinite(factor):
            raise ValueError(f"an operator cannot be scaled by {factor}")
        self.factor = factor
        self.operator = operator
        self.input_shape = operator.input_shape

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether c and A are."""
        return self.factor >= 0 and self.operator.nonnegative

    def forward(self, x: Tensor) -> Tensor:
        """c (A x)."""
        return self.factor * self.operator(x)

    def adjoint(self, y: Tensor) -> Tensor:
        """c (A* y)."""
        return self.factor * self.operator.adjoint(y)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The shape of A x."""
        return self.operator.output_shape(input_shape)

    @property
    def diagonal(self) -> Tensor | None:
        """c d, if A has a diagonal d."""
        d = self.operator.diagonal
        return None if d is None else self.factor * d

    def transfer(self, input_shape: Shape) -> Tensor | None:
        """c k, if A is a circular convolution."""
        inner = self.operator.transfer(input_shape)
        return None if inner is None else self.factor * inner

    @property
    def invertible(self) -> bool:  # type: ignore[override]
        """Whether A is, and c != 0."""
        return self.factor != 0 and self.operator.invertible

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """The approximate inverse of A, at y / c."""
        if self.factor == 0:
            return super().approximate_inverse(y, window)
        return self.operator.approximate_inverse(y / self.factor, window)

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor | None:
        """The symbol of A, since symbols are known up to a factor."""
        return self.operator.symbol(height, width, like)

    def norm(self, input_shape: Shape | None = None) -> float:
        """|c| ||A||."""
        return abs(self.factor) * self.operator.norm(input_shape)

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """|c| times the bound for A."""
        return abs(self.factor) * self.operator.magnitude(bound, input_shape, adjoint=adjoint)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """One more than for A."""
        return 1 + self.operator.roundings(input_shape, adjoint=adjoint)

    def steps(self, input_shape: Shape) -> list[tuple[LinearOperator, Shape]]:
        """The factors of A and the number; cA itself if it is diagonal."""
        if self.operator.diagonal is not None:
            return [(self, input_shape)]
        factor = Scaled(self.factor, Identity())
        return [*self.operator.steps(input_shape), (factor, self.output_shape(input_shape))]

    def select(self, images: Tensor) -> LinearOperator | None:
        """c times the selection of A."""
        inner = self.operator.select(images)
        return None if inner is None else Scaled(self.factor, inner)


class Composition(LinearOperator, name="Composition"):
    """(A B) x = A (B x), for any number of factors, written left to right."""

    def __init__(self, factors: tuple[LinearOperator, ...]) -> None:
        if not factors:
            raise ValueError("a composition needs at least one operator")
        self.factors = factors
        self.input_shape = factors[-1].input_shape

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether all factors are."""
        return all(factor.nonnegative for factor in self.factors)

    def forward(self, x: Tensor) -> Tensor:
        """A (B x)."""
        return reduce(lambda value, factor: factor(value), reversed(self.factors), x)

    def adjoint(self, y: Tensor) -> Tensor:
        """B* (A* y)."""
        return reduce(lambda value, factor: factor.adjoint(value), self.factors, y)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Through all factors, from the right."""
        return reduce(
            lambda shape, factor: factor.output_shape(shape), reversed(self.factors), input_shape
        )

    @property
    def diagonal(self) -> Tensor | None:
        """The product of the diagonals, if every factor has one."""
        return _combined(torch.mul, [factor.diagonal for factor in self.factors])

    def _norm(self, shape: Shape) -> float:
        """The product of the factors' norms bounds it; Lanczos' method is often closer."""
        product = math.prod(factor.norm(inner) for factor, inner in self.steps(shape))
        return min(product, super()._norm(shape))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Factor by factor."""
        steps = self.steps(input_shape)
        for factor, inner in reversed(steps) if adjoint else steps:
            bound = factor.magnitude(bound, inner, adjoint=adjoint)
        return bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The sum over the factors: relative errors add up."""
        return sum(K.roundings(shape, adjoint=adjoint) for K, shape in self.steps(input_shape))

    def select(self, images: Tensor) -> LinearOperator | None:
        """The composition of selections."""
        factors = [factor.select(images) for factor in self.factors]
        return None if None in factors else Composition(tuple(filter(None, factors)))

    def steps(self, input_shape: Shape) -> list[tuple[LinearOperator, Shape]]:
        """The steps of all factors, from the right."""
        found = []
        for factor in reversed(self.factors):
            found += factor.steps(input_shape)
            input_shape = factor.output_shape(input_shape)
        return found


class Sum(LinearOperator, name="Sum"):
    """(A + B) x = A x + B x, for any number of terms."""

    def __init__(self, terms: tuple[LinearOperator, ...]) -> None:
        if not terms:
            raise ValueError("a sum needs at least one operator")
        shapes = {term.input_shape for term in terms if term.input_shape is not None}
        if len(shapes) > 1:
            raise ValueError(f"operators of input shapes {sorted(shapes)} cannot be added")
        self.terms = terms
        self.input_shape = shapes.pop() if shapes else None

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether all terms are."""
        return all(term.nonnegative for term in self.terms)

    def forward(self, x: Tensor) -> Tensor:
        """A x + B x."""
        return reduce(torch.add, [term(x) for term in self.terms])

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y + B* y."""
        return reduce(torch.add, [term.adjoint(y) for term in self.terms])

    def output_shape(self, input_shape: Shape) -> Shape:
        """The output shape of the terms, which have the same."""
        return self.terms[0].output_shape(input_shape)

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """The sum of the terms' bounds."""
        parts = [term.magnitude(bound, input_shape, adjoint=adjoint) for term in self.terms]
        return reduce(torch.add, parts)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The largest number of any term, and the additions."""
        most = max(term.roundings(input_shape, adjoint=adjoint) for term in self.terms)
        return most + len(self.terms)

    def select(self, images: Tensor) -> LinearOperator | None:
        """The sum of selections."""
        terms = [term.select(images) for term in self.terms]
        return None if None in terms else Sum(tuple(filter(None, terms)))

    @property
    def diagonal(self) -> Tensor | None:
        """The sum of the diagonals, if every term has one."""
        return _combined(torch.add, [term.diagonal for term in self.terms])


def _combined(
    combine: Callable[[Tensor, Tensor], Tensor], diagonals: list[Tensor | None]
) -> Tensor | None:
    known = [d for d in diagonals if d is not None]
    return reduce(combine, known) if len(known) == len(diagonals) else None
