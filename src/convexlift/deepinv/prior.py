"""Regularizers as priors of deepinv."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.optim import Prior
from torch import Tensor

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.proximal_map import ProximalMap


class RegularizerPrior(Prior):  # type: ignore[misc, unused-ignore]
    """R as an explicit deepinv ``Prior``: value, (sub)gradient, and a certified proximal map.

    For deepinv's PGD, FISTA, ADMM, HQS, DRS and PDCP, and for GD where R is smooth. The proximal
    map carries no gradients, so it is not for unfolded networks: it raises an error if the input
    requires gradients.

    Args:
        regularizer: R, an input-convex network or ``cl.TotalVariation()``.
        accuracy: largest distance of a proximal point to the exact one, relative to the norm of
            the argument; ``prior.proximal_map.error`` has the certified distances of the last call.
        max_iterations: of one proximal map.
    """

    def __init__(
        self, regularizer: InputConvexNetwork, *, accuracy: float = 1e-3, max_iterations: int = 5000
    ) -> None:
        super().__init__()
        self.proximal_map = ProximalMap(
            regularizer, accuracy=accuracy, max_iterations=max_iterations
        )
        self.regularizer = regularizer  # a module of this one: Trainer moves it to its device
        self.explicit_prior = True

    def fn(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """R(x), one number for each image."""
        return self.proximal_map.value(x)

    def grad(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """The gradient of R at x, or a subgradient at kinks."""
        return self.proximal_map.gradient(x)

    def prox(self, x: Tensor, *_: Any, gamma: float | Tensor = 1.0, **__: Any) -> Tensor:
        """argmin_u  1/2 ||u - x||^2 + gamma R(u)."""
        if torch.is_grad_enabled() and getattr(gamma, "requires_grad", False):
            raise ValueError("gamma requires gradients, which the proximal map does not carry")
        steps = set(torch.as_tensor(gamma).flatten().tolist())
        if len(steps) != 1:
            raise ValueError(
                f"gamma must be one number for the whole batch, got {len(steps)} different ones; "
                "reconstruct images with different stepsize or lambda_reg separately"
            )
        return self.proximal_map(x, steps.pop())
