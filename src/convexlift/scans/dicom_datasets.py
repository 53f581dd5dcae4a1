"""DICOM files as pydicom's datasets, if they say how they are written and are not too large."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from convexlift.read_limits import allowed_megapixels
from convexlift.scans.errors import ScanFileError, load_extra, reading

_DEFLATED = "1.2.840.10008.1.2.1.99"
_META_START = 132 + 12  # preamble and mark, then the element that has the length of the rest


def read_dataset(
    path: Path, max_megapixels: float | None = None, *, stop_before_pixels: bool = False
) -> Any:
    """The elements of a file; errors open with its name."""
    pydicom = load_extra("pydicom", "DICOM files")
    with reading(path, "a DICOM file"):
        meta = pydicom.filereader.read_file_meta_info(path)
        syntax = meta.get("TransferSyntaxUID")
        if not isinstance(syntax, str) or not pydicom.uid.UID(syntax).is_transfer_syntax:
            raise ScanFileError(
                f"{path} does not say how its pixels are stored (TransferSyntaxUID is "
                f"{'missing' if not syntax else 'unknown'}); write it again with the program it "
                "comes from"
            )
        if syntax == _DEFLATED:
            _require_small(path, int(meta.FileMetaInformationGroupLength), max_megapixels)
        return pydicom.dcmread(path, stop_before_pixels=stop_before_pixels)


def _require_small(path: Path, meta_length: int, max_megapixels: float | None) -> None:
    """Raise if a deflated file becomes larger than pixels may be: pydicom inflates it whole."""
    data = path.read_bytes()
    most = 8e6 * (max_megapixels or allowed_megapixels(len(data), 1))
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest = data[_META_START + meta_length :]
    size = 0
    while rest and not inflater.eof:
        size += len(inflater.decompress(rest, 2**20))
        rest = inflater.unconsumed_tail
        if size > most:
            raise ScanFileError(
                f"{path} inflates to more than {most / 1e6:.4g} MB; if that is no mistake, allow "
                "it with --max-megapixels 1000 (max_megapixels= in Python)"
            )
