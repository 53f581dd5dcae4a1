"""The objective at some images, with its intermediate results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
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

    def numbers(self, everywhere: Tensor, near: Tensor, in_data: Tensor) -> tuple[Tensor, ...]:
        """Whether x is finite, the objective and its two parts, two gaps and a part; (B,) each.

        The last one is the part of the near gap that lies ``in_data``. And of several layers,
        whether all units of the last one have their steepest slope.
        """
        assert self._network is not None
        finite = torch.isfinite(self.x).flatten(1).all(1)
        found = finite, self.objective, self.data_term, self.regularizer, everywhere, near
        if len(self._network.layers) == 1:
            return *found, in_data
        return *found, in_data, self._network.saturated(self.last)

    @property
    def last(self) -> Tensor:
        """The preactivations of the last layer."""
        return self.layers.a[-1] if self._last is None else self._last
