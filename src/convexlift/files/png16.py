"""PNG files with 16 bits for each of several channels, which Pillow by itself cuts to 8.

Its decoder undoes compression, filters and interlacing, and then keeps the first byte of each
sample, or the second one if it is told that bytes come in the other order: both make the sample.
What is written is Pillow's file with 8 bits, metadata and all, whose pixels are replaced.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.planes import pillow

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {2: 3, 4: 2, 6: 4}  # by the colour type of the header: RGB, grey with alpha, RGBA
_COLOUR_TYPES = {channels: kind for kind, channels in _CHANNELS.items()}
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits, colour type, two zeros, interlaced
_UP = 2  # the filter that subtracts the row above


def has_deep_colours(data: bytes) -> bool:
    """Whether the header says 16 bits and several channels; the first 26 bytes are enough."""
    return data.startswith(SIGNATURE) and data[24:25] == b"\x10" and data[25] in _CHANNELS


def read_deep_colours(data: bytes) -> NDArray[np.uint16]:
    """The samples of such a file, (H, W, channels)."""
    content = list(_chunks(data))
    width, height, _, colour_type, _, _, interlaced = _HEADER.unpack(content[0][1])
    packed = b"".join(part for kind, part in content if kind == b"IDAT")

    def unpacked(mode: str, order: str) -> NDArray[np.uint8]:
        image = pillow().frombytes(mode, (width, height), packed, "zip", order, interlaced)
        return np.asarray(image)

    if _CHANNELS[colour_type] == 2:  # four bytes for a pixel, as they are
        return unpacked("RGBA", "RGBA").view(">u2").astype(np.uint16)
    mode = "RGB" if _CHANNELS[colour_type] == 3 else "RGBA"
    first, second = unpacked(mode, f"{mode};16B"), unpacked(mode, f"{mode};16L")
    return first.astype(np.uint16) * np.uint16(256) + second


def with_deep_colours(shallow: bytes, pixels: NDArray[Any]) -> bytes:
    """A PNG file with other pixels, (H, W, channels) of 16 bits; all else stays."""
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels.astype(">u2")).view(np.uint8).reshape(height, -1)
    filtered = np.full((height, 1 + rows.shape[1]), _UP, dtype=np.uint8)
    filtered[0, 1:], filtered[1:, 1:] = rows[0], rows[1:] - rows[:-1]
    header = _HEADER.pack(width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    written = [SIGNATURE, _chunk(b"IHDR", header)]
    for kind, content in _chunks(shallow):
        if kind not in (b"IHDR", b"IDAT", b"IEND"):
            written.append(_chunk(kind, content))
    written += [_chunk(b"IDAT", zlib.compress(filtered.tobytes())), _chunk(b"IEND", b"")]
    return b"".join(written)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kinds and contents."""
    place = len(SIGNATURE)
    while place < len(data):
        if place + 12 > len(data):
            raise ValueError("the file ends in the middle of a chunk")
        (length,) = struct.unpack_from(">I", data, place)
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        if data[place + 8 + length : place + 12 + length] != _checksum(kind, content):
            raise ValueError(f"its {kind.decode('latin1')} chunk is damaged")
        yield kind, content
        place += 12 + length


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + _checksum(kind, content)


def _checksum(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(kind + content))
