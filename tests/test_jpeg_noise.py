"""The noise of JPEG files, as it was before they were compressed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import convexlift as cl
from convexlift.files.pictures import LUMA, read_picture
from convexlift.files.png_jpeg import JPEG, luma_table
from convexlift.reconstruction.contents import open_contents
from convexlift.reconstruction.jpeg_noise import before_compression, luma_deviation
from convexlift.reconstruction.noise import Noise, gaussian_level
from convexlift.web.limits import Limits
from convexlift.web.uploads import read_upload


@pytest.fixture(autouse=True)
def _place(_double_precision, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def hills(channels, sigma, height=256, width=320, seed=0):
    """A smooth landscape with an edge and a textured quarter, and white noise in 8 bits."""
    y, x = np.mgrid[:height, :width].astype(float)
    clean = 128 + 40 * np.sin(x / 40) + 30 * np.cos(y / 30) + 20 * (x > 200)
    clean[: height // 2, : width // 2] += 20 * np.sin(1.7 * x + y)[: height // 2, : width // 2]
    rng = np.random.default_rng(seed)
    noisy = clean[..., None] + sigma * rng.standard_normal((height, width, channels))
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8).squeeze()


def compressed(pixels, quality, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, **options)
    image = Image.open(file)
    decoded = np.asarray(image).astype(float)
    planes = decoded[None] if decoded.ndim == 2 else decoded.transpose(2, 0, 1)
    return torch.from_numpy(planes), image.quantization[0]


@pytest.mark.parametrize("quality", [50, 75, 90, 98])
@pytest.mark.parametrize("sigma", [10.0, 25.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_level_before_compression(quality, sigma, channels):
    planes, table = compressed(hills(channels, sigma), quality)
    expected = sigma * (1.0 if channels == 1 else np.hypot(np.hypot(*LUMA[:2]), LUMA[2]))
    assert luma_deviation(planes, table) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("size", [(12, 500), (500, 12), (9, 9)])
def test_pictures_of_less_than_two_blocks_have_a_level(size, tmp_path):
    Image.fromarray(hills(3, 10.0, *size)).save("thin.jpg", quality=75)
    done = cl.reconstruct("thin.jpg", regularizer="tv", tolerance=1e-2, max_iterations=20)
    assert done.noise.level > 0


@pytest.mark.parametrize("numbers", [{0: 1, 1: 0}, {0: 1, 1: 2}, {0: 3, 1: 1}])
@pytest.mark.parametrize("channels", [1, 3])
def test_tables_may_have_any_number(numbers, channels):
    """The same file with other numbers in its headers (DQT and SOF0)."""
    Image.fromarray(hills(channels, 10.0)).save("usual.jpg", quality=75)
    data, place = bytearray(Path("usual.jpg").read_bytes()), 2
    while data[place + 1] != 0xDA:  # the start of the pixels
        length = int.from_bytes(data[place + 2 : place + 4])
        if data[place + 1] == 0xDB:
            data[place + 4] = numbers[data[place + 4]]
        if data[place + 1] == 0xC0:
            for channel in range(data[place + 9]):
                at = place + 12 + 3 * channel
                data[at] = numbers[data[at]]
        place += 2 + length
    Path("other.jpg").write_bytes(data)
    usual, other = (open_contents(f"{name}.jpg") for name in ("usual", "other"))
    assert (usual.picture.stored == other.picture.stored).all()
    assert luma_table(usual.picture) == luma_table(other.picture)
    noise = Noise("gaussian", 0.01)
    levels = [before_compression(noise, each, None, together=True) for each in (usual, other)]
    assert levels[0] == levels[1]
    other.write(other.images, Path("again.jpg"), "")
    assert read_picture(Path("again.jpg")).metadata[JPEG] == usual.picture.metadata[JPEG]
    assert read_upload(Path("other.jpg"), Limits()).jpeg == luma_table(usual.picture)


def test_pixels_alone_do_not_tell_it():
    planes, table = compressed(hills(1, 10.0), 50)
    assert 255 * gaussian_level(planes[:, None].float() / 255) < 5 < luma_deviation(planes, table)


def test_without_noise_there_is_none():
    assert luma_deviation(*compressed(hills(1, 0.0), 75)) == 0


def test_too_few_blocks_say_nothing():
    assert luma_deviation(*compressed(hills(1, 25.0, 64, 64), 75)) == 0


def test_bars_around_a_film_are_left_out():
    pixels = hills(1, 25.0)
    pixels[:64] = pixels[-40:] = 16
    assert luma_deviation(*compressed(pixels, 75)) == pytest.approx(25, rel=0.1)


def test_files_and_arrays_with_a_table_agree():
    Image.fromarray(hills(3, 20.0)).save("noisy.jpg", quality=80)
    contents = open_contents("noisy.jpg")
    found = before_compression(Noise("gaussian", 0.02), contents, None, together=True)
    assert found.before_jpeg
    assert found.level == pytest.approx(20 / 255, rel=0.08)
    assert "before JPEG compression" in str(found)
    assert Noise.from_json(found.to_json()) == found
    one_by_one = before_compression(Noise("gaussian", 0.002), contents, None, together=False)
    assert one_by_one.level == pytest.approx(0.668 * found.level, rel=1e-3)
    assert "before JPEG" not in str(one_by_one)
    assert "in single channels of the JPEG" in str(one_by_one)
    assert Noise.from_json(one_by_one.to_json()) == one_by_one
    array = contents.images.reshape(1, 3, *contents.images.shape[2:])
    table = tuple(contents.picture.metadata[JPEG]["qtables"][0])
    again = before_compression(
        Noise("gaussian", 0.02), open_contents(array, (0.0, 1.0)), table, together=True
    )
    assert again.level == pytest.approx(found.level, rel=1e-3)


def test_what_is_not_estimated_stays():
    Image.fromarray(hills(1, 20.0)).save("noisy.jpg", quality=80)
    contents = open_contents("noisy.jpg")
    for noise in (Noise("gaussian", 0.01, estimated=False), Noise("salt-and-pepper", 0.1)):
        assert before_compression(noise, contents, None, together=True) is noise
    Image.fromarray(hills(1, 0.0)).save("clean.jpg", quality=80)
    noise = Noise("gaussian", 0.01)
    assert before_compression(noise, open_contents("clean.jpg"), None, together=True) is noise


def test_reconstruct_uses_it_and_says_so():
    Image.fromarray(hills(1, 20.0, 200, 200)).save("noisy.jpg", quality=75)
    quick = {"regularizer": "tv", "tolerance": 0.1, "weight": 0.05}
    found = cl.reconstruct("noisy.jpg", **quick).record
    assert found["noise"]["before_jpeg"]
    assert found["noise"]["level"] == pytest.approx(20 / 255, rel=0.08)
    Image.open("noisy.jpg").save("noisy.png")
    assert "before_jpeg" not in cl.reconstruct("noisy.png", **quick).record["noise"]
    with pytest.raises(ValueError, match="jpeg= is a table of 64 numbers"):
        cl.reconstruct("noisy.png", jpeg=(1, 2))


def test_single_channels_have_the_noise_that_is_left_in_them():
    """The level is known, so the note that recommends a larger one is left out."""
    Image.fromarray(hills(3, 20.0, 200, 200)).save("noisy.jpg", quality=90)
    quick = {"regularizer": "tv", "tolerance": 0.1, "weight": 0.05}
    record = cl.reconstruct("noisy.jpg", **quick).record
    assert record["noise"]["jpeg_channels"]
    assert "before_jpeg" not in record["noise"]
    assert record["noise"]["level"] < 0.85 * 20 / 255
    assert not any("share their noise" in note for note in record.get("notes", ()))
    Image.open("noisy.jpg").save("noisy.png")
    notes = cl.reconstruct("noisy.png", **quick).record["notes"]
    assert any("share their noise" in note for note in notes)


@pytest.mark.parametrize(("orientation", "known"), [(1, True), (6, False)])
def test_uploads_bring_their_table(orientation, known, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(hills(3, 20.0)).save("noisy.jpg", quality=80, exif=exif)
    table = read_picture(tmp_path / "noisy.jpg").metadata[JPEG]["qtables"][0]
    picture = read_upload(tmp_path / "noisy.jpg", Limits())
    assert picture.jpeg == (tuple(table) if known else None)
    small = Limits(pixels=200**2)
    middle = read_upload(tmp_path / "noisy.jpg", small).middle
    if known:
        planes = 255 * middle.values[0].double()
        assert luma_deviation(planes, middle.jpeg) == pytest.approx(20 * 0.668, rel=0.1)
