"""Limits, uploads and pictures of the web page."""

from __future__ import annotations

import io
import math
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from web_runs import LIMITS, two_widths

from convexlift.files.pictures import read_picture
from convexlift.web.limits import Limits, PageError
from convexlift.web.pictures import NotShown, deep_png, false_colours, grey_or_colour, preview

pytest.importorskip("starlette", reason="the web page needs gradio, which brings starlette")

from convexlift.web.uploads import read_layer, read_slice, read_upload, shown_name

pydicom = pytest.importorskip("pydicom")

pytestmark = pytest.mark.single_precision


# Limits and uploads


def test_limits_are_checked_when_they_are_made():
    for wrong in ({"pixels": 3}, {"runs": 0}, {"seconds": math.inf}, {"upload_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


def saved(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def grey(height=20, width=30, dtype=np.uint8):
    top = np.iinfo(dtype).max
    return (np.linspace(0, 1, height * width).reshape(height, width) * top).astype(dtype)


def test_pictures_of_all_formats(tmp_path):
    eight, sixteen = grey(), grey(dtype=np.uint16)
    colours = np.stack([eight, eight[::-1], eight.T.reshape(20, 30)], axis=-1)
    np.save(tmp_path / "a.npy", eight.astype(np.float32) / 255)
    files = [
        saved(tmp_path / "a.png", eight),
        saved(tmp_path / "b.png", sixteen),
        saved(tmp_path / "a.tif", eight),
        saved(tmp_path / "b.tiff", sixteen),
        tmp_path / "a.npy",
    ]
    for path in files:
        picture = read_upload(path, LIMITS)
        assert picture.size == (20, 30)
        assert torch.allclose(
            picture.values[0, 0], torch.from_numpy(eight / 255).float(), atol=5e-3
        )
    rgb = saved(tmp_path / "c.png", colours)
    assert read_upload(rgb, LIMITS).values.shape == (1, 3, 20, 30)
    assert read_upload(rgb, LIMITS, colours=False).values.shape == (1, 1, 20, 30)
    jpeg = saved(tmp_path / "c.jpg", colours)
    assert read_upload(jpeg, LIMITS).values.shape == (1, 3, 20, 30)
    same = saved(tmp_path / "d.png", np.stack([eight] * 3, axis=-1))
    assert read_upload(same, LIMITS).values.shape == (1, 1, 20, 30)  # grey, stored as RGB


def test_a_picture_that_is_too_large_is_scaled_down_and_comes_with_its_middle(tmp_path):
    generator = np.random.default_rng(0)
    noise = 255 * generator.integers(0, 2, (180, 260, 3), dtype=np.uint8)
    picture = read_upload(saved(tmp_path / "large.png", noise), LIMITS)  # at most 100 x 100
    assert picture.scaled_from == (180, 260)
    assert picture.size == (60, 86)
    block = noise[3:6, 6:9].mean((0, 1)) / 255
    assert torch.allclose(picture.values[0, :, 1, 2], torch.from_numpy(block).float(), atol=1e-5)
    middle = picture.middle
    assert middle.scaled_from is None
    assert 9_500 < math.prod(middle.size) <= LIMITS.pixels
    top, left = ((180 - middle.size[0]) // 16 * 8, (260 - middle.size[1]) // 16 * 8)
    part = noise[top : top + middle.size[0], left : left + middle.size[1]].transpose(2, 0, 1)
    assert torch.allclose(middle.values[0], torch.from_numpy(part / 255).float())


def test_a_block_of_a_mask_is_known_where_all_of_its_pixels_are(tmp_path):
    white = np.full((200, 200), 255, np.uint8)
    white[51, 77] = 0  # one pixel of a block of four
    mask = read_upload(saved(tmp_path / "mask.png", white), LIMITS, mask=True)
    assert mask.size == (100, 100)
    assert (mask.values < 0.5).nonzero().tolist() == [[0, 0, 25, 38]]
    import tifffile

    black = tmp_path / "mask.tif"  # 0 is white
    tifffile.imwrite(black, 255 - white, photometric="miniswhite")
    assert (read_upload(black, LIMITS, mask=True).values < 0.5).nonzero().tolist() == [
        [0, 0, 25, 38]
    ]


def test_photographs_are_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # the camera was turned by a quarter
    Image.fromarray(grey()).save(tmp_path / "turned.png", exif=exif)
    picture = read_upload(tmp_path / "turned.png", LIMITS)
    assert picture.size == (30, 20)
    upright = torch.from_numpy(np.rot90(grey(), -1) / 255).float()
    assert torch.allclose(picture.values[0, 0], upright)


def bomb(path, width=60_000, height=60_000):
    """A PNG file of a few bytes that declares billions of pixels."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    return path


def huge_npy(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (100_000, 100_000)}
        )
    return path


def written(path, content):
    path.write_bytes(content)
    return path


BAD = {
    "a bomb": (lambda p: bomb(p / "x.png"), "declares 3600 megapixels"),
    "a huge array": (lambda p: huge_npy(p / "x.npy"), r"shape \(100000, 100000\)"),
    "text": (lambda p: written(p / "x.png", b"hello"), "not a PNG, JPEG, TIFF or NPY"),
    "a GIF": (lambda p: saved(p / "x.gif", grey()), r"a kind that is not read\. Save it as PNG"),
    "a raw file": (
        lambda p: written(p / "x.NEF", b"MM\0*" + bytes(60)),
        r"x\.NEF is a camera's raw file.*\. Export it as 16-bit TIFF.*, without noise reduction\.$",
    ),
    "HEIC": (
        lambda p: written(p / "x.heic", b"\0\0\0\x24ftypheic" + bytes(52)),
        r"x\.heic is a HEIF picture\. Export it as JPEG or PNG\.$",
    ),
    "HEIC that was renamed": (
        lambda p: written(p / "x.jpg", b"\0\0\0\x24ftypmif1" + bytes(52)),
        r"x\.jpg is a HEIF picture",
    ),
    "a JPEG file that is called HEIC": (
        lambda p: written(p / "x.heic", saved(p / "y.jpg", grey()).read_bytes()[:64]),
        "JPEG file with another ending",
    ),
    "a wrong ending": (
        lambda p: written(p / "x.png", saved(p / "y.tif", grey()).read_bytes()),
        "TIFF file with another ending",
    ),
    "too many bytes": (lambda p: written(p / "x.png", bytes(60_000)), "0.1 MB"),
    "too many pixels": (lambda p: saved(p / "x.png", np.zeros((500, 500), np.uint8)), "500 x 500"),
    "too thin to be scaled": (
        lambda p: saved(p / "x.png", grey(40, 3000)),
        "scaled down, has 750 x 10",
    ),
    "too few pixels": (lambda p: saved(p / "x.png", grey(8, 40)), "40 x 8"),
    "two pages": (
        lambda p: saved(
            p / "x.tif", grey(), save_all=True, append_images=[Image.fromarray(grey())]
        ),
        "2 planes",
    ),
    "a width that is a list": (lambda p: two_widths(p / "x.tif"), "x.tif cannot be read"),
    "NaN": (lambda p: np.save(p / "x.npy", np.full((20, 20), np.nan)) or p / "x.npy", "NaN"),
    "another scale": (
        lambda p: np.save(p / "x.npy", np.full((20, 20), 255.0)) or p / "x.npy",
        "from 255",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_uploads_are_named(name, tmp_path):
    make, said = BAD[name]
    path = make(tmp_path)
    with pytest.raises(PageError, match=said) as caught:
        read_upload(path, LIMITS)
    assert caught.value.hint.endswith(".")
    assert str(tmp_path) not in str(caught.value)  # paths of the server are not shown


def test_nothing_is_decoded_of_a_file_that_declares_too_much(tmp_path, monkeypatch):
    def decoded(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    with pytest.raises(PageError, match="megapixels"):
        read_upload(bomb(tmp_path / "x.png"), Limits())


def dicom(path, rows=32, columns=32, deflated=False, **changes):
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

    from convexlift.scans.files import write_volume
    from convexlift.scans.volumes import Volume

    values = torch.linspace(-1000, 1000, rows * columns).reshape(1, rows, columns)
    write_volume(Volume.stacked(values, (1.0, 1.0)), path)
    dataset = pydicom.dcmread(path)
    for key, value in changes.items():
        setattr(dataset, key, value)
    syntax = DeflatedExplicitVRLittleEndian if deflated else ExplicitVRLittleEndian
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path, enforce_file_format=True)
    return path


def test_dicom_slices(tmp_path):
    picture = read_slice(dicom(tmp_path / "a.dcm", 40, 32), LIMITS)
    assert picture.values.shape == (1, 1, 32, 32)
    assert 0 <= float(picture.values.min()) < 0.2
    for name, changes, said in (
        ("large", {"Rows": 5000, "Columns": 5000}, "25 megapixels"),
        ("deflated", {"PixelData": bytes(10**6), "deflated": True}, "expands beyond"),
        ("frames", {"NumberOfFrames": 7}, "frames.dcm"),
    ):
        with pytest.raises(PageError, match=said):
            read_slice(dicom(tmp_path / f"{name}.dcm", **changes), LIMITS)
    with pytest.raises(PageError, match="not a DICOM file"):
        read_slice(saved(tmp_path / "x.dcm", grey(), format="PNG"), LIMITS)


def test_drawings_are_decoded_within_limits(tmp_path):
    drawing = np.zeros((20, 30, 4), np.uint8)
    drawing[3:5, 6:9] = 255
    file = io.BytesIO()
    Image.fromarray(drawing).save(file, format="PNG")
    assert (read_layer(file.getvalue(), LIMITS) == drawing[..., 3]).all()
    with pytest.raises(PageError, match="far too many pixels"):
        read_layer(bomb(tmp_path / "x.png").read_bytes(), LIMITS)
    with pytest.raises(PageError, match="cannot be read"):
        read_layer(b"GIF89a", LIMITS)


def test_names_are_shown_without_special_characters(tmp_path):
    assert shown_name(tmp_path / "<img src=x>.png") == "_img src_x_.png"
    assert len(shown_name(tmp_path / ("a" * 300 + ".png"))) <= 40


# Pictures


def test_values_that_are_not_finite_are_not_shown():
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = math.nan
    for show in (grey_or_colour, deep_png, lambda v: false_colours(v[0, 0], 1.0)):
        with pytest.raises(NotShown):
            show(x)
    assert preview(torch.zeros(1, 1, 1500, 700)).shape[-2:] == (500, 233)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 3)])
def test_downloaded_pictures_have_16_bits(shape, tmp_path):
    x = torch.rand(*shape, 12, 9, generator=torch.Generator().manual_seed(0))
    (tmp_path / "kept.png").write_bytes(deep_png(x))
    kept = read_picture(tmp_path / "kept.png")
    assert (kept.stored.dtype, kept.channels) == (np.uint16, math.prod(shape))
    assert np.abs(kept.values(kept.full_range) - x.flatten(0, 1).numpy()).max() < 1e-5
