"""A stack of slices with their positions in the patient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from convexlift.tensors import TensorRecord, first_non_finite

Vector = tuple[float, float, float]
Orientation = tuple[float, float, float, float, float, float]

AXIAL: Orientation = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Rows run to the patient's left, columns to the back; the normal points to the head."""


@dataclass(frozen=True, eq=False, repr=False)
class Volume(TensorRecord):
    """CT numbers in HU, (slices, H, W): pixel (i, j) of slice k lies at p_k + j dx u + i dy v.

    Args:
        values: in HU, floating point and finite.
        spacing: (dy, dx), the distances between rows and between columns, in mm.
        positions: p_k, the centre of the upper left pixel of each slice, in mm, in the patient's
            coordinates (left, back, head).
        orientation: the unit vectors u, to the right along a row, and v, down a column.
        thickness: of a slice in mm, if known.
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
        if len(self.spacing) != 2 or not all(math.isfinite(d) and d > 0 for d in self.spacing):
            raise ValueError(f"spacing must be (dy, dx) in mm, both > 0, got {self.spacing}")
        if len(self.positions) != shape[0] or not _all_finite(self.positions, 3):
            raise ValueError(
                f"positions must be three finite numbers for each of {shape[0]} slices, got "
                f"{len(self.positions)} entries"
            )
        require_orientation(self.orientation, "orientation")
        if self.thickness is not None and not (
            math.isfinite(self.thickness) and self.thickness > 0
        ):
            raise ValueError(f"thickness must be > 0 in mm, or None, got {self.thickness}")
        if self.source and len(self.source) != shape[0]:
            raise ValueError(f"source has {len(self.source)} headers for {shape[0]} slices")

    @classmethod
    def stacked(
        cls, values: Tensor, spacing: tuple[float, float], slice_spacing: float = 1.0
    ) -> Volume:
        """Axial slices at equal distances, starting at the origin; lengths in mm."""
        if not (math.isfinite(slice_spacing) and slice_spacing > 0):
            raise ValueError(f"slice_spacing must be > 0 in mm, got {slice_spacing}")
        return cls(
            values, spacing, tuple((0.0, 0.0, k * slice_spacing) for k in range(len(values)))
        )

    @property
    def images(self) -> Tensor:
        """The slices as a batch of images, (slices, 1, H, W)."""
        return self.values[:, None]

    @property
    def normal(self) -> Vector:
        """u x v, the direction of increasing slices."""
        return normal_of(self.orientation)

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


def normal_of(orientation: Orientation) -> Vector:
    """u x v."""
    x, y, z = np.cross(orientation[:3], orientation[3:]).tolist()
    return (x, y, z)


def height_along(position: Vector, orientation: Orientation) -> float:
    """<p, u x v>."""
    return float(np.dot(position, normal_of(orientation)))


def require_orientation(orientation: Sequence[float], name: str) -> None:
    """Raise unless these are two orthogonal unit vectors, to the three digits scanners write."""
    if len(orientation) == 6 and _all_finite((orientation,), 6):
        u, v = np.array(orientation[:3]), np.array(orientation[3:])
        if max(abs(u @ u - 1), abs(v @ v - 1), abs(u @ v)) <= 2e-3:
            return
    raise ValueError(
        f"{name} needs six numbers, two orthogonal unit vectors, got {tuple(orientation)}"
    )


def _all_finite(vectors: Sequence[Sequence[float]], size: int) -> bool:
    return all(len(v) == size and all(math.isfinite(c) for c in v) for v in vectors)
