"""Volumes and sinograms in files, by the names of the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convexlift.scans.data_exchange import AngleUnit, read_exchange, write_exchange
from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.errors import PathLike, ScanFileError, existing
from convexlift.scans.folders import files_in
from convexlift.scans.pictures import write_png, write_tiff
from convexlift.scans.sinogram_arrays import read_arrays, write_arrays
from convexlift.scans.sinograms import Sinogram
from convexlift.scans.stacks import PNG, TIFF, read_stack
from convexlift.scans.volumes import Volume

HDF5 = (".h5", ".hdf5", ".hdf", ".nxs")
NPY = (".npy",)


def read_volume(path: PathLike, *, max_megapixels: float | None = None) -> Volume:
    """Slices in HU from a DICOM, TIFF or PNG file, or from a folder of such files.

    ``read_dicom`` and ``read_stack`` do the same and have options, for example for folders with
    several series, and for pictures that do not say how large their pixels are. ``max_megapixels``
    replaces the limits on the size that the header of a file may declare.
    """
    place = existing(path)
    names = files_in(place) if place.is_dir() else [place]
    pictures = [name for name in names if name.suffix.lower() in TIFF + PNG]
    if names and len(pictures) == len(names):
        return read_stack(place, max_megapixels=max_megapixels)
    return read_dicom(place, max_megapixels=max_megapixels)


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


def read_sinogram(
    path: PathLike,
    *,
    rows: slice | None = None,
    angles: Sequence[float] | None = None,
    angle_unit: AngleUnit | None = None,
    max_megapixels: float | None = None,
    read_seconds: float | None = None,
) -> Sinogram:
    """Projections and their geometry from HDF5 (Data Exchange), or NPY or TIFF with JSON beside it.

    Args:
        path: of the file.
        rows: of the detector, for example ``slice(500, 510)``; files may be larger than memory.
        angles: in radians, in place of those of an HDF5 file.
        angle_unit: of the angles of an HDF5 file that does not say it.
        max_megapixels: replaces the limits on the size that the header of a file may declare.
        read_seconds: for an HDF5 file, which is read in a process of its own: a damaged one can
            keep the HDF5 library busy for ever. By default 20 s, and one more for every 10 MB.

    Raises:
        ScanFileError: naming the file, and what to do.
    """
    place = existing(path)
    some = slice(None) if rows is None else rows
    if place.suffix.lower() in HDF5:
        return read_exchange(
            place, some, angles, angle_unit,
            max_megapixels=max_megapixels, read_seconds=read_seconds,
        )  # fmt: skip
    if place.suffix.lower() in NPY + TIFF:
        if angles is not None or angle_unit is not None:
            raise ValueError(f"the angles of {place} are in {place.with_suffix('.json').name}")
        return read_arrays(place, some, max_megapixels)
    raise ScanFileError(f"{place} is no sinogram: its name ends in none of {HDF5 + NPY + TIFF}")


def write_sinogram(sinogram: Sinogram, path: PathLike) -> Path:
    """HDF5 in the layout Data Exchange, or NPY with a JSON file beside it, by the name."""
    place = Path(path)
    if place.suffix.lower() in HDF5:
        write_exchange(sinogram, place)
    elif place.suffix.lower() in NPY:
        write_arrays(sinogram, place)
    else:
        raise ScanFileError(f"{place} is no name for a sinogram; let it end in .h5 or .npy")
    return place
