"""``convexlift reconstruct ct``: sinograms in each quantity and file, and simulated scans."""

from __future__ import annotations

import json
import os
from functools import partial

import numpy as np
import pytest
import tifffile
import torch
from torch.nn.functional import avg_pool2d
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.images import psnr, save_image
from convexlift.phantoms import shepp_logan
from convexlift.scans import attenuation_to_hounsfield, hounsfield_to_attenuation, unit_attenuation

SIZE, EXTENT, PHOTONS = 24, 200.0, 1e5
QUICK = ["--regularizer", "tv", "--tolerance", "2e-2", "--max-iterations", "200"]
pytestmark = pytest.mark.single_precision


def run(*arguments):
    return CliRunner().invoke(app, ["reconstruct", "ct", *map(str, arguments), *QUICK])


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """One small scan in all its forms; attenuation per mm."""
    folder = tmp_path_factory.mktemp("scans")
    torch.set_default_dtype(torch.float32)
    mu = 0.015 * avg_pool2d(shepp_logan(4 * SIZE).float(), 4)
    scanner = cl.ParallelBeam(SIZE, 40, 36, EXTENT)
    geometry = cl.scans.geometry_of(scanner)
    integrals = scanner(mu)
    reading = torch.poisson(
        cl.expected_intensity(integrals, PHOTONS, 20.0), generator=torch.Generator().manual_seed(0)
    )
    flat, dark = (torch.full((1, 3, 36), level) for level in (PHOTONS, 20.0))
    write = cl.scans.write_sinogram
    write(
        cl.scans.Sinogram(reading[:, 0], geometry, "counts", flat=flat, dark=dark),
        folder / "fields.h5",
    )
    write(cl.scans.Sinogram(reading[:, 0], geometry, "counts"), folder / "counts.npy")
    np.save(folder / "flat_field.npy", flat[0].mean(0).numpy())
    through = (reading - 20) / (PHOTONS - 20)
    write(cl.scans.Sinogram(through[:, 0], geometry, "transmission"), folder / "through.npy")
    p = -torch.log(through)
    write(cl.scans.Sinogram(p[:, 0], geometry, "line integrals"), folder / "integrals.npy")
    tifffile.imwrite(folder / "page.tif", p[0, 0].numpy())
    record = json.loads((folder / "integrals.json").read_text())
    del record["arrays"]
    (folder / "page.json").write_text(json.dumps(record))
    truth = cl.scans.Volume.stacked(attenuation_to_hounsfield(mu)[:, 0], (EXTENT / SIZE,) * 2)
    cl.scans.write_volume(truth, folder / "truth.tif")
    return folder, mu


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fields.h5", []),
        ("counts.npy", ["--flat", PHOTONS, "--dark", 20]),
        ("counts.npy", ["--flat", "FOLDER/flat_field.npy", "--dark", 20]),
        ("through.npy", ["--photons", PHOTONS]),
        ("integrals.npy", []),
        ("integrals.npy", ["--sigma", 0.01]),
        ("page.tif", ["--weight", 5]),
    ],
)
def test_each_quantity_gives_the_slice_in_hu(name, options, scans, tmp_path):
    folder, mu = scans
    options = [str(o).replace("FOLDER", str(folder)) for o in options]
    result = run(
        folder / name, "-o", tmp_path / "slice.tif", "--size", SIZE, "--extent", EXTENT,
        "--truth", folder / "truth.tif", *options,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    written = cl.scans.read_volume(tmp_path / "slice.tif")
    assert written.spacing == pytest.approx((EXTENT / SIZE,) * 2, rel=1e-4)
    unit = unit_attenuation()
    found = hounsfield_to_attenuation(written.images) / unit
    quality = float(psnr(found, mu / unit))
    assert quality > 25
    record = json.loads((tmp_path / "slice.json").read_text())
    assert record["psnr"] == pytest.approx(quality, abs=0.01)
    assert record["unit"] == "HU"
    assert record["gap"] <= 2e-2
    if options == []:
        assert record["weight"]["rule"] == "auto"
    if name == "integrals.npy" and "--sigma" not in options:
        assert "photons in a free ray (estimated)" in result.output


@pytest.mark.slow
def test_results_in_every_format(scans, tmp_path):
    folder, _ = scans
    common = ["--size", SIZE, "--extent", EXTENT, "--weight", 5]
    for name in ("a.tif", "b.dcm", "c.npy", "d.png"):
        result = run(folder / "fields.h5", "-o", tmp_path / name, *common, "--window", "0,2000")
        assert result.exit_code == 0, result.output
    hu = cl.scans.read_volume(tmp_path / "a.tif").values
    assert float((cl.scans.read_volume(tmp_path / "b.dcm").values - hu).abs().max()) < 0.5
    assert np.allclose(np.load(tmp_path / "c.npy"), hu[0].numpy(), atol=1e-2)
    pixels = cl.images.load_image(tmp_path / "d.png")[0]
    assert float((pixels - ((hu + 1000) / 2000).clamp(0, 1)).abs().max()) < 0.6 / 255


def test_the_defaults_cover_the_field_of_view(scans, tmp_path):
    folder, _ = scans
    assert run(folder / "fields.h5", "-o", tmp_path / "a.npy", "--weight", 5).exit_code == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["size"] == [36, 36]
    geometry = cl.scans.read_sinogram(folder / "fields.h5").geometry
    assert record["pixel"] == pytest.approx(geometry.bin_width)


def test_simulated_scans_know_their_truth(tmp_path):
    hu = cl.scans.unit_to_hounsfield(avg_pool2d(shepp_logan(128).float(), 4))
    cl.scans.write_volume(cl.scans.Volume.stacked(hu[:, 0], (8.0, 8.0)), tmp_path / "slice.dcm")
    save_image(tmp_path / "plain.png", avg_pool2d(shepp_logan(128).float(), 4).clamp(0, 1))
    for name, target in (("slice.dcm", "a.dcm"), ("plain.png", "b.tif")):
        result = run(
            tmp_path / name, "-o", tmp_path / target, "--simulate", "--views", 40, "--bins", 48
        )
        assert result.exit_code == 0, result.output
        record = json.loads((tmp_path / target).with_suffix(".json").read_text())
        assert record["simulated"]
        assert "dB against the given slice, which may have noise of its own" in result.output
        assert record["psnr"] > record["psnr_before"] + 2
        assert record["weight"] == {"value": 4.0, "rule": "card"}
        assert cl.scans.read_volume(tmp_path / target).values.shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("name", "options", "message", "status"),
    [
        ("counts.npy", [], "counts need readings without object (--flat)", 1),
        ("counts.npy", ["--flat", "nowhere.npy"], "--flat is a number or an NPY file", 2),
        ("fields.h5", ["--size", 0], "--size is a number > 0", 2),
        ("fields.h5", ["--rows", "3"], "--rows is FIRST:END", 2),
        ("fields.h5", ["--window", "soft"], "--window is one of abdomen", 2),
        ("fields.h5", ["--truth", "FOLDER/truth.tif"], "see --size", 1),
        ("flat_field.npy", [], "needs flat_field.json", 1),
        # Options that say nothing about the data.
        ("integrals.npy", ["--photons", 1e5, "--sigma", 0.01], "two models of one noise", 2),
        ("integrals.npy", ["--flat", 1e5], "--flat is for counts", 1),
        ("through.npy", ["--dark", 1.0], "--dark is for counts", 1),
        ("integrals.npy", ["--background", 5], "--background is for emission counts", 1),
        ("fields.h5", ["--background", 5], "which have no flat field", 1),
        ("fields.h5", ["--sigma", 0.01], "--sigma is for transmissions and line integrals", 1),
        ("counts.npy", ["--background", 5, "--photons", 1e5], "--photons is for transmissions", 1),
        ("truth.tif", ["--simulate", "--truth", "FOLDER/truth.tif"], "so --truth", 2),
        ("truth.tif", ["--simulate", "--angle-unit", "degrees"], "so --angle-unit", 2),
    ],
)
def test_what_cannot_be_is_said(name, options, message, status, scans, tmp_path):
    folder, _ = scans
    options = [str(o).replace("FOLDER", str(folder)) for o in options]
    result = run(folder / name, "-o", tmp_path / "a.tif", *options)
    assert result.exit_code == status, result.output
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "a.tif").exists()


