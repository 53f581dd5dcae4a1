"""Picture files as grey planes: PNG, TIFF, JPEG and NPY, in the precision they were stored in.

A plane is an array (H, W) of uint8, uint16 or float32, and it means the values plane / white, where
``white`` is 255, 65535 or 1. Integers are kept as they are: they are compact and exact.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.bounded import BoundedReader
from convexlift.files.decoding_errors import reason_of
from convexlift.files.limits import require_plausible
from convexlift.files.tiff import open_tiff

Plane = NDArray[Any]

SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".npy")
"""The names of picture files end in one of these, in capitals or not."""

_WHITE_IS_ZERO = 0  # values of the TIFF tags below
_BITS, _PHOTOMETRIC = 258, 262

_PILLOW_LIMIT = threading.Lock()  # a global variable of Pillow, changed while a file is opened


def read_plane(path: Path, *, max_megapixels: float | None = None) -> Plane:
    """The grey plane of one file. Colours become luma, with 8 bits; an alpha channel is dropped.

    ``max_megapixels`` replaces the limits of ``files.limits`` on the size in the header.
    """
    suffix = path.suffix.lower()
    read: Callable[[Path, float | None], Plane] = {
        ".npy": read_npy,
        ".tif": _read_tiff,
        ".tiff": _read_tiff,
    }.get(suffix, _read_with_pillow)
    try:
        array = read(path, max_megapixels)
    except ImportError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly everything
        raise ValueError(f"{path} cannot be read as a picture: {reason_of(error)}") from None
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


def read_npy(path: Path, max_megapixels: float | None = None) -> Plane:
    """The array of an NPY file; nothing in it is executed."""
    with path.open("rb") as file:
        shape, _, dtype = _npy_header(file)
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


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of the array that follows in the file."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its format has the version {version}; save numbers of one type by np.save")


@contextlib.contextmanager
def open_picture(path: Path, max_megapixels: float | None = None) -> Iterator[Any]:
    """A PNG, JPEG or TIFF file opened by Pillow, if the size in its header is allowed.

    Pillow has a limit of its own, which an explicit ``max_megapixels`` replaces.
    """
    with BoundedReader(path) as content, _opened(content, max_megapixels) as picture:
        bits = 1 / 8 if picture.mode == "1" else 1.0  # of a sample; deeper ones only take longer
        shape = (*picture.size, len(picture.getbands()))
        require_plausible(path, shape, bits, max_megapixels)
        yield picture


def _opened(content: BoundedReader, max_megapixels: float | None) -> Any:
    module = pillow()
    with _PILLOW_LIMIT:
        before = module.MAX_IMAGE_PIXELS
        if max_megapixels is not None:
            module.MAX_IMAGE_PIXELS = None
        try:
            return module.open(content, formats=("PNG", "JPEG", "TIFF"))
        except module.DecompressionBombError:
            raise ValueError(
                f"its header declares more than {2 * before / 1e6:.4g} megapixels; if that is no "
                "mistake, allow it with --max-megapixels 1000 (max_megapixels= in Python)"
            ) from None
        finally:
            module.MAX_IMAGE_PIXELS = before


def _read_with_pillow(path: Path, max_megapixels: float | None) -> Plane:
    with open_picture(path, max_megapixels) as picture:
        return _pixels(picture)


def _read_tiff(path: Path, max_megapixels: float | None) -> Plane:
    """Pillow reads 8 and 16 bits, colours and float32; tifffile reads all other numbers."""
    module = pillow()
    try:
        with open_picture(path, max_megapixels) as picture:
            if not hasattr(picture, "tag_v2"):
                raise ValueError(f"it is a {picture.format} file, despite its name; rename it")
            _require_one_page(picture.n_frames)
            tags = picture.tag_v2
            inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
            if picture.mode.startswith("I;16") and tags.get(_BITS) == (16,):
                return 65535 - _pixels(picture) if inverted else _pixels(picture)
            if not picture.mode.startswith("I") and not (picture.mode == "F" and inverted):
                return _pixels(picture)
    except module.UnidentifiedImageError:
        with path.open("rb") as file:
            mark = file.read(2)
        if mark not in (b"II", b"MM"):  # no TIFF file at all
            raise
    return _read_with_tifffile(path, max_megapixels)


def _read_with_tifffile(path: Path, max_megapixels: float | None) -> Plane:
    with open_tiff(path, max_megapixels) as file:
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
