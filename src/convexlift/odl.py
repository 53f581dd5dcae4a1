"""Adapters for ODL: regularizers as its functionals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.proximal_map import ProximalMap, images_in

odl: Any = load_extra("odl", "adapters to ODL", "odl")


class RegularizerFunctional(odl.functionals.functional.Functional):  # type: ignore[misc, unused-ignore]
    """R as an ODL ``Functional`` with its gradient and proximal factory, on arrays of the space.

    ODL's gradients and proximal maps belong to the inner product of the space, c <x, y> with the
    volume c of a cell: grad R(x) / c, and the proximal map of step sigma / c.

    Args:
        regularizer: R, an input-convex network or ``cl.TotalVariation()``.
        space: a uniformly discretized space of images (H, W), or slices (N, H, W).
        accuracy: largest distance of a proximal point to the exact one, relative to the norm of
            each image; ``functional.proximal_map.error`` has the certified distances.
    """

    def __init__(
        self, regularizer: InputConvexNetwork, space: Any, *, accuracy: float = 1e-3
    ) -> None:
        super().__init__(space)
        self.proximal_map = ProximalMap(regularizer, accuracy=accuracy)
        self.volume = float(space.one().inner(space.one())) / space.one().size

    def _call(self, x: Any) -> float:
        with torch.no_grad():
            return float(self.proximal_map.value(self._images(x)).sum())

    @property
    def gradient(self) -> Any:
        """The gradient of R, or a subgradient at kinks, as an operator."""
        subgradient = self.proximal_map.subgradient
        return _Applied(self.domain, lambda x: subgradient(self._images(x)) / self.volume)

    @property
    def proximal(self) -> Any:
        """The map from a step size to the proximal operator."""
        prox, volume = self.proximal_map, self.volume
        return lambda sigma: _Applied(
            self.domain, lambda x: prox(self._images(x), float(sigma) / volume)
        )

    def _images(self, x: Any) -> Tensor:
        return images_in(x.asarray(), self.proximal_map.regularizer.in_channels)


class _Applied(odl.Operator):  # type: ignore[misc, unused-ignore]
    def __init__(self, space: Any, function: Any) -> None:
        super().__init__(space, space)
        self.function = function

    def _call(self, x: Any) -> Any:
        return self.range.element(self.function(x).numpy().reshape(self.range.shape))
