"""Volumes of which a few planes are read at a time: HDF5 files, DICOM series, folders of pictures.

A folder is a volume if its files are its slices: a CT series in the order of its positions, other
DICOM images in that of their numbers, pictures in that of the numbers in their names.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from convexlift.files.formats import allowed_megapixels, load_extra
from convexlift.files.pictures import Picture, PictureFormat, read_picture
from convexlift.files.volume_stores import HDF5
from convexlift.files.zarr_volumes import Zarr
from convexlift.scans import isolated_hdf5
from convexlift.scans.dicom_pictures import is_hounsfield, read_dicom_picture
from convexlift.scans.dicom_reading import DICOM_SUFFIXES, read_dataset, series_headers
from convexlift.scans.files import ScanFileError, files_in, reading
from convexlift.scans.kspace import BYTES_A_SECOND, FIRST_SECONDS, SPARE_BYTES


def is_source(path: Path) -> bool:
    """Whether the name is that of an HDF5 file, or of a folder that is not a zarr store."""
    folder = path.is_dir() and path.suffix not in Zarr.suffixes
    return folder or path.suffix.lower() in HDF5


def is_series(path: Path) -> bool:
    """Whether the name is that of a folder with a CT series."""
    if not path.is_dir() or path.suffix in Zarr.suffixes:
        return False
    files = slice_files(path)
    return files[0].suffix.lower() in DICOM_SUFFIXES and is_hounsfield(files[0])


def count_planes(path: Path, max_megapixels: float | None = None) -> int:
    """How many planes there are."""
    if not path.is_dir():
        return int(np.prod(_slab(path, slice(0, 0), max_megapixels)[1][:-2]))
    if is_series(path):
        return len(series_headers(path, max_megapixels=max_megapixels))
    return len(slice_files(path))


def read_slab(path: Path, pages: slice, max_megapixels: float | None = None) -> Picture:
    """Some planes of an HDF5 file or of a folder; no others are read."""
    if not path.is_dir():
        planes = _slab(path, pages, max_megapixels)[0]
        return Picture(planes.astype(planes.dtype.newbyteorder("=")), layout=planes.shape)
    found: list[Picture] = []
    for file in slice_files(path)[pages]:
        dicom = file.suffix.lower() in DICOM_SUFFIXES
        picture = (
            read_dicom_picture(file, max_megapixels)
            if dicom
            else read_picture(file, max_megapixels=max_megapixels)
        )
        if len(picture.stored) != 1 or picture.alpha is not None:
            raise ScanFileError(f"{file} has colours or pages; the slices of a volume are grey")
        first = found[0] if found else picture
        alike = (picture.stored.shape, picture.stored.dtype, picture.inverted)
        if alike != (first.stored.shape, first.stored.dtype, first.inverted):
            raise ScanFileError(
                f"{file} is {_text(picture)}, and other slices are {_text(first)}; a volume needs "
                "slices of one size and type"
            )
        found.append(picture)
    stored = np.concatenate([picture.stored for picture in found])
    return Picture(stored, layout=stored.shape, inverted=found[0].inverted)


def _text(picture: Picture) -> str:
    height, width = picture.stored.shape[-2:]
    return f"{height} x {width} in {picture.stored.dtype}"


def slice_files(folder: Path) -> list[Path]:
    """The slices in a folder, in order."""
    return list(_slice_files(folder, folder.stat().st_mtime_ns))


@lru_cache(maxsize=4)
def _slice_files(folder: Path, changed: int) -> tuple[Path, ...]:
    def is_picture(file: Path) -> bool:
        kind = PictureFormat.of(file)
        return kind is not None and not kind.folder

    files = files_in(folder)
    if slices := [file for file in files if file.suffix.lower() in DICOM_SUFFIXES]:
        return tuple(sorted(slices, key=_number))
    if not (slices := [file for file in files if is_picture(file)]):
        raise ScanFileError(f"{folder} holds neither DICOM files nor pictures")
    return tuple(sorted(slices, key=lambda file: _natural(file.name)))


def _number(file: Path) -> tuple[int, list[tuple[int, str]]]:
    dataset = read_dataset(file, None, stop_before_pixels=True)
    return int(dataset.get("InstanceNumber") or 0), _natural(file.name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Such that slice-10 comes after slice-9."""
    return [(int(part), "") if part.isdecimal() else (-1, part)
            for part in re.split(r"(\d+)", name)]  # fmt: skip


def _slab(path: Path, pages: slice, max_megapixels: float | None) -> tuple[Any, tuple[int, ...]]:
    """Planes (n, H, W) of an HDF5 file, and the shape of the volume."""
    load_extra("h5py", "HDF5 files")
    with reading(path, "an HDF5 file with a volume"):
        length = path.stat().st_size
        megapixels = max_megapixels or allowed_megapixels(length, 1)
        arguments: dict[str, Any] = {
            "path": str(path.absolute()), "megapixels": megapixels,
            "pages": [pages.start, pages.stop, pages.step],
        }  # fmt: skip
        arrays, texts = isolated_hdf5.run_isolated(
            Path(isolated_hdf5.__file__), "read_slab", arguments,
            seconds=FIRST_SECONDS + length // BYTES_A_SECOND,
            extra_bytes=SPARE_BYTES + int(3 * 8e6 * megapixels),
        )  # fmt: skip
        return arrays["planes"], tuple(json.loads(texts["shape"]))
