"""PNG and JPEG files with Pillow, and PNG files with 16 bits for each of several channels.

Pillow reduces deep colours to 8 bits: its decoder undoes compression, filters and interlacing, and
then keeps the first byte of each sample, or the second one if given the opposite byte order. Both
together are the sample. To write such a file, the pixels in Pillow's 8-bit file are replaced, so
that metadata are kept.
"""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.formats import BoundedReader, pillow, require_plausible
from convexlift.files.pictures import ORIENTATION, Picture, PictureFormat, from_channels_last

_JPEG_QUALITY = 95
JPEG = "JPEG"
"""The key of a JPEG file's quantization and subsampling, with which results are written."""
_TEXT = "tEXt"
_PILLOW_LIMIT = threading.Lock()  # for a global variable of Pillow, changed while opening a file

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {2: 3, 4: 2, 6: 4}  # by the colour type in the header: RGB, grey with alpha, RGBA
_COLOUR_TYPES = {channels: kind for kind, channels in _CHANNELS.items()}
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits, colour type, two zeros, interlaced
_UP = 2  # the filter that subtracts the row above


class _PillowFormat(PictureFormat):
    """Files decoded by content: a JPEG file named .png is read too."""

    def read(self, path: Path) -> Picture:
        """One page; palettes become colours, transparent levels become an alpha channel."""
        with open_picture(path) as image:
            if getattr(image, "n_frames", 1) > 1:
                raise ValueError(f"it has {image.n_frames} frames; save each as a separate file")
            info = dict(image.info)
            kept = {name: info[name] for name in ("exif", "icc_profile", "dpi") if info.get(name)}
            if text := dict(getattr(image, "text", {})):
                kept[_TEXT] = text
            if image.format == "JPEG":
                kept[JPEG] = _jpeg_quality(image)
            clear = info.get("transparency")  # a grey level, a colour, or indices of a palette
            if image.format == "PNG" and has_deep_colours(data := path.read_bytes()):
                return _picture(read_deep_colours(data), clear, kept)
            if image.mode.startswith("I"):  # 16-bit grey; "I" from older versions of Pillow
                return _picture(np.asarray(image).astype(np.uint16)[..., None], clear, kept)
            if clear is not None:
                image = image.convert("LA" if image.mode in ("1", "L") else "RGBA")
            elif image.mode == "P":
                image = image.convert("RGB")
            pixels, mode = np.asarray(image), image.mode
        if mode not in ("1", "L", "LA", "RGB", "RGBA", "F"):
            raise ValueError(f"its colour mode is {mode}; save it as grey or RGB")
        return _picture(pixels if pixels.ndim == 3 else pixels[..., None], None, kept)

    def read_plane(self, path: Path) -> NDArray[Any]:
        """8-bit luma; 16-bit grey and floats are kept."""
        with open_picture(path) as image:
            return grey_pixels(image)

    def unwritable(self, picture: Picture) -> str | None:
        """The reason, if there are several pages."""
        if picture.pages > 1:
            return f"{self.suffixes[0]} holds one page, but this has {picture.pages}"
        return None

    def _save(self, picture: Picture, path: Path, **options: Any) -> None:
        module = pillow()
        pixels = np.ascontiguousarray(picture.as_array(layout=()))
        kept = ("exif", "icc_profile", "dpi")
        options |= {name: value for name, value in picture.metadata.items() if name in kept}
        if "orientation" in picture.metadata:
            options["exif"] = module.Exif()
            options["exif"][ORIENTATION] = picture.metadata["orientation"]
        if pixels.dtype == np.uint16 and pixels.ndim == 3:
            shallow = io.BytesIO()
            module.fromarray((pixels >> 8).astype(np.uint8)).save(shallow, self.name, **options)
            path.write_bytes(with_deep_colours(shallow.getvalue(), pixels))
        else:
            module.fromarray(pixels).save(path, self.name, **options)


class Png(_PillowFormat):
    """1, 8 or 16 bits; grey or RGB, with or without alpha; text."""

    name = "PNG"
    suffixes = (".png",)
    marks = (_SIGNATURE,)

    def write(self, picture: Picture, path: Path) -> None:
        """Write with all bits, text, EXIF, colour profile and resolution."""
        options = {}
        if text := picture.metadata.get(_TEXT):
            from PIL.PngImagePlugin import PngInfo

            options["pnginfo"] = PngInfo()
            for key, value in text.items():
                options["pnginfo"].add_text(key, str(value))
        self._save(picture, path, **options)

    def unwritable(self, picture: Picture) -> str | None:
        """The reason, if there are several pages, or numbers other than 1, 8 or 16 bits."""
        if picture.stored.dtype not in (np.uint8, np.uint16, np.bool_):
            return f"{picture.stored.dtype} cannot be written as PNG"
        return super().unwritable(picture)


class Jpeg(_PillowFormat):
    """8 bits, grey or RGB."""

    name = "JPEG"
    suffixes = (".jpg", ".jpeg")
    marks = (b"\xff\xd8\xff",)

    def write(self, picture: Picture, path: Path) -> None:
        """Write with EXIF, colour profile and resolution.

        The quality is that of the source, or high if the source is not a JPEG file.
        """
        high = {"quality": _JPEG_QUALITY, "subsampling": 0}
        self._save(picture, path, **picture.metadata.get(JPEG, high))

    def unwritable(self, picture: Picture) -> str | None:
        """The reason, if there are several pages, more than 8 bits, or an alpha channel."""
        if picture.stored.dtype not in (np.uint8, np.bool_):
            return f"JPEG has 8 bits, but this is {picture.stored.dtype}"
        if picture.alpha is not None:
            return "JPEG has no alpha channel"
        return super().unwritable(picture)


