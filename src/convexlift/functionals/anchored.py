"""A fidelity with an extra pull towards given data: what bilevel learning perturbs."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity, ProxKernel
from convexlift.tensors import first_non_finite


class Anchored(Fidelity):
    """D'(w) = D(w, y) + pull/2 ||w - target||^2.

    The sum of a prox-friendly function and a square needs nothing new: with step s,

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
        if not 0 < pull < math.inf:
            raise ValueError(f"Anchored needs pull > 0, got pull={pull}")
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

    def density(self, w: Tensor) -> Tensor:
        """f(w) + pull (w - target)^2 / 2."""
        return self.fidelity.density(w) + self.pull / 2 * (w - self.target) ** 2

    def gradient(self, w: Tensor) -> Tensor:
        """f'(w) + pull (w - target)."""
        return self.fidelity.gradient(w) + self.pull * (w - self.target)

    def prox(self, w: Tensor, step: Tensor) -> Tensor:
        """The prox of f with a shorter step, from a point nearer to the target."""
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