def test_the_geometry_of_a_sinogram_is_never_replaced(scans, tmp_path):
    folder, _ = scans
    for suffix in (".npy", ".json"):
        (tmp_path / f"scan{suffix}").write_bytes((folder / f"integrals{suffix}").read_bytes())
    record = json.loads((tmp_path / "scan.json").read_text())
    record["arrays"] = {"projections": {}}
    (tmp_path / "scan.json").write_text(json.dumps(record))
    before = (tmp_path / "scan.json").read_text()
    result = run(tmp_path / "scan.npy", "-o", tmp_path / "scan.tif", "--force")
    assert result.exit_code == 2
    assert "is an input" in result.output
    assert (tmp_path / "scan.json").read_text() == before


def test_a_truth_in_hu_needs_pixels_in_mm(scans, tmp_path):
    folder, _ = scans
    record = json.loads((folder / "page.json").read_text())
    record["geometry"]["unit"] = "pixel"
    (tmp_path / "plain.json").write_text(json.dumps(record))
    (tmp_path / "plain.tif").write_bytes((folder / "page.tif").read_bytes())
    out = tmp_path / "out.tif"
    result = run(tmp_path / "plain.tif", "-o", out, "--truth", folder / "truth.tif")
    assert result.exit_code != 0
    assert "no HU to compare with --truth" in " ".join(result.output.split())


