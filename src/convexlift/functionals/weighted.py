"""The squared L2 fidelity with a weight for each datum: noise that is not the same everywhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.tensors import fits


class WeightedL2(Fidelity, name="WeightedL2"):
    """D(w, y) = 1/2 sum omega (w - y)^2, for Gaussian noise of variances 1/omega.

    A weight of zero says that a datum was not measured: f = 0 there, and f* is finite at 0 only.
    What y is there does not matter, as long as it is finite.

    Args:
        y: the data.
        weights: omega >= 0, a number or one for each datum, of a shape that fits that of y.
    """

    smooth = True
    conjugate_domain = (-math.inf, math.inf)
    density_rounding = conjugate_rounding = 4e-15
    weights: Tensor

    def __init__(self, y: Tensor, weights: float | Tensor) -> None:
        super().__init__(y)
        omega = torch.as_tensor(weights, dtype=y.dtype, device=y.device)
        wrong = ~((omega >= 0) & (omega < math.inf))
        if wrong.any():
            place = tuple(int(i) for i in wrong.nonzero()[0])
            where = f" at index {place}" if omega.ndim else ""
            raise ValueError(
                f"WeightedL2 needs finite weights >= 0, but they are {float(omega[place]):g}"
                f"{where}; write 0 for data that were not measured"
            )
        if not fits(omega.shape, y.shape):
            raise ValueError(
                f"weights of shape {tuple(omega.shape)} do not fit data of {tuple(y.shape)}"
            )
        self.weights = omega
        # Even fill values near the largest float, whose squares are infinite, must not matter.
        self.y = torch.where(omega > 0, y, 0.0)

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
        """v^2 / (2 omega) + v y; where omega = 0, that of zero."""
        counts, omega = self._positive()
        outside = torch.where(v == 0, 0.0, math.inf)
        return torch.where(counts, v**2 / (2 * omega) + v * self.y, outside)

    def conjugate_prox(self, v: Tensor, step: Tensor) -> Tensor:
        """omega (v - step y) / (omega + step)."""
        return (v - step * self.y) * (self.weights / (self.weights + step))

    def clip_to_conjugate_domain(self, v: Tensor) -> Tensor:
        """v, and 0 where omega = 0."""
        return torch.where(self.weights > 0, v, 0.0)

    def minimiser(self, c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """y - c / omega, moved into the bounds; where omega = 0, the end to which c w falls."""
        counts, omega = self._positive()
        # Without weight and slope every w is as good; y is as good as any.
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
