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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from convexlift.parts import Part
from convexlift.tensors import TensorRecord, first_non_finite, fits, sum_per_image


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


class Fidelity(Part, TensorRecord, ABC):
    """A separable convex function of the predicted data.

    Attributes:
        y: the measured data, (B, C, H, W) or (B, ...) as the operator gives it.
        smooth: whether ``gradient`` is continuous.
        conjugate_domain: the open interval of slopes v on which f* is finite.
        weights: how much a datum counts; 0 where f = 0.
        density_rounding: the relative error of f in double precision is less than this.
        conjugate_rounding: that of f*, measured by |f*(v)| + |v| (|y| + offset).
        offset: what is added to w before f looks at it.
        robust: whether f is made for outliers, so that medians of the data may be a good start.
        curvature: f'' where it does not depend on w, so that f = curvature/2 (w - y)^2; else None.
        kernel: the prox as GPUs compute it inside an iteration, or None.
    """

    capabilities = Part.capabilities | {
        "density_rounding", "conjugate_rounding", "robust", "curvature", "kernel", "at_kink",
        "require_explicable",
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

    def __init__(self, y: Tensor) -> None:
        name = type(self).__name__
        if not isinstance(y, Tensor):
            raise TypeError(f"{name} needs the data as a torch.Tensor, got {type(y).__name__}")
        if not y.is_floating_point():
            raise TypeError(f"{name} needs floating-point data, got {y.dtype}; write y.float()")
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
            own = values.ndim == dimensions and values.shape[0] == batch
            return values[images] if own else values

        return self._map(rows)

    @property
    def measured(self) -> Tensor:
        """Which data count at all; a mask of the shape of y."""
        return self.weights * torch.ones_like(self.y) > 0

    def at_kink(self, w: Tensor, margin: float) -> Tensor:
        """Where w is at a known kink of f, up to ``margin``: a mask of the shape of w."""
        return torch.zeros_like(w, dtype=torch.bool)

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
        """An upper bound on f wherever w is by ``error``: f is convex, so one of the two ends."""
        # As if w were off by a little more: w +- error and w + offset are rounded too.
        rounded = (error > 0) | (torch.as_tensor(self.offset) > 0)
        error = error * (1 + 1e-15) + 1e-15 * rounded * (w.abs() + self.offset)
        highest = torch.maximum(self.density(w - error), self.density(w + error))
        return highest * (1 + self.density_rounding)

    def conjugate_above(self, v: Tensor) -> Tensor:
        """An upper bound on f*, above it by what rounding may do to f*(v)."""
        value = self.conjugate(v)
        size = value.abs() + v.abs() * (self.y.abs() + self.offset)
        return value + self.conjugate_rounding * size

    def infimum_below(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """A lower bound on f(w) + c w over lower <= w <= upper, below it by rounding alone.

        Over all w the infimum is -f*(-c). It is f(l) + c l at the lower end l if f'(l) + c is
        positive by more than rounding (or if the former is infinite), and likewise at the upper.
        """
        best = -self.conjugate_above(-c)
        unbounded = best.isinf()
        for end, sign in ((lower, 1.0), (upper, -1.0)):
            inside = torch.where(end.isinf(), self.y, end)
            density, gradient = self.density(inside), self.gradient(inside)
            slope = sign * (gradient + c)
            clear = slope > 1e-9 * (gradient.abs() + c.abs())
            usable = ~end.isinf() & density.isfinite() & (clear | (unbounded & (slope >= 0)))
            at_end = density + c * inside
            at_end = at_end - self.density_rounding * (density.abs() + (c * inside).abs())
            best = torch.where(usable, at_end, best)
        return best


class SquaredL2(Fidelity, name="SquaredL2"):
    """D(w, y) = 1/2 ||w - y||^2, for Gaussian noise."""

    smooth = True
    conjugate_domain = (-math.inf, math.inf)
    density_rounding = conjugate_rounding = 2e-15
    curvature = 1.0
    kernel = ProxKernel("squared")

    def density(self, w: Tensor) -> Tensor:
        """(w - y)^2 / 2."""
        return (w - self.y) ** 2 / 2

    def gradient(self, w: Tensor) -> Tensor:
        """w - y."""
        return w - self.y

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """(w + step y) / (1 + step)."""
        return (w + step * self.y) / (1 + step)

    def conjugate(self, v: Tensor) -> Tensor:
        """v^2 / 2 + v y."""
        return v**2 / 2 + v * self.y

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """(v - step y) / (1 + step)."""
        return (v - step * self.y) / (1 + step)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """y - c, moved into the bounds."""
        return torch.minimum(torch.maximum(self.y - c, lower), upper)

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """(w - w*) (w + w* - 2 (y - c)) / 2, a product of factors of one sign."""
        best = self.minimiser(c, lower, upper)
        free = self.y - c
        return ((w - best) * ((w - free) + (best - free)) / 2).clamp_min(0)


class L1(Fidelity, name="L1"):
    """D(w, y) = scale ||w - y||_1, for outliers such as salt and pepper.

    Args:
        y: the data.
        scale: lambda > 0.
    """

    smooth = False
    density_rounding = conjugate_rounding = 2e-15
    robust = True

    def __init__(self, y: Tensor, scale: float = 1.0) -> None:
        super().__init__(y)
        if not 0 < scale < math.inf:
            raise ValueError(f"L1 needs scale > 0, got scale={scale}")
        self.scale = float(scale)
        self.conjugate_domain = (-self.scale, self.scale)

    @property
    def kernel(self) -> ProxKernel:  # type: ignore[override]
        """The shrinkage by step scale."""
        return ProxKernel("absolute", self.scale)

    def at_kink(self, w: Tensor, margin: float) -> Tensor:
        """|w - y| <= margin."""
        return (w - self.y).abs() <= margin

    def density(self, w: Tensor) -> Tensor:
        """scale |w - y|."""
        return self.scale * (w - self.y).abs()

    def gradient(self, w: Tensor) -> Tensor:
        """scale sign(w - y)."""
        return self.scale * (w - self.y).sign()

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """Towards y by at most step scale (soft shrinkage)."""
        reach = self.scale * step
        return torch.minimum(torch.maximum(self.y, w - reach), w + reach)

    def conjugate(self, v: Tensor) -> Tensor:
        """v y for |v| <= scale."""
        return torch.where(v.abs() <= self.scale, v * self.y, math.inf)

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """clip(v - step y, -scale, scale)."""
        return (v - step * self.y).clamp(-self.scale, self.scale)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """One of the three corners: lower, y, upper."""
        inner = torch.minimum(torch.maximum(self.y, lower), upper)
        return torch.where(c > self.scale, lower, torch.where(c < -self.scale, upper, inner))

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """scale (|w - y| - |w* - y|) + c (w - w*); infinite where w* is."""
        best = self.minimiser(c, lower, upper)
        finite = torch.where(best.isinf(), w, best)
        loss = self.scale * ((w - self.y).abs() - (finite - self.y).abs()) + c * (w - finite)
        return torch.where(best.isinf(), math.inf, loss.clamp_min(0))


class KullbackLeibler(Fidelity, name="KullbackLeibler"):
    """D(w, y) = sum w + r - y + y log(y / (w + r)), for counts y ~ Poisson(w + r).

    The domain is w + r > 0, and w + r >= 0 where y = 0.

    Args:
        y: counts, nonnegative.
        background: r >= 0, a number or one for each pixel. It must be positive where counts
            are, unless the problem keeps x nonnegative.
    """

    smooth = True
    conjugate_domain = (-math.inf, 1.0)
    density_rounding = conjugate_rounding = 5e-14

    def __init__(self, y: Tensor, background: float | Tensor = 0.0) -> None:
        super().__init__(y)
        if (y < 0).any():
            place = tuple(int(i) for i in (y < 0).nonzero()[0])
            raise ValueError(
                f"KullbackLeibler needs counts, but the data are {float(y[place]):g} at index "
                f"{place}; clip them, or use cl.SquaredL2 for data that can be negative"
            )
        r = torch.as_tensor(background, dtype=y.dtype, device=y.device)
        if not bool(((r >= 0) & (r < math.inf)).all()):
            raise ValueError("KullbackLeibler needs a finite background >= 0")
        if not fits(r.shape, y.shape):
            raise ValueError(
                f"a background of shape {tuple(r.shape)} does not fit data of {tuple(y.shape)}"
            )
        self.background = r

    @property
    def offset(self) -> Tensor:  # type: ignore[override]
        """The background."""
        return self.background

    @property
    def kernel(self) -> ProxKernel:  # type: ignore[override]
        """The positive root of a quadratic equation."""
        return ProxKernel("poisson", background=self.background)

    def require_explicable(self, lower: float, unseen: Callable[[], Tensor]) -> None:
        """Where there are counts but no background, A x must be positive for some image."""
        bare = (self.y > 0) & (self.background <= 0)
        if not bare.any():
            return
        if lower < 0:
            raise ValueError(
                "KullbackLeibler without background, where counts are positive, needs x >= 0: "
                "give box=(0, None), or the expected background as KullbackLeibler(y, background)"
            )
        if count := int((bare & unseen()).sum()):
            raise ValueError(
                f"KullbackLeibler has counts where the operator sees nothing (A x = 0) and the "
                f"background is 0, at {count} of {bare.numel()} values: no image explains them. "
                "Set the counts to 0 there, for example KullbackLeibler(mask * y), or give a "
                "positive background, KullbackLeibler(y, background)"
            )

    def density(self, w: Tensor) -> Tensor:
        """y (rho - log(1 + rho)) with rho = (w + r - y)/y; w + r where y = 0."""
        mean = w + self.background
        counts = self.y > 0
        safe = torch.where(counts, self.y, 1.0)
        positive = torch.where(mean > 0, mean, 1.0)
        rho = (positive - safe) / safe
        far = rho < -0.5  # where log(1 + rho) would lose digits of the mean
        inner = safe * torch.where(far, rho - torch.log(positive / safe), _minus_log1p(rho))
        inside = torch.where(counts, mean > 0, mean >= 0)
        return torch.where(inside, torch.where(counts, inner, mean), math.inf)

    def gradient(self, w: Tensor) -> Tensor:
        """1 - y / (w + r)."""
        return 1 - torch.where(self.y > 0, self.y / (w + self.background), 0.0)

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """The positive root of m^2 - (w + r - step) m - step y, minus r."""
        b = w + self.background - step
        root = torch.sqrt(b**2 + 4 * step * self.y)
        # The same root twice; the second form does not cancel for negative b.
        flipped = 2 * step * self.y / (root - b).clamp_min(torch.finfo(b.dtype).tiny)
        mean = torch.where(b >= 0, (b + root) / 2, flipped)
        return mean - self.background

    def conjugate(self, v: Tensor) -> Tensor:
        """-r v - y log(1 - v) for v < 1."""
        inner = -self.background * v - torch.special.xlog1py(self.y, -v.clamp_max(1))
        return torch.where(v <= 1, inner, math.inf)

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """1/2 (v + 1 + step r - sqrt((v - 1 + step r)^2 + 4 step y)), paper section 5.2."""
        b = v - 1 + step * self.background
        root = torch.sqrt(b**2 + 4 * step * self.y)
        # The distance to 1 twice; the second form does not cancel for positive b.
        flipped = 2 * step * self.y / (root + b).clamp_min(torch.finfo(b.dtype).tiny)
        return 1 - torch.where(b <= 0, (root - b) / 2, flipped)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """y / (1 + c) - r, moved into the bounds; the upper bound where 1 + c <= 0."""
        slope = 1 + c
        free = torch.where(self.y > 0, self.y / slope, 0.0) - self.background
        rising = torch.where(slope > 0, free, math.inf)
        # With no counts and no slope every w is as good; take the left end.
        flat = (slope == 0) & (self.y == 0)
        best = torch.where(flat, -self.background.expand_as(free), rising)
        return torch.minimum(torch.maximum(best, lower), upper)

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """((1 + c) m* - y) rho + y (rho - log(1 + rho)), with m* = w* + r, rho = (w - w*)/m*."""
        best = self.minimiser(c, lower, upper)
        finite = torch.where(best.isinf(), w, best)
        mean = finite + self.background
        tiny = torch.finfo(w.dtype).tiny
        rho = (w - finite) / mean.clamp_min(tiny)
        curved = ((1 + c) * mean - self.y) * rho + self.y * _minus_log1p(rho)
        linear = (1 + c) * (w - finite)  # where there are no counts
        loss = torch.where(self.y > 0, curved, linear).clamp_min(0)
        outside = ~torch.isfinite(self.density(w))
        return torch.where(best.isinf() | outside, math.inf, loss)


def _minus_log1p(rho: Tensor) -> Tensor:
    """rho - log(1 + rho) >= 0, accurate near zero."""
    small = rho.abs() < 1e-2
    r = torch.where(small, rho, 0.0)
    series = torch.zeros_like(r)
    for n in range(10, 1, -1):  # 1/2 - r (1/3 - r (1/4 - ...)): the next term is below 1e-19
        series = 1 / n - r * series
    series = r**2 * series
    return torch.where(small, series, rho - torch.log1p(rho.clamp_min(-1)))
