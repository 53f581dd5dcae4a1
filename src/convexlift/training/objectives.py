"""What a training minimises: one interface for adversarial and bilevel learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.training.data import Batch


@dataclass(frozen=True, eq=False)
class Loss:
    """A number to differentiate, and numbers to look at.

    ``value`` is what is minimised, as people want to see it; ``surrogate`` is what ``backward``
    is called on. They are the same for a loss that is differentiated as it stands.
    """

    surrogate: Tensor
    value: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module, ABC):
    """A loss of a network on a batch of clean images.

    Parameters and buffers of an objective (such as learned weights or warm starts) are trained
    and checkpointed with the network.
    """

    mixed_precision_allowed: bool = False
    metric_names: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """The loss; ``batch.clean`` is on the network's device."""

    def settings(self) -> dict[str, Any]:
        """What it was made of, by name: a run goes on only with what it was started with."""
        return {"kind": type(self).__name__}
