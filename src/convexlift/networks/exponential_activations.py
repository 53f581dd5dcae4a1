"""Activations with an exponential: softplus and ELU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.networks.smooth_activations import SmoothActivation
from convexlift.parts import require_positive


@dataclass(frozen=True)
class Softplus(SmoothActivation, name="Softplus"):
    """h(a) = log(1 + exp(b a)) / b.

    Args:
        sharpness: b > 0; larger is closer to the ReLU.
    """

    sharpness: float = 1.0
    slopes = (0.0, 1.0)

    def __post_init__(self) -> None:
        require_positive(self, sharpness=self.sharpness)

    def value(self, a: Tensor) -> Tensor:
        """log(1 + exp(b a)) / b."""
        return -F.logsigmoid(-self.sharpness * a) / self.sharpness

    def derivative(self, a: Tensor) -> Tensor:
        """The logistic function of b a."""
        return torch.sigmoid(self.sharpness * a)

    def second_derivative(self, a: Tensor) -> Tensor:
        """b s (1 - s)."""
        scaled = self.sharpness * a
        return self.sharpness * torch.sigmoid(scaled) * torch.sigmoid(-scaled)

    def conjugate(self, s: Tensor) -> Tensor:
        """(s log s + (1 - s) log(1 - s)) / b on [0, 1]."""
        inner = s.clamp(0, 1)
        entropy = torch.xlogy(inner, inner) + torch.special.xlog1py(1 - inner, -inner)
        return self._outside(s, entropy / self.sharpness)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """The relative entropy of two coins, KL(s || sigmoid(b a)) / b."""
        scaled = self.sharpness * a
        heads: Tensor = torch.xlogy(s, s) - s * F.logsigmoid(scaled)
        tails: Tensor = torch.special.xlog1py(1 - s, -s) - (1 - s) * F.logsigmoid(-scaled)
        return (heads + tails).clamp_min(0) / self.sharpness


@dataclass(frozen=True)
class ELU(SmoothActivation, name="ELU"):
    """h(a) = a for a > 0,  alpha (exp(a) - 1) for a <= 0; convex for 0 < alpha <= 1.

    Below alpha = 1 there is a kink at zero.
    """

    alpha: float = 1.0
    slopes = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(
                f"ELU needs 0 < alpha <= 1 to be convex and nondecreasing, got alpha={self.alpha}"
            )

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """Only with alpha = 1."""
        return self.alpha == 1.0

    def value(self, a: Tensor) -> Tensor:
        """a, or alpha (exp(a) - 1)."""
        return torch.where(a > 0, a, self.alpha * torch.expm1(_negative_part(a)))

    def derivative(self, a: Tensor) -> Tensor:
        """1, or alpha exp(a)."""
        return torch.where(a > 0, 1.0, self.alpha * torch.exp(_negative_part(a)))

    def second_derivative(self, a: Tensor) -> Tensor:
        """0, or alpha exp(a)."""
        return torch.where(a > 0, 0.0, self.alpha * torch.exp(_negative_part(a)))

    def conjugate(self, s: Tensor) -> Tensor:
        """s log(s / alpha) - s + alpha on [0, alpha], 0 on [alpha, 1]."""
        inner = s.clamp(0, self.alpha)
        curved = torch.xlogy(inner, inner / self.alpha) - inner + self.alpha
        return self._outside(s, torch.where(s < self.alpha, curved, 0.0))

    def prox(self, y: Tensor, eta: Tensor) -> Tensor:
        """y - eta on the right, 0 at the kink, a root on the left."""
        eta = eta.expand_as(y)
        on_left = y < self.alpha * eta
        left = super().prox(torch.where(on_left, y, -1.0), eta).clamp_max(0)
        return torch.where(y > eta, y - eta, torch.where(y >= self.alpha * eta, 0.0, left))

    def descent(self, a: Tensor, eta: Tensor) -> Tensor:
        """Zero at the kink, where proximal points stay for a range of eta."""
        return super().descent(a, eta) * (a != 0)

    def scaled_slope(self, y: Tensor, t: Tensor, sigma: Tensor) -> Tensor:
        """At the kink, the slope is between alpha and 1, and t times it is sigma y."""
        curved = super().scaled_slope(y, t, sigma)
        at_kink = (sigma * y >= self.alpha * t) & (sigma * y <= t)
        return torch.where(at_kink, sigma * y, torch.where(sigma * y > t, t, curved))

    def multiplier(self, y: Tensor, z: Tensor, sigma_a: Tensor, sigma_z: Tensor) -> Tensor:
        """On the right ray or at the kink as for the ReLU, else a root on the left."""
        right = (y - z) / (1 / sigma_a + 1 / sigma_z)
        kink = -sigma_z * z
        on_right = sigma_a * y >= right
        on_left = sigma_a * y < self.alpha * kink
        curved = super().multiplier(torch.where(on_left, y, -1.0), z, sigma_a, sigma_z)
        t = torch.where(on_right, right, torch.where(on_left, curved, kink))
        return torch.where(self.value(y) <= z, 0.0, t).clamp_min(0)

    def fenchel_young(self, a: Tensor, s: Tensor) -> Tensor:
        """(1 - s) a + h*(s) on the right; a relative entropy, or linear, on the left."""
        right = (1 - s) * a + self.conjugate(s)
        below = _negative_part(a)
        tangent = self.alpha * torch.exp(below)
        curved = torch.xlogy(s, s / self.alpha) - s * below - s + tangent
        steep = self.alpha * torch.expm1(below) - s * below
        left = torch.where(s < self.alpha, curved, steep)
        return torch.where(a > 0, right, left).clamp_min(0)


def _negative_part(a: Tensor) -> Tensor:
    """min(a, 0), with slope 1 at zero; the slope of clamp there depends on the version of torch."""
    return torch.where(a > 0, 0.0, a)
