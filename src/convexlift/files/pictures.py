"""Picture files of every registered format: whole pictures, and grey planes for training.

A plane is an array (H, W) of uint8, uint16 or float32, which represents the values plane / white,
where ``white`` is 255, 65535 or 1. Integers are stored as such: they are compact and exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from convexlift.files.formats import Picture as Picture
from convexlift.files.formats import PictureFormat as PictureFormat
from convexlift.files.formats import Range as Range
from convexlift.files.formats import displayed_size as displayed_size
from convexlift.files.formats import regrid as regrid
from convexlift.files.limits import reason_of
from convexlift.files.png_jpeg import Png

Plane = NDArray[Any]
_Content = TypeVar("_Content")


def read_picture(path: Path, *, max_megapixels: float | None = None) -> Picture:
    """All planes of a picture file; errors begin with its name.

    ``max_megapixels`` replaces the limits of ``files.limits`` on the size in the header.
    """
    picture = _decoded(_format(path).read, path, max_megapixels)
    if picture.stored.dtype.kind not in "biuf" or 0 in picture.stored.shape:
        shape = picture.layout or picture.stored.shape
        raise ValueError(
            f"{path} holds {picture.stored.dtype} of shape {shape}; write real numbers, (H, W) or "
            "a stack of such planes"
        )
    return picture


def write_picture(picture: Picture, path: Path, suffix: str) -> None:
    """Write to exactly this path, in the format of the ending ``suffix``."""
    kind = PictureFormat.of(Path(f"picture{suffix}"))
    if kind is None:
        raise ValueError(f"{path} cannot be written: {writable(picture, suffix)}")
    kind.write(picture, path)


def writable(picture: Picture, suffix: str) -> str | None:
    """Why the picture cannot be written in the format of this ending, or None if it can."""
    kind = PictureFormat.of(Path(f"picture{suffix}"))
    if kind is None:
        return f"{suffix!r} is not one of {', '.join(PictureFormat.known_suffixes())}"
    return kind.unwritable(picture)


def read_plane(path: Path, *, max_megapixels: float | None = None) -> Plane:
    """The grey plane of one file. Colours become 8-bit luma; an alpha channel is dropped.

    ``max_megapixels`` replaces the limits of ``files.limits`` on the size in the header.
    """
    return as_plane(_decoded(_format(path).read_plane, path, max_megapixels), str(path))


def _format(path: Path) -> PictureFormat:
    # Pillow recognises its formats by content, so other endings are left to it.
    return PictureFormat.of(path) or Png()


def _decoded(
    read: Callable[[Path, float | None], _Content], path: Path, max_megapixels: float | None
) -> _Content:
    try:
        return read(path, max_megapixels)
    except ImportError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly every type
        raise ValueError(f"{path} cannot be read as a picture: {reason_of(error)}") from None


def as_plane(array: Plane, name: str) -> Plane:
    """An array (H, W) or (1, ..., 1, H, W) as a plane; error messages call it ``name``.

    Integers other than uint8 and uint16 are divided by the maximum of their type; floats are kept
    unchanged.
    """
    if array.ndim < 2 or array.size == 0 or set(array.shape[:-2]) - {1}:
        raise ValueError(
            f"{name} has the shape {array.shape}; write one grey image, (H, W) or (1, H, W)"
        )
    plane = array.reshape(array.shape[-2:])
    kind = plane.dtype.kind
    if kind == "b":
        return plane.astype(np.uint8) * np.uint8(255)
    if kind == "u" and plane.dtype.itemsize <= 2:
        return plane.astype(plane.dtype.newbyteorder("="))
    if kind in "iu":
        return _divided_by_maximum(plane, name)
    if kind != "f":
        raise ValueError(f"{name} holds {plane.dtype}; write uint8, uint16 or float32")
    with np.errstate(over="ignore"):
        plane = plane.astype(np.float32)
    bad = np.argwhere(~np.isfinite(plane))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise ValueError(
            f"{name} is {plane[row, column]} at ({row}, {column}) and {len(bad)} pixels are not "
            "finite in float32; replace them before you save the image"
        )
    return plane


def _divided_by_maximum(plane: Plane, name: str) -> Plane:
    # Small numbers in a large type are 8- or 16-bit pictures that some program widened: divided by
    # the maximum of the large type they would silently become black.
    largest = max(abs(int(plane.min())), abs(int(plane.max())))
    if plane.dtype.itemsize > 2 and 0 < largest <= 65535:
        raise ValueError(
            f"{name} holds {plane.dtype} with values up to {largest}, nearly black on the scale of "
            f"its type; save it as uint8 or uint16, or as float32 between 0 and 1"
        )
    return (plane / np.iinfo(plane.dtype).max).astype(np.float32)


def white(plane: Plane) -> float:
    """The number in a plane that represents 1."""
    return 1.0 if plane.dtype.kind == "f" else float(np.iinfo(plane.dtype).max)


def to_float(plane: Plane) -> NDArray[np.float32]:
    """plane / white in float32, correctly rounded; a new array."""
    values: NDArray[np.float32] = plane.astype(np.float32)
    values /= np.float32(white(plane))
    return values
