"""Volumes read a few planes at a time: HDF5 files, DICOM series, folders of pictures.

A folder is a volume if its files are its slices: a CT series ordered by its positions, other DICOM
images by their numbers, pictures by the numbers in their names.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from convexlift.files.formats import load_extra, state_of
from convexlift.files.pictures import Picture, PictureFormat, count_pages, read_picture
from convexlift.files.volume_stores import HDF5
from convexlift.files.zarr_volumes import is_zarr
from convexlift.scans.dicom_pictures import WINDOW, in_units, is_hounsfield, read_dicom_picture
from convexlift.scans.dicom_reading import (
    DICOM_SUFFIXES,
    may_be_slice,
    read_dataset,
    series_headers,
)
from convexlift.scans.files import ScanFileError, files_in, read_isolated, reading


def is_source(path: Path) -> bool:
    """Whether the path is an HDF5 file, or a folder that is not a zarr store."""
    folder = path.is_dir() and not is_zarr(path)
    return folder or path.suffix.lower() in HDF5


def is_series(path: Path) -> bool:
    """Whether the path is a folder with a CT series."""
    if not path.is_dir() or is_zarr(path):
        return False
    files = slice_files(path)
    return may_be_slice(files[0]) and is_hounsfield(files[0])


def count_planes(path: Path, max_megapixels: float | None = None) -> int:
    """The number of planes of a volume, or of a picture file."""
    if not is_source(path):
        return count_pages(path, max_megapixels=max_megapixels)
    if not path.is_dir():
        return int(np.prod(_slab(path, slice(0, 0), max_megapixels)[1][:-2]))
    if is_series(path):
        return len(series_headers(path, max_megapixels=max_megapixels))
    return len(slice_files(path))


def read_slab(path: Path, pages: slice, max_megapixels: float | None = None) -> Picture:
    """Some planes of an HDF5 file or a folder; no others are read."""
    if not path.is_dir():
        planes = _slab(path, pages, max_megapixels)[0]
        return Picture(planes.astype(planes.dtype.newbyteorder("=")), layout=planes.shape)
    found: list[Picture] = []
    chosen = slice_files(path)[pages]
    if not chosen:
        raise ScanFileError(f"{path} has {len(slice_files(path))} slices, and none of these")
    for file in chosen:
        picture = (
            in_units(read_dicom_picture(file, max_megapixels))
            if may_be_slice(file)
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
    metadata = {}
    if WINDOW in found[0].metadata:  # scanners may choose one for each slice
        known = [window for each in found if (window := each.metadata[WINDOW]) is not None]
        wide = (min(low for low, _ in known), max(high for _, high in known)) if known else None
        metadata[WINDOW] = wide
    return Picture(stored, layout=stored.shape, inverted=found[0].inverted, metadata=metadata)


def _text(picture: Picture) -> str:
    height, width = picture.stored.shape[-2:]
    return f"{height} x {width} in {picture.stored.dtype}"


def slice_files(folder: Path) -> list[Path]:
    """The slices in a folder, in order."""
    return list(_slice_files(folder, state_of(folder)))


@lru_cache(maxsize=4)
def _slice_files(folder: Path, state: object) -> tuple[Path, ...]:
    def is_picture(file: Path) -> bool:
        kind = PictureFormat.of(file)
        return kind is not None and not kind.folder

    files = files_in(folder)  # slice-10 comes after slice-9
    pictures = [file for file in files if is_picture(file)]
    slices = [file for file in files if may_be_slice(file)]
    # Beside pictures, a file without an ending is more likely a note than a slice.
    if slices and (not pictures or any(file.suffix.lower() in DICOM_SUFFIXES for file in slices)):
        return tuple(sorted(slices, key=_number))
    if not pictures:
        raise ScanFileError(f"{folder} holds neither DICOM files nor pictures")
    return tuple(pictures)


def _number(file: Path) -> int:
    dataset = read_dataset(file, None, stop_before_pixels=True)
    return int(dataset.get("InstanceNumber") or 0)


def _slab(path: Path, pages: slice, max_megapixels: float | None) -> tuple[Any, tuple[int, ...]]:
    """Planes (n, H, W) of an HDF5 file, and the shape of the volume."""
    load_extra("h5py", "HDF5 files")
    with reading(path, "an HDF5 file with a volume"):
        arrays, texts = read_isolated(path, "read_slab", max_megapixels, pages=pages)
        return arrays["planes"], tuple(json.loads(texts["shape"]))
