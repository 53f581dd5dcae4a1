"""What a scanner measured, and where its rays were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.operators.tomography.ray_transform import RayTransform
from convexlift.scans.geometry import ScanGeometry
from convexlift.tensors import TensorRecord, first_non_finite

Quantity = Literal["counts", "transmission", "line integrals"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
"""Photons or whatever the detector counts; counts over those without object; -log of that."""


@dataclass(frozen=True, eq=False, repr=False)
class Sinogram(TensorRecord):
    """Projections (rows, angles, bins): row r of the detector sees slice r of the object.

    Flat and dark fields are kept as they were measured; nothing is divided or subtracted.

    Args:
        projections: floating point and finite.
        geometry: of the rays of each row.
        quantity: what the numbers are.
        flat: frames without object, (rows, frames, bins).
        dark: frames without beam, (rows, frames, bins).
    """

    projections: Tensor
    geometry: ScanGeometry
    quantity: Quantity = "counts"
    flat: Tensor | None = None
    dark: Tensor | None = None

    def __post_init__(self) -> None:
        rows, angles, bins = _require_frames("projections", self.projections)
        if angles != len(self.geometry.angles):
            raise ValueError(
                f"projections (rows, angles, bins) are {(rows, angles, bins)}, but the geometry "
                f"has {len(self.geometry.angles)} angles"
            )
        for name, frames in (("flat", self.flat), ("dark", self.dark)):
            if frames is not None:
                shape = _require_frames(name, frames)
                if (shape[0], shape[2]) != (rows, bins):
                    raise ValueError(
                        f"{name} must be (rows, frames, bins) = ({rows}, frames, {bins}), as "
                        f"projections are, got {shape}"
                    )
        if self.quantity not in QUANTITIES:
            raise ValueError(f"quantity must be one of {QUANTITIES}, got {self.quantity!r}")

    @property
    def data(self) -> Tensor:
        """The projections as operators take them, (rows, 1, angles, bins)."""
        return self.projections[:, None]

    def operator(
        self,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> RayTransform:
        """The ray transform whose data these are, for images that cover ``extent``.

        Lengths are in the unit of the geometry. The default makes pixels of size 1.
        """
        return self.geometry.operator(self.projections.shape[2], image_size, extent)

    def __repr__(self) -> str:
        rows, angles, bins = self.projections.shape
        return (
            f"Sinogram({self.quantity}, {rows} rows, {angles} angles, {bins} bins, "
            f"{type(self.geometry).__name__})"
        )


def _require_frames(name: str, values: Tensor) -> tuple[int, int, int]:
    if values.ndim != 3 or 0 in values.shape or not values.is_floating_point():
        raise ValueError(
            f"{name} must be floating point with three dimensions, got {values.dtype} of shape "
            f"{tuple(values.shape)}"
        )
    if (place := first_non_finite(values)) is not None:
        raise ValueError(f"{name} must be finite, got {float(values[place])} at {place}")
    rows, frames, bins = values.shape
    return rows, frames, bins


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor of float32, or of float64 where single precision would round.

    Detectors count in 8 or 16 bits, which float32 holds exactly.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError(f"projections are real numbers, got {array.dtype}")
    fits = array.dtype.itemsize <= (4 if array.dtype.kind == "f" else 2)
    return torch.from_numpy(np.array(array, dtype=np.float32 if fits else np.float64, order="C"))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """What files hold: float32 or float64."""
    values = tensor.detach().cpu()
    return values.numpy() if values.dtype == torch.float64 else values.float().numpy()
