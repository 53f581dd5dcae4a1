"""``convexlift reconstruct mri``: k-space in files, coils, noise, weights, and bad files."""

from __future__ import annotations

import json
import math

import h5py
import numpy as np
import pytest
import tifffile
import torch
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.operators.mri import centred_fft
from convexlift.phantoms import shepp_logan

SIZE, COILS, SIGMA = 48, 3, 2e-6
SCALE = 1e-4
"""Of k-space: files of fastMRI have such small numbers."""

pytestmark = pytest.mark.single_precision


def images(slices: int = 2) -> torch.Tensor:
    """Complex slices with a phase."""
    phase = torch.linspace(0, 1, SIZE)[:, None]
    one = shepp_logan(SIZE)[0, 0].float() * torch.exp(1j * phase)
    return torch.stack([one * (1 - 0.2 * k) for k in range(slices)])


def coil_maps() -> torch.Tensor:
    along = torch.linspace(-1, 1, SIZE)
    rows, columns = torch.meshgrid(along, along, indexing="ij")
    angles = [2 * math.pi * k / COILS for k in range(COILS)]
    maps = [torch.exp(-((rows - math.cos(a)) ** 2) - (columns - math.sin(a)) ** 2 + 1j * a)
            for a in angles]  # fmt: skip
    stacked = torch.stack(maps)
    return stacked / stacked.abs().square().sum(0).sqrt()


def k_space(coils: bool = True, sigma: float = SIGMA) -> torch.Tensor:
    """(slices, coils, H, W), or without the coils."""
    generator = torch.Generator().manual_seed(0)
    seen = images()[:, None] * coil_maps() if coils else images()
    data = SCALE * centred_fft(seen)
    noise = torch.randn(2, *data.shape, generator=generator)
    return data + sigma * torch.complex(*noise)


def columns() -> np.ndarray:
    mask = np.random.default_rng(0).random(SIZE) < 0.5
    mask[18:30] = True
    return mask


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("kspace")
    whole = k_space().numpy()
    magnitudes = SCALE * images().abs().numpy()
    with h5py.File(folder / "whole.h5", "w") as file:
        file["kspace"] = whole
        file["reconstruction_rss"] = magnitudes[:, 4:-4, 4:-4]
    with h5py.File(folder / "some.h5", "w") as file:
        file["kspace"] = whole * columns()
        file["mask"] = columns()
    with h5py.File(folder / "single.h5", "w") as file:
        file["kspace"] = k_space(coils=False).numpy() * columns()
    return folder


def run(*arguments):
    words = ["reconstruct", "mri", *map(str, arguments), "--tolerance", "1e-2"]
    return CliRunner().invoke(app, words)


def error(x: np.ndarray) -> float:
    truth = SCALE * images().abs().numpy()
    return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))


def zero_filled(coils: bool = True) -> np.ndarray:
    back = centred_fft(k_space(coils) * torch.from_numpy(columns()), inverse=True)
    return (back.abs().square().sum(1).sqrt() if coils else back.abs()).numpy()


@pytest.mark.parametrize("name", ["some.h5", "single.h5"])
def test_slices_are_better_than_zero_filled_ones_and_certified(name, files, tmp_path):
    result = run(files / name, "-o", tmp_path / "x.tif", "--proof")
    assert result.exit_code == 0, result.output
    x = tifffile.imread(tmp_path / "x.tif")
    assert error(x) < 0.7 * error(zero_filled(coils=name == "some.h5"))
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["gap"] <= 1e-2
    assert record["guarantee"] == "GLOBAL"
    assert record["coils"] == (3 if name == "some.h5" else 1)
    assert record["noise"]["estimated"]
    assert cl.verify(tmp_path / "x.proof")


def test_a_simulated_scan_is_compared_with_the_whole_one(files, tmp_path):
    result = run(files / "whole.h5", "-o", tmp_path / "x.npy", "--simulate", "--acceleration", 2,
                 "--slices", "1:2")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "dB against all of k-space, which may have noise of its own" in result.output
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["psnr"] > record["psnr_before"] + 2
    assert record["slices"] == 1
    assert np.load(tmp_path / "x.npy").shape == (SIZE, SIZE)


