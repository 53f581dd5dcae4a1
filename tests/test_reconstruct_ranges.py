"""Ranges of numbers: noise and outliers must change neither the meaning of sigma nor the PSNR."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reconstruct_runs import one_record, run

import convexlift as cl
from convexlift.files.pictures import Picture
from convexlift.images import load_example
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.ranges import number_range

X = load_example("camera")[0, 0, 60:156, 80:176].numpy().astype(np.float32)
QUICK = {"task": "denoise", "regularizer": "tv", "tolerance": 1e-2, "max_iterations": 20}
pytestmark = pytest.mark.single_precision


def noisy(sigma, clean=X, seed=0):
    n = np.random.default_rng(seed).standard_normal(clean.shape)
    return (clean + sigma * n).astype(np.float32)


def auto(array):
    return number_range(Picture(np.atleast_3d(array).reshape(-1, *array.shape[-2:])), "auto")


def hot(array, value, count=5):
    spoiled = array.copy()
    places = np.random.default_rng(1).choice(array.size, count, replace=False)
    spoiled.reshape(-1)[places] = value
    return spoiled


@pytest.mark.parametrize("white", [1.0, 255.0, 4095.0, 65535.0])
@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.2, 0.5])
def test_noise_does_not_decide_the_range(white, sigma):
    found = auto(white * noisy(sigma))
    assert found.numbers == (0.0, white)
    assert found.nominal


@pytest.mark.parametrize("value", [40.0, -40.0, 3e4])
def test_hot_pixels_do_not_decide_the_range(value):
    found = auto(hot(noisy(0.1), value))
    assert found.numbers == (0.0, 1.0)
    assert "5 of them" in found.notes[0]


@pytest.mark.parametrize(
    ("array", "numbers"),
    [
        (np.full((16, 16), 0.25), (0.0, 1.0)),
        (np.zeros((16, 16)), (0.0, 1.0)),
        (np.full((16, 16), 200.0), (0.0, 255.0)),
        (np.where(np.eye(96, dtype=bool), np.nan, 255 * X), (0.0, 255.0)),
        (np.where(np.eye(96, dtype=bool), np.inf, X), (0.0, 1.0)),
        (np.full((16, 16), np.nan), (0.0, 1.0)),
        (X > 0.5, (0.0, 1.0)),
        (np.rint(255 * X).astype(np.uint8), (0.0, 255.0)),
        (np.rint(9 * X).astype(np.uint8), (0.0, 255.0)),
        (np.rint(20000 * X - 100).astype(np.int16), (0.0, 32767.0)),
    ],
)
def test_nominal_ranges(array, numbers):
    found = auto(array)
    assert found.numbers == numbers
    assert found.nominal
    assert not found.notes


@pytest.mark.parametrize(
    "array",
    [
        -1.0 - X,
        -1000 * X,
        -1024 + 2500 * X,
        np.rint(-1024 + 2500 * X).astype(np.int16),
        np.rint(-150 + 400 * X).astype(np.int16),
        3 + 4 * X,
        0.001 * X - 40,
        1e9 * X,
        np.full((16, 16), -7.0),
        np.full((16, 16), 12.0),
    ],
    ids=["negative", "more negative", "HU", "HU in integers", "soft tissue", "units", "offset",
         "large", "constant", "constant without a range"],
)  # fmt: skip
def test_numbers_without_a_nominal_range(array):
    found = auto(array)
    low, high = found.numbers
    assert not found.nominal
    assert "mapped to 0 ... 1" in found.notes[0]
    assert low == pytest.approx(float(array.min()))
    constant = array.min() == array.max()
    assert high == pytest.approx(float(array.max()) + constant)
    # Outliers do not change it much, and are said.
    if array.dtype.kind == "f" and not constant:
        spoiled = auto(hot(array, high + 50 * (high - low)))
        assert spoiled.numbers[0] == pytest.approx(low)
        assert spoiled.numbers[1] < high + 0.3 * (high - low)
        assert "far beyond" in spoiled.notes[1]


def test_twelve_bits_in_sixteen_are_said_whatever_hot_pixels_say():
    twelve = np.rint(4095 * X).astype(np.uint16)
    for array in (twelve, hot(twelve, 65535)):
        found = auto(array)
        assert found.numbers == (0.0, 65535.0)
        assert "--range 0,4095" in found.notes[0]


@pytest.mark.parametrize("sigma", [25 / 255, 50 / 255])
@pytest.mark.parametrize(("scale", "kind"), [(1, np.float32), (255, np.float64)])
def test_psnr_and_sigma_refer_to_the_nominal_range(sigma, scale, kind, tmp_path):
    y = noisy(sigma)
    np.save(tmp_path / "y.npy", (scale * y).astype(kind))
    np.save(tmp_path / "x.npy", (scale * X).astype(kind))
    result = run("denoise", tmp_path / "y.npy", "-o", tmp_path / "z.npy", "--sigma", sigma,
                 "--truth", tmp_path / "x.npy")  # fmt: skip
    assert result.exit_code == 0, result.output
    record = one_record(tmp_path, "z")
    assert record["psnr_before"] == pytest.approx(-20 * math.log10(np.std(y - X)), abs=0.05)
    z = np.load(tmp_path / "z.npy") / scale
    error = np.mean((z - X.astype(np.float64)) ** 2)
    assert record["psnr"] == pytest.approx(-10 * math.log10(error), abs=0.01)
    assert record["noise"]["level"] == sigma
    # Data in the file's numbers, or on the scale of the regularizer: the same problem.
    same = cl.reconstruct(y, sigma=sigma, range=(0.0, 1.0), **QUICK)
    assert np.abs(same.x.numpy() - z).max() < 2e-3


@pytest.mark.parametrize("option", ["sigma", "truth"])
def test_sigma_and_truth_need_a_known_range(option):
    attenuation = 3 + 4 * noisy(0.05)
    given = {"sigma": {"sigma": 0.05}, "truth": {"truth": 3 + 4 * X}}[option]
    with pytest.raises(InputError, match=rf"none of the usual ranges.*{option}.*range"):
        cl.reconstruct(attenuation, **given, **QUICK)
    named = cl.reconstruct(attenuation, range=(3.0, 7.0), **given, **QUICK)
    assert named.noise.level == pytest.approx(0.05, rel=0.1)
    # Nothing refers to the range if the noise is estimated.
    found = cl.reconstruct(attenuation, **QUICK)
    assert float((found.x - torch.from_numpy(3 + 4 * X)).abs().mean()) < 0.15
