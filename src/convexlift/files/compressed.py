"""Compressed pixels that would take more memory than the header of their file declares.

A few kilobytes of LZMA expand to gigabytes. Streams are expanded here piece by piece, and their
bytes counted and dropped, before a decoder that returns them all sees them; pictures inside files
(JPEG, JPEG 2000) have headers of their own, whose sizes are compared.
"""

from __future__ import annotations

import lzma
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

PIECE = 1 << 20
"""Bytes that are expanded at once."""
PADDING = 1 << 16
"""Bytes that a block may hold beyond its pixels: some programs fill its last rows."""

NEW_INFLATERS: dict[str, Callable[[], Any]] = {
    "deflate": zlib.decompressobj,
    "raw deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    "LZMA": lzma.LZMADecompressor,
}
if sys.version_info >= (3, 14):
    from compression import zstd

    NEW_INFLATERS["Zstandard"] = zstd.ZstdDecompressor

_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of a header with height and width; 0xF7 is that of JPEG-LS."""
_ALONE = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}
"""Markers without a length, which have no place before that header."""
_JPEG_2000 = b"\xff\x4f\xff\x51"


def require_expansion(data: bytes, most: int, kind: str) -> None:
    """Raise ValueError if a stream of one of ``NEW_INFLATERS`` expands to more than ``most`` bytes.

    Damaged streams are left to their decoder, which fails at the same place.
    """
    size = 0
    try:
        while data:
            inflater = NEW_INFLATERS[kind]()
            while not inflater.eof and (data or not getattr(inflater, "needs_input", True)):
                size += len(inflater.decompress(data, PIECE))
                _require(size, most)
                # zlib hands back what it has not read; the others keep it.
                data = getattr(inflater, "unconsumed_tail", b"")
            # LZMA and Zstandard may consist of several streams.
            data = b"" if "deflate" in kind else inflater.unused_data
    except (zlib.error, lzma.LZMAError):
        return


def require_packbits(data: bytes, most: int) -> None:
    """Raise ValueError if PackBits, the run lengths of TIFF and DICOM, expand to more bytes."""
    size = place = 0
    while place < len(data):
        count = data[place]
        if count < 128:  # so many bytes follow, and one more
            size, place = size + count + 1, place + count + 2
        elif count > 128:  # the next byte is repeated
            size, place = size + 257 - count, place + 2
        else:
            place += 1
    _require(size, most)


def require_frame(data: bytes, height: int, width: int) -> None:
    """Raise ValueError if a JPEG, JPEG-LS or JPEG 2000 stream is larger than height x width."""
    own = _frame_size(data)
    if own is None:
        raise ValueError("it holds no JPEG or JPEG 2000 pixels with a size; export it again")
    if own[0] > height or own[1] > width:
        raise ValueError(
            f"it holds {own[0]} x {own[1]} compressed pixels where its header declares "
            f"{height} x {width}; copy or export it again"
        )


def _frame_size(data: bytes) -> tuple[int, int] | None:
    """Height and width."""
    if data.startswith(_JPEG_2000) and len(data) >= 16:
        width, height = struct.unpack_from(">2I", data, 8)
        return height, width
    place = 2
    while data.startswith(b"\xff\xd8") and place + 9 <= len(data):
        mark, kind, length, _, height, width = struct.unpack_from(">BBHBHH", data, place)
        if mark != 0xFF or kind in _ALONE:
            return None
        if kind in _FRAMES:
            return height, width
        place += 2 + length
    return None


def _require(size: int, most: int) -> None:
    if size > most + PADDING:
        raise ValueError(
            f"it expands beyond {most} bytes, which is more than its header allows; copy or export "
            "it again"
        )
