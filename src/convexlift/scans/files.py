"""Volumes in files, by the names of the files."""

from __future__ import annotations

from pathlib import Path

from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.errors import PathLike, ScanFileError, existing
from convexlift.scans.folders import files_in
from convexlift.scans.pictures import write_png, write_tiff
from convexlift.scans.stacks import PNG, TIFF, read_stack
from convexlift.scans.volumes import Volume


def read_volume(path: PathLike) -> Volume:
    """Slices in HU from a DICOM, TIFF or PNG file, or from a folder of such files.

    ``read_dicom`` and ``read_stack`` do the same and have options, for example for folders with
    several series, and for pictures that do not say how large their pixels are.
    """
    place = existing(path)
    names = files_in(place) if place.is_dir() else [place]
    pictures = [name for name in names if name.suffix.lower() in TIFF + PNG]
    return read_stack(place) if names and len(pictures) == len(names) else read_dicom(place)


def write_volume(
    volume: Volume, path: PathLike, *, description: str = "Reconstructed image"
) -> tuple[Path, ...]:
    """A TIFF file, a 16-bit PNG file of one slice, or DICOM: a ``.dcm`` file, or a folder.

    Whole files and folders appear at once, or not at all. TIFF keeps float32; DICOM and PNG round
    to 16 bits. ``write_dicom``, ``write_tiff`` and ``write_png`` have what each of them can do.

    Returns:
        The files, in the order of the slices.
    """
    place = Path(path)
    suffix = place.suffix.lower()
    if suffix in TIFF:
        return (write_tiff(volume, place),)
    if suffix in PNG:
        return write_png(volume, place, bits=16)
    if suffix in ("", ".dcm"):
        return write_dicom(volume, place, description=description)
    raise ScanFileError(
        f"{place} is no name for a volume; let it end in .tif, .png or .dcm, or write to a folder"
    )
