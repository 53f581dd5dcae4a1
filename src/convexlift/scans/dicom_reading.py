"""CT slices and series from DICOM files, in spatial order: HU = slope * stored + intercept."""

from __future__ import annotations

import math
import statistics
import struct
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.compressed import require_expansion, require_frame, require_packbits
from convexlift.files.formats import (
    EXPANSION,
    BoundedReader,
    allowed_numbers,
    load_extra,
    reason_of,
    require_plausible,
)
from convexlift.scans.files import PathLike, ScanFileError, existing, files_in, reading
from convexlift.scans.volumes import (
    LOWEST,
    Orientation,
    Vector,
    Volume,
    height_along,
    require_orientation,
)

DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
"""Endings of DICOM file names; scanners also write names without an ending."""
GAP = 0.1
"""Relative deviation of slice distances from their median that is accepted as rounding."""

_META_GROUP = 2
_DEFLATED = "1.2.840.10008.1.2.1.99"
_RUN_LENGTHS = "1.2.840.10008.1.2.5"
_INFLATED_BYTES, _INFLATED_TIMES = 2**27, 20
"""A deflated file, whose header is deflated too, may expand to the larger of these two."""


def read_dicom(
    path: PathLike,
    *,
    series: str | None = None,
    allow_gaps: bool = False,
) -> Volume:
    """One slice, or a folder with the slices of one series, in HU.

    Slices are sorted by their positions along the normal u x v of ImageOrientationPatient, whatever
    their names and numbers. Pixels equal to PixelPaddingValue (or up to PixelPaddingRangeLimit),
    which are outside the field of view, become -1024 HU.

    Args:
        path: a file or a folder. In a folder, files whose names rule them out as slices (DICOMDIR,
            notes) are ignored; any other file must be a slice.
        series: the SeriesInstanceUID, if a folder holds several.
        allow_gaps: accept uneven distances between slices.

    Raises:
        ScanFileError: naming the file, the fault and a remedy.
    """
    place = existing(path)
    files = _slices_in(place) if place.is_dir() else [place]
    headers = _sorted_headers(place, files, series, allow_gaps)
    return Volume(
        values=torch.stack([_hounsfield(header) for header in headers]),
        spacing=headers[0].spacing,
        positions=tuple(header.position for header in headers),
        orientation=headers[0].orientation,
        thickness=headers[0].thickness,
        source=tuple(header.dataset for header in headers),
    )


def _sorted_headers(
    place: Path, files: list[Path], series: str | None, allow_gaps: bool
) -> list[_SliceHeader]:
    headers = _one_series(place, [_read_header(file) for file in files], series)
    _require_one_grid(headers)
    headers.sort(key=lambda header: header.height)
    _require_even(headers, allow_gaps)
    return headers


def _may_be_slice(file: Path) -> bool:
    """Whether the name does not rule out a DICOM image."""
    known = file.suffix.lower() in ("", ".img", *DICOM_SUFFIXES)
    return file.name.upper() != "DICOMDIR" and (known or file.suffix[1:].isdecimal())


def _slices_in(folder: Path) -> list[Path]:
    files = [file for file in files_in(folder) if _may_be_slice(file)]
    if not files:
        raise ScanFileError(f"{folder} holds no DICOM files")
    return files


