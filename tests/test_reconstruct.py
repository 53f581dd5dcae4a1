"""``convexlift reconstruct denoise|inpaint``, one file: formats, and what is written beside."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from reconstruct_runs import bits, colours, crop, noisy, one_record, run

import convexlift as cl
from convexlift.files.pictures import Picture, read_picture, write_picture
from convexlift.images import load_image, psnr, save_image
from convexlift.problems.claims import relative_gap
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.reconstructor import PreparedImage, record_of
from convexlift.reconstruction.weight import Weight, card_weight, texture_of
from convexlift.tasks import GaussianDenoising

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


FORMATS = {
    "grey8.png": lambda path: Image.fromarray(bits(GREY, np.uint8)).save(path, dpi=(300, 300)),
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
    "rgba16.tif": by_tifffile(rgba(np.uint16), photometric="rgb", extrasamples=["unassalpha"]),
    "float64.npy": lambda path: np.save(path, GREY.astype(np.float64)),
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
    result = run("denoise", tmp_path / "a.npy", "-o", tmp_path / "c.png")
    assert result.exit_code == 2
    assert "float32 cannot be written as PNG" in result.output
    assert "try .tif or .npy" in result.output


def test_numbers_of_another_range(tmp_path):
    counts = 100 + 3000 * GREY.astype(np.float32)
    np.save(tmp_path / "counts.npy", counts)
    result = run("denoise", tmp_path / "counts.npy", "-o", tmp_path / "out.npy")
    assert "mapped to 0 ... 1" not in result.output
    assert one_record(tmp_path, "out")["range"] == [0, 4095]
    restored = np.load(tmp_path / "out.npy")
    assert np.abs(restored - counts).mean() < 300
    assert restored.max() > 1000
    twelve = (4095 * GREY).astype(np.uint16)
    Image.fromarray(twelve).save(tmp_path / "twelve.png")
    assert "--range 0,4095" in run(
        "denoise", tmp_path / "twelve.png", "-o", tmp_path / "x.png").output  # fmt: skip
    result = run("denoise", tmp_path / "twelve.png", "-o", tmp_path / "y.png", "--range", "0,4095")
    record = one_record(tmp_path, "y")
    assert record["range"] == [0, 4095]
    assert record["noise"]["level"] == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize(("low", "high"), [(0, 32767), (-2000, 5000)])
def test_integers_with_a_sign(low, high, tmp_path):
    values = low + np.rint((high - low) * GREY).astype(np.int16)
    np.save(tmp_path / "a.npy", values)
    result = run("denoise", tmp_path / "a.npy", "-o", tmp_path / "x.npy")
    numbers = one_record(tmp_path, "x")["range"]
    assert numbers == ([0, 32767] if low == 0 else [values.min(), values.max()])
    assert ("were mapped to 0 ... 1" in result.output) == (low < 0)
    restored = np.load(tmp_path / "x.npy")
    assert restored.dtype == np.int16
    assert np.abs(restored - values.astype(float)).mean() < 0.1 * (high - low)


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


@pytest.mark.parametrize(
    ("objectives", "bounds", "gap"),
    [
        ([2.0], [2.0 + 1e-9], 0),  # above, by rounding
        ([2.0, 8.0], [2.0 + 1e-3, 7.9], 0.01),  # no plane makes up for another
        ([2.0, 8.0], [1.0, 8.0], 0.1),
        ([2.0, 8.0], [-math.inf, 8.0], None),
        ([0.0], [0.0], 0),
        ([0.0], [-1.0], None),
    ],
)
def test_bounds_of_records_are_below_objectives(objectives, bounds, gap):
    count = len(objectives)
    objective, bound = (torch.tensor(v, dtype=torch.float64) for v in (objectives, bounds))
    images = torch.zeros(count, 1, 8, 8)
    data = GaussianDenoising().measure(images, count * [torch.Generator()])
    solved = cl.solve(
        data.problem(cl.TotalVariation(), 1.0), stop=cl.StopWhen(gap=None, max_iterations=0)
    )
    solved = replace(
        solved, objective=objective, lower_bound=bound, gap=relative_gap(objective, bound)
    )
    image = PreparedImage(
        name="a.png",
        data=data,
        weight=Weight(1.0, "given"),
        noise=None,
        restored=print,
        write=print,
    )
    record = record_of(image, solved, {})
    assert record["gap"] == (None if gap is None else pytest.approx(gap))
    for each in (record, *record["planes"]):
        assert each["gap"] is None or each["gap"] >= 0
        assert each["lower_bound"] is None or each["lower_bound"] <= each["objective"]
    if gap is not None:
        assert record["gap"] <= max(plane["gap"] for plane in record["planes"])
        assert record["lower_bound"] == sum(plane["lower_bound"] for plane in record["planes"])


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
def test_all_methods_certify_the_same_problem(method, tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16, sigma=0.1)))
    common = ["--sigma", "0.1", "--noise", "gaussian", "--regularizer", "photo-any-size"]
    run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", *common, quick=False)
    result = run(
        "denoise", tmp_path / "a.png", "-o", tmp_path / "y.png", "--method", method,
        "--max-iterations", 150, *common, quick=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ours, theirs = one_record(tmp_path, "x"), one_record(tmp_path, "y")
    assert theirs["settings"]["method"] == method
    assert theirs["objective"] == pytest.approx(ours["objective"], rel=0.03)
    if method in ("nmapg", "lbfgs"):
        assert theirs["objective"] >= ours["lower_bound"]


def test_batches_do_not_change_results(tmp_path):
    for i in range(3):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=24, seed=i)))
    common = ["--sigma", "0.05", "--noise", "gaussian", "--weight", "0.04"]
    assert (
        run("denoise", tmp_path / "in", "-o", tmp_path / "one", "--batch", 1, *common).exit_code
        == 0
    )
    assert (
        run("denoise", tmp_path / "in", "-o", tmp_path / "all", "--batch", 3, *common).exit_code
        == 0
    )
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
