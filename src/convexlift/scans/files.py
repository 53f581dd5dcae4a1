"""Volumes and sinograms in files: the format is chosen by the file name, errors begin with it."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.files.formats import FileFormat, reason_of
from convexlift.option_values import AngleUnit as AngleUnit
from convexlift.scans.sinograms import EvenViews, Quantity, Sinogram
from convexlift.scans.volumes import Volume

PathLike = str | os.PathLike[str]


class ScanFileError(ValueError):
    """A file that cannot be read or written as requested; the message begins with its name."""


class VolumeFormat(FileFormat):
    """Slices in HU: a file, or a folder with files of one format.

    Attributes:
        pictures: whether ``read_stack`` reads the format.
    """

    pictures: ClassVar[bool] = False

    @abstractmethod
    def read(self, place: Path) -> Volume:
        """The volume of a file or a folder."""

    @abstractmethod
    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write a file or folder, completely or not at all; returns the files in slice order."""


def read_volume(path: PathLike) -> Volume:
    """Slices in HU from a DICOM, TIFF or PNG file, or from a folder of such files.

    ``read_dicom`` and ``read_stack`` have further options, for example for folders with several
    series, and for pictures without a pixel size.
    """
    place = existing(path)
    dicom = VolumeFormat.of(Path("slice.dcm"))
    assert dicom is not None
    # Scanners use all kinds of endings, or none: every unknown ending is read as DICOM.
    names = files_in(place) if place.is_dir() else [place]
    formats = [VolumeFormat.of(name) or dicom for name in names] or [dicom]
    alike = len({type(each) for each in formats}) == 1 or all(each.pictures for each in formats)
    return (formats[0] if alike else dicom).read(place)


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


@dataclass(frozen=True)
class SinogramOptions:
    """The options of ``read_sinogram``, checked."""

    rows: slice = field(default_factory=lambda: slice(None))
    angles: tuple[float, ...] | None = None
    angle_unit: AngleUnit | None = None
    views: EvenViews | None = None
    quantity: Quantity | None = None

    def __post_init__(self) -> None:
        if self.angle_unit not in (None, "degrees", "radians"):
            raise ValueError(f"angle_unit must be 'degrees' or 'radians', got {self.angle_unit!r}")


class SinogramFormat(FileFormat):
    """Projections and their geometry."""

    @abstractmethod
    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The sinogram of a file."""

    def write(self, sinogram: Sinogram, path: Path) -> None:
        """Write the sinogram completely, or not at all."""
        raise ScanFileError(f"{path} does not name a sinogram; use the ending .h5 or .npy")


def read_sinogram(
    path: PathLike,
    *,
    rows: slice | None = None,
    angles: Sequence[float] | None = None,
    angle_unit: AngleUnit | None = None,
    views: EvenViews | None = None,
    quantity: Quantity | None = None,
) -> Sinogram:
    """Projections and geometry from HDF5 (Data Exchange), or NPY or TIFF with a JSON file.

    Args:
        path: the file.
        rows: detector rows, for example ``slice(500, 510)``; files may be larger than memory.
        angles: angles in radians, replacing those in an HDF5 file.
        angle_unit: the unit of the angles in an HDF5 file that does not state it.
        views: replace the geometry in the file, or the JSON file beside an array.
        quantity: the meaning of the numbers, in place of the one that the file states.

    Raises:
        ScanFileError: naming the file, the fault and a remedy.
    """
    given = None if angles is None else tuple(angles)
    options = SinogramOptions(rows or slice(None), given, angle_unit, views, quantity)
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


def existing(path: PathLike) -> Path:
    """The path, which must exist."""
    found = Path(path)
    if not found.exists():
        raise ScanFileError(f"{found}: there is no such file or folder")
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Prefix all errors inside with the file: decoders of damaged files raise nearly every type."""
    try:
        yield
    except (ImportError, ScanFileError):
        raise
    except Exception as error:
        raise ScanFileError(f"{path} cannot be read as {kind}: {reason_of(error)}") from error


def files_in(folder: Path) -> list[Path]:
    """The files of a folder in natural order: ``slice2`` comes before ``slice10``."""

    def counted(path: Path) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", path.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    files = (path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    return sorted(files, key=counted)


def write_slices(
    place: Path, count: int, suffixes: Sequence[str], save: Callable[[Path, int], object]
) -> tuple[Path, ...]:
    """Write one file if the name has one of the endings, else a folder of ``0001.dcm``, etc.

    ``save`` writes slice k to a path. A file takes one slice; a folder must be new or empty, and
    its files have the first of the endings.
    """
    if place.suffix.lower() in suffixes:
        if count > 1:
            raise ScanFileError(f"{place} takes one slice, not {count}; write to a folder")
        with atomic_path(place) as part:
            save(part, 0)
        return (place,)
    # Slices already in a folder would be mixed with the new ones.
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ScanFileError(f"{place} already exists; write to a new or an empty folder")
    remove_leftovers([place])
    digits = max(4, len(str(count)))
    names = [f"{number:0{digits}d}{suffixes[0]}" for number in range(1, count + 1)]
    with atomic_path(place, folder=True) as part:
        for k, name in enumerate(names):
            save(part / name, k)
    return tuple(place / name for name in names)
