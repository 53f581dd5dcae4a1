"""The objective at some images, with its intermediate results."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    _network: BoundNetwork | None
    _layers: ForwardPass | None
    _last: Tensor | None

    @property
    def layers(self) -> ForwardPass:
        """All layers: large, and recomputed if they were not kept."""
        if self._layers is not None:
            return self._layers
        assert self._network is not None
        return self._network.forward(self.x)

    def on(self, network: BoundNetwork | None) -> Evaluation:
        """The same numbers, with a network from which layers are recomputed."""
        return replace(self, _network=network)

    @property
    def has_layers(self) -> bool:
        """Whether the layers were kept."""
        return self._layers is not None

    @property
    def saturated(self) -> Tensor | None:
        """Whether all units of the last of several layers have their steepest slope, (B,)."""
        assert self._network is not None
        several = len(self._network.layers) > 1
        return self._network.saturated(self.last) if several else None

    @property
    def last(self) -> Tensor:
        """The preactivations of the last layer."""
        return self.layers.a[-1] if self._last is None else self._last
