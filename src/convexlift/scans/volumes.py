"""CT numbers, and stacks of slices with their positions in the patient.

HU = 1000 (mu - mu_water) / mu_water. Attenuation is in 1/mm, since lengths in files are in mm. The
conversions do not clip: each has an exact inverse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from convexlift.option_values import WATER as WATER
from convexlift.tensors import TensorRecord, first_non_finite

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
    if not 0 < water < math.inf:
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
        if not (math.isfinite(self.level) and 0 < self.width < math.inf):
            raise ValueError(
                "a window needs a finite level and a width > 0 in HU, got "
                f"{self.level} and {self.width}"
            )

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


# Slices in space ---------------------------------------------------------------------------------

Vector = tuple[float, float, float]
Orientation = tuple[float, float, float, float, float, float]

AXIAL: Orientation = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Rows run to the patient's left, columns to the back; the normal points to the head."""


@dataclass(frozen=True, eq=False, repr=False)
class Volume(TensorRecord):
    """CT numbers in HU, (slices, H, W): pixel (i, j) of slice k lies at p_k + j dx u + i dy v.

    Args:
        values: values in HU, floating point and finite.
        spacing: (dy, dx), the distances between rows and between columns, in mm.
        positions: p_k, the centre of the upper left pixel of each slice, in mm, in the patient's
            coordinates (left, back, head).
        orientation: the unit vectors u, to the right along a row, and v, down a column.
        thickness: the thickness of a slice in mm, if known.
        source: the DICOM headers of the slices, one for each; written DICOM files copy patient
            and study from them.
    """

    values: Tensor
    spacing: tuple[float, float]
    positions: tuple[Vector, ...]
    orientation: Orientation = AXIAL
    thickness: float | None = None
    source: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if not self.values.is_floating_point() or len(shape) != 3 or 0 in shape:
            raise ValueError(
                f"a Volume holds floating-point values (slices, H, W), got {self.values.dtype} "
                f"of shape {shape}"
            )
        if (place := first_non_finite(self.values)) is not None:
            raise ValueError(f"a Volume needs finite values, got {self.values[place]} at {place}")
        if len(self.spacing) != 2 or not all(0 < d < math.inf for d in self.spacing):
            raise ValueError(f"spacing must be (dy, dx) in mm, both > 0, got {self.spacing}")
        if len(self.positions) != shape[0] or not _all_finite(self.positions, 3):
            raise ValueError(
                f"positions must be three finite numbers for each of {shape[0]} slices, got "
                f"{len(self.positions)} entries"
            )
        require_orientation(self.orientation, "orientation")
        if self.thickness is not None and not 0 < self.thickness < math.inf:
            raise ValueError(f"thickness must be > 0 in mm, or None, got {self.thickness}")
        if self.source and len(self.source) != shape[0]:
            raise ValueError(f"source has {len(self.source)} headers for {shape[0]} slices")

    @classmethod
    def stacked(
        cls, values: Tensor, spacing: tuple[float, float], slice_spacing: float = 1.0
    ) -> Volume:
        """Axial slices at equal distances, starting at the origin; lengths in mm."""
        if not 0 < slice_spacing < math.inf:
            raise ValueError(f"slice_spacing must be > 0 in mm, got {slice_spacing}")
        positions = tuple((0.0, 0.0, k * slice_spacing) for k in range(len(values)))
        return cls(values, spacing, positions)

    @property
    def images(self) -> Tensor:
        """The slices as a batch of images, (slices, 1, H, W)."""
        return self.values[:, None]

    @property
    def normal(self) -> Vector:
        """u x v, the direction of increasing slices."""
        x, y, z = np.cross(self.orientation[:3], self.orientation[3:]).tolist()
        return (x, y, z)

    @property
    def heights(self) -> tuple[float, ...]:
        """<p_k, normal> in mm."""
        return tuple(height_along(position, self.orientation) for position in self.positions)

    @property
    def extent(self) -> tuple[float, float]:
        """Height and width of a slice in mm, as ``ParallelBeam`` and ``FanBeam`` take them."""
        return (self.values.shape[1] * self.spacing[0], self.values.shape[2] * self.spacing[1])

    def with_values(self, values: Tensor) -> Volume:
        """The volume with other values: (slices, H, W), or images (slices, 1, H, W)."""
        shape = tuple(self.values.shape)
        if tuple(values.shape) not in (shape, (shape[0], 1, *shape[1:])):
            raise ValueError(f"this Volume has slices {shape}, got {tuple(values.shape)}")
        return replace(self, values=values.detach().reshape(shape))

    def __repr__(self) -> str:
        # Headers are not printed: they may name a patient.
        slices, height, width = self.values.shape
        dy, dx = self.spacing
        origin = f", from {len(self.source)} DICOM files" if self.source else ""
        return f"Volume({slices} slices of {height} x {width}, pixels {dy:g} x {dx:g} mm{origin})"


def height_along(position: Vector, orientation: Orientation) -> float:
    """<p, u x v>."""
    return float(np.dot(position, np.cross(orientation[:3], orientation[3:])))


def require_orientation(orientation: Sequence[float], name: str) -> None:
    """Raise unless these are two orthogonal unit vectors, to three digits, as scanners write."""
    if len(orientation) == 6 and _all_finite((orientation,), 6):
        u, v = np.array(orientation[:3]), np.array(orientation[3:])
        if max(abs(u @ u - 1), abs(v @ v - 1), abs(u @ v)) <= 2e-3:
            return
    raise ValueError(
        f"{name} needs six numbers, two orthogonal unit vectors, got {tuple(orientation)}"
    )


def _all_finite(vectors: Sequence[Sequence[float]], size: int) -> bool:
    return all(len(v) == size and all(math.isfinite(c) for c in v) for v in vectors)
