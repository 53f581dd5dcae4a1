"""Files that hold a volume (..., H, W) and are written a few planes at a time.

Zarr stores are folders of chunks. TIFF stacks, HDF5 and NPY files hold all planes one after the
other, uncompressed, after a header that is written first: plane k begins at

    offset + k H W (bytes of a number),

so that processes write their planes without the library of the format, and without disturbing each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files import zarr_volumes
from convexlift.files.formats import load_extra
from convexlift.files.zarr_volumes import VolumeLayout, Zarr, is_zarr

HDF5 = (".h5", ".hdf5")
TIFF = (".tif", ".tiff")
STORES = (*Zarr.suffixes, *HDF5, *TIFF, ".npy")
"""Endings of file names."""
DATA = "data"
"""The name of the volume in HDF5 files."""
LARGE = 2**31
"""The size in bytes from which TIFF files need 64-bit offsets."""


def storable(path: Path, layout: VolumeLayout) -> VolumeLayout:
    """The layout with the type that the file holds: booleans are bytes, except in zarr stores."""
    if layout.dtype.kind != "b" or is_zarr(path):
        return layout
    return replace(layout, dtype=np.dtype(np.uint8))


def create_store(path: Path, layout: VolumeLayout) -> None:
    """Create an empty volume; no file or folder may have this name."""
    layout = storable(path, layout)
    kind = path.suffix.lower()
    if is_zarr(path):
        zarr_volumes.create_volume(path, layout)
        return
    if path.exists():
        raise FileExistsError(17, "it exists", str(path))
    make = _make_hdf5 if kind in HDF5 else _make_tiff if kind in TIFF else _make_npy
    make(path, layout)


def _make_npy(path: Path, layout: VolumeLayout) -> None:
    np.lib.format.open_memmap(path, "w+", layout.dtype, layout.shape)


def _make_tiff(path: Path, layout: VolumeLayout) -> None:
    tifffile = load_extra("tifffile", "TIFF files", "cli")
    shape = (layout.planes, *layout.shape[-2:])
    size = math.prod(shape) * layout.dtype.itemsize
    *_, height, width = layout.scale or (0.0, 0.0)
    millimetres = height > 0 and width > 0 and _unit(layout) == "millimeter"
    extra: dict[str, Any] = {}
    if millimetres:
        extra = {"resolution": (10 / width, 10 / height), "resolutionunit": "CENTIMETER"}
    tifffile.memmap(
        path, shape=shape, dtype=layout.dtype, bigtiff=size >= LARGE, photometric="minisblack",
        metadata=None, **extra,
    )  # fmt: skip


def _make_hdf5(path: Path, layout: VolumeLayout) -> None:
    h5py = load_extra("h5py", "HDF5 files")
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(layout.shape)
        kind = h5py.h5t.py_create(layout.dtype)
        made = h5py.h5d.create(file.id, DATA.encode(), kind, space, dcpl=creation)
        attributes = h5py.Dataset(made).attrs
        if layout.scale:
            attributes["scale"] = layout.scale
            attributes["axes"] = [axis.get("name", "") for axis in layout.axes]
            attributes["unit"] = _unit(layout)


def _unit(layout: VolumeLayout) -> str:
    return layout.axes[-1].get("unit", "") if layout.axes else ""


def store_layout(path: Path) -> VolumeLayout:
    """Shape and type of a volume that this module can write to; ValueError for others."""
    if is_zarr(path):
        return Zarr().layout(path)
    _, shape, dtype = _located(path)
    return VolumeLayout(shape, dtype, (1,) * len(shape[:-2]) + shape[-2:])


def write_planes(path: Path, first: int, values: NDArray[Any]) -> None:
    """Write planes (n, H, W) from number ``first`` on, rounded and clipped for integer types."""
    if is_zarr(path):
        zarr_volumes.write_planes(path, first, values)
        return
    offset, shape, dtype = _located(path)
    planes = zarr_volumes.in_type(values, dtype)
    with path.open("r+b") as file:
        file.seek(offset + first * _plane_bytes(shape, dtype))
        file.write(np.ascontiguousarray(planes).tobytes())


def read_planes(path: Path, first: int, end: int) -> NDArray[Any]:
    """Stored planes (n, H, W)."""
    if is_zarr(path):
        return Zarr().read_pages(path, slice(first, end), None).stored
    offset, shape, dtype = _located(path)
    count = (end - first) * math.prod(shape[-2:])
    with path.open("rb") as file:
        file.seek(offset + first * _plane_bytes(shape, dtype))
        return np.fromfile(file, dtype, count).reshape(-1, *shape[-2:])


def _plane_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return math.prod(shape[-2:]) * dtype.itemsize


def _located(path: Path) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """The position of the first plane, the shape and the type of the numbers."""
    kind, offset = path.suffix.lower(), None
    if kind == ".npy":
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if mapped.flags["C_CONTIGUOUS"]:
            return int(mapped.offset), mapped.shape, mapped.dtype
    elif kind in TIFF:
        tifffile = load_extra("tifffile", "TIFF files", "cli")
        with tifffile.TiffFile(path) as file:
            series = file.series[0]
            offset, shape, dtype = series.dataoffset, series.shape, series.dtype
            native = np.dtype(dtype).newbyteorder(file.byteorder)
            shape = (*(1,) * (3 - len(shape)), *shape)
    else:
        h5py = load_extra("h5py", "HDF5 files")
        with h5py.File(path, "r") as file:
            dataset = file[DATA]
            offset, shape, native = dataset.id.get_offset(), dataset.shape, dataset.dtype
    if offset is None:
        raise ValueError("its planes are not stored one after the other, uncompressed")
    return offset, tuple(shape), np.dtype(native)
