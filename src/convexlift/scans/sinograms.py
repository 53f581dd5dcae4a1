"""Measurements of a scanner, and the geometry of its rays as described in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.json_values import construct, parameters, read
from convexlift.operators.tomography.beams import Detector, FanBeam, ParallelBeam
from convexlift.operators.tomography.ray_transform import RayTransform
from convexlift.option_values import Beam
from convexlift.option_values import Quantity as Quantity
from convexlift.tensors import TensorRecord, first_non_finite

MOST_VIEWS = 1_000_000
"""The most evenly spaced views in a file."""
LengthUnit = Literal["mm", "pixel"]
"""Detector pixels are the unit if a file does not give their size."""

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
"""Photons or detector units; counts over counts without object; minus the log of that ratio."""


@dataclass(frozen=True, kw_only=True)
class ScanGeometry:
    """The geometry common to all scanners.

    Args:
        angles: angles in radians; ``EvenViews(...).geometry(180)`` spreads them evenly.
        bin_width: the distance between neighbouring detector bins.
        detector_offset: the position of the detector's middle, as in ``ParallelBeam``.
        unit: the unit of all lengths.
    """

    beam: ClassVar[str]
    transform: ClassVar[type[RayTransform]]
    turn: ClassVar[float]  # degrees that a complete scan covers

    angles: tuple[float, ...]
    bin_width: float = 1.0
    detector_offset: float = 0.0
    unit: LengthUnit = "mm"

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "angles", tuple(float(angle) for angle in self.angles))
        if not self.angles:
            raise ValueError(f"{name} needs angles in radians, at least one")
        for field, parameter in parameters(type(self)).items():
            read(getattr(self, field), parameter.annotation, f"{name}.{field}")
        if self.bin_width <= 0:
            raise ValueError(f"{name} needs bin_width > 0, got {self.bin_width!r}")

    def operator(
        self,
        bins: int,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> RayTransform:
        """The ray transform of images that cover ``extent``, in the unit of the geometry."""
        options = {name: value for name, value in vars(self).items() if name != "unit"}
        kind: Any = self.transform
        operator: RayTransform = kind(image_size=image_size, bins=bins, extent=extent, **options)
        return operator

    def field_of_view(self, bins: int) -> float:
        """The width of the region that all rays of a detector with this many bins see."""
        return bins * self.bin_width


@dataclass(frozen=True, kw_only=True)
class ParallelGeometry(ScanGeometry):
    """The rays of ``ParallelBeam``: lines {p cos t + q sin t = s}, s in steps of ``bin_width``."""

    beam = "parallel"
    transform = ParallelBeam
    turn = 180.0


@dataclass(frozen=True, kw_only=True)
class FanGeometry(ScanGeometry):
    """The rays of ``FanBeam``, with ``bin_width`` on the detector.

    Args:
        source_distance: from the source to the centre of rotation.
        detector_distance: from the centre of rotation to the detector.
        detector: ``flat`` or ``curved``.
    """

    beam = "fan"
    transform = FanBeam
    turn = 360.0

    source_distance: float
    detector_distance: float
    detector: Detector = "flat"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_distance <= 0 or self.detector_distance < 0:
            raise ValueError(
                "FanGeometry needs source_distance > 0 and detector_distance >= 0, got "
                f"{self.source_distance!r} and {self.detector_distance!r}"
            )

    def field_of_view(self, bins: int) -> float:
        """The width of the detector, made smaller by the magnification of the fan."""
        near, far = self.source_distance, self.detector_distance
        return super().field_of_view(bins) * (near / (near + far))


_GEOMETRIES: Mapping[str, type[ScanGeometry]] = {
    kind.beam: kind for kind in (ParallelGeometry, FanGeometry)
}


def even_angles(number: int, arc: float) -> tuple[float, ...]:
    """``number`` angles in radians from 0 on, over ``arc`` degrees, without its end."""
    return tuple(math.radians(arc) * k / number for k in range(number))


@dataclass(frozen=True, kw_only=True)
class EvenViews:
    """Evenly spaced views from 0 on: a geometry for as many of them as a file holds.

    Args:
        beam: ``parallel`` or ``fan``.
        arc: degrees from the first view to the one that would follow the last; negative if the
            object turned the other way. By default 180 for parallel beams and 360 for fans.
        bin_width: in mm, which fans need; by default, lengths are in detector pixels.
        source_distance: of a fan, from the source to the centre of rotation.
        detector_distance: of a fan, from the centre of rotation to the detector.
    """

    beam: Beam = "parallel"
    arc: float | None = None
    bin_width: float | None = None
    source_distance: float | None = None
    detector_distance: float | None = None

    def __post_init__(self) -> None:
        if self.beam not in _GEOMETRIES:
            raise ValueError(f"beam must be one of {', '.join(_GEOMETRIES)}, got {self.beam!r}")
        if self.arc is not None and not 0 < abs(self.arc) <= 360:
            raise ValueError(f"arc is at most 360 degrees, and not 0, got {self.arc:g}")
        given = [name for name, value in self._distances.items() if value is not None]
        if self.beam == "fan":  # without bin_width, distances would be in detector pixels
            lengths = {**self._distances, "bin_width": self.bin_width}
            if missing := [name for name, value in lengths.items() if value is None]:
                raise ValueError(f"a fan needs {', '.join(missing)}, in mm")
        elif given:
            raise ValueError(f"{given[0]} is for fans")

    @property
    def _distances(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in ("source_distance", "detector_distance")}

    def geometry(self, views: int) -> ScanGeometry:
        """The geometry for this many views."""
        kind: Any = _GEOMETRIES[self.beam]
        angles = even_angles(views, kind.turn if self.arc is None else self.arc)
        lengths = {"unit": "pixel"} if self.bin_width is None else {"bin_width": self.bin_width}
        own = self._distances if self.beam == "fan" else {}
        geometry: ScanGeometry = kind(angles=angles, **lengths, **own)
        return geometry


def geometry_of(operator: RayTransform, unit: LengthUnit = "mm") -> ScanGeometry:
    """The geometry of a ray transform, for saving simulated data."""
    for kind in _GEOMETRIES.values():
        if isinstance(operator, kind.transform):
            known: dict[str, Any] = {
                "angles": tuple(operator.exact_angles.tolist()),
                "bin_width": float(operator.bin_width),
                "detector_offset": float(operator.bins[0] + operator.bins[-1]) / 2,
                "unit": unit,
            }
            own = set(parameters(kind)) - set(known)
            return kind(**known, **{name: getattr(operator, name) for name in own})
    raise ValueError(f"geometry_of takes ParallelBeam or FanBeam, got {operator!r}")


def to_record(geometry: ScanGeometry) -> dict[str, Any]:
    """The fields and the kind of beam, as JSON values."""
    return {"beam": geometry.beam, **asdict(geometry)}


def from_record(record: Mapping[str, Any]) -> ScanGeometry:
    """A geometry from JSON values; ValueError names a wrong, unknown or missing field.

    A number in place of the angles means that many, evenly spaced over half a turn of a parallel
    beam and a whole turn of a fan.
    """
    values = dict(record)
    beam = values.pop("beam", None)
    if beam not in _GEOMETRIES:
        raise ValueError(f"beam must be one of {', '.join(_GEOMETRIES)}, got {beam!r}")
    kind = _GEOMETRIES[beam]
    number = values.get("angles")
    if isinstance(number, int) and not isinstance(number, bool):
        if not 1 <= number <= MOST_VIEWS:
            raise ValueError(f"angles is a number from 1 to {MOST_VIEWS}, or a list; got {number}")
        values["angles"] = list(even_angles(number, kind.turn))
    return construct(kind, values, kind.__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Sinogram(TensorRecord):
    """Projections (rows, angles, bins): row r of the detector sees slice r of the object.

    Flat and dark fields are kept as measured; nothing is divided or subtracted.

    Args:
        projections: floating point and finite.
        geometry: the geometry of the rays of each row.
        quantity: the meaning of the numbers.
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
                        f"{name} must be (rows, frames, bins) = ({rows}, frames, {bins}), like "
                        f"the projections, got {shape}"
                    )
        if self.quantity not in QUANTITIES:
            raise ValueError(f"quantity must be one of {QUANTITIES}, got {self.quantity!r}")

    @property
    def data(self) -> Tensor:
        """The projections in the shape of operators, (rows, 1, angles, bins)."""
        return self.projections[:, None]

    def operator(
        self,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> RayTransform:
        """The ray transform for these data, for images that cover ``extent``.

        Lengths are in the unit of the geometry. By default pixels have size 1.
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
    """A float32 tensor, or float64 where single precision would round.

    Detectors count in 8 or 16 bits, which float32 holds exactly.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError(f"projections must be real numbers, got {array.dtype}")
    fits = array.dtype.itemsize <= (4 if array.dtype.kind == "f" else 2)
    return torch.from_numpy(np.array(array, dtype=np.float32 if fits else np.float64, order="C"))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The array written to files: float32 or float64."""
    values = tensor.detach().cpu()
    return values.numpy() if values.dtype == torch.float64 else values.float().numpy()
