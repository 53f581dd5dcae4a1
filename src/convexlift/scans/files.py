"""Volumes and sinograms in files, with the format chosen by file name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convexlift.scans.data_exchange import DataExchange as DataExchange
from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.formats import (
    AngleUnit,
    PathLike,
    ScanFileError,
    SinogramFormat,
    SinogramOptions,
    VolumeFormat,
    existing,
    files_in,
)
from convexlift.scans.sinogram_arrays import NpySinogram as NpySinogram
from convexlift.scans.sinogram_arrays import TiffSinogram as TiffSinogram
from convexlift.scans.sinograms import Sinogram
from convexlift.scans.stacks import StackFormat, read_stack
from convexlift.scans.volumes import Volume


class Dicom(VolumeFormat):
    """A slice, or a folder with the slices of one series."""

    name = "DICOM"
    suffixes = (".dcm", "")  # for writing; reading treats every other name as DICOM

    def read(self, place: Path, max_megapixels: float | None) -> Volume:
        """Read with ``read_dicom``."""
        return read_dicom(place, max_megapixels=max_megapixels)

    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write with ``write_dicom``."""
        return write_dicom(volume, place, description=description)


def read_volume(path: PathLike, *, max_megapixels: float | None = None) -> Volume:
    """Slices in HU from a DICOM, TIFF or PNG file, or from a folder of such files.

    ``read_dicom`` and ``read_stack`` have further options, for example for folders with several
    series, and for pictures without a pixel size. ``max_megapixels`` replaces the limits on the
    size that the header of a file may declare.
    """
    place = existing(path)
    names = files_in(place) if place.is_dir() else [place]
    formats = [VolumeFormat.of(name) or Dicom() for name in names] or [Dicom()]
    if all(isinstance(kind, StackFormat) for kind in formats):
        return read_stack(place, max_megapixels=max_megapixels)
    alike = len({type(kind) for kind in formats}) == 1
    return (formats[0] if alike else Dicom()).read(place, max_megapixels)


def write_volume(
    volume: Volume, path: PathLike, *, description: str = "Reconstructed image"
) -> tuple[Path, ...]:
    """Write a TIFF file, a 16-bit PNG file of one slice, or DICOM: a ``.dcm`` file, or a folder.

    Files and folders are written completely or not at all. TIFF keeps float32; DICOM and PNG round
    to 16 bits. ``write_dicom``, ``write_tiff`` and ``write_png`` have further options.

    Returns:
        The files, in the order of the slices.
    """
    place = Path(path)
    kind = VolumeFormat.of(place)
    if kind is None:
        endings = ", ".join(filter(None, VolumeFormat.known_suffixes()))
        raise ScanFileError(
            f"{place} does not name a volume; use one of the endings {endings}, or a folder"
        )
    return kind.write(volume, place, description)


def read_sinogram(
    path: PathLike,
    *,
    rows: slice | None = None,
    angles: Sequence[float] | None = None,
    angle_unit: AngleUnit | None = None,
    max_megapixels: float | None = None,
    read_seconds: float | None = None,
) -> Sinogram:
    """Projections and geometry from HDF5 (Data Exchange), or NPY or TIFF with a JSON file.

    Args:
        path: the file.
        rows: of the detector, for example ``slice(500, 510)``; files may be larger than memory.
        angles: in radians, replacing the angles in an HDF5 file.
        angle_unit: of the angles in an HDF5 file that does not state it.
        max_megapixels: replaces the limits on the size that the header of a file may declare.
        read_seconds: limit for an HDF5 file, which is read in a separate process, since a damaged
            one can keep the HDF5 library busy forever. By default 20 s plus 1 s for every 10 MB.

    Raises:
        ScanFileError: naming the file, and what to do.
    """
    options = SinogramOptions(
        slice(None) if rows is None else rows,
        None if angles is None else tuple(angles),
        angle_unit,
        max_megapixels,
        read_seconds,
    )
    place = existing(path)
    kind = SinogramFormat.of(place)
    if kind is None:
        endings = ", ".join(SinogramFormat.known_suffixes())
        raise ScanFileError(f"{place} is not a sinogram: its name must end in one of {endings}")
    return kind.read(place, options)


def write_sinogram(sinogram: Sinogram, path: PathLike) -> Path:
    """Write HDF5 in the Data Exchange layout, or NPY with a JSON file, chosen by the name."""
    place = Path(path)
    kind = SinogramFormat.of(place)
    if kind is None:
        raise ScanFileError(f"{place} does not name a sinogram; use the ending .h5 or .npy")
    kind.write(sinogram, place)
    return place