def test_images_in_the_file_are_the_truth_and_the_size(files, tmp_path):
    assert run(files / "whole.h5", "-o", tmp_path / "x.npy").exit_code == 0
    assert np.load(tmp_path / "x.npy").shape == (2, SIZE - 8, SIZE - 8)
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["psnr"] > 25
    assert record["notes"] == ["all of k-space was sampled"]


@pytest.mark.parametrize("rule", ["auto", "discrepancy", 0.01])
def test_weights_by_every_rule(rule, files):
    result = cl.reconstruct(
        files / "single.h5", task="mri", weight=rule, tolerance=3e-2, slices=(0, 1), sigma=SIGMA
    )
    assert result.x.shape == (SIZE, SIZE)
    assert result.solution.x.shape == (1, 2, SIZE, SIZE)
    residual = result.data.operator(result.solution.x) - result.data.fidelity.y
    sampled = result.data.operator.mask.expand_as(residual) > 0
    level = float(residual[sampled].square().mean().sqrt()) / result.noise.level
    assert level == pytest.approx(1.0, rel=0.02 if rule == "discrepancy" else 0.9)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_noise_is_that_of_high_frequencies(share):
    """Where edges reach them, the estimate is larger than the noise, not smaller."""
    mask = torch.from_numpy(columns()) | torch.tensor(share == 1)
    for sigma, tolerance in ((2e-5, 0.1), (SIGMA, 0.6)):
        scan = cl.scans.KSpace(k_space(sigma=sigma) * mask, mask.expand(SIZE, SIZE))
        assert (1 - 0.1) * sigma <= scan.noise <= (1 + tolerance) * sigma


def test_estimated_coils_are_the_coils_where_there_is_signal():
    scan = cl.scans.KSpace(k_space(), torch.ones(SIZE, SIZE, dtype=torch.bool))
    maps, bright = scan.coil_maps(calibration=16), images().abs() > 0.15
    found = (maps * coil_maps().conj()).sum(1)  # one, up to the phase of the image
    assert float((found.abs()[bright] - 1).abs().mean()) < 0.03
    same = cl.reconstruct(scan, task="mri", tolerance=3e-2)
    assert same.x.shape == (2, SIZE, SIZE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "neither kspace, as files of fastMRI have, nor .*; it has nothing"),
        ({"kspace": np.zeros((2, 4, 4))}, "must hold complex numbers, got float64"),
        ({"kspace": np.zeros((4, 4), np.complex64)}, r"shape \(4, 4\); \(slices, H, W\)"),
        ({"kspace": np.zeros((1, 4, 4), np.complex64)}, "nothing was sampled"),
        ({"kspace": np.full((1, 4, 4), np.nan, np.complex64)}, "not finite at"),
        (
            {"kspace": np.ones((1, 4, 4), np.complex64), "mask": np.ones(3)},
            "mask has 3 columns, and k-space 4",
        ),
    ],
)
def test_bad_files_are_named(content, words, tmp_path):
    path = tmp_path / "bad.h5"
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values
    with pytest.raises(cl.scans.ScanFileError, match=words):
        cl.scans.read_kspace(path)


def test_a_file_that_declares_too_much_is_refused(tmp_path):
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("kspace", (1000, 8, 4000, 4000), np.complex64, chunks=(1, 1, 64, 64))
    with pytest.raises(cl.scans.ScanFileError, match=r"read fewer slices \(--slices\)"):
        cl.scans.read_kspace(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slices": (3, 3)}, "slices= is FIRST:END with FIRST < END"),
        ({"acceleration": 1.0}, "acceleration= is a number > 1"),
        ({"regularizer": "photo-any-size"}, "two channels, and this regularizer takes 1"),
        ({"slices": (5, 6)}, "it has 2 slices, and none of those asked for"),
    ],
)
def test_bad_options_are_named(options, words, files):
    with pytest.raises(ValueError, match=words):
        cl.reconstruct(files / "some.h5", task="mri", **options)


def test_arrays_and_wrong_endings_are_named(files, tmp_path):
    with pytest.raises(ValueError, match=r"a file, or a cl\.scans\.KSpace"):
        cl.reconstruct(torch.zeros(4, 4), task="mri")
    result = run(files / "some.h5", "-o", tmp_path / "x.dcm")
    assert result.exit_code == 2
    assert "does not name an image of magnitudes" in " ".join(result.output.split())
