"""CT slices and series from DICOM files: HU = slope * stored + intercept, in order."""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from convexlift.scans.attenuation import LOWEST
from convexlift.scans.dicom_headers import SliceHeader, read_header
from convexlift.scans.dicom_pixels import stored_pixels
from convexlift.scans.errors import PathLike, ScanFileError, existing
from convexlift.scans.folders import files_in
from convexlift.scans.volumes import Volume

GAP = 0.1
"""Distances of slices may differ from their median by this part of it: scanners round them."""

_SUFFIXES = ("", ".dcm", ".dicom", ".ima", ".img")


def read_dicom(
    path: PathLike,
    *,
    series: str | None = None,
    allow_gaps: bool = False,
    max_megapixels: float | None = None,
) -> Volume:
    """One slice, or a folder with the slices of one series, in HU.

    Slices are sorted by their positions along the normal u x v of ImageOrientationPatient, whatever
    their names and numbers are. Pixels equal to PixelPaddingValue (or up to
    PixelPaddingRangeLimit), which are outside of the field of view, become -1024 HU.

    Args:
        path: a file or a folder. In a folder, files that cannot be slices by their names are left
            alone (DICOMDIR, notes); those that can be and are not are an error.
        series: the SeriesInstanceUID, where a folder holds several.
        allow_gaps: read series with uneven distances between slices, which are refused otherwise.
        max_megapixels: replaces the limits on the size that the header of a file may declare.

    Raises:
        ScanFileError: naming the file, and what to do.
    """
    place = existing(path)
    files = _slices_in(place) if place.is_dir() else [place]
    headers = _one_series(place, [read_header(file, max_megapixels) for file in files], series)
    _require_one_grid(headers)
    headers.sort(key=lambda header: header.height)
    _require_even(headers, allow_gaps)
    return Volume(
        values=torch.stack([_hounsfield(header, max_megapixels) for header in headers]),
        spacing=headers[0].spacing,
        positions=tuple(header.position for header in headers),
        orientation=headers[0].orientation,
        thickness=headers[0].thickness,
        source=tuple(header.dataset for header in headers),
    )


def _slices_in(folder: Path) -> list[Path]:
    files = [
        file
        for file in files_in(folder)
        if file.name.upper() != "DICOMDIR"
        and (file.suffix.lower() in _SUFFIXES or file.suffix[1:].isdecimal())
    ]
    if not files:
        raise ScanFileError(f"{folder} holds no DICOM files")
    return files


def _one_series(place: Path, headers: list[SliceHeader], series: str | None) -> list[SliceHeader]:
    known = defaultdict(list)
    for header in headers:
        known[header.series].append(header)
    listed = "; ".join(
        f"{uid} ({len(group)} slices, {group[0].dataset.get('SeriesDescription', 'no name')})"
        for uid, group in known.items()
    )
    if series is not None and series not in known:
        raise ScanFileError(f"{place} has no series {series}, but {listed}")
    if series is None and len(known) > 1:
        raise ScanFileError(
            f"{place} holds {len(known)} series: {listed}; write read_dicom(path, series=...)"
        )
    return known[series if series is not None else headers[0].series]


def _require_one_grid(headers: list[SliceHeader]) -> None:
    first = headers[0]
    for other in headers[1:]:
        for name, left, right in (
            ("size in pixels", first.size, other.size),
            ("pixel spacing", first.spacing, other.spacing),
            ("orientation", first.orientation, other.orientation),
        ):
            if not np.allclose(left, right, rtol=0, atol=1e-4):
                raise ScanFileError(
                    f"{other.path} has the {name} {right} and {first.path} has {left}; "
                    "a volume needs one grid, so move one of them elsewhere"
                )


def _require_even(headers: list[SliceHeader], allow_gaps: bool) -> None:
    steps = [after.height - before.height for before, after in pairwise(headers)]
    if not steps:
        return
    usual = statistics.median(steps)
    for step, (before, after) in zip(steps, pairwise(headers), strict=True):
        pair = f"{before.path} and {after.path}"
        if step <= 1e-3:  # mm, far below any slice
            raise ScanFileError(
                f"{pair} are slices of the same place, {before.height:g} mm along the normal; "
                "keep one of them (or one acquisition, phase or localizer)"
            )
        if abs(step - usual) > GAP * usual and not allow_gaps:
            raise ScanFileError(
                f"{pair} are {step:g} mm apart, and most neighbours {usual:g} mm: a slice may be "
                "missing; add it, or write read_dicom(path, allow_gaps=True)"
            )


def _hounsfield(header: SliceHeader, max_megapixels: float | None) -> Tensor:
    stored = stored_pixels(header.path, max_megapixels)
    # In double precision, so that float32 holds slope * stored + intercept correctly rounded.
    values = header.slope * stored.astype(np.float64) + header.intercept
    if header.padding is not None:
        first, last = header.padding
        values[(stored >= first) & (stored <= last)] = LOWEST
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScanFileError(f"{header.path} is {values[row, column]} HU at ({row}, {column})")
    return torch.from_numpy(values.astype(np.float32))
