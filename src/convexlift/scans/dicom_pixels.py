"""The stored pixels of a DICOM file, decompressed by what is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.decoding_errors import reason_of
from convexlift.files.limits import EXPANSION, require_plausible
from convexlift.scans.dicom_datasets import read_dataset
from convexlift.scans.errors import ScanFileError, load_extra, reading

_JPEG, _JPEG_LS = "pylibjpeg pylibjpeg-libjpeg", "pyjpegls"
_JPEG_2000 = "pylibjpeg pylibjpeg-openjpeg"
_SYNTAX = "1.2.840.10008.1.2."
PACKAGES = {
    **dict.fromkeys((_SYNTAX + end for end in ("4.50", "4.51", "4.57", "4.70")), _JPEG),
    **dict.fromkeys((_SYNTAX + end for end in ("4.80", "4.81")), _JPEG_LS),
    **dict.fromkeys(
        (_SYNTAX + end for end in ("4.90", "4.91", "4.201", "4.202", "4.203")), _JPEG_2000
    ),
}
"""What pip installs for each compressed transfer syntax."""


def stored_pixels(path: Path, max_megapixels: float | None = None) -> NDArray[Any]:
    """The numbers of one slice as they are stored, (H, W), before they are rescaled."""
    dataset = read_dataset(path, max_megapixels)
    if "PixelData" not in dataset and "FloatPixelData" not in dataset:
        raise ScanFileError(f"{path} ends before its pixels, or never had any; copy it again")
    syntax = dataset.file_meta.TransferSyntaxUID
    with reading(path, "a CT slice"):
        expected = (int(dataset.Rows), int(dataset.Columns))
        bits = int(dataset.get("BitsAllocated") or 16)
        require_plausible(
            path,
            (*expected, int(dataset.get("SamplesPerPixel") or 1)),
            max(bits, 1) / 8,
            max_megapixels,
            EXPANSION if syntax.is_compressed else 1.0,
        )
    try:
        pixels = np.asarray(dataset.pixel_array)
    except Exception as error:  # whatever a decoder raises
        raise ScanFileError(f"{path} {_advice(syntax)}: {reason_of(error)}") from error
    if pixels.shape != expected:
        raise ScanFileError(f"{path} holds pixels {pixels.shape}, its header says {expected}")
    return pixels


def _advice(syntax: Any) -> str:
    """What to do about pixels that could not be decoded."""
    if not syntax.is_compressed:
        return "cannot be decoded, it may be cut short or damaged; copy it again"
    package = PACKAGES.get(str(syntax))
    try:
        decoder = load_extra("pydicom.pixels", "DICOM files").get_decoder(syntax)
    except NotImplementedError:
        return f"is compressed as {syntax.name}, which nothing here decodes; decompress it first"
    if package is None or not decoder.missing_dependencies:
        return f"is compressed as {syntax.name} and cannot be decoded, it may be damaged"
    if decoder.is_available:
        return (
            f"is compressed as {syntax.name} and {', '.join(decoder.available_plugins)} cannot "
            f"decode it: it is damaged, or needs pip install {package}"
        )
    return f"is compressed as {syntax.name} and needs a codec, pip install {package}"
