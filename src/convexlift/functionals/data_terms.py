"""The data terms of the library: squared L2, with weights or without, L1, Kullback-Leibler.

Each is a sum of a convex function f of one variable over the data (see ``fidelity``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity, ProxKernel
from convexlift.parts import require_positive
from convexlift.tensors import Requirement, fits, plain_number, require_numbers


class SquaredL2(Fidelity, name="SquaredL2"):
    """D(w, y) = 1/2 ||w - y||^2, for Gaussian noise."""

    smooth = True
    conjugate_domain = (-math.inf, math.inf)
    density_rounding = conjugate_rounding = 2e-15
    curvature = 1.0
    kernel = ProxKernel("squared")
    likelihood = "gaussian"

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


class WeightedL2(Fidelity, name="WeightedL2"):
    """D(w, y) = 1/2 sum omega (w - y)^2, for Gaussian noise of variances 1/omega.

    A weight of zero says that a datum was not measured: f = 0 there, and f* is finite at 0 only.
    The value of y there does not matter, as long as it is finite.

    Args:
        y: the data.
        weights: omega >= 0, a number or one for each datum, of a shape that fits y.
    """

    smooth = True
    conjugate_domain = (-math.inf, math.inf)
    density_rounding = conjugate_rounding = 4e-15
    likelihood = "weighted gaussian"
    weights: Tensor

    def __init__(self, y: Tensor, weights: float | Tensor) -> None:
        super().__init__(y)
        omega = torch.as_tensor(weights, dtype=y.dtype, device=y.device)
        if not fits(omega.shape, y.shape):
            raise ValueError(
                f"weights of shape {tuple(omega.shape)} do not fit data of {tuple(y.shape)}"
            )
        self.weights = omega
        # Even fill values near the largest float, whose squares are infinite, must not matter.
        self.y = torch.where(omega > 0, y, 0.0)
        require_numbers([], self.requirements())
        require_numbers([("weights of WeightedL2", omega)], [], math.inf)

    def requirements(self) -> Iterator[Requirement]:
        """omega >= 0."""
        fault = "WeightedL2 needs finite weights >= 0, but they are {:g}{}; write 0 for data that"
        yield self.weights, f"{fault} were not measured"

    @property
    def curvature(self) -> Tensor:  # type: ignore[override]
        """omega."""
        return self.weights

    def density(self, w: Tensor) -> Tensor:
        """omega (w - y)^2 / 2."""
        return self.weights * (w - self.y) ** 2 / 2

    def gradient(self, w: Tensor) -> Tensor:
        """omega (w - y)."""
        return self.weights * (w - self.y)

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """(w + step omega y) / (1 + step omega)."""
        pull = step * self.weights
        return (w + pull * self.y) / (1 + pull)

    def conjugate(self, v: Tensor) -> Tensor:
        """v^2 / (2 omega) + v y; where omega = 0, 0 at 0 and infinite elsewhere.

        v^2 alone may be 0 by underflow where v^2 / omega is not.
        """
        counts, omega = self._positive()
        outside = torch.where(v == 0, 0.0, math.inf)
        return torch.where(counts, v * (v / (2 * omega)) + v * self.y, outside)

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """omega (v - step y) / (omega + step)."""
        return (v - step * self.y) * (self.weights / (self.weights + step))

    def clip_to_conjugate_domain(self, v: Tensor) -> Tensor:
        """v, and 0 where omega = 0."""
        return torch.where(self.weights > 0, v, 0.0)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """y - c / omega, moved into the bounds; where omega = 0, the end to which c w falls."""
        counts, omega = self._positive()
        # Without weight and slope, every w has the same value; take y.
        flat = torch.where(c == 0, self.y, -c * math.inf)
        best = torch.where(counts, self.y - c / omega, flat)
        return torch.minimum(torch.maximum(best, lower), upper)

    def excess(self, w: Tensor, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """(w - w*) (r + r*) / 2 with the slopes r = omega (w - y) + c and r* at w* = minimiser.

        Between the bounds r* = 0 and w - w* = r / omega. Where omega = 0, r = r* = c.
        """
        best = self.minimiser(c, lower, upper)
        slope = self.gradient(w) + c
        inside = (lower < best) & (best < upper) | best.isinf()
        counts, omega = self._positive()
        finite = torch.where(best.isinf(), w, best)
        at_end = (w - finite) * (slope + self.gradient(finite) + c) / 2
        curved = torch.where(inside, slope**2 / (2 * omega), at_end)
        linear = torch.where(best.isinf(), math.inf, at_end)
        return torch.where(counts, curved, linear).clamp_min(0)

    def _positive(self) -> tuple[Tensor, Tensor]:
        """Where omega > 0, and omega with ones elsewhere, to divide by."""
        counts = self.weights > 0
        return counts, torch.where(counts, self.weights, 1.0)


class L1(Fidelity, name="L1"):
    """D(w, y) = scale ||w - y||_1, for outliers such as salt and pepper.

    Args:
        y: the data.
        scale: lambda > 0.
    """

    smooth = False
    density_rounding = conjugate_rounding = 2e-15
    robust = True
    likelihood = "impulses"

    def __init__(self, y: Tensor, scale: float = 1.0) -> None:
        super().__init__(y)
        self.scale = plain_number(scale, "scale")
        require_positive(self, scale=self.scale)
        self.conjugate_domain = (-self.scale, self.scale)

    def requirements(self) -> Iterator[Requirement]:
        """lambda > 0."""
        yield self.scale, "L1 needs scale > 0, got {:g}"

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
    likelihood = "poisson"

    def __init__(self, y: Tensor, background: float | Tensor = 0.0) -> None:
        super().__init__(y)
        r = torch.as_tensor(background, dtype=y.dtype, device=y.device)
        if not fits(r.shape, y.shape):
            raise ValueError(
                f"a background of shape {tuple(r.shape)} does not fit data of {tuple(y.shape)}"
            )
        self.background = r
        require_numbers([], self.requirements())
        require_numbers([("background of KullbackLeibler", r)], [], math.inf)

    def requirements(self) -> Iterator[Requirement]:
        """y >= 0 and r >= 0."""
        fault = "KullbackLeibler needs counts, but the data are {:g}{}; clip them, or use"
        yield self.y, f"{fault} cl.SquaredL2 for data that can be negative"
        yield self.background, "KullbackLeibler needs a finite background >= 0, but it is {:g}{}"

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
        # Where the mean is 0, rounding w must not leave the domain.
        mean = torch.maximum(mean, 8 * torch.finfo(b.dtype).eps * self.background)
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
        # Without counts and slope, every w has the same value; take the left end.
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
