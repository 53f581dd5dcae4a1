"""Adapters for SCICO: regularizers as its functionals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.proximal_map import ProximalMap, images_in

Functional: Any = load_extra("scico.functional", "adapters to SCICO", "scico").Functional
jax: Any = load_extra("jax", "adapters to SCICO", "scico")


class RegularizerFunctional(Functional):
    """R as a SCICO ``Functional`` with its proximal map, on images (H, W) or (channels, H, W).

    torch computes it on the host, also inside functions that JAX compiles. Its values carry no JAX
    gradients.

    Args:
        regularizer: R, an input-convex network or ``cl.TotalVariation()``.
        accuracy: largest distance of a proximal point to the exact one, relative to the norm of
            each image; ``functional.proximal_map.error`` has the certified distances.
    """

    has_eval = has_prox = True

    def __init__(self, regularizer: InputConvexNetwork, *, accuracy: float = 1e-3) -> None:
        super().__init__()
        self.proximal_map = ProximalMap(regularizer, accuracy=accuracy)

    def __call__(self, x: Any) -> Any:
        """R(x)."""
        return jax.pure_callback(self._value, jax.ShapeDtypeStruct((), x.dtype), x)

    def prox(self, v: Any, lam: float = 1.0, **_: Any) -> Any:
        """argmin_u  1/2 ||u - v||^2 + lam R(u)."""
        return jax.pure_callback(self._prox, jax.ShapeDtypeStruct(v.shape, v.dtype), v, lam)

    def _value(self, x: Any) -> NDArray[Any]:
        with torch.no_grad():
            return np.asarray(self.proximal_map.value(self._images(x)).sum(), dtype=x.dtype)

    def _prox(self, v: Any, lam: Any) -> NDArray[Any]:
        if not float(lam) > 0:
            raise ValueError(f"the factor lam of a proximal map is a number > 0, got {lam}")
        return self.proximal_map(self._images(v), float(lam)).numpy().reshape(v.shape)

    def _images(self, x: Any) -> Tensor:
        return images_in(np.array(x), self.proximal_map.regularizer.in_channels)
