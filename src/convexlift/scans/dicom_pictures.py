"""DICOM images of any modality as pictures: MR, NM, US, CR, ...

Stored numbers become a picture, and are written to a derived image with the same rescale and
display window, so that they keep their meaning. ``read_dicom`` reads CT slices, in HU.
"""

from __future__ import annotations

import copy
import datetime
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import load_extra
from convexlift.files.pictures import Picture, Range, from_channels_last
from convexlift.scans.dicom_reading import read_dataset, stored_pixels
from convexlift.scans.files import ScanFileError

DATASET = "dicom"
"""The key of the header in the metadata of a picture."""
WINDOW = "display window"
"""The key of the numbers displayed black and white; None if the file does not give them."""
GREY = ("MONOCHROME1", "MONOCHROME2")


def dicom_modality(path: Path) -> str:
    """CT, MR, US, ...; an empty string if the file does not state it."""
    dataset = read_dataset(path, stop_before_pixels=True)
    return str(dataset.get("Modality") or "")


def is_hounsfield(path: Path) -> bool:
    """Whether a file has the modality CT; localizers and colour images do too, and are refused."""
    return dicom_modality(path) == "CT"


def read_dicom_picture(path: Path) -> Picture:
    """The stored numbers, before rescaling: frames are pages, and 0 is white in MONOCHROME1."""
    dataset, pixels = stored_pixels(path)
    kind = str(dataset.get("PhotometricInterpretation") or "MONOCHROME2")
    samples = int(dataset.get("SamplesPerPixel") or 1)
    if samples == 1 and kind not in GREY:
        raise ScanFileError(
            f"{path} stores colours as numbers of a palette ({kind}); write it again as RGB"
        )
    if samples not in (1, 3) or (samples == 3 and not kind.startswith(("RGB", "YBR"))):
        raise ScanFileError(
            f"{path} has {samples} samples for each pixel ({kind}); it needs 1 or 3"
        )
    metadata = {DATASET: dataset, WINDOW: _window(dataset, samples, pixels.dtype)}
    if samples == 1:
        stored = pixels.reshape(-1, *pixels.shape[-2:])
        return Picture(stored, inverted=kind == "MONOCHROME1", metadata=metadata)
    return from_channels_last(pixels, alpha=False, metadata=metadata)


def display_range(picture: Picture) -> Range:
    """Black and white in the numbers of a picture: its window, or the range of its pixels."""
    window: Range | None = picture.metadata[WINDOW]
    if window is not None:
        return window
    stored = picture.stored
    low, high = float(stored.min()), float(np.quantile(stored, 0.999))
    return (min(low, 0.0), high if high > min(low, 0.0) else low + 1.0)


def _window(dataset: Any, samples: int, dtype: np.dtype[Any]) -> Range | None:
    """The first display window in stored numbers, or all numbers of 8 bits."""
    centre, width = (_first(dataset.get(f"Window{name}")) for name in ("Center", "Width"))
    if centre is not None and width is not None and width > 1 and samples == 1:
        slope, intercept = _rescale(dataset)
        ends = sorted((centre + side * width / 2 - intercept) / slope for side in (-1, 1))
        return (ends[0], ends[1])
    return (0.0, 255.0) if dtype == np.uint8 else None


def _rescale(dataset: Any) -> tuple[float, float]:
    """Slope and intercept."""
    slope, intercept = (_first(dataset.get(f"Rescale{n}")) for n in ("Slope", "Intercept"))
    return slope or 1.0, intercept or 0.0


def write_dicom_picture(picture: Picture, path: Path, description: str) -> None:
    """A derived image like the source, with other pixels and new UIDs, atomically.

    Rescale, window, spacing and all elements about patient and study are copied from the source,
    but not private elements, which may contain anything.
    """
    pydicom = load_extra("pydicom", "DICOM files")
    source = picture.metadata[DATASET]
    data = copy.deepcopy(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values of the source that break DICOM's rules
        data.remove_private_tags()
    for name in ("PixelData", "FloatPixelData", "IconImageSequence"):
        if name in data:
            delattr(data, name)
    pixels = _integers(picture, data)
    now = datetime.datetime.now()
    data.SOPInstanceUID, data.SeriesInstanceUID = (
        pydicom.uid.generate_uid(prefix=None) for _ in range(2)
    )
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    kept = [str(part) for part in list(data.get("ImageType") or [])[2:]]
    data.ImageType = ["DERIVED", "SECONDARY", *kept]
    data.DerivationDescription = data.SeriesDescription = description
    data.InstanceCreationDate = now.strftime("%Y%m%d")
    data.InstanceCreationTime = now.strftime("%H%M%S")
    if "SOPClassUID" in source and "SOPInstanceUID" in source:
        origin = pydicom.Dataset()
        origin.ReferencedSOPClassUID = source.SOPClassUID
        origin.ReferencedSOPInstanceUID = source.SOPInstanceUID
        data.SourceImageSequence = [origin]
    data.BitsAllocated = 8 * pixels.dtype.itemsize
    data.BitsStored = min(int(data.get("BitsStored") or data.BitsAllocated), data.BitsAllocated)
    data.HighBit = data.BitsStored - 1
    if picture.channels == 3:
        data.PhotometricInterpretation, data.PlanarConfiguration = "RGB", 0
    data.PixelData = pixels.tobytes() + b"\0" * (pixels.nbytes % 2)
    data["PixelData"].VR = "OB" if data.BitsAllocated == 8 else "OW"
    with atomic_path(path) as part:
        data.save_as(part, enforce_file_format=True)


def _integers(picture: Picture, data: Any) -> np.ndarray[Any, Any]:
    """The stored numbers with frames first and colours last, within their bits."""
    pages = picture.stored.reshape(-1, picture.channels, *picture.stored.shape[-2:])
    pixels = np.moveaxis(pages, 1, -1)
    if pixels.dtype.kind == "f":
        raise ValueError("floating-point pixels of DICOM cannot be written; convert it to integers")
    bits = int(data.get("BitsStored") or 8 * pixels.dtype.itemsize)
    signed = pixels.dtype.kind == "i"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return np.ascontiguousarray(pixels.clip(low, high).astype(pixels.dtype.newbyteorder("<")))


def _first(value: Any) -> float | None:
    """The first number of an element, if it is finite."""
    if value in (None, ""):
        return None
    several = hasattr(value, "__iter__") and not isinstance(value, str)
    number = float(next(iter(value)) if several else value)
    return number if math.isfinite(number) else None
