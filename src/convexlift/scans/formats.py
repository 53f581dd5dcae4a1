"""Formats of volumes and sinograms, errors that name the file, and folders of slices."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.files.formats import FileFormat
from convexlift.files.limits import reason_of, require_limit
from convexlift.option_values import AngleUnit as AngleUnit
from convexlift.scans.sinograms import Sinogram
from convexlift.scans.volumes import Volume

PathLike = str | os.PathLike[str]


class ScanFileError(ValueError):
    """A file that cannot be read or written as requested; the message begins with its name."""


class VolumeFormat(FileFormat):
    """Slices in HU: a file, or a folder with files of one format."""

    @abstractmethod
    def read(self, place: Path, max_megapixels: float | None) -> Volume:
        """The volume of a file or a folder."""

    @abstractmethod
    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write a file or folder, completely or not at all; returns the files in slice order."""


@dataclass(frozen=True)
class SinogramOptions:
    """The options of ``read_sinogram``, checked."""

    rows: slice = field(default_factory=lambda: slice(None))
    angles: tuple[float, ...] | None = None
    angle_unit: AngleUnit | None = None
    max_megapixels: float | None = None
    read_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.angle_unit not in (None, "degrees", "radians"):
            raise ValueError(f"angle_unit must be 'degrees' or 'radians', got {self.angle_unit!r}")
        require_limit("max_megapixels", self.max_megapixels)
        require_limit("read_seconds", self.read_seconds)


class SinogramFormat(FileFormat):
    """Projections and their geometry."""

    @abstractmethod
    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The sinogram of a file."""

    def write(self, sinogram: Sinogram, path: Path) -> None:
        """Write the sinogram completely, or not at all."""
        raise ScanFileError(f"{path} does not name a sinogram; use the ending .h5 or .npy")


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
    files = (path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    return sorted(files, key=_counted)


def _counted(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def write_slices(
    place: Path, count: int, suffix: str, save: Callable[[Path, int], object]
) -> tuple[Path, ...]:
    """Write one file if the name ends in ``suffix``, else a new folder of ``0001.dcm``, etc.

    Args:
        place: the file, or a folder that is new or empty.
        count: the number of slices, 1 for a file.
        suffix: of the files.
        save: writes slice k to a path.
    """
    if place.suffix.lower() == suffix:
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
    names = [f"{number:0{digits}d}{suffix}" for number in range(1, count + 1)]
    with atomic_path(place, folder=True) as part:
        for k, name in enumerate(names):
            save(part / name, k)
    return tuple(place / name for name in names)
