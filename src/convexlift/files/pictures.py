"""Picture files of every registered format: whole pictures, and grey planes for training.

A picture file is read with all its planes, as values

    v = (stored - low) / (high - low),    (low, high) = (0, largest integer), or (0, 1) for floats,

and values are written to a file of the same kind: bit depth, alpha channel, colour profile, EXIF,
resolution and description are kept where the format supports them.

A plane is an array (H, W) of uint8, uint16 or float32, which represents the values plane / white,
where ``white`` is 255, 65535 or 1. Integers are stored as such: they are compact and exact.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import EXPORTS, FileFormat, pillow, reason_of

Plane = NDArray[Any]
_Content = TypeVar("_Content")
Range = tuple[float, float]

ORIENTATION = 274  # the tag in TIFF and in EXIF
_TURNS = {  # how a grid is displayed: swap rows and columns, then reverse rows, reverse columns
    1: (False, False, False), 2: (False, False, True),
    3: (False, True, True), 4: (False, True, False),
    5: (True, False, False), 6: (True, False, True),
    7: (True, True, True), 8: (True, True, False),
}  # fmt: skip
STRIP = 2**22
"""Numbers converted at once."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luma."""


@dataclass(frozen=True, eq=False)
class Picture:
    """The content of a picture file.

    Attributes:
        stored: the numbers in the file, (planes, H, W): pages and colour channels one by one.
        alpha: (pages, H, W) as stored, or None.
        channels: number of channels per page, without alpha.
        layout: the shape of the array in the file, for array formats (NPY, TIFF).
        inverted: whether 0 is white (some TIFF files).
        metadata: arguments of the format's writer, by name.
    """

    stored: NDArray[Any]
    alpha: NDArray[Any] | None = None
    channels: int = 1
    layout: tuple[int, ...] = ()
    inverted: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """The number of pages."""
        return len(self.stored) // self.channels

    @property
    def full_range(self) -> Range:
        """The numbers that mean black and white."""
        kind = self.stored.dtype
        return (0.0, 1.0) if kind.kind in "fb" else (0.0, float(np.iinfo(kind).max))

    @property
    def orientation(self) -> int:
        """Orientation in which the stored grid is displayed: 1 to 8, as in EXIF and TIFF."""
        turned = self.metadata.get("orientation")
        if turned is None and "exif" in self.metadata:
            exif = pillow().Exif()
            exif.load(self.metadata["exif"])
            turned = exif.get(ORIENTATION)
        return turned if turned in _TURNS else 1

    def values(self, numbers: Range) -> NDArray[np.float32]:
        """(stored - low) / (high - low); NaN stays NaN."""
        low, high = numbers
        values = np.empty(self.stored.shape, np.float32)
        for rows in _strips(values.shape):
            # In double precision, so that each value is rounded to float32 once.
            values[rows] = (self.stored[rows].astype(np.float64) - low) / (high - low)
        return np.subtract(1, values, out=values) if self.inverted else values

    def with_values(self, values: NDArray[Any], numbers: Range) -> Picture:
        """The same picture with other values, rounded and clipped for integer types."""
        (low, high), kind = numbers, self.stored.dtype
        values, stored = values.reshape(self.stored.shape), np.empty_like(self.stored)
        for rows in _strips(stored.shape):
            shown = 1 - values[rows] if self.inverted else values[rows]
            strip: NDArray[Any] = low + (high - low) * shown.astype(np.float64)
            if kind.kind == "b":
                strip = strip >= 0.5
            elif kind.kind in "iu":
                limits = np.iinfo(kind)
                strip = np.clip(np.rint(strip), limits.min, limits.max)
            stored[rows] = strip.astype(kind)
        return replace(self, stored=stored)

    def as_array(self, layout: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The planes with channels and alpha last, in the layout of the file or a given one."""
        shape = self.layout if layout is None else layout
        if self.channels == 1 and self.alpha is None:
            return self.stored.reshape(shape or self.stored.shape[-2:])
        pages = self.stored.reshape(-1, self.channels, *self.stored.shape[-2:])
        if self.alpha is not None:
            pages = np.concatenate([pages, self.alpha[:, None]], axis=1)
        last = pages.transpose(0, 2, 3, 1)
        return last.reshape(shape or last.shape[1:])


def equal_channels(planes: NDArray[Any]) -> bool:
    """Whether red, green and blue are equal in planes (3 n, H, W): a grey picture saved as RGB.

    8-bit channels may differ by one level, since programs round when they convert colours.
    """
    pages = planes.reshape(-1, 3, *planes.shape[-2:])
    if pages.dtype == np.uint8:
        return all(bool((page.max(0) - page.min(0) <= 1).all()) for page in pages)
    return all(np.array_equal(page[0], page[k], equal_nan=page.dtype.kind == "f")
               for page in pages for k in (1, 2))  # fmt: skip


def _strips(shape: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Rows of planes (n, H, W), a few million numbers at a time, since doubles of all are large."""
    planes, height, width = shape
    step = max(1, STRIP // max(1, width))
    for plane in range(planes):
        for top in range(0, height, step):
            yield slice(plane, plane + 1), slice(top, top + step)


def from_channels_last(array: NDArray[Any], alpha: bool, **rest: Any) -> Picture:
    """A picture from an array (..., H, W, channels), whose last channel may be alpha."""
    pages = array.reshape(-1, *array.shape[-3:])
    colours = pages[..., :-1] if alpha else pages
    planes = colours.transpose(0, 3, 1, 2).reshape(-1, *colours.shape[1:3])
    return Picture(planes, pages[..., -1] if alpha else None, colours.shape[-1], **rest)


class PictureFormat(FileFormat):
    """A picture file format.

    Errors of its methods need not name the file: ``files.pictures`` adds the name.

    Attributes:
        holds_nan: whether a pixel can be NaN, which marks it as missing.
    """

    holds_nan: ClassVar[bool] = False

    @abstractmethod
    def read(self, path: Path) -> Picture:
        """All planes; ``require_plausible`` checks the size in the header before decoding."""

    def read_pages(self, path: Path, pages: slice) -> Picture:
        """Some of the pages; formats of large stacks read no others."""
        picture = self.read(path)
        if picture.channels > 1 or picture.alpha is not None:
            raise ValueError("it has colours; only grey pages can be chosen")
        stored = picture.stored[pages]
        return replace(picture, stored=stored, layout=stored.shape)

    def pages(self, path: Path) -> int:
        """The number of pages."""
        return self.read(path).pages

    @abstractmethod
    def write(self, picture: Picture, path: Path) -> None:
        """Write to exactly this path, whatever its ending."""

    def unwritable(self, picture: Picture) -> str | None:
        """The reason why the format cannot hold the picture, or None if it can."""
        return None

    def read_plane(self, path: Path) -> NDArray[Any]:
        """One grey plane, for training: colours become 8-bit luma, alpha is dropped."""
        picture = self.read(path)
        require_one_page(picture.pages)
        if picture.channels == 3:
            luma = np.tensordot(LUMA, picture.values(picture.full_range), 1).clip(0, 1)
            return np.asarray(np.rint(255 * luma), dtype=np.uint8)
        if not picture.inverted:
            return picture.stored
        if picture.stored.dtype.kind in "bu":
            return np.asarray(~picture.stored)  # white - stored
        return np.asarray(picture.stored.dtype.type(picture.full_range[1]) - picture.stored)


def require_one_page(count: int) -> None:
    """Raise ValueError if there are several pages."""
    if count > 1:
        raise ValueError(f"it has {count} pages; save each page as a separate file")


def displayed_size(shape: Sequence[int], orientation: int) -> tuple[int, int]:
    """Height and width of planes (..., H, W) as displayed."""
    height, width = shape[-2:]
    return (width, height) if _TURNS[orientation][0] else (height, width)


def regrid(planes: NDArray[Any], own: int, wanted: int) -> NDArray[Any]:
    """Planes (..., H, W) of one orientation, regridded to look the same in another."""
    if own == wanted:
        return planes
    swapped, *reversed_ = _TURNS[own]
    shown = _reversed(planes.swapaxes(-1, -2) if swapped else planes, *reversed_)
    swapped, *reversed_ = _TURNS[wanted]
    back = _reversed(shown, *reversed_)
    return np.ascontiguousarray(back.swapaxes(-1, -2) if swapped else back)


def _reversed(planes: NDArray[Any], rows: bool, columns: bool) -> NDArray[Any]:
    return planes[..., :: -1 if rows else 1, :: -1 if columns else 1]


# Files of every format -----------------------------------------------------------------------


def read_picture(path: Path, *, pages: slice | None = None) -> Picture:
    """All planes of a picture file, or some pages of it; errors begin with its name."""
    kind = _format(path)
    read = kind.read if pages is None else lambda p: kind.read_pages(p, pages)
    picture = _decoded(read, path)
    if picture.stored.dtype.kind not in "biuf" or 0 in picture.stored.shape:
        shape = picture.layout or picture.stored.shape
        raise ValueError(
            f"{path} holds {picture.stored.dtype} of shape {shape}; write real numbers, (H, W) or "
            "a stack of such planes"
        )
    return picture


def count_pages(path: Path) -> int:
    """The number of pages of a picture file."""
    return _decoded(_format(path).pages, path)


def write_picture(picture: Picture, path: Path) -> None:
    """Write the picture, completely or not at all, in the format of the file name's ending."""
    kind = PictureFormat.of(path)
    if kind is None:
        raise ValueError(f"{path} cannot be written: {writable(picture, path.suffix)}")
    with atomic_path(path) as part:
        kind.write(picture, part)


def writable(picture: Picture, suffix: str) -> str | None:
    """The reason why the format of this ending cannot hold the picture, or None if it can."""
    kind = PictureFormat.of(Path(f"picture{suffix}"))
    if kind is None:
        return f"{suffix!r} is not one of {', '.join(PictureFormat.known_suffixes())}"
    return kind.unwritable(picture)


def read_plane(path: Path) -> Plane:
    """The grey plane of one file. Colours become 8-bit luma; an alpha channel is dropped."""
    return as_plane(_decoded(_format(path).read_plane, path), str(path))


def read_colours(path: Path) -> Plane:
    """Red, green and blue of one file, (3, H, W); they are equal in grey pictures."""
    picture = read_picture(path)
    if picture.pages != 1 or picture.channels not in (1, 3) or picture.inverted:
        raise ValueError(f"{path} is not a single picture in grey or RGB; save it as PNG")
    colours = np.broadcast_to(picture.stored, (3, *picture.stored.shape[-2:]))
    return np.stack([as_plane(colour, str(path)) for colour in colours])


def _format(path: Path) -> PictureFormat:
    if (advice := EXPORTS.get(path.suffix.lower())) is not None and path.exists():
        raise ValueError(f"{path} is {advice}")
    # Pillow recognises its formats by content, so other endings are left to it.
    found = PictureFormat.of(path) or PictureFormat.of(Path("picture.png"))
    assert found is not None
    return found


def _decoded(read: Callable[[Path], _Content], path: Path) -> _Content:
    try:
        return read(path)
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