# Headers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SliceHeader:
    """The position of a slice, as in ``Volume``, and the scale HU = slope * stored + intercept.

    Stored numbers from the first to the last of ``padding`` are outside the field of view.
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


def _read_header(path: Path) -> _SliceHeader:
    """The header of one CT slice; other files are refused with a reason."""
    dataset = read_dataset(path, stop_before_pixels=True)

    def value(name: str) -> Any:
        if (found := dataset.get(name)) is None or found == "":
            problem = f"has no {name}, which a CT slice needs; it may be cut short"
            raise ScanFileError(f"{path} {problem}")
        return found

    def numbers(name: str, count: int) -> tuple[float, ...]:
        found = value(name)
        floats = tuple(float(v) for v in found) if hasattr(found, "__iter__") else (float(found),)
        if len(floats) != count or not all(math.isfinite(v) for v in floats):
            raise ScanFileError(f"{path} has {name} {floats}; it needs {count} finite number(s)")
        return floats

    with reading(path, "a CT slice"):  # values are parsed on access
        _require_grey_ct(path, dataset, value("Modality"))
        known = dataset.get("SliceThickness") not in (None, "")
        (thickness,) = numbers("SliceThickness", 1) if known else (0.0,)
        spacing = numbers("PixelSpacing", 2)
        if min(spacing) <= 0:
            raise ScanFileError(f"{path} has PixelSpacing {spacing}; both must be > 0, in mm")
        orientation = numbers("ImageOrientationPatient", 6)
        require_orientation(orientation, "ImageOrientationPatient")
        slope = numbers("RescaleSlope", 1)[0]
        if slope == 0:
            raise ScanFileError(f"{path} has RescaleSlope 0: all its pixels would be equal")
        return _SliceHeader(
            path=path,
            dataset=dataset,
            series=str(value("SeriesInstanceUID")),
            size=(int(value("Rows")), int(value("Columns"))),
            spacing=(spacing[0], spacing[1]),
            orientation=cast(Orientation, orientation),
            position=cast(Vector, numbers("ImagePositionPatient", 3)),
            thickness=thickness if thickness > 0 else None,
            slope=slope,
            intercept=numbers("RescaleIntercept", 1)[0],
            padding=_padding(dataset),
        )


def _require_grey_ct(path: Path, dataset: Any, modality: str) -> None:
    if modality != "CT":
        raise ScanFileError(
            f"{path} has the modality {modality!r}, but only CT has Hounsfield units; "
            "give the files of a CT series"
        )
    if (samples := int(dataset.get("SamplesPerPixel") or 1)) != 1:
        raise ScanFileError(
            f"{path} is a colour picture ({samples} samples for each pixel, "
            f"{dataset.get('PhotometricInterpretation')}); CT slices have one"
        )
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1 or "PerFrameFunctionalGroupsSequence" in dataset:
        raise ScanFileError(
            f"{path} holds {frames} frame(s) in one file (enhanced CT), which is not supported; "
            "convert it to one file per slice"
        )
    kind = dataset.get("RescaleType")
    if kind not in (None, "", "HU"):
        raise ScanFileError(f"{path} is rescaled to {kind!r}, not to HU")


def _padding(dataset: Any) -> tuple[int, int] | None:
    """PixelPaddingValue, up to PixelPaddingRangeLimit if present."""
    value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
    if value in (None, ""):
        return None
    first, last = int(value), int(value if limit in (None, "") else limit)
    if dataset.get("PixelRepresentation") == 1:  # some programs write signed numbers as unsigned
        half = 1 << (int(dataset.get("BitsAllocated") or 16) - 1)
        first, last = ((v + half) % (2 * half) - half for v in (first, last))
    return (min(first, last), max(first, last))


# Series ------------------------------------------------------------------------------------------


def _one_series(place: Path, headers: list[_SliceHeader], series: str | None) -> list[_SliceHeader]:
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


def _require_one_grid(headers: list[_SliceHeader]) -> None:
    names = {"size": "size in pixels", "spacing": "pixel spacing", "orientation": "orientation"}
    first = headers[0]
    for other in headers[1:]:
        for field, name in names.items():
            left, right = getattr(first, field), getattr(other, field)
            if not np.allclose(left, right, rtol=0, atol=1e-4):
                raise ScanFileError(
                    f"{other.path} has the {name} {right} and {first.path} has {left}; "
                    "a volume needs one grid, so remove one of them"
                )


def _require_even(headers: list[_SliceHeader], allow_gaps: bool) -> None:
    steps = [after.height - before.height for before, after in pairwise(headers)]
    usual = statistics.median(steps or [0.0])
    for step, (before, after) in zip(steps, pairwise(headers), strict=True):
        pair = f"{before.path} and {after.path}"
        if step <= 1e-3:  # mm, far below any slice distance
            raise ScanFileError(
                f"{pair} are slices at the same position, {before.height:g} mm along the normal; "
                "keep one of them (or one acquisition, phase or localizer)"
            )
        if abs(step - usual) > GAP * usual and not allow_gaps:
            raise ScanFileError(
                f"{pair} are {step:g} mm apart, but most neighbours {usual:g} mm: a slice may be "
                "missing; add it, or write read_dicom(path, allow_gaps=True)"
            )


# Pixels ------------------------------------------------------------------------------------------


def _hounsfield(header: _SliceHeader) -> Tensor:
    _, stored = stored_pixels(header.path)
    # In double precision, so that slope * stored + intercept is correctly rounded to float32.
    values = header.slope * stored.astype(np.float64) + header.intercept
    if header.padding is not None:
        first, last = header.padding
        values[(stored >= first) & (stored <= last)] = LOWEST
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScanFileError(f"{header.path} is {values[row, column]} HU at ({row}, {column})")
    return torch.from_numpy(values.astype(np.float32))


def stored_pixels(path: Path) -> tuple[Any, NDArray[Any]]:
    """A file and its stored numbers, before rescaling: (H, W), frames first and colours last."""
    dataset = read_dataset(path)
    if "PixelData" not in dataset and "FloatPixelData" not in dataset:
        raise ScanFileError(f"{path} ends before its pixels, or never had any; copy it again")
    syntax = dataset.file_meta.TransferSyntaxUID
    with reading(path, "a DICOM image"):
        bits = int(dataset.get("BitsAllocated") or 16)
        frames = int(dataset.get("NumberOfFrames") or 1)
        samples = int(dataset.get("SamplesPerPixel") or 1)
        declared = (frames, int(dataset.Rows), int(dataset.Columns), samples)
        expected = (*declared[frames == 1 : 3], *((samples,) if samples > 1 else ()))
        packed = syntax.is_compressed or syntax == _DEFLATED
        require_plausible(path, declared, max(bits, 1) / 8, EXPANSION if packed else 1.0)
    try:
        if syntax.is_encapsulated:
            _require_frames(dataset, frames)
        pixels = np.asarray(dataset.pixel_array)
    except Exception as error:  # decoders raise nearly every type
        raise ScanFileError(f"{path} {_advice(syntax, error)}") from error
    if pixels.shape != expected:
        raise ScanFileError(f"{path} holds pixels {pixels.shape}, but its header says {expected}")
    return dataset, pixels


def _require_frames(dataset: Any, count: int) -> None:
    """Raise ValueError if a compressed frame is larger than Rows x Columns."""
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    offsets = dataset.get("ExtendedOffsetTable"), dataset.get("ExtendedOffsetTableLengths")
    frames = load_extra("pydicom.encaps", "DICOM files").generate_frames(
        dataset.PixelData,
        number_of_frames=count,
        extended_offsets=offsets if all(offsets) else None,
    )
    for frame in frames:
        if dataset.file_meta.TransferSyntaxUID != _RUN_LENGTHS:
            require_frame(frame, rows, columns)
            continue
        number, *starts = struct.unpack("<16L", frame[:64])
        for start, end in pairwise([*starts[:number], len(frame)]):
            require_packbits(frame[start:end], rows * columns)


def _advice(syntax: Any, error: Exception) -> str:
    """The reason why the pixels of a file cannot be decoded, and a remedy."""
    reason = reason_of(error)
    if not syntax.is_compressed:
        return f"cannot be decoded, it may be cut short or damaged; copy it again: {reason}"
    try:
        decoder = load_extra("pydicom.pixels", "DICOM files").get_decoder(syntax)
    except NotImplementedError:
        return f"is compressed as {syntax.name}, which cannot be decoded here; decompress it first"
    codecs = "; ".join(decoder.missing_dependencies)
    missing = f" (packages that can decode it, not installed: {codecs})" if codecs else ""
    if not decoder.is_available:
        return f"is compressed as {syntax.name} and needs a codec{missing}"
    return f"is compressed as {syntax.name} and cannot be decoded{missing}: {reason}"


# Datasets ----------------------------------------------------------------------------------------


def read_dataset(path: Path, *, stop_before_pixels: bool = False) -> Any:
    """The elements of a file, if it declares its encoding and is not too large."""
    pydicom = load_extra("pydicom", "DICOM files")
    with reading(path, "a DICOM file"), BoundedReader(path) as file:
        syntax = _transfer_syntax(pydicom, file)
        if not syntax or not pydicom.uid.UID(syntax).is_transfer_syntax:
            raise ScanFileError(
                f"{path} does not say how its pixels are stored (its TransferSyntaxUID is "
                f"{syntax or 'missing'}); write it again with the program it comes from"
            )
        if syntax == _DEFLATED:
            packed = file.read()
            most = max(_INFLATED_BYTES, _INFLATED_TIMES * len(packed))
            most = min(most, 8 * allowed_numbers(path, 1))
            require_expansion(packed, most, "raw deflate")
        file.seek(0)
        dataset = pydicom.dcmread(file, stop_before_pixels=stop_before_pixels)
        for tag in list(dataset.keys()):
            if tag.group in (0, _META_GROUP):  # of messages and headers: no file may hold these
                del dataset[tag]
            elif not tag.is_private:
                dataset[tag]  # parsed only now; raises if damaged
        return dataset


def _transfer_syntax(pydicom: Any, file: BoundedReader) -> str:
    """The UID, or an empty string; leaves the file at the end of its meta information."""
    pydicom.filereader.read_preamble(file, force=False)
    meta = pydicom.filereader.read_dataset(
        file,
        is_implicit_VR=False,
        is_little_endian=True,
        stop_when=lambda tag, kind, length: tag >> 16 != _META_GROUP,
    )
    syntax = meta.get("TransferSyntaxUID")
    return syntax if isinstance(syntax, str) else ""
