"""What a DICOM header says about a CT slice, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from convexlift.scans.dicom_datasets import read_dataset
from convexlift.scans.errors import ScanFileError, reading
from convexlift.scans.volumes import Orientation, Vector, height_along, require_orientation


@dataclass(frozen=True)
class SliceHeader:
    """Where a slice is and how its stored numbers become HU.

    Attributes:
        path: of the file.
        dataset: the header, without pixels.
        series: its SeriesInstanceUID.
        size: (H, W).
        spacing: (dy, dx) in mm.
        orientation: along rows and down columns.
        position: the centre of the upper left pixel, in mm.
        thickness: in mm, where it is known.
        slope: HU = slope * stored + intercept.
        intercept: see ``slope``.
        padding: the stored numbers from the first to the second are outside of the field of view.
    """

    path: Path
    dataset: Any
    series: str
    size: tuple[int, int]
    spacing: tuple[float, float]
    orientation: Orientation
    position: Vector
    thickness: float | None
    slope: float
    intercept: float
    padding: tuple[int, int] | None

    @property
    def height(self) -> float:
        """The position along the normal."""
        return height_along(self.position, self.orientation)


def read_header(path: Path, max_megapixels: float | None = None) -> SliceHeader:
    """The header of one CT slice; what is no such thing is refused with the reason."""
    dataset = read_dataset(path, max_megapixels, stop_before_pixels=True)
    with reading(path, "a CT slice"):  # values are parsed when they are asked for
        _require_grey_ct(path, dataset)
        thickness = _numbers(path, dataset, "SliceThickness", 1, optional=True)
        spacing = _numbers(path, dataset, "PixelSpacing", 2)
        if min(spacing) <= 0:
            raise ScanFileError(f"{path} has PixelSpacing {spacing}; both must be > 0, in mm")
        orientation = _numbers(path, dataset, "ImageOrientationPatient", 6)
        require_orientation(orientation, "ImageOrientationPatient")
        slope = _numbers(path, dataset, "RescaleSlope", 1)[0]
        if slope == 0:
            raise ScanFileError(f"{path} has RescaleSlope 0: all its pixels would be the same")
        return SliceHeader(
            path=path,
            dataset=dataset,
            series=str(_value(path, dataset, "SeriesInstanceUID")),
            size=(int(_value(path, dataset, "Rows")), int(_value(path, dataset, "Columns"))),
            spacing=(spacing[0], spacing[1]),
            orientation=cast(Orientation, orientation),
            position=cast(Vector, _numbers(path, dataset, "ImagePositionPatient", 3)),
            thickness=thickness[0] if thickness and thickness[0] > 0 else None,
            slope=slope,
            intercept=_numbers(path, dataset, "RescaleIntercept", 1)[0],
            padding=_padding(dataset),
        )


def _require_grey_ct(path: Path, dataset: Any) -> None:
    modality = _value(path, dataset, "Modality")
    if modality != "CT":
        raise ScanFileError(
            f"{path} has the modality {modality!r}, and only CT has Hounsfield units; "
            "give the files of a CT series"
        )
    if (samples := int(dataset.get("SamplesPerPixel") or 1)) != 1:
        raise ScanFileError(
            f"{path} is a colour picture ({samples} samples for each pixel, "
            f"{dataset.get('PhotometricInterpretation')}); CT numbers have one"
        )
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1 or "PerFrameFunctionalGroupsSequence" in dataset:
        raise ScanFileError(
            f"{path} holds {frames} frame(s) in one file (enhanced CT), which is not read here; "
            "convert it to one file for each slice"
        )
    kind = dataset.get("RescaleType")
    if kind not in (None, "", "HU"):
        raise ScanFileError(f"{path} is rescaled to {kind!r} and not to HU")


def _value(path: Path, dataset: Any, name: str) -> Any:
    value = dataset.get(name)
    if value is None or value == "":
        raise ScanFileError(f"{path} has no {name}, which a CT slice needs; it may be cut short")
    return value


def _numbers(
    path: Path, dataset: Any, name: str, count: int, optional: bool = False
) -> tuple[float, ...]:
    if optional and dataset.get(name) in (None, ""):
        return ()
    value = _value(path, dataset, name)
    numbers = tuple(float(v) for v in value) if hasattr(value, "__iter__") else (float(value),)
    if len(numbers) != count or not all(math.isfinite(v) for v in numbers):
        raise ScanFileError(f"{path} has {name} {numbers}; it needs {count} finite number(s)")
    return numbers


def _padding(dataset: Any) -> tuple[int, int] | None:
    """PixelPaddingValue, up to PixelPaddingRangeLimit where there is one."""
    value = dataset.get("PixelPaddingValue")
    if value is None or value == "":
        return None
    limit = dataset.get("PixelPaddingRangeLimit")
    first = int(value)
    last = first if limit is None or limit == "" else int(limit)
    if dataset.get("PixelRepresentation") == 1:  # some write signed numbers as unsigned ones
        half = 1 << (int(dataset.get("BitsAllocated") or 16) - 1)
        first, last = ((v + half) % (2 * half) - half for v in (first, last))
    return (min(first, last), max(first, last))
