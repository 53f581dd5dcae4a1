"""An image with its data, noise and weight, ready to be solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.weight import Weight
from convexlift.tasks import Measurement


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image or a scan, ready to be solved.

    Attributes:
        name: of the file, or "the image".
        data: data term, operator and bounds.
        weight: of the regularizer.
        noise: assumed, if it has a level.
        restored: planes of the solution in the numbers and the shape of the input.
        write: writes planes of the solution to a file.
        given: the data as planes, to compare with; None for a measured sinogram.
        truth: (planes, 1, H, W), if it is known.
        about: further facts for the record.
        notes: what the user should know.
    """

    name: str
    data: Measurement
    weight: Weight
    noise: Noise | None
    restored: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Path], None]
    given: Tensor | None = None
    truth: Tensor | None = None
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def joinable(self, other: PreparedImage) -> bool:
        """Whether both can be solved as one batch."""
        return self.weight.value == other.weight.value and self.data.joinable(other.data)
