"""Files of cameras: JPEG with its quality, orientation and EXIF, and raw files with a hint."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin
from reconstruct_runs import bits, colours, noisy, run

import convexlift as cl
from convexlift.files.formats import RAW

ORIENTATION, MAKER, CAMERA_TIME = 274, 271, 306
pytestmark = pytest.mark.single_precision


@pytest.mark.parametrize(("quality", "subsampling"), [(60, 2), (85, 1), (97, 0)])
def test_jpeg_keeps_its_quality_subsampling_and_exif(quality, subsampling, tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION], exif[MAKER], exif[CAMERA_TIME] = 6, "A camera", "2026:01:02 03:04:05"
    Image.fromarray(bits(colours(), np.uint8)).save(
        tmp_path / "a.jpg", quality=quality, subsampling=subsampling, exif=exif
    )
    result = run("denoise", tmp_path / "a.jpg", "-o", tmp_path / "b.jpg", "--sigma", 0.05)
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "a.jpg") as before, Image.open(tmp_path / "b.jpg") as after:
        assert after.quantization == before.quantization
        assert JpegImagePlugin.get_sampling(after) == subsampling
        assert dict(after.getexif()) == dict(before.getexif())
        assert after.size == before.size


def test_grey_jpeg_keeps_its_quality(tmp_path):
    Image.fromarray(bits(noisy(), np.uint8)).save(tmp_path / "a.jpg", quality=70)
    assert run("denoise", tmp_path / "a.jpg", "-o", tmp_path / "b.jpg").exit_code == 0
    with Image.open(tmp_path / "a.jpg") as before, Image.open(tmp_path / "b.jpg") as after:
        assert (after.mode, after.quantization) == (before.mode, before.quantization)


def test_other_pictures_become_jpeg_with_little_loss(tmp_path):
    Image.fromarray(bits(noisy(), np.uint8)).save(tmp_path / "a.png")
    assert run("denoise", tmp_path / "a.png", "-o", tmp_path / "b.jpg").exit_code == 0
    with Image.open(tmp_path / "b.jpg") as after:
        assert max(after.quantization[0]) < 25


@pytest.mark.parametrize("ending", [".CR2", ".nef", ".ARW", ".dng"])
def test_raw_files_are_refused_with_the_hint_what_to_export(ending, tmp_path):
    place = tmp_path / f"photo{ending}"
    place.write_bytes(b"II*\0" + bytes(1000))
    for arguments in ((place,), (tmp_path,)):
        result = run("denoise", *arguments, "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert "export it as 16-bit TIFF" in result.output
    with pytest.raises(ValueError, match="a camera's raw file"):
        cl.reconstruct(place)
    assert ending.lower() in RAW


def test_pictures_of_telephones_are_refused_with_a_hint(tmp_path):
    (tmp_path / "a.heic").write_bytes(bytes(100))
    result = run("denoise", tmp_path / "a.heic", "-o", tmp_path / "b.png")
    assert "a HEIF picture; export it as JPEG or PNG" in result.output


def test_raw_files_beside_pictures_are_left_alone(tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(bits(noisy(), np.uint8)).save(tmp_path / "in" / "a.jpg")
    (tmp_path / "in" / "a.cr2").write_bytes(bytes(100))
    assert run("denoise", tmp_path / "in", "-o", tmp_path / "out").exit_code == 0
