"""``convexlift reconstruct denoise|inpaint``, one file: formats, and what is written beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from reconstruct_runs import bits, colours, crop, noisy, one_record, run, solved

import convexlift as cl
from convexlift.files.pictures import Picture, read_picture, write_picture
from convexlift.images import load_image, psnr, save_image
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.weight import card_weight, texture_of

pytestmark = pytest.mark.single_precision


# Formats ------------------------------------------------------------------------------------------

GREY, COLOUR = noisy(size=24), colours()
ALPHA = np.linspace(0, 1, 24 * 24).reshape(24, 24)
STACK = np.stack([noisy(size=24, seed=i) for i in range(3)])


def rgba(dtype):
    return np.dstack([bits(COLOUR, dtype), bits(ALPHA, dtype)])


def by_tifffile(array, **options):
    return lambda path: tifffile.imwrite(path, array, **options)


def deep(pixels):
    alpha = pixels[None, ..., 3] if pixels.shape[-1] == 4 else None
    picture = Picture(pixels[..., :3].transpose(2, 0, 1), alpha, 3, metadata={"dpi": (300, 300)})
    return lambda path: write_picture(picture, path)


def described(path):
    info = PngInfo()
    info.add_text("Description", "a test")
    Image.fromarray(bits(GREY, np.uint8)).save(path, dpi=(300, 300), pnginfo=info)


FORMATS = {
    "grey8.png": described,
    "grey16.png": lambda path: Image.fromarray(bits(GREY, np.uint16)).save(path),
    "rgb8.png": lambda path: Image.fromarray(bits(COLOUR, np.uint8)).save(path),
    "rgba8.png": lambda path: Image.fromarray(rgba(np.uint8)).save(path),
    "la8.png": lambda path: Image.fromarray(rgba(np.uint8)).convert("LA").save(path),
    "rgb16.png": deep(bits(COLOUR, np.uint16)),
    "rgba16.png": deep(rgba(np.uint16)),
    "grey8.jpg": lambda path: Image.fromarray(bits(GREY, np.uint8)).save(path, quality=95),
    "rgb8.JPEG": lambda path: Image.fromarray(bits(COLOUR, np.uint8)).save(
        path, format="JPEG", quality=95, subsampling=0
    ),
    "grey16.tif": by_tifffile(bits(GREY, np.uint16), resolution=(50.0, 50.0)),
    "big_endian.tif": by_tifffile(bits(GREY, np.uint16), byteorder=">"),
    "white_is_zero.tif": by_tifffile(bits(1 - GREY, np.uint8), photometric="miniswhite"),
    "float.tif": by_tifffile(GREY.astype(np.float32), compression="zlib"),
    "stack16.tif": by_tifffile(bits(STACK, np.uint16), imagej=True),
    "rgb16.tif": by_tifffile(bits(COLOUR, np.uint16), photometric="rgb"),
    "planar.tif": by_tifffile(
        bits(COLOUR, np.uint8).transpose(2, 0, 1), photometric="rgb", planarconfig="separate"
    ),
    "rgba16.tif": by_tifffile(rgba(np.uint16), photometric="rgb", extrasamples=["unassalpha"]),
    "float64.npy": lambda path: np.save(path, GREY.astype(np.float64)),
    "int16.npy": lambda path: np.save(path, bits(GREY, np.int16)),
    "batch.npy": lambda path: np.save(path, STACK[:, None].astype(np.float32)),
    "colour.npy": lambda path: np.save(path, COLOUR.astype(np.float32)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_comes_back_as_it_was(name, tmp_path):
    source = tmp_path / name
    FORMATS[name](source)
    out = tmp_path / "out"
    result = run("denoise", source, "-o", out)
    assert result.exit_code == 0, result.output
    before, after = read_picture(source), read_picture(out / name)
    assert after.stored.dtype == before.stored.dtype
    assert after.stored.shape == before.stored.shape
    assert after.layout == before.layout
    assert (after.channels, after.inverted) == (before.channels, before.inverted)
    assert (after.alpha is None) == (before.alpha is None)
    if before.alpha is not None:
        assert np.array_equal(after.alpha, before.alpha)
    for key in ("resolution", "resolutionunit", "description", "compressed"):
        assert after.metadata.get(key) == before.metadata.get(key), key
    assert after.metadata.get("dpi") == pytest.approx(before.metadata.get("dpi"))
    old, new = before.values(before.full_range), after.values(after.full_range)
    # Smoother than before, and near it.
    assert np.abs(np.diff(new)).mean() < 0.8 * np.abs(np.diff(old)).mean()
    assert np.abs(new - old).mean() < 0.1
    record = one_record(out, Path(name).stem)
    assert len(record["planes"]) == len(before.stored)
    assert record["gap"] <= 1e-2


def test_profiles_and_exif_are_kept(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "a description"
    picture = Image.fromarray(bits(COLOUR, np.uint8))
    for name in ("a.png", "a.jpg"):
        picture.save(tmp_path / name, exif=exif, icc_profile=b"profile" * 20, dpi=(240, 240))
        assert run("denoise", tmp_path / name, "-o", tmp_path / "out").exit_code == 0
        with Image.open(tmp_path / "out" / name) as written:
            assert written.getexif()[0x010E] == "a description"
            assert written.info["icc_profile"] == b"profile" * 20
            assert written.info["dpi"] == pytest.approx((240, 240), abs=0.1)
        (tmp_path / "out" / "a.json").unlink()


def test_another_format_by_the_name_of_the_output(tmp_path):
    np.save(tmp_path / "a.npy", GREY.astype(np.float32))
    assert run("denoise", tmp_path / "a.npy", "-o", tmp_path / "b.tif").exit_code == 0
    assert tifffile.imread(tmp_path / "b.tif").dtype == np.float32


# What is written beside --------------------------------------------------------------------------


def test_the_record_agrees_with_a_direct_solve(tmp_path):
    picture = tmp_path / "noisy.png"
    save_image(picture, torch.from_numpy(noisy(size=48, sigma=0.1)))
    save_image(tmp_path / "clean.png", crop(size=48))
    result = run(
        "denoise", picture, "-o", tmp_path / "x.png", "--noise", "gaussian", "--sigma", "0.1",
        "--regularizer", "photo-any-size",
        "--truth", tmp_path / "clean.png", "--gap-map", "--json", tmp_path / "all.json",
        quick=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = one_record(tmp_path, "x")
    network = cl.load("photo-any-size")
    y, truth = load_image(picture), load_image(tmp_path / "clean.png")
    weight = card_weight(
        network.card.weights, "gaussian-denoising", Noise("gaussian", 0.1),
        texture_of(network, y, 0.1),
    )  # fmt: skip
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=weight, box=(0, 1)
    )
    solution = cl.solve(problem)
    assert record["weight"] == {"value": pytest.approx(weight), "rule": "card"}
    assert record["objective"] == pytest.approx(float(solution.objective), rel=1e-5)
    assert record["lower_bound"] == pytest.approx(float(solution.lower_bound), rel=1e-4)
    assert record["gap"] == pytest.approx(float(solution.gap), rel=0.05)
    assert record["iterations"] == int(solution.iterations)
    assert record["status"] == "CONVERGED"
    assert record["guarantee"] == "GLOBAL"
    assert record["psnr"] == pytest.approx(float(psnr(solution.x, truth)), abs=0.01)
    assert record["psnr_before"] == pytest.approx(float(psnr(y, truth)), abs=0.01)
    assert 0 < record["ssim"] < 1
    assert record["noise"] == {"model": "gaussian", "level": 0.1, "estimated": False}
    settings = record["settings"]
    assert record["version"] == cl.__version__
    assert settings["sha256"] == cl.models.files.sheet("photo-any-size").sha256
    written = load_image(tmp_path / "x.png")
    assert float((written - solution.x.clamp(0, 1)).abs().max()) <= 0.51 / 255
    # The map sums to the gap of a certificate, which also tries the tangent: no larger than ours.
    where = np.load(tmp_path / "x.gap.npy")
    assert where.shape == (1, 48, 48)
    certificate = cl.certify(problem, solution.x, solution.duals)
    assert where.sum() == pytest.approx(float(certificate.map.sum()), rel=0.05)
    assert 0 < where.sum() <= 1.01 * (record["objective"] - record["lower_bound"])
    assert read_picture(tmp_path / "x.gap.png").stored.max() == 255
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything["files"] == [record]
    assert everything["failed"] == []


def test_gaps_are_not_negative_however_long_is_solved(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    result = run(
        "denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--tolerance", 0,
        "--max-iterations", 3000, quick=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = one_record(tmp_path, "x")
    assert 0 <= record["gap"] == record["planes"][0]["gap"]
    assert record["lower_bound"] <= record["objective"]


def test_noise_and_weight_are_printed(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=64, sigma=0.1)))
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--weight", "auto")
    assert "Gaussian noise, sigma 0.1" in result.output or "sigma 0.09" in result.output
    assert "(estimated)" in result.output
    assert "(auto, " in result.output
    record = one_record(tmp_path, "x")
    assert record["weight"]["rule"] == "auto"
    assert len(record["weight"]["trials"]) >= 3
    assert "━" not in result.output


@pytest.mark.parametrize("method", ["paper", "nmapg", "lbfgs", "sm-c", "sm-d"])
def test_all_methods_certify_the_same_problem(method):
    y, options = noisy(size=16, sigma=0.1), {"sigma": 0.1, "regularizer": "photo-any-size"}
    ours = cl.reconstruct(y, **options).record
    theirs = cl.reconstruct(y, method=method, max_iterations=150, **options).record
    assert theirs["settings"]["method"] == method
    assert theirs["objective"] == pytest.approx(ours["objective"], rel=0.03)
    if method in ("nmapg", "lbfgs"):
        assert theirs["objective"] >= ours["lower_bound"]


def test_batches_do_not_change_results(tmp_path):
    for i in range(3):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=24, seed=i)))
    for batch, name in ((1, "one"), (3, "all")):
        solved(tmp_path / "in", tmp_path / name, batch=batch, sigma=0.05, weight=0.04)
    for i in range(3):
        single, together = (one_record(tmp_path / name, str(i)) for name in ("one", "all"))
        assert (single["files_at_once"], together["files_at_once"]) == (1, 3)
        assert together["objective"] == pytest.approx(single["objective"], rel=1e-5)
        assert together["iterations"] == single["iterations"]


def test_a_time_limit_is_kept_and_said(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=160)))
    result = run(
        "denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--tolerance", 0,
        "--max-iterations", 10**9, "--time-limit", 0.3, quick=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert one_record(tmp_path, "x")["status"] == "TIME_LIMIT"
    assert "time limit" in result.output
