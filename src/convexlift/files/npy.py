"""NPY files: arrays (H, W), colours (H, W, 3 or 4), or stacks of planes (..., H, W)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.formats import require_plausible
from convexlift.files.pictures import Picture, PictureFormat, from_channels_last


class Npy(PictureFormat):
    """Arrays (H, W), colours (H, W, 3 or 4), or stacks of planes (..., H, W)."""

    name = "NPY"
    suffixes = (".npy",)
    marks = (b"\x93NUMPY",)
    holds_nan = True

    def read(self, path: Path) -> Picture:
        """The array as planes."""
        array = read_npy(path)
        if array.ndim < 2 or array.size == 0:
            raise ValueError(f"it has the shape {array.shape}; write (H, W), or (..., H, W)")
        array = array.astype(array.dtype.newbyteorder("="))
        # (3, H, 3) could be either; planes first is the convention of this library.
        if array.ndim == 3 and array.shape[-1] in (3, 4) and array.shape[0] not in (1, 3, 4):
            return from_channels_last(array, array.shape[-1] == 4, layout=array.shape)
        return Picture(array.reshape(-1, *array.shape[-2:]), layout=array.shape)

    def write(self, picture: Picture, path: Path) -> None:
        """An array in the layout it was read in."""
        with path.open("wb") as file:
            np.save(file, picture.as_array(), allow_pickle=False)

    def read_pages(self, path: Path, pages: slice) -> Picture:
        """Some of the planes of (..., H, W)."""
        stored = self._mapped(path)[pages]
        require_plausible(path, stored.shape, stored.itemsize)
        stored = stored.astype(stored.dtype.newbyteorder("="))
        return Picture(stored, layout=stored.shape)

    def pages(self, path: Path) -> int:
        """The number of planes, from the header."""
        return len(self._mapped(path))

    def _mapped(self, path: Path) -> NDArray[Any]:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array.reshape(-1, *array.shape[-2:])

    def read_plane(self, path: Path) -> NDArray[Any]:
        """The array itself, which must be a single plane."""
        return read_npy(path)


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an NPY file."""
    with path.open("rb") as file:
        # The header is read first: NumPy would allocate any size that it declares.
        shape, dtype = _npy_header(file)
        if dtype.hasobject:
            raise ValueError(
                "the array holds Python objects, which are not loaded; write numbers of one type, "
                "such as np.save(path, np.asarray(image, dtype=np.float32))"
            )
        needed, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if needed > held:
            raise ValueError(
                f"its header declares {dtype} of shape {shape}, {needed} bytes, but {held} follow; "
                "copy it again"
            )
        if math.prod(shape):
            require_plausible(path, shape, dtype.itemsize)
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array in the file."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"its format version is {version}; save numbers of one type with np.save")
    return shape, dtype
