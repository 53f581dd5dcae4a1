"""Damage to files: bytes changed at random, and fields of headers changed on purpose.

Many formats have checksums, which refuse most damage before a decoder sees it. ``repaired`` makes
them right again, so that the damage gets through.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable

Mutation = Callable[[bytearray, random.Random], bytearray]

_NUMBERS = (0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 256, 4095, 32767, 32768, 65535, 65536, 16777216,
            2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)  # fmt: skip
_WORDS = (b"0", b"-1", b"1e999", b"1e300", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"15001",
          b"99999999999999999999999", b"[[[[1]]]]", b'"\\u0000"', b"4294967296")  # fmt: skip


def flip_bits(data: bytearray, chance: random.Random) -> bytearray:
    """1 to 8 bits changed."""
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        data[_place(data, chance)] ^= 1 << chance.randrange(8)
    return data


def truncate(data: bytearray, chance: random.Random) -> bytearray:
    """The end cut off."""
    return data[: _place(data, chance)]


def big_number(data: bytearray, chance: random.Random) -> bytearray:
    """A notable number in 2, 4 or 8 bytes, in either order."""
    size = chance.choice((2, 4, 4, 8))
    value = chance.choice(_NUMBERS) % 256**size
    start = _place(data, chance)
    data[start : start + size] = value.to_bytes(size, chance.choice(("little", "big")))
    return data


def splice(data: bytearray, chance: random.Random) -> bytearray:
    """A part copied to another place, in place of as many bytes or between them."""
    size = chance.choice((1, 2, 4, 8, 12, 32, 128))
    start, target = _place(data, chance), _place(data, chance)
    data[target : target + size * chance.randrange(2)] = data[start : start + size]
    return data


def remove(data: bytearray, chance: random.Random) -> bytearray:
    """A few bytes taken out."""
    start = _place(data, chance)
    del data[start : start + chance.choice((1, 2, 4, 12, 64))]
    return data


def blank(data: bytearray, chance: random.Random) -> bytearray:
    """A range of zeros, of ones, or of noise."""
    start, size = _place(data, chance), chance.choice((1, 4, 16, 64))
    size = min(size, len(data) - start)
    fill = chance.choice((b"\0" * size, b"\xff" * size, chance.randbytes(size)))
    data[start : start + size] = fill
    return data


def edit_word(data: bytearray, chance: random.Random) -> bytearray:
    """A number or a text inside JSON, or another text header, replaced."""
    words = list(re.finditer(rb'-?\d+(?:\.\d+)?|"[^"]{0,40}"', bytes(data[:20_000])))
    if not words:
        return flip_bits(data, chance)
    word = chance.choice(words)
    data[word.start() : word.end()] = chance.choice(_WORDS)
    return data


def edit_tiff_entry(data: bytearray, chance: random.Random) -> bytearray:
    """Kind, type, count or value of an entry in the first directory of a little-endian TIFF."""
    if len(data) < 16 or data[:4] != b"II*\0":
        return flip_bits(data, chance)
    (start,) = struct.unpack_from("<I", data, 4)
    if start + 14 > len(data):
        return flip_bits(data, chance)
    (count,) = struct.unpack_from("<H", data, start)
    entry = start + 2 + 12 * chance.randrange(max(count, 1))
    offset, size = chance.choice(((0, 2), (2, 2), (4, 4), (8, 4), (8, 2)))
    value = chance.choice((*_NUMBERS, chance.randrange(320))) % 256**size
    data[entry + offset : entry + offset + size] = value.to_bytes(size, "little")
    return data


GENERAL: tuple[Mutation, ...] = (flip_bits, truncate, big_number, splice, remove, blank)


def damaged(data: bytes, mutations: tuple[Mutation, ...], chance: random.Random) -> bytes:
    """One to three mutations of the file."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if not result:
            break
        result = chance.choice(mutations)(result, chance)
    return bytes(result)


def _place(data: bytearray, chance: random.Random) -> int:
    """Half of all places are among the first 200 bytes, where headers are."""
    return chance.randrange(min(len(data), 200) if chance.random() < 0.5 else len(data))


# Repairs -----------------------------------------------------------------------------------------


def with_png_checksums(data: bytes) -> bytes:
    """The checksums of all chunks, as far as they can be found."""
    result = bytearray(data)
    place = 8
    while place + 12 <= len(result):
        (length,) = struct.unpack_from(">I", result, place)
        end = place + 8 + length
        if end + 4 > len(result):
            break
        struct.pack_into(">I", result, end, zlib.crc32(result[place + 4 : end]))
        place = end + 4
    return bytes(result)


def with_damaged_pickle(data: bytes, chance: random.Random) -> bytes:
    """A checkpoint whose archive is whole, and whose description of the tensors is damaged."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as archive:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                content = damaged(content, GENERAL, chance)
            archive.writestr(zipfile.ZipInfo(entry.filename), content)
    return target.getvalue()


def with_hash(sheet: bytes, digest: str) -> bytes:
    """The sheet of a model with the hash of other weights."""
    try:
        content = json.loads(sheet)
        content["sha256"] = digest
        return json.dumps(content).encode()
    except (ValueError, TypeError, RecursionError):
        return sheet
