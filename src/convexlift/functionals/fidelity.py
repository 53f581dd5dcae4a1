"""Data fidelities D(w, y) of predicted data w = A x and measured data y.

Each is a sum over pixels of a convex function f of one variable, so that everything below is
elementwise. The certificate rests on the last two methods: for a slope c and bounds l <= w <= u,

    minimiser(c, l, u) = argmin_{l <= w <= u}  f(w) + c w          (infinite where unbounded)
    excess(w, c, l, u) = f(w) + c w - min_{l <= w' <= u} (f(w') + c w')  >= 0.

Without bounds, excess(w, -v) = f(w) + f*(v) - v w is the Fenchel-Young loss of f.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from convexlift.parts import ProblemPart, require_positive
from convexlift.strips import at_once
from convexlift.tensors import (
    Requirement,
    TensorRecord,
    first_non_finite,
    foreign_parts,
    require_eager,
    sum_per_image,
)

LARGE = 2**19
"""Images with fewer numbers are processed at once on a CPU."""
CACHED = 2**18
"""Numbers of a larger image that are processed at once."""
ALIGNED = 64
"""Rows of it are a multiple of this: results are then the same to the last bit, since vector
instructions divide the pixels in the same way."""


@dataclass(frozen=True, eq=False)
class ProxKernel:
    """The prox of f in the terms of the GPU kernel: one of three kinds, with its parameters.

    ``squared`` is (w - y)^2/2, ``absolute`` is scale |w - y|, and ``poisson`` the Kullback-Leibler
    divergence of y and w + background; each plus pull/2 (w - target)^2.
    """

    kind: Literal["squared", "absolute", "poisson"]
    scale: float = 1.0
    background: Tensor | None = None
    pull: float = 0.0
    target: Tensor | None = None


class Fidelity(ProblemPart, TensorRecord, ABC):
    """A separable convex function of the predicted data.

    Attributes:
        y: the measured data, (B, C, H, W) or (B, ...) as the operator gives it.
        smooth: whether ``gradient`` is continuous.
        conjugate_domain: the open interval of slopes v on which f* is finite.
        weights: the weight of each datum; 0 where f = 0.
        density_rounding: a bound on the relative error of f in double precision.
        conjugate_rounding: a bound on the error of f*, relative to |f*(v)| + |v| (|y| + offset).
        offset: the number that f adds to w.
        robust: whether f is made for outliers, so that medians of the data may be a good start.
        curvature: f'' where it does not depend on w, so that f = curvature/2 (w - y)^2; else None.
        kernel: the prox as GPUs compute it inside an iteration, or None.
        likelihood: the noise whose negative log-likelihood f is: ``gaussian`` with one deviation,
            ``weighted gaussian``, ``poisson`` or ``impulses``; None if unknown.
    """

    capabilities = ProblemPart.capabilities | {
        "density_rounding", "conjugate_rounding", "robust", "curvature", "kernel", "at_kink",
        "require_explicable", "requirements", "likelihood",
    }  # fmt: skip
    smooth: bool
    conjugate_domain: tuple[float, float]
    weights: Tensor | float = 1.0
    density_rounding: float = 1e-13
    conjugate_rounding: float = 1e-13
    offset: Tensor | float = 0.0
    robust: bool = False
    curvature: Tensor | float | None = None
    kernel: ProxKernel | None = None
    likelihood: str | None = None

    def __init__(self, y: Tensor) -> None:
        name = type(self).__name__
        if not isinstance(y, Tensor):
            raise TypeError(f"{name} needs the data as a torch.Tensor, got {type(y).__name__}")
        if not y.is_floating_point():
            raise TypeError(f"{name} needs floating-point data, got {y.dtype}; write y.float()")
        require_eager([y])
        if y.ndim < 2:
            raise ValueError(
                f"{name} needs data with a batch dimension, as (batch, channels, H, W), "
                f"got shape {tuple(y.shape)}"
            )
        if y.numel() == 0:
            raise ValueError(f"{name} got data without entries, shape {tuple(y.shape)}")
        if (place := first_non_finite(y)) is not None:
            raise ValueError(
                f"{name}: the data are {float(y[place])} at index {place}; "
                "mark missing pixels with cl.Mask and fill them with any number"
            )
        self.y = y

    def select(self, images: Tensor) -> Self:
        """The fidelity of some images of the batch only, by their indices."""
        batch, dimensions = self.y.shape[0], self.y.ndim

        def rows(values: Tensor) -> Tensor:
            # Weights and backgrounds may also be one number, or one image for the whole batch.
            own = values.ndim == dimensions and values.shape[0] == batch
            return values[images] if own else values

        return self._map(rows)

    def in_rows(self, rows: slice) -> Self:
        """The fidelity of some rows of data that are pixels."""
        height = self.y.shape[-2]

        def part(values: Tensor) -> Tensor:
            own = values.ndim >= 2 and values.shape[-2] == height
            return values[..., rows, :] if own else values

        return self._map(part)

    @property
    def measured(self) -> Tensor:
        """Data with a positive weight; a mask of the shape of y."""
        return self.weights * torch.ones_like(self.y) > 0

    def at_kink(self, w: Tensor, margin: float) -> Tensor:
        """Where w is at a known kink of f, w = y, up to ``margin``: a mask of the shape of w."""
        return torch.zeros_like(w, dtype=torch.bool)

    def requirements(self) -> Iterator[Requirement]:
        """Numbers that must not be negative; problems ask again, since tensors may be edited."""
        yield from ()

    def require_explicable(self, lower: float, unseen: Callable[[], Tensor]) -> None:
        """Raise ValueError if f(A x) is infinite for every image x of a problem.

        Args:
            lower: the least value of a pixel.
            unseen: where A x = 0 for every x, a mask of the shape of y.
        """

    @abstractmethod
    def density(self, w: Tensor) -> Tensor:
        """f at every pixel; +inf outside its domain."""

    def value(self, w: Tensor) -> Tensor:
        """D(w, y) for each image."""
        return sum_per_image(self.density(w))

    @abstractmethod
    def gradient(self, w: Tensor) -> Tensor:
        """f'(w); for a non-smooth f, a subgradient."""

    @abstractmethod
    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """argmin_{w'} step f(w') + (w' - w)^2 / 2."""

    @abstractmethod
    def conjugate(self, v: Tensor) -> Tensor:
        """f*(v) at every pixel; +inf outside its domain."""

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """The prox of step f*, by Moreau: v - step prox_{f/step}(v / step)."""
        return v - step * self.prox(v / step, 1 / step)

    def clip_to_conjugate_domain(self, v: Tensor) -> Tensor:
        """The nearest v with finite f*(v)."""
        return v.clamp(*self.conjugate_domain)

    @abstractmethod
    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """argmin of f(w) + c w over lower <= w <= upper; infinite where unbounded below."""

    @abstractmethod
    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """f(w) + c w - min over lower <= w' <= upper, for w between the bounds."""

    def fenchel_young(self, w: Tensor, v: Tensor) -> Tensor:
        """f(w) + f*(v) - v w >= 0 at every pixel."""
        unbounded = torch.full_like(w, math.inf)
        return self.excess(w, -v, -unbounded, unbounded)

    def density_above(self, w: Tensor, error: Tensor) -> Tensor:
        """An upper bound on f if w is off by ``error``: f is convex, so it is largest at an end."""
        # A slightly larger error, since w +- error and w + offset are rounded too.
        rounded = (error > 0) | (torch.as_tensor(self.offset) > 0)
        error = error * (1 + 1e-15) + 1e-15 * rounded * (w.abs() + self.offset)
        highest = torch.maximum(self.density(w - error), self.density(w + error))
        return highest * (1 + self.density_rounding)

    def conjugate_above(self, v: Tensor) -> Tensor:
        """An upper bound on f*, larger by the rounding error of f*(v)."""
        value = self.conjugate(v)
        size = value.abs() + v.abs() * (self.y.abs() + self.offset)
        return value + self.conjugate_rounding * size

    def infimum_below(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """A lower bound on f(w) + c w over lower <= w <= upper, tight up to rounding.

        Over all w the infimum is -f*(-c). It is f(l) + c l at the lower end l if f'(l) + c is
        positive by more than rounding (or if -f*(-c) is infinite), and likewise at the upper end.
        """
        best, size = -self.conjugate_above(-c), c.abs()
        unbounded = best.isinf()
        for end, sign in ((lower, 1.0), (upper, -1.0)):
            infinite = end.isinf()
            inside = torch.where(infinite, self.y, end)
            density, gradient = self.density(inside), self.gradient(inside)
            slope, linear = gradient + c, c * inside
            slope = slope if sign > 0 else -slope
            clear = slope > 1e-9 * (gradient.abs() + size)
            finite = ~infinite & (density.abs() < math.inf)
            usable = finite & (clear | (unbounded & (slope >= 0)))
            at_end = density + linear
            at_end = at_end - self.density_rounding * (density.abs() + linear.abs())
            best = torch.where(usable, at_end, best)
        return best


PixelFunction = Callable[..., tuple[Tensor, ...]]
"""(fidelity, *images) -> images, pixel by pixel."""


def by_rows(function: PixelFunction, fidelity: Fidelity, *images: Tensor) -> tuple[Tensor, ...]:
    """function(fidelity, *images); of large images, a few rows at a time.

    Such a function has a dozen intermediate results. Numbers without rows belong to all of them.
    """
    like, foreign = images[0], any(True for _ in foreign_parts(fidelity))
    large = like.numel() >= at_once(LARGE, like.device)
    if foreign or not large or like.shape != fidelity.y.shape:
        return function(fidelity, *images)
    height, results = like.shape[-2], list[Tensor]()
    cached = at_once(CACHED, like.device)
    step = ALIGNED * max(1, cached * height // (ALIGNED * like.numel()))
    for top in range(0, height, step):
        rows = slice(top, top + step)
        here = (each[..., rows, :] if each.shape[-2:-1] == (height,) else each for each in images)
        parts = function(fidelity.in_rows(rows), *here)
        if not results:
            results = [each.new_empty((*like.shape[:-2], height, like.shape[-1])) for each in parts]
        for result, part in zip(results, parts, strict=True):
            result[..., rows, :] = part
    return tuple(results)


class Anchored(Fidelity):
    """D'(w) = D(w, y) + pull/2 ||w - target||^2, which bilevel learning minimises.

    Its prox and minimiser follow from the prox of f: with step s,

        prox_{s f'}(w) = prox_{s/(1 + s pull) f}((w + s pull target) / (1 + s pull))
        argmin f'(w) + c w = prox_{f/pull}(target - c/pull).

    Args:
        fidelity: D with its data.
        target: of the shape of the data.
        pull: positive.
    """

    conjugate_domain = (-math.inf, math.inf)
    density_rounding = conjugate_rounding = 1e-11

    def __init__(self, fidelity: Fidelity, target: Tensor, pull: float) -> None:
        super().__init__(fidelity.y)
        if target.shape != fidelity.y.shape:
            raise ValueError(
                f"the target has shape {tuple(target.shape)}, the data {tuple(fidelity.y.shape)}"
            )
        if (place := first_non_finite(target)) is not None:
            raise ValueError(f"the target is {float(target[place])} at index {place}")
        require_positive(self, pull=pull)
        self.fidelity = fidelity
        self.target = target
        self.pull = float(pull)
        self.smooth = fidelity.smooth

    @property
    def kernel(self) -> ProxKernel | None:  # type: ignore[override]
        """The kernel of D with the pull, if D has one without."""
        inner = self.fidelity.kernel
        if inner is None or inner.pull:
            return None
        return replace(inner, pull=self.pull, target=self.target)

    def requirements(self) -> Iterator[Requirement]:
        """As for D; and pull > 0."""
        yield from self.fidelity.requirements()
        yield self.pull, "Anchored needs pull > 0, got {:g}"

    def density(self, w: Tensor) -> Tensor:
        """f(w) + pull (w - target)^2 / 2."""
        return self.fidelity.density(w) + self.pull / 2 * (w - self.target) ** 2

    def gradient(self, w: Tensor) -> Tensor:
        """f'(w) + pull (w - target)."""
        return self.fidelity.gradient(w) + self.pull * (w - self.target)

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """The prox of f with a shorter step, at a point nearer to the target."""
        shrink = 1 + step * self.pull
        return self.fidelity.prox((w + step * self.pull * self.target) / shrink, step / shrink)

    def conjugate(self, v: Tensor) -> Tensor:
        """sup_w v w - f'(w), attained at the minimiser for the slope -v."""
        unbounded = torch.full_like(v, math.inf)
        w = self.minimiser(-v, -unbounded, unbounded)
        return v * w - self.density(w)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """prox_{f/pull}(target - c/pull), moved into the bounds."""
        step = torch.full_like(c, 1 / self.pull)
        free = self.fidelity.prox(self.target - c / self.pull, step)
        return torch.minimum(torch.maximum(free, lower), upper)

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """f'(w) - f'(w*) + c (w - w*), at least pull (w - w*)^2 / 2."""
        best = self.minimiser(c, lower, upper)
        step = w - best
        middle = (w + best) / 2 - self.target
        loss = self.fidelity.density(w) - self.fidelity.density(best)
        loss = loss + (self.pull * middle + c) * step
        return torch.maximum(loss, self.pull / 2 * step**2)