def _jpeg_quality(image: Any) -> dict[str, Any]:
    """Quantization tables and subsampling of a JPEG file, as arguments for Pillow.

    Files may give tables any number from 0 to 3. Here luma has 0, as Pillow writes it.
    """
    from PIL import JpegImagePlugin

    sampling = JpegImagePlugin.get_sampling(image)  # -1 for grey and for unusual subsampling
    numbers = dict.fromkeys(number for *_, number in image.layer)  # of the channels, luma first
    tables = [image.quantization[number] for number in numbers if number in image.quantization]
    kept = {"qtables": {number: list(table) for number, table in enumerate(tables)}}
    return kept | ({"subsampling": sampling} if sampling >= 0 else {})


def luma_table(picture: Picture) -> tuple[int, ...] | None:
    """The quantization table of luma, row by row, if the picture comes from a JPEG file."""
    tables = picture.metadata.get(JPEG, {}).get("qtables")
    return tuple(tables[0]) if tables else None


def _picture(pixels: NDArray[Any], clear: Any, metadata: dict[str, Any]) -> Picture:
    """A picture from (H, W, channels), with alpha from the last channel or a transparent colour."""
    if pixels.shape[-1] in (2, 4):
        return from_channels_last(pixels, alpha=True, metadata=metadata)
    if clear is None:
        return from_channels_last(pixels, alpha=False, metadata=metadata)
    opaque = np.where((pixels == clear).all(-1, keepdims=True), 0, 65535).astype(np.uint16)
    both = np.concatenate([pixels, opaque], axis=-1)
    return from_channels_last(both, alpha=True, metadata=metadata)


@contextlib.contextmanager
def open_picture(path: Path) -> Iterator[Any]:
    """A PNG, JPEG or TIFF file opened by Pillow, if the size in its header is allowed."""
    module = pillow()
    with BoundedReader(path) as content:
        with _PILLOW_LIMIT:
            before, module.MAX_IMAGE_PIXELS = module.MAX_IMAGE_PIXELS, None
            try:
                opened = module.open(content, formats=("PNG", "JPEG", "TIFF"))
            finally:
                module.MAX_IMAGE_PIXELS = before
        with opened as picture:
            itemsize = 1 / 8 if picture.mode == "1" else 1.0  # deeper samples only take longer
            shape = (*picture.size, len(picture.getbands()))
            require_plausible(path, shape, itemsize)
            yield picture


def grey_pixels(picture: Any) -> NDArray[Any]:
    """The pixels of a Pillow image: 8-bit luma; 16-bit grey and floats are kept."""
    if picture.mode.startswith("I"):  # also "I" for 16-bit PNG files, from older versions of Pillow
        return np.asarray(picture).astype(np.uint16)
    return np.asarray(picture if picture.mode == "F" else picture.convert("L"))


# 16 bits for each of several channels -------------------------------------------------------------


def has_deep_colours(data: bytes) -> bool:
    """Whether the header declares 16 bits and several channels; the first 26 bytes suffice."""
    return data.startswith(_SIGNATURE) and data[24:25] == b"\x10" and data[25] in _CHANNELS


def read_deep_colours(data: bytes) -> NDArray[np.uint16]:
    """The samples of such a file, (H, W, channels)."""
    content = list(_chunks(data))
    width, height, _, colour_type, _, _, interlaced = _HEADER.unpack(content[0][1])
    packed = b"".join(part for kind, part in content if kind == b"IDAT")

    def unpacked(mode: str, order: str) -> NDArray[np.uint8]:
        image = pillow().frombytes(mode, (width, height), packed, "zip", order, interlaced)
        return np.asarray(image)

    if _CHANNELS[colour_type] == 2:  # a pixel has four bytes, read as RGBA
        return unpacked("RGBA", "RGBA").view(">u2").astype(np.uint16)
    mode = "RGB" if _CHANNELS[colour_type] == 3 else "RGBA"
    first, second = unpacked(mode, f"{mode};16B"), unpacked(mode, f"{mode};16L")
    return first.astype(np.uint16) * np.uint16(256) + second


def with_deep_colours(shallow: bytes, pixels: NDArray[Any]) -> bytes:
    """A PNG file with its pixels replaced by others of 16 bits, (H, W, channels)."""
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels.astype(">u2")).view(np.uint8).reshape(height, -1)
    filtered = np.full((height, 1 + rows.shape[1]), _UP, dtype=np.uint8)
    filtered[0, 1:], filtered[1:, 1:] = rows[0], rows[1:] - rows[:-1]
    header = _HEADER.pack(width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    written = [_SIGNATURE, _chunk(b"IHDR", header)]
    for kind, content in _chunks(shallow):
        if kind not in (b"IHDR", b"IDAT", b"IEND"):
            written.append(_chunk(kind, content))
    written += [_chunk(b"IDAT", zlib.compress(filtered.tobytes())), _chunk(b"IEND", b"")]
    return b"".join(written)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Types and contents of the chunks of a PNG file."""
    place = len(_SIGNATURE)
    while place < len(data):
        if place + 12 > len(data):
            raise ValueError("the file ends in the middle of a chunk")
        (length,) = struct.unpack_from(">I", data, place)
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        if data[place : place + 12 + length] != _chunk(kind, content):  # wrong checksum
            raise ValueError(f"its {kind.decode('latin1')} chunk is damaged")
        yield kind, content
        place += 12 + length


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum
