"""The noise of JPEG files, as it was before they were compressed."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

import convexlift as cl
from convexlift.files.pictures import read_picture
from convexlift.files.png_jpeg import JPEG
from convexlift.reconstruction.contents import open_contents
from convexlift.reconstruction.jpeg_noise import LUMA, before_compression, luma_deviation
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
