"""DICOM files as pydicom's datasets, if they say how they are written and are not too large."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from convexlift.files.bounded import BoundedReader
from convexlift.files.limits import allowed_megapixels
from convexlift.scans.errors import ScanFileError, load_extra, reading

_META_GROUP = 2
_DEFLATED = "1.2.840.10008.1.2.1.99"


def read_dataset(
    path: Path, max_megapixels: float | None = None, *, stop_before_pixels: bool = False
) -> Any:
    """The elements of a file; errors open with its name."""
    pydicom = load_extra("pydicom", "DICOM files")
    with reading(path, "a DICOM file"), BoundedReader(path) as file:
        syntax = _transfer_syntax(pydicom, file)
        if not syntax or not pydicom.uid.UID(syntax).is_transfer_syntax:
            raise ScanFileError(
                f"{path} does not say how its pixels are stored (its TransferSyntaxUID is "
                f"{syntax or 'missing'}); write it again with the program it comes from"
            )
        if syntax == _DEFLATED:
            _require_small(path, file.read(), max_megapixels)
        file.seek(0)
        dataset = pydicom.dcmread(file, stop_before_pixels=stop_before_pixels)
        _require_decodable(dataset)
        return dataset


def _transfer_syntax(pydicom: Any, file: BoundedReader) -> str:
    """The UID, or an empty text; the file is then where its meta information ends."""
    pydicom.filereader.read_preamble(file, force=False)
    meta = pydicom.filereader.read_dataset(
        file,
        is_implicit_VR=False,
        is_little_endian=True,
        stop_when=lambda tag, kind, length: tag >> 16 != _META_GROUP,
    )
    syntax = meta.get("TransferSyntaxUID")
    return syntax if isinstance(syntax, str) else ""


def _require_small(path: Path, packed: bytes, max_megapixels: float | None) -> None:
    """Raise if a deflated file becomes larger than pixels may be: pydicom inflates it whole."""
    most = 8e6 * (max_megapixels or allowed_megapixels(len(packed), 1))
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest, size = packed, 0
    while rest and not inflater.eof:
        size += len(inflater.decompress(rest, 2**20))
        rest = inflater.unconsumed_tail
        if size > most:
            raise ScanFileError(
                f"{path} inflates to more than {most / 1e6:.4g} MB; if that is no mistake, allow "
                "it with --max-megapixels 1000 (max_megapixels= in Python)"
            )


def _require_decodable(dataset: Any) -> None:
    """Raise if a public element is damaged: values are parsed when they are asked for."""
    for tag in list(dataset.keys()):
        if not tag.is_private:
            dataset[tag]
