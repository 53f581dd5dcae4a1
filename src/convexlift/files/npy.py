"""Arrays in NPY files: nothing is executed, and headers are compared with the file's length."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.formats import Picture, PictureFormat, from_channels_last
from convexlift.files.limits import require_plausible


class Npy(PictureFormat):
    """Arrays (H, W), colours (H, W, 3 or 4), or stacks of planes (..., H, W)."""

    name = "NPY"
    suffixes = (".npy",)
    marks = (b"\x93NUMPY",)
    holds_nan = True

    def read(self, path: Path, max_megapixels: float | None) -> Picture:
        """The array as planes."""
        array = read_npy(path, max_megapixels)
        if array.ndim < 2 or array.size == 0:
            raise ValueError(f"it has the shape {array.shape}; write (H, W), or more of them")
        array = array.astype(array.dtype.newbyteorder("="))
        if array.ndim == 3 and array.shape[-1] in (3, 4) and array.shape[0] not in (1, 3, 4):
            return from_channels_last(array, array.shape[-1] == 4, layout=array.shape)
        return Picture(array.reshape(-1, *array.shape[-2:]), layout=array.shape)

    def write(self, picture: Picture, path: Path) -> None:
        """An array in the layout it was read in."""
        with path.open("wb") as file:
            np.save(file, picture.as_array(), allow_pickle=False)

    def read_plane(self, path: Path, max_megapixels: float | None) -> NDArray[Any]:
        """The array itself, which is one plane or none."""
        return read_npy(path, max_megapixels)


def read_npy(path: Path, max_megapixels: float | None = None) -> NDArray[Any]:
    """The array of an NPY file."""
    with path.open("rb") as file:
        shape, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError(
                "the array holds Python objects, which are not loaded; write numbers of one type, "
                "such as np.save(path, np.asarray(image, dtype=np.float32))"
            )
        needed, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if needed > held:
            raise ValueError(
                f"its header declares {dtype} of shape {shape}, {needed} bytes, and {held} follow; "
                "copy it again"
            )
        if math.prod(shape):
            require_plausible(path, shape, dtype.itemsize, max_megapixels)
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array that follows in the file."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(
            f"its format has the version {version}; save numbers of one type with np.save"
        )
    return shape, dtype
