"""Where the rays of a scan are: what files say of a scanner, as records."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from convexlift.operators.tomography.beams import DETECTORS, Detector, FanBeam, ParallelBeam
from convexlift.operators.tomography.ray_transform import RayTransform

LengthUnit = Literal["mm", "pixel"]
LENGTH_UNITS: tuple[LengthUnit, ...] = get_args(LengthUnit)
"""Pixels of the detector are the unit where a file does not say how large they are."""


@dataclass(frozen=True, kw_only=True)
class ScanGeometry(ABC):
    """What all scanners have.

    Args:
        angles: in radians.
        bin_width: the distance of two bins of the detector.
        detector_offset: the place of the middle of the detector, as in ``ParallelBeam``.
        unit: of all lengths.
    """

    angles: tuple[float, ...]
    bin_width: float = 1.0
    detector_offset: float = 0.0
    unit: LengthUnit = "mm"

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "angles", tuple(float(angle) for angle in self.angles))
        if not self.angles or not all(math.isfinite(angle) for angle in self.angles):
            raise ValueError(f"{name} needs angles in radians, at least one and all finite")
        if not (_is_real(self.bin_width) and self.bin_width > 0):
            raise ValueError(f"{name} needs bin_width > 0, got {self.bin_width!r}")
        if not _is_real(self.detector_offset):
            raise ValueError(f"{name} needs a finite detector_offset, got {self.detector_offset!r}")
        if self.unit not in LENGTH_UNITS:
            raise ValueError(f"{name} needs unit to be one of {LENGTH_UNITS}, got {self.unit!r}")

    @abstractmethod
    def operator(
        self,
        bins: int,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> RayTransform:
        """The ray transform of images that cover ``extent``, in the unit of the geometry."""


@dataclass(frozen=True, kw_only=True)
class ParallelGeometry(ScanGeometry):
    """The rays of ``ParallelBeam``: lines {p cos t + q sin t = s}, s in steps of ``bin_width``."""

    def operator(
        self,
        bins: int,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> ParallelBeam:
        """``ParallelBeam`` of images that cover ``extent``, in the unit of the geometry."""
        return ParallelBeam(
            image_size,
            self.angles,
            bins,
            extent,
            bin_width=self.bin_width,
            detector_offset=self.detector_offset,
        )


@dataclass(frozen=True, kw_only=True)
class FanGeometry(ScanGeometry):
    """The rays of ``FanBeam``, with ``bin_width`` on the detector.

    Args:
        source_distance: from the source to the centre of rotation.
        detector_distance: from there to the detector.
        detector: ``flat`` or ``curved``.
    """

    source_distance: float
    detector_distance: float
    detector: Detector = "flat"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_real(self.source_distance) and self.source_distance > 0):
            raise ValueError(f"FanGeometry needs source_distance > 0, got {self.source_distance!r}")
        if not (_is_real(self.detector_distance) and self.detector_distance >= 0):
            raise ValueError(
                f"FanGeometry needs detector_distance >= 0, got {self.detector_distance!r}"
            )
        if self.detector not in DETECTORS:
            raise ValueError(f"detector must be one of {DETECTORS}, got {self.detector!r}")

    def operator(
        self,
        bins: int,
        image_size: int | tuple[int, int],
        extent: float | tuple[float, float] | None = None,
    ) -> FanBeam:
        """``FanBeam`` of images that cover ``extent``, in the unit of the geometry."""
        return FanBeam(
            image_size,
            self.angles,
            bins,
            self.source_distance,
            self.detector_distance,
            extent,
            detector=self.detector,
            bin_width=self.bin_width,
            detector_offset=self.detector_offset,
        )


def geometry_of(operator: RayTransform, unit: LengthUnit = "mm") -> ScanGeometry:
    """The geometry of a ray transform, to save what it computes."""
    if not isinstance(operator, ParallelBeam | FanBeam):
        raise ValueError(f"geometry_of takes ParallelBeam or FanBeam, got {operator!r}")
    angles = tuple(operator.exact_angles.tolist())
    offset = float(operator.bins[0] + operator.bins[-1]) / 2
    width = float(operator.bin_width)
    if isinstance(operator, FanBeam):
        return FanGeometry(
            angles=angles,
            bin_width=width,
            detector_offset=offset,
            unit=unit,
            source_distance=operator.source_distance,
            detector_distance=operator.detector_distance,
            detector=operator.detector,
        )
    return ParallelGeometry(angles=angles, bin_width=width, detector_offset=offset, unit=unit)


BEAMS: Mapping[str, type[ScanGeometry]] = {"parallel": ParallelGeometry, "fan": FanGeometry}


def to_record(geometry: ScanGeometry) -> dict[str, Any]:
    """The fields and the kind of beam, as JSON has them."""
    beam = next(name for name, kind in BEAMS.items() if type(geometry) is kind)
    return {"beam": beam, **asdict(geometry)}


def from_record(record: Mapping[str, Any]) -> ScanGeometry:
    """The geometry of a record; unknown and missing fields are refused by name."""
    fields = dict(record)
    beam = fields.pop("beam", None)
    if beam not in BEAMS:
        raise ValueError(f"beam must be one of {', '.join(BEAMS)}, got {beam!r}")
    kind = BEAMS[beam]
    if unknown := set(fields) - set(kind.__dataclass_fields__):
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
