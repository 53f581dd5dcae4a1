"""Whole pictures: all planes, bits and metadata."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from convexlift.files.pictures import (
    Picture,
    displayed_size,
    read_picture,
    regrid,
    writable,
    write_picture,
)

ROWS = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_transparent_grey_level_becomes_alpha(dtype, tmp_path):
    largest = np.iinfo(dtype).max
    grey = ROWS.astype(dtype) * (largest // 12)
    Image.fromarray(grey).save(tmp_path / "t.png", transparency=int(grey[1, 2]))
    picture = read_picture(tmp_path / "t.png")
    assert np.array_equal(picture.stored, grey[None])
    assert (picture.stored.dtype, picture.channels) == (dtype, 1)
    assert np.array_equal(picture.alpha[0] == 0, grey == grey[1, 2])
    assert picture.alpha.max() == largest
    write_picture(picture, tmp_path / "t.tif")
    again = read_picture(tmp_path / "t.tif")
    assert np.array_equal(again.stored, picture.stored)
    assert np.array_equal(again.alpha, picture.alpha)


def test_palettes_become_colours(tmp_path):
    Image.fromarray(np.dstack([ROWS * 20] * 3)).convert("P").save(tmp_path / "p.png")
    picture = read_picture(tmp_path / "p.png")
    assert picture.channels == 3
    tifffile.imwrite(
        tmp_path / "p.tif", ROWS, photometric="palette", colormap=np.zeros((3, 256), np.uint16)
    )
    with pytest.raises(ValueError, match="palette; save it as RGB"):
        read_picture(tmp_path / "p.tif")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32, np.float64, bool])
def test_values_and_back(dtype):
    stored = (ROWS % 2 if dtype is bool else ROWS).astype(dtype)[None]
    picture = Picture(stored)
    again = picture.with_values(picture.values((0.0, 11.0)), (0.0, 11.0))
    if dtype is not bool:
        assert again.stored.dtype == stored.dtype
        assert np.allclose(again.stored, stored, atol=1e-6)
    full = picture.with_values(picture.values(picture.full_range), picture.full_range)
    assert np.allclose(full.stored, stored, atol=1e-6)


def test_integers_are_rounded_and_clipped():
    picture = Picture(ROWS[None])
    values = np.broadcast_to([-0.5, 0.4999 / 255, 0.501 / 255, 2.0], (1, 3, 4))
    changed = picture.with_values(values, (0.0, 255.0))
    assert changed.stored[0, 0].tolist() == [0, 0, 1, 255]


def test_nan_is_kept(tmp_path):
    values = ROWS.astype(np.float32)
    values[1, 2] = np.nan
    np.save(tmp_path / "a.npy", values)
    picture = read_picture(tmp_path / "a.npy")
    assert np.isnan(picture.values(picture.full_range)[0, 1, 2])


def test_formats_say_what_they_cannot_hold():
    stack = Picture(np.zeros((2, 3, 4), np.uint8))
    assert "one page" in (writable(stack, ".png") or "")
    assert writable(stack, ".tif") is None
    assert "JPEG has 8 bits" in (writable(Picture(np.zeros((1, 3, 4), np.uint16)), ".jpg") or "")
    with_alpha = Picture(np.zeros((3, 3, 4), np.uint8), np.zeros((1, 3, 4), np.uint8), 3)
    assert "no alpha" in (writable(with_alpha, ".jpg") or "")
    assert writable(with_alpha, ".png") is None
    with pytest.raises(
        ValueError, match=r"a\.gif cannot be written: '\.gif' is not one of \.npy, \.png"
    ):
        write_picture(stack, Path("a.gif"))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((2, 3, 5), complex), "a.npy holds complex128 of shape (2, 3, 5); write real num"),
        (np.array([["a", "b"]]), "write real numbers"),
        (np.zeros(5), "it has the shape (5,); write (H, W)"),
        (np.zeros((0, 5)), "it has the shape (0, 5); write (H, W)"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array, said, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=re.escape(said)):
        read_picture(tmp_path / "a.npy")


def test_a_tiff_keeps_its_orientation(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", ROWS, extratags=[(274, "H", 1, 6, True)])
    picture = read_picture(tmp_path / "a.tif")
    write_picture(picture, tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.tags["Orientation"].value == 6
    write_picture(picture, tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as image:
        assert image.getexif()[274] == 6


def test_the_orientation_of_exif_reaches_a_tiff(tmp_path):
    exif = Image.Exif()
    exif[274] = 8
    Image.fromarray(ROWS).save(tmp_path / "a.jpg", exif=exif)
    write_picture(read_picture(tmp_path / "a.jpg"), tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.tags["Orientation"].value == 8


def test_a_sample_beside_colours_is_kept(tmp_path):
    pixels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    options = {"photometric": "rgb", "extrasamples": ("unspecified",)}
    tifffile.imwrite(tmp_path / "a.tif", pixels, **options)
    picture = read_picture(tmp_path / "a.tif")
    assert picture.channels == 3
    write_picture(picture, tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        page = file.pages.first
        assert (int(page.photometric), [int(e) for e in page.extrasamples]) == (2, [0])
        np.testing.assert_array_equal(page.asarray(), pixels)


def test_cmyk_is_refused(tmp_path):
    pixels = np.zeros((3, 4, 4), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="separated")
    with pytest.raises(ValueError, match="SEPARATED; save it as grey or RGB"):
        read_picture(tmp_path / "a.tif")


@pytest.mark.parametrize("own", range(1, 9))
@pytest.mark.parametrize("wanted", range(1, 9))
def test_grids_of_two_orientations_are_displayed_alike(own, wanted):
    def displayed(pixels, orientation):
        exif = Image.Exif()
        exif[274] = orientation
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", exif=exif)
        return np.asarray(ImageOps.exif_transpose(Image.open(file)))

    other = regrid(ROWS[None], own, wanted)[0]
    assert np.array_equal(displayed(other, wanted), displayed(ROWS, own))
    assert displayed(ROWS, own).shape == displayed_size(ROWS.shape, own)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
@pytest.mark.parametrize("tag", [None, 6, 9])
def test_orientations_are_read(name, tag, tmp_path):
    exif = Image.Exif()
    if tag is not None:
        exif[274] = tag
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name, exif=exif)
    assert read_picture(tmp_path / name).orientation == (6 if tag == 6 else 1)
