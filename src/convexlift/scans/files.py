"""Volumes in files, by the names of the files."""

from __future__ import annotations

from pathlib import Path

from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.errors import PathLike, ScanFileError, existing
from convexlift.scans.volumes import Volume


def read_volume(path: PathLike) -> Volume:
    """Slices in HU from a DICOM file, or from a folder of such files.

    ``read_dicom`` does the same and has options, for example for folders with several series.
    """
    return read_dicom(existing(path))


def write_volume(
    volume: Volume, path: PathLike, *, description: str = "Reconstructed image"
) -> tuple[Path, ...]:
    """DICOM: a ``.dcm`` file, or a folder.

    Whole files and folders appear at once, or not at all.

    Returns:
        The files, in the order of the slices.
    """
    place = Path(path)
    if place.suffix.lower() in ("", ".dcm"):
        return write_dicom(volume, place, description=description)
    raise ScanFileError(
        f"{place} is no name for a volume; let it end in .dcm, or write to a folder"
    )
