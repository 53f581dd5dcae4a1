"""Scans as newcomers bring them: counts with a flat field, in arrays without a geometry."""

from __future__ import annotations

import shlex
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from scipy.ndimage import rotate
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.phantoms import shepp_logan
from convexlift.reconstruction import InputError

SAMPLES = Path(cl.__file__).parent / "data"
VIEWS, BINS, FLAT = 24, 40, 2e4
COUNTS = ("--beam", "parallel", "--quantity", "counts")
QUICK = ("--regularizer", "tv", "--weight", "1", "--max-iterations", "3")


@pytest.fixture(autouse=True)
def _place(_double_precision, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def integrals():
    operator = cl.scans.EvenViews().geometry(VIEWS).operator(BINS, BINS, float(BINS))
    return operator(0.1 * shepp_logan(BINS))[0, 0].float()


def counts():
    """Photons behind a phantom, (angles, bins), and the file of the flat field."""
    generator = torch.Generator().manual_seed(0)
    values = torch.poisson(FLAT * torch.exp(-integrals()), generator=generator).numpy()
    np.save("counts.npy", values)
    np.save("flat.npy", np.full(BINS, FLAT))
    return values


def run(*words):
    result = CliRunner().invoke(app, ["reconstruct", "ct", *map(str, words)])
    return result.exit_code, " ".join(result.output.split())


def both(*words):
    """The words of the dry run and of the run, both of which must fail."""
    said = []
    for more in (("--dry-run",), QUICK):
        status, output = run(*words, "-o", "slice.tif", *more)
        assert status != 0, output
        assert not Path("slice.tif").exists()
        said.append(output)
    return said


def test_a_transposed_scan_fails_in_dry_runs_too():
    """And its repair is in the message."""
    np.save("across.npy", counts().T)
    for output in both("across.npy", *COUNTS, "--flat", "flat.npy"):
        assert f"{BINS} angles (down) of {VIEWS} bins (across), but --flat has {BINS}" in output
        assert "swapaxes(-1, -2)" in output
    np.save("turned.npy", np.load("across.npy").swapaxes(-1, -2))
    status, output = run("turned.npy", "-o", "slice.tif", *COUNTS, "--flat", "flat.npy", *QUICK)
    assert status == 0, output


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flat": np.full(BINS + 1, FLAT)}, f"--flat has {BINS + 1} bins; the last axis"),
        ({"dark": np.zeros(VIEWS)}, f"--dark has {VIEWS} bins; the scan seems to be transposed"),
        ({"flat": np.full((3, 2, BINS), FLAT)}, "does not fit readings"),
        ({"dark": np.full(BINS, 2 * FLAT)}, "flat <= dark for every reading"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_both(fields, message):
    counts()
    for name, values in fields.items():
        np.save(f"{name}.npy", values)
    words = [word for name in {"flat", *fields} for word in (f"--{name}", f"{name}.npy")]
    for output in both("counts.npy", *COUNTS, *words):
        assert message in output


@pytest.mark.parametrize(("quantity", "name"), [("line integrals", "line integrals"),
                                                ("transmission", "transmissions")])  # fmt: skip
def test_counts_are_no_other_quantity(quantity, name):
    largest = counts().max()
    for output in both("counts.npy", "--beam", "parallel", "--quantity", quantity):
        assert f"values up to {largest:.6g} cannot be {name}" in output
        assert "--quantity counts --flat FLAT.npy" in output


def test_rays_without_photons_are_no_counts():
    """Programs clip transmissions at the smallest number, whose -log is 87."""
    values = integrals()
    values[:, BINS // 2] = 87.0
    options = {"task": "ct", "beam": "parallel", "quantity": "line integrals", "regularizer": "tv"}
    quick = {"weight": 1.0, "max_iterations": 3}
    assert cl.reconstruct(values, photons=FLAT, **options, **quick).x.isfinite().all()
    with pytest.raises(InputError, match="values up to 870 cannot be"):
        cl.reconstruct(values * 10, photons=FLAT, **options, **quick)


def test_sums_over_pixels_are_integrals_if_their_noise_is_given():
    values = 100 * integrals()
    assert float((values > 30).double().mean()) > 0.5
    np.save("sums.npy", values.numpy())
    words = ("--beam", "parallel", "--quantity", "line integrals")
    for output in both("sums.npy", *words):
        assert "give their noise, --sigma" in output
    status, output = run("sums.npy", "-o", "slice.tif", *words, "--sigma", 1, *QUICK)
    assert status == 0, output


def test_a_dry_run_fails_where_the_noise_cannot_be_estimated():
    np.save("flat_integrals.npy", np.full((VIEWS, BINS), 0.5, np.float32))
    for output in both("flat_integrals.npy", "--beam", "parallel", "--quantity", "line integrals"):
        assert "the noise of these data cannot be estimated" in output


def look(name):
    return CliRunner().invoke(app, ["reconstruct", name]).output


@pytest.mark.parametrize("kind", [np.float64, ">f4", np.uint16, np.int32])
@pytest.mark.parametrize("name", ["scan.npy", "scan.tif"])
def test_counts_are_proposed_as_counts(kind, name):
    """The printed line works once the name of the flat field is filled in."""
    values = counts().astype(kind)
    np.save(name, values) if name.endswith("npy") else tifffile.imwrite(name, values)
    output = look(name)
    assert output.index(f"reconstruct denoise {name}") < output.index(f"reconstruct ct {name}")
    (line,) = (line for line in output.splitlines() if f"reconstruct ct {name}" in line)
    assert line.endswith("--quantity counts --flat FLAT.npy")
    assert "one for each bin" in output
    words = shlex.split(line.replace("FLAT.npy", "flat.npy"))[3:]
    status, said = run(*words, *QUICK)
    assert status == 0, said


def test_line_integrals_are_proposed_as_such():
    np.save("scan.npy", integrals().numpy())
    assert "--quantity 'line integrals'" in look("scan.npy")
    assert "FLAT" not in look("scan.npy")


@pytest.mark.parametrize("name", [path.name for path in SAMPLES.glob("*.png")])
def test_pictures_in_16_bits_are_not_called_sinograms(name):
    grey = np.asarray(Image.open(SAMPLES / name).convert("L"), np.uint16)[::4, ::4]
    tifffile.imwrite("picture.tif", 257 * grey)
    output = look("picture.tif")
    assert "reconstruct denoise picture.tif" in output
    assert "reconstruct ct" not in output


def test_a_frame_of_noise_is_not_called_a_sinogram():
    generator = np.random.default_rng(0)
    tifffile.imwrite("dark.tif", generator.poisson(1000, (64, 64)).astype(np.uint16))
    assert "reconstruct ct" not in look("dark.tif")


@pytest.mark.parametrize("name", ["scan.npy", "scan.tif"])
def test_all_missing_options_are_named_at_once(name):
    values = counts()
    np.save(name, values) if name.endswith("npy") else tifffile.imwrite(name, values)
    options = {"--beam": "parallel", "--quantity": "counts", "--flat": "flat.npy"}
    for given in range(len(options)):
        for some in combinations(options, given):
            words = [word for option in some for word in (option, options[option])]
            for output in both(name, *words):
                for option in options:
                    assert (f"{option} " in output.replace("(--flat)", "--flat ")) == (
                        option not in some
                    )


def test_a_geometry_with_an_error_is_not_called_missing():
    counts()
    Path("counts.json").write_text('{"format": "convexlift", "version": 1}')
    for output in both("counts.npy"):
        assert 'does not say "format"' in output


@pytest.mark.parametrize(
    ("arc", "reversed_bins", "expected"),
    [
        (180, False, lambda image: image),
        (-180, False, lambda image: image[::-1]),
        (180, True, lambda image: image[::-1, ::-1]),
        (-180, True, lambda image: image[:, ::-1]),
    ],
)
def test_the_orientation_of_slices(arc, reversed_bins, expected):
    """As docs/files.md describes it, for views that SciPy computes."""
    image = np.zeros((BINS, BINS))
    image[6:14, 23:30] = 1.0
    angles = np.arange(VIEWS) * 180 / VIEWS
    views = np.stack([rotate(image, -t, reshape=False, order=1).sum(0) for t in angles])
    views = views[:, ::-1] if reversed_bins else views
    found = cl.reconstruct(
        views.copy(), task="ct", beam="parallel", arc=arc, quantity="line integrals", sigma=0.5,
        regularizer="tv", weight=0.1, max_iterations=50,
    ).x.squeeze().numpy()  # fmt: skip
    assert np.linalg.norm(found - expected(image)) < 0.4 * np.linalg.norm(image)
