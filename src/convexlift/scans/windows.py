"""Windows: the range of CT numbers that a picture shows, from black to white."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from convexlift.tensors import first_non_finite


@dataclass(frozen=True)
class Window:
    """clip((HU - level) / width + 1/2, 0, 1), which DICOM calls LINEAR_EXACT.

    Args:
        level: the middle of the range, in HU.
        width: its length; below ``level - width / 2`` is black, above ``level + width / 2`` white.
    """

    level: float
    width: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.level):
            raise ValueError(f"a window needs a finite level in HU, got {self.level}")
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"a window needs a width > 0 in HU, got {self.width}")

    @property
    def low(self) -> float:
        """The CT number that is black."""
        return self.level - self.width / 2

    @property
    def high(self) -> float:
        """The CT number that is white."""
        return self.level + self.width / 2

    def apply(self, values: Tensor) -> Tensor:
        """Values between 0 and 1 for pictures."""
        return ((values - self.low) / self.width).clamp(0, 1)

    def clipped(self, values: Tensor) -> int:
        """How many of the values lie outside."""
        return int(((values < self.low) | (values > self.high)).sum())


WINDOWS: Mapping[str, Window] = MappingProxyType(
    {
        "abdomen": Window(50, 400),
        "bone": Window(400, 1800),
        "brain": Window(40, 80),
        "liver": Window(30, 150),
        "lung": Window(-600, 1500),
        "mediastinum": Window(50, 350),
    }
)
"""Customary windows of radiology; habits differ by a few tens of HU."""


def window_named(window: Window | str) -> Window:
    """The window itself, or the one of that name."""
    if isinstance(window, Window):
        return window
    if window not in WINDOWS:
        raise ValueError(
            f"there is no window {window!r}; choose one of {', '.join(WINDOWS)}, "
            "or write Window(level=..., width=...)"
        )
    return WINDOWS[window]


def covering(values: Tensor) -> Window:
    """The window from the smallest to the largest of the values; nothing is clipped."""
    if (place := first_non_finite(values)) is not None:
        raise ValueError(f"no window covers values with {float(values[place])} at {place}")
    low, high = float(values.min()), float(values.max())
    return Window((low + high) / 2, max(high - low, 1.0))
