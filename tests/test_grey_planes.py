"""Grey planes of picture files that other libraries wrote, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from convexlift.images import load_image

ALL_16_BITS = np.arange(65536, dtype=np.uint16).reshape(256, 256)
ALL_8_BITS = np.arange(256, dtype=np.uint8).reshape(8, 32)


def by_pillow(path, array):
    Image.fromarray(array).save(path)


def by_tifffile(**options):
    return lambda path, array: tifffile.imwrite(path, array, **options)


@pytest.mark.parametrize("array", [ALL_8_BITS, ALL_16_BITS], ids=["8 bits", "16 bits"])
@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        ("png", by_pillow),
        ("tif", by_pillow),
        ("TIFF", by_tifffile()),
        ("tif", by_tifffile(byteorder=">")),
        ("tif", by_tifffile(compression="zlib")),
        ("npy", np.save),
        ("npy", lambda path, array: np.save(path, array[None])),
        ("npy", lambda path, array: np.save(path, array.astype(array.dtype.newbyteorder(">")))),
        ("npy", lambda path, array: np.save(path, np.asfortranarray(array))),
    ],
)
def test_integers_are_divided_by_the_largest(tmp_path, suffix, write, array):
    path = tmp_path / f"a.{suffix}"
    write(path, array)
    picture = load_image(path)
    assert picture.dtype == torch.float32
    assert picture.shape == (1, 1, *array.shape)
    expected = (array.astype(np.float64) / np.iinfo(array.dtype).max).astype(np.float32)
    assert np.array_equal(picture[0, 0].numpy(), expected)
    assert picture.max() == 1


@pytest.mark.parametrize("array", [ALL_8_BITS, ALL_16_BITS], ids=["8 bits", "16 bits"])
def test_tiff_where_0_is_white(tmp_path, array):
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite")
    negative = load_image(tmp_path / "a.tif")
    tifffile.imwrite(tmp_path / "a.tif", array)
    torch.testing.assert_close(negative, 1 - load_image(tmp_path / "a.tif"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("suffix", ["tif", "npy"])
def test_floats_are_taken_as_they_are(tmp_path, dtype, suffix):
    array = np.array([[-0.5, 0.25, 7.0], [0.1, 1e-3, 1.0]], dtype=dtype)
    (np.save if suffix == "npy" else tifffile.imwrite)(tmp_path / f"a.{suffix}", array)
    picture = load_image(tmp_path / f"a.{suffix}")
    assert picture.dtype == torch.float32
    assert np.array_equal(picture[0, 0].numpy(), array.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint32, np.uint64])
def test_other_integers_are_divided_by_the_maximum_of_their_type(tmp_path, dtype):
    largest = np.iinfo(dtype).max
    np.save(tmp_path / "a.npy", np.array([[0, largest // 2, largest]], dtype=dtype))
    expected = torch.tensor([[[[0, (largest // 2) / largest, 1]]]], dtype=torch.float32)
    torch.testing.assert_close(load_image(tmp_path / "a.npy"), expected)


def test_small_numbers_in_a_large_type_are_not_read_as_black(tmp_path):
    np.save(tmp_path / "a.npy", ALL_8_BITS.astype(np.int64))
    message = r"a\.npy holds int64 with values up to 255, .* save it as uint8"
    with pytest.raises(ValueError, match=message):
        load_image(tmp_path / "a.npy")


def test_booleans_and_one_bit_are_black_and_white(tmp_path):
    checks = np.indices((4, 5)).sum(0) % 2 == 0
    np.save(tmp_path / "a.npy", checks)
    Image.fromarray(checks).save(tmp_path / "a.png")
    for name in ("a.npy", "a.png"):
        assert np.array_equal(load_image(tmp_path / name)[0, 0].numpy(), checks)


@pytest.mark.parametrize("suffix", ["png", "tif", "jpg", "npy", "bmp"])
def test_missing_files_and_other_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    with pytest.raises(ValueError, match=rf"a\.{suffix} cannot be read .*No such file"):
        load_image(path)
    path.write_text("II am no picture, whatever my name may say")
    said = "is of a kind that is not read" if suffix == "bmp" else "cannot be read as a picture"
    with pytest.raises(ValueError, match=rf"a\.{suffix} {said}"):
        load_image(path)


@pytest.mark.parametrize("shape", [(5,), (), (2, 4, 4), (4, 4, 3), (0, 4)])
def test_arrays_of_the_wrong_shape(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype=np.float32))
    with pytest.raises(ValueError, match=r"a\.npy has the shape \(.*write one grey image"):
        load_image(tmp_path / "a.npy")


def test_the_second_page_of_a_pyramid_is_not_dropped(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for size in ((16, 16), (8, 8)):
            writer.write(np.zeros(size), metadata=None)
    with pytest.raises(ValueError, match=r"a\.tif cannot .* 2 pages"):
        load_image(tmp_path / "a.tif")


def test_unknown_colours_are_named(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8)), metadata=None)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages.first.tags[262].overwrite(777)
    with pytest.raises(ValueError, match=r"its colours are 777; save it as grey"):
        load_image(tmp_path / "a.tif")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_numbers_that_are_not_finite(tmp_path, bad):
    array = np.zeros((3, 4))
    array[1, 2] = bad
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=r"a\.npy is (nan|inf) at \(1, 2\) and 1 pixels"):
        load_image(tmp_path / "a.npy")
    if not np.isfinite(bad):
        tifffile.imwrite(tmp_path / "a.tif", array.astype(np.float32))
        with pytest.raises(ValueError, match=r"a\.tif is (nan|inf) at \(1, 2\)"):
            load_image(tmp_path / "a.tif")


def test_arrays_of_complex_numbers_and_objects_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 2), dtype=complex))
    with pytest.raises(ValueError, match=r"a\.npy holds complex128; write uint8"):
        load_image(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"b\.npy cannot be read .*Python objects.* np\.save\("):
        load_image(tmp_path / "b.npy")