@pytest.mark.parametrize(("unit", "noted"), [("mm", True), ("pixel", False)])
def test_hounsfield_units_that_no_tissue_has_are_said(unit, noted):
    """Lengths in pixels that are taken for mm give values of tens of thousands."""
    scanner = cl.ParallelBeam(16, angles=24, bins=24)
    projections = 3 * scanner(shepp_logan(16))[0, 0]
    result = cl.reconstruct(
        projections, task="ct", geometry=cl.scans.geometry_of(scanner, unit),
        quantity="line integrals", regularizer="tv", weight=1.0, size=16, tolerance=0.5,
    )  # fmt: skip
    assert any("taken for mm" in note for note in result.record.get("notes", ())) == noted


def test_long_ways_through_a_body_are_nothing_unusual():
    """Line integrals of 8, as behind 40 cm of water, are no HU."""
    scanner = cl.ParallelBeam(24, angles=36, bins=36, extent=500.0)
    water = unit_attenuation() / 2.524 * (shepp_logan(24) > 0)
    projections = scanner(water)[0, 0]
    assert projections.max() > 6
    options = {"geometry": cl.scans.geometry_of(scanner), "quantity": "line integrals", "size": 24}
    quick = {"regularizer": "tv", "weight": 1.0, "max_iterations": 1}
    result = cl.reconstruct(projections, task="ct", **options, **quick)
    assert not any("taken for mm" in note for note in result.record.get("notes", ()))


def test_a_window_that_hides_the_slice_is_said(scans, tmp_path):
    folder, _ = scans
    for window, noted in (("2000,100", True), ("abdomen", False)):
        quick = ("--weight", 1, "--window", window, "--force")
        result = run(folder / "integrals.npy", "-o", tmp_path / "slice.png", *quick)
        said = " ".join(result.output.split())
        assert ("nearly all values are outside of the window, 1950 to 2050" in said) == noted


def test_fields_that_change_are_seen_by_their_names(scans, tmp_path):
    folder, _ = scans
    given = cl.scans.read_sinogram(folder / "fields.h5")
    (tmp_path / "in").mkdir()
    cl.scans.write_sinogram(given, tmp_path / "in" / "scan.npy")
    for name in ("flat", "dark"):
        (tmp_path / "in" / f"scan.{name}.npy").unlink()
        tifffile.imwrite(tmp_path / "in" / f"{name} field.tif", getattr(given, name).numpy())
    side = tmp_path / "in" / "scan.json"
    record = json.loads(side.read_text())
    record["arrays"] = {"projections": {"file": "scan.npy"}} | {
        name: {"file": f"{name} field.tif"} for name in ("flat", "dark")
    }
    side.write_text(json.dumps(record))
    options = {"regularizer": "tv", "max_iterations": 5, "size": 16, "weight": 5.0, "resume": True}
    again = partial(cl.reconstruct_many, tmp_path / "in", tmp_path / "out", "ct", **options)
    first = again()
    assert (len(first.records), first.failures) == (1, [])  # fields are no sinograms
    assert len(again().earlier) == 1
    for name in ("flat", "dark"):
        field = tmp_path / "in" / f"{name} field.tif"
        tifffile.imwrite(field, 1.01 * getattr(given, name).numpy())
        os.utime(field, ns=(10**18, 10**18))
        assert len(again().records) == 1, name
