"""The objective at some images, with its intermediate results."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from convexlift.networks.bound_network import BoundNetwork, ForwardPass


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The objective at some images, its two parts, and intermediate results."""

    x: Tensor
    prediction: Tensor
    data_term: Tensor
    regularizer: Tensor
    objective: Tensor
    _network: BoundNetwork
    _layers: ForwardPass | None
    _last: Tensor | None

    @property
    def layers(self) -> ForwardPass:
        """All layers: large, and recomputed if they were not kept."""
        return self._network.forward(self.x) if self._layers is None else self._layers

    @property
    def has_layers(self) -> bool:
        """Whether the layers were kept."""
        return self._layers is not None

    @property
    def last(self) -> Tensor:
        """The preactivations of the last layer."""
        return self.layers.a[-1] if self._last is None else self._last
