"""16-bit colours in PNG against an encoder written from the specification."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from convexlift.files.pictures import read_picture, writable, write_picture
from convexlift.files.png_jpeg import has_deep_colours, read_deep_colours, with_deep_colours

COLOUR_TYPES = {2: 4, 3: 2, 4: 6}  # by channels
ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
         (1, 0, 2, 1)]  # fmt: skip


def samples(channels, size=(11, 9), seed=0):
    smooth = np.add.outer(np.arange(size[0]) * 997, np.arange(size[1]) * 1511)[..., None]
    noise = np.random.default_rng(seed).integers(0, 3000, (*size, channels))
    return ((smooth + noise) % 65536).astype(np.uint16)


def predicted(kind, left, above, corner):
    """Section 9 of the PNG specification, for one byte."""
    if kind == 4:
        guess = left + above - corner
        return min((left, above, corner), key=lambda byte: abs(guess - byte))
    return (0, left, above, (left + above) // 2)[kind]


def neighbours(row, above, i, step):
    return (row[i - step] if i >= step else 0, above[i], above[i - step] if i >= step else 0)


def filtered(pixels, kind):
    """Rows with their filter in front; ``kind`` None takes all of them in turn."""
    rows = [list(row.astype(">u2").tobytes()) for row in pixels]
    step, lines = 2 * pixels.shape[2], []
    above = [0] * (step * pixels.shape[1])
    for number, row in enumerate(rows):
        chosen = number % 5 if kind is None else kind
        lines.append(chosen)
        lines += [
            (row[i] - predicted(chosen, *neighbours(row, above, i, step))) % 256
            for i in range(len(row))
        ]
        above = row
    return bytes(lines)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encoded(pixels, kind=None, *, interlaced=False, more=b""):
    height, width, channels = pixels.shape
    header = struct.pack(
        ">IIBBBBB", width, height, 16, COLOUR_TYPES[channels], 0, 0, int(interlaced)
    )
    passes = [pixels[a::c, b::d] for a, b, c, d in ADAM7] if interlaced else [pixels]
    packed = zlib.compress(b"".join(filtered(each, kind) for each in passes if each.size))
    halves = packed[: len(packed) // 2], packed[len(packed) // 2 :]
    return b"".join(
        [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), more]
        + [chunk(b"IDAT", half) for half in halves]
        + [chunk(b"IEND", b"")]
    )


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("kind", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_every_filter_is_read(channels, kind, interlaced):
    pixels = samples(channels)
    data = encoded(pixels, kind, interlaced=interlaced)
    assert has_deep_colours(data)
    assert np.array_equal(read_deep_colours(data), pixels)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_written_files_have_all_bits_and_the_metadata(channels):
    pixels = samples(channels)
    mode = {2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    shallow = io.BytesIO()
    Image.fromarray((pixels >> 8).astype(np.uint8), mode).save(
        shallow, "PNG", dpi=(240, 240), icc_profile=b"profile" * 9
    )
    data = with_deep_colours(shallow.getvalue(), pixels)
    assert np.array_equal(read_deep_colours(data), pixels)
    with Image.open(io.BytesIO(data)) as image:  # which checks all sums
        assert np.array_equal(np.asarray(image.convert(mode)), pixels >> 8)
        assert image.info["icc_profile"] == b"profile" * 9
        assert image.info["dpi"] == pytest.approx((240, 240), abs=0.1)


def test_a_transparent_colour_becomes_alpha(tmp_path):
    pixels = samples(3)
    clear = tuple(int(value) for value in pixels[2, 5])
    file = tmp_path / "clear.png"
    file.write_bytes(encoded(pixels, more=chunk(b"tRNS", struct.pack(">3H", *clear))))
    picture = read_picture(file)
    assert np.array_equal(picture.stored, pixels.transpose(2, 0, 1))
    assert np.argwhere(picture.alpha[0] == 0).tolist() == [[2, 5]]
    assert writable(picture, ".png") is None
    write_picture(picture, tmp_path / "again.png")
    again = read_picture(tmp_path / "again.png")
    assert np.array_equal(again.stored, picture.stored)
    assert np.array_equal(again.alpha, picture.alpha)


def test_damaged_files_are_refused(tmp_path):
    file, data = tmp_path / "damaged.png", encoded(samples(3))
    for damaged in (data[:-30], data[:90] + bytes([data[90] ^ 1]) + data[91:], data[:40]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot be read as a picture"):
            read_picture(file)


def test_grey_and_eight_bits_are_left_to_pillow():
    for array in (samples(3)[..., 0], samples(3).astype(np.uint8)):
        data = io.BytesIO()
        Image.fromarray(array).save(data, "PNG")
        assert not has_deep_colours(data.getvalue())
