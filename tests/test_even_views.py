"""Scans with evenly spaced views, whose angles need not be listed, and dry runs of scans."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.phantoms import shepp_logan
from convexlift.reconstruction import InputError
from convexlift.scans import EvenViews, FanGeometry, ParallelGeometry, ScanFileError, read_sinogram

VIEWS, BINS, WIDTH = 24, 40, 5.0
INTEGRALS = ("--quantity", "line integrals")


@pytest.fixture(autouse=True)
def _place(_double_precision, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def scan(kind=cl.ParallelBeam, **more):
    """Line integrals of a phantom, in a file without a geometry."""
    scanner = kind(image_size=BINS, angles=VIEWS, bins=BINS, bin_width=WIDTH, extent=200.0, **more)
    generator = torch.Generator().manual_seed(0)
    values = scanner(0.02 * shepp_logan(BINS))[0, 0]
    values = values + 0.01 * torch.randn(values.shape, generator=generator)
    np.save("scan.npy", values.numpy())
    return scanner


def state(geometry):
    """Beside the scan."""
    side = {"format": "convexlift sinogram", "version": 1, "quantity": "transmission"}
    Path("scan.json").write_text(json.dumps({**side, "geometry": geometry}))


def run(*words):
    return CliRunner().invoke(app, ["reconstruct", "ct", *map(str, words)])


@pytest.mark.parametrize(
    ("kind", "more"),
    [(cl.ParallelBeam, {}), (cl.FanBeam, {"source_distance": 500.0, "detector_distance": 400.0})],
)
def test_they_are_those_of_the_operators(kind, more):
    beam = "fan" if more else "parallel"
    operator = kind(image_size=BINS, angles=VIEWS, bins=BINS, bin_width=WIDTH, **more)
    geometry = EvenViews(beam=beam, bin_width=WIDTH, **more).geometry(VIEWS)
    assert geometry.unit == "mm"
    assert np.allclose(geometry.angles, operator.exact_angles, atol=1e-12)
    record = {"beam": beam, "angles": VIEWS, "bin_width": WIDTH, **more}
    scan(kind, **more)
    state(record)
    assert read_sinogram("scan.npy").geometry == geometry


def test_arcs_and_lengths():
    assert np.allclose(EvenViews(arc=-90).geometry(3).angles, [0, -math.pi / 6, -math.pi / 3])
    assert isinstance(EvenViews().geometry(2), ParallelGeometry)
    assert EvenViews().geometry(2).unit == "pixel"
    distances = {"source_distance": 3.0, "detector_distance": 2.0}
    with pytest.raises(ValueError, match="a fan needs bin_width, in mm"):
        EvenViews(beam="fan", **distances)
    fan = EvenViews(beam="fan", bin_width=0.5, **distances).geometry(4)
    assert (fan.unit, fan.bin_width) == ("mm", 0.5)
    assert isinstance(fan, FanGeometry)
    assert fan.angles[-1] == pytest.approx(1.5 * math.pi)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beam", "parallel"), "--quantity counts, transmission or 'line"),
        (("--arc", "180"), "--arc is for evenly spaced views; add --beam"),
        (("--beam", "parallel", "--arc", "400"), "--arc is at most 360 degrees"),
        (("--beam", "fan", "--source-distance", "5"), "a fan needs --detector-distance, --bin"),
        (("--beam", "parallel", "--source-distance", "5"), "--source-distance is for fans"),
        (("--beam", "parallel", "--angle-unit", "degrees"), "--angle-unit and --beam both give"),
        (("--simulate", "--beam", "parallel"), "--beam does not apply"),
        ((), "--beam parallel"),
    ],
)
def test_what_is_missing_is_said(options, message):
    scan()
    result = run("scan.npy", "-o", "slice.tif", *options)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not Path("slice.tif").exists()


@pytest.mark.parametrize("number", [0, -3, 1_000_001, 2_000_000_000])
def test_numbers_of_views_in_files_are_bounded(number):
    scan()
    state({"beam": "parallel", "angles": number, "bin_width": WIDTH})
    with pytest.raises(ScanFileError, match="angles is a number from 1 to 1000000"):
        read_sinogram("scan.npy")


def test_a_scan_without_angles_asks_for_the_beam():
    h5py = pytest.importorskip("h5py")
    with h5py.File("scan.h5", "w") as file:
        file["exchange/data"] = np.ones((VIEWS, 2, BINS))
    result = run("scan.h5", "-o", "slice.tif")
    text = " ".join(result.output.split())
    assert result.exit_code != 0
    assert text.index("--beam parallel") < text.index("read_sinogram(path, angles=...)")


def test_one_command_without_a_geometry_equals_one_with_it():
    scanner = scan()
    quick = {"regularizer": "tv", "weight": 0.01, "max_iterations": 5, "quantity": "line integrals"}
    bare = cl.reconstruct("scan.npy", task="ct", beam="parallel", bin_width=WIDTH, **quick)
    array = np.load("scan.npy")
    stated = cl.reconstruct(array, task="ct", geometry=cl.scans.geometry_of(scanner), **quick)
    evenly = cl.reconstruct(array, task="ct", beam="parallel", bin_width=WIDTH, **quick)
    assert torch.equal(bare.x, evenly.x)
    assert torch.allclose(bare.x, stated.x, atol=1e-2)  # HU
    assert bare.record["unit"] == "HU"
    with pytest.raises(InputError, match="both give the rays"):
        cl.reconstruct(array, task="ct", geometry=cl.scans.geometry_of(scanner), beam="fan")


def test_a_record_beside_the_scan_is_no_geometry():
    """The record of scan.tif is scan.json, where the geometry of scan.npy would be."""
    scan()
    fast = ("--regularizer", "tv", "--weight", "0.01", "--max-iterations", "3")
    words = ("scan.npy", "-o", "scan.tif", "--beam", "parallel", *INTEGRALS, *fast)
    for more in ((), ("--force",)):
        result = run(*words, *more)
        assert result.exit_code == 0, result.output
    with pytest.raises(ScanFileError, match="--beam"):
        read_sinogram("scan.npy")


def test_a_dry_run_says_what_the_scan_is_and_what_becomes_of_it():
    scan()
    result = run("scan.npy", "-o", "slice.tif", "--beam", "parallel", "--bin-width", WIDTH,
                 *INTEGRALS, "--size", 50, "--proof", "--dry-run")  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    for fact in ("line integrals from", "24 views over 172.5 degrees", "40 bins of 5 mm",
                 "parallel beam", "1 slice of 50 x 50, 4 mm a pixel, in HU", "photons in a free",
                 "slice.tif, with slice.json and .proof", "held-out data"):  # fmt: skip
        assert fact in said, fact
    assert not Path("slice.tif").exists()
    without_flat = ("--beam", "parallel", "--quantity", "counts", "--dry-run")
    assert "would fail: counts need" in run("scan.npy", "-o", "slice.tif", *without_flat).output
    refused = run("scan.npy", "-o", "slice.tif", "--dry-run")
    assert refused.exit_code == 2
    assert "would fail" in refused.output


def test_a_look_at_an_array_names_both_commands():
    scan()
    said = CliRunner().invoke(app, ["reconstruct", "scan.npy"]).output
    assert "convexlift reconstruct denoise scan.npy" in said
    (line,) = (line for line in said.splitlines() if "reconstruct ct scan.npy" in line)
    words = shlex.split(line)[2:]
    assert CliRunner().invoke(app, ["reconstruct", *words, "--dry-run"]).exit_code == 0
