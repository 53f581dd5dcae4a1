"""Picture files as grey planes: PNG, TIFF, JPEG and NPY, in the precision they were stored in.

A plane is an array (H, W) of uint8, uint16 or float32, and it means the values plane / white, where
``white`` is 255, 65535 or 1. Integers are kept as they are: they are compact and exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[Any]

SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".npy")
"""The names of picture files end in one of these, in capitals or not."""

_WHITE_IS_ZERO = 0  # values of the TIFF tags below
_BITS, _PHOTOMETRIC = 258, 262


def read_plane(path: Path) -> Plane:
    """The grey plane of one file. Colours become luma, with 8 bits; an alpha channel is dropped."""
    suffix = path.suffix.lower()
    read: Callable[[Path], Plane] = {
        ".npy": read_npy,
        ".tif": _read_tiff,
        ".tiff": _read_tiff,
    }.get(suffix, _read_with_pillow)
    try:
        array = read(path)
    except ImportError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly everything
        raise ValueError(f"{path} cannot be read as a picture: {error}") from None
    return as_plane(array, str(path))


def as_plane(array: Plane, name: str) -> Plane:
    """An array (H, W) or (1, ..., 1, H, W) as a plane; the errors call it ``name``.

    Integers other than uint8 and uint16 are divided by the maximum of their type, floats are taken
    as they are.
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


def white(plane: Plane) -> float:
    """The number in a plane that means 1."""
    return 1.0 if plane.dtype.kind == "f" else float(np.iinfo(plane.dtype).max)


def to_float(plane: Plane) -> NDArray[np.float32]:
    """plane / white in float32, correctly rounded; a new array."""
    values: NDArray[np.float32] = plane.astype(np.float32)
    values /= np.float32(white(plane))
    return values


def _divided_by_maximum(plane: Plane, name: str) -> Plane:
    # Small numbers in a large type are 8- or 16-bit pictures that some program widened: divided by
    # the maximum of the large type they would be black, and nobody would be told.
    largest = max(abs(int(plane.min())), abs(int(plane.max())))
    if plane.dtype.itemsize > 2 and 0 < largest <= 65535:
        raise ValueError(
            f"{name} holds {plane.dtype} with values up to {largest}, which is black next to the "
            f"maximum of its type; save it as uint8 or uint16, or as float32 between 0 and 1"
        )
    return (plane / np.iinfo(plane.dtype).max).astype(np.float32)


def read_npy(path: Path) -> Plane:
    """The array of an NPY file; nothing in it is executed."""
    with path.open("rb") as file:
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            if not str(error).startswith("Object arrays"):
                raise
            raise ValueError(
                "the array holds Python objects, which are not loaded; write numbers of one type, "
                "such as np.save(path, np.asarray(image, dtype=np.float32))"
            ) from None


def _read_with_pillow(path: Path) -> Plane:
    with pillow().open(path) as picture:
        return _pixels(picture)


def _read_tiff(path: Path) -> Plane:
    """Pillow reads 8 and 16 bits, colours and float32; tifffile reads all other numbers."""
    module = pillow()
    try:
        with module.open(path) as picture:
            _require_one_page(picture.n_frames)
            tags = picture.tag_v2
            inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
            if picture.mode.startswith("I;16") and tags.get(_BITS) == (16,):
                return 65535 - _pixels(picture) if inverted else _pixels(picture)
            if not picture.mode.startswith("I") and not (picture.mode == "F" and inverted):
                return _pixels(picture)
    except module.UnidentifiedImageError:
        if path.read_bytes()[:2] not in (b"II", b"MM"):  # no TIFF file at all
            raise
    return _read_with_tifffile(path)


def _read_with_tifffile(path: Path) -> Plane:
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            f'{path} needs tifffile: pip install "convexlift[train]", '
            "or save it as 8-bit, 16-bit or float32 grey"
        ) from None
    with tifffile.TiffFile(path) as file:
        _require_one_page(len(file.pages))
        page = file.pages.first
        if page.photometric == _WHITE_IS_ZERO or page.bitspersample not in (8, 16, 32, 64):
            raise ValueError(
                f"it has {page.bitspersample} bits and is {page.photometric!s}; "
                "save it as 8-bit, 16-bit or float32 grey where 0 is black"
            )
        return np.asarray(page.asarray())


def _require_one_page(count: int) -> None:
    if count > 1:
        raise ValueError(f"it has {count} pages; save each of them in a file of its own")


def _pixels(picture: Any) -> Plane:
    """8-bit luma, except for 16 bits and floats."""
    if picture.mode.startswith("I"):  # also "I" of 16-bit PNG files, from older versions of Pillow
        return np.asarray(picture).astype(np.uint16)
    return np.asarray(picture if picture.mode == "F" else picture.convert("L"))


def pillow() -> Any:
    """The module ``PIL.Image``, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError('pictures need Pillow: pip install "convexlift[cli]"') from None
    return Image
