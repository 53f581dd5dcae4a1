"""Adapters for PyProximal: regularizers as its proximal operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.proximal_map import ProximalMap, images_in

ProxOperator: Any = load_extra("pyproximal", "adapters to PyProximal", "pyproximal").ProxOperator


class RegularizerProx(ProxOperator):
    """sigma R as a PyProximal ``ProxOperator`` on flattened images.

    Args:
        regularizer: R, an input-convex network or ``cl.TotalVariation()``.
        dims: (H, W), (channels, H, W), or (slices, H, W) for networks of one channel.
        sigma: factor of R.
        accuracy: largest distance of a proximal point to the exact one, relative to the norm of
            each image; ``prox.proximal_map.error`` has the certified distances.
        max_iterations: limit for one proximal map.
    """

    def __init__(
        self, regularizer: InputConvexNetwork, dims: tuple[int, ...], *, sigma: float = 1.0,
        accuracy: float = 1e-3, max_iterations: int = 5000,
    ) -> None:  # fmt: skip
        super().__init__(None, hasgrad=regularizer.smooth)
        self.dims, self.sigma = tuple(dims), sigma
        self.proximal_map = ProximalMap(
            regularizer, accuracy=accuracy, max_iterations=max_iterations
        )

    def __call__(self, x: NDArray[Any]) -> float:
        """sigma R(x)."""
        with torch.no_grad():
            return self.sigma * float(self.proximal_map.value(self._images(x)).sum())

    def prox(self, x: NDArray[Any], tau: float, **_: Any) -> NDArray[Any]:
        """argmin_u  1/2 ||u - x||^2 + tau sigma R(u), for one number tau."""
        if np.size(tau) != 1 or not float(np.squeeze(tau)) > 0:
            raise ValueError(f"RegularizerProx takes one number tau > 0, got {tau}")
        step = self.sigma * float(np.squeeze(tau))
        return self.proximal_map(self._images(x), step).numpy().reshape(x.shape)

    def grad(self, x: NDArray[Any]) -> NDArray[Any]:
        """The gradient of sigma R, or a subgradient at kinks."""
        return self.sigma * self.proximal_map.subgradient(self._images(x)).numpy().reshape(x.shape)

    def _images(self, x: NDArray[Any]) -> Tensor:
        return images_in(x.reshape(self.dims), self.proximal_map.regularizer.in_channels)
