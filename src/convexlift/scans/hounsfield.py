"""CT numbers: linear attenuation, the unit interval of the regularizers, display windows.

HU = 1000 (mu - mu_water) / mu_water. Attenuation is in 1/mm, since lengths in files are in mm. The
conversions do not clip: each has an exact inverse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from convexlift.option_values import WATER as WATER
from convexlift.tensors import first_non_finite

LOWEST = -1024.0
"""The CT number at 0 of the unit interval."""

RANGE = 2524.0
"""The length of the unit interval in HU: 1 is 1500 HU."""


def hounsfield_to_attenuation(hu: Tensor, water: float = WATER) -> Tensor:
    """mu = mu_water (1 + HU / 1000).

    ``water`` is the attenuation of water for the spectrum of the scanner, in 1/mm.
    """
    _require_water(water)
    return water * (1 + hu / 1000)


def attenuation_to_hounsfield(mu: Tensor, water: float = WATER) -> Tensor:
    """HU = 1000 (mu / mu_water - 1)."""
    _require_water(water)
    return 1000 * (mu / water - 1)


def hounsfield_to_unit(hu: Tensor) -> Tensor:
    """(HU + 1024) / 2524: 0 and 1 mean -1024 and 1500 HU."""
    return (hu - LOWEST) / RANGE


def unit_to_hounsfield(values: Tensor) -> Tensor:
    """2524 value - 1024."""
    return values * RANGE + LOWEST


def unit_attenuation(water: float = WATER) -> float:
    """2.524 mu_water, in 1/mm: the attenuation of one unit of the unit interval.

    For scanners of attenuation: with ``unit_attenuation() * A`` in place of A, images are on the
    scale of the regularizers. They are 24 HU lower than with ``hounsfield_to_unit`` (0 is vacuum),
    an offset that filters of mean zero ignore.
    """
    _require_water(water)
    return RANGE / 1000 * water


def _require_water(water: float) -> None:
    if not (math.isfinite(water) and water > 0):
        raise ValueError(f"water must be an attenuation in 1/mm, such as {WATER}, got {water}")


@dataclass(frozen=True)
class Window:
    """clip((HU - level) / width + 1/2, 0, 1), which DICOM calls LINEAR_EXACT.

    Args:
        level: the middle of the range, in HU.
        width: its length; ``level - width / 2`` is black, ``level + width / 2`` is white.
    """

    level: float
    width: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.level):
            raise ValueError(f"a window needs a finite level in HU, got {self.level}")
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"a window needs a width > 0 in HU, got {self.width}")

    @classmethod
    def named(cls, window: Window | str) -> Window:
        """The window itself, or the one with this name."""
        if isinstance(window, Window):
            return window
        if window not in WINDOWS:
            raise ValueError(
                f"there is no window {window!r}; choose one of {', '.join(WINDOWS)}, "
                "or write Window(level=..., width=...)"
            )
        return WINDOWS[window]

    @classmethod
    def covering(cls, values: Tensor) -> Window:
        """The window from the smallest to the largest value; nothing is clipped."""
        if (place := first_non_finite(values)) is not None:
            raise ValueError(f"no window covers values with {float(values[place])} at {place}")
        low, high = float(values.min()), float(values.max())
        return cls((low + high) / 2, max(high - low, 1.0))

    @property
    def low(self) -> float:
        """The CT number that is black."""
        return self.level - self.width / 2

    @property
    def high(self) -> float:
        """The CT number that is white."""
        return self.level + self.width / 2

    def apply(self, values: Tensor) -> Tensor:
        """Values between 0 and 1 for display."""
        return ((values - self.low) / self.width).clamp(0, 1)

    def clipped(self, values: Tensor) -> int:
        """The number of values outside the window."""
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
