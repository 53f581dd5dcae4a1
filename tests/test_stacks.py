"""Stacks of slices: each is reconstructed by itself, and the stack is written back."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from reconstruct_runs import OPTIONS, noisy, run, solved

import convexlift as cl
from convexlift.files.pictures import count_pages, read_picture
from convexlift.reconstruction import InputError

tifffile = pytest.importorskip("tifffile")
pytestmark = pytest.mark.single_precision

PLANES, SIDE = 6, 16
FIXED = OPTIONS | {"sigma": 0.05, "weight": 0.05}


@pytest.fixture
def values():
    return np.stack([noisy(size=SIDE, seed=k) for k in range(PLANES)]).astype(np.float32)


def written(folder, kind, values):
    place = folder / f"in.{kind}"
    tifffile.imwrite(place, values) if kind == "tif" else np.save(place, values)
    return place


def read(place):
    return tifffile.imread(place) if place.suffix == ".tif" else np.load(place)


@pytest.mark.parametrize("kind", ["tif", "npy"])
@pytest.mark.parametrize(("dtype", "white"), [(np.uint16, 65535), (np.float32, 1)])
def test_a_slice_of_a_stack_is_what_the_slice_alone_gives(tmp_path, values, kind, dtype, white):
    values = np.rint(65535 * values).astype(dtype) if white > 1 else values
    options = FIXED | {"range": (0, white), "tolerance": 1e-5, "max_iterations": 5000}
    result = solved(written(tmp_path, kind, values), tmp_path / f"out.{kind}", **options)
    found = read(tmp_path / f"out.{kind}")
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    planes = result.records[0]["planes"]
    assert len(planes) == PLANES
    alone = cl.reconstruct(values[3], **options)
    assert np.abs(found[3] - alone.x.numpy()).max() < 1e-2 * white
    assert alone.record["objective"] == pytest.approx(planes[3]["objective"], rel=1e-4)


def test_some_slices_of_a_stack(tmp_path, values):
    place = written(tmp_path, "tif", values)
    solved(place, tmp_path / "out.tif", slices=(1, 4), sigma=0.05, weight=0.05)
    assert tifffile.imread(tmp_path / "out.tif").shape == (3, SIDE, SIDE)
    some = cl.reconstruct(place, slices=(1, 4), **FIXED)
    assert torch.equal(some.x, cl.reconstruct(values[1:4], **FIXED).x)


@pytest.mark.parametrize("slices", ["4", "4:2", "0:4:2", "a:b"])
def test_slices_that_are_no_range_are_refused(tmp_path, values, slices):
    place = written(tmp_path, "npy", values)
    result = run("denoise", place, "-o", tmp_path / "out.npy", "--slices", slices)
    assert result.exit_code == 2
    assert "FIRST:END with FIRST < END" in " ".join(result.output.split())


def test_slices_that_are_not_there_are_refused(tmp_path, values):
    with pytest.raises(InputError, match=r"has no page 99; slices= counts them from 0 on"):
        cl.reconstruct(written(tmp_path, "tif", values), slices=(5, 100), **OPTIONS)
    with pytest.raises(InputError, match="slices= chooses planes of TIFF and NPY files"):
        cl.reconstruct(values, slices=(0, 2), **OPTIONS)


@pytest.mark.parametrize("slices", [None, (2, 5)])
def test_masks_and_truths_have_a_page_for_each_slice(tmp_path, values, slices):
    """A mask of another slice would hide pixels that were seen, and keep missing ones."""
    seen = np.ones(values.shape, np.uint8)
    damaged = values.copy()
    for k in range(PLANES):  # row k of slice k is missing
        seen[k, k], damaged[k, k] = 0, 1 - values[k, k].round()
    np.save(tmp_path / "mask.npy", 255 * seen)
    np.save(tmp_path / "truth.npy", values)
    more = {"mask": tmp_path / "mask.npy", "truth": tmp_path / "truth.npy", "slices": slices}
    found = cl.reconstruct(written(tmp_path, "npy", damaged), "inpaint", **FIXED | more)
    assert found.record["missing"] == 1 / SIDE
    assert found.record["psnr"] > 20
    chosen = slice(*(slices or (0, PLANES)))
    arrays = {"mask": seen[chosen].astype(bool), "truth": values[chosen]}
    again = cl.reconstruct(damaged[chosen], "inpaint", **FIXED | arrays)
    assert torch.equal(found.x, again.x)


@pytest.mark.parametrize("kind", ["tif", "npy"])
def test_pages_are_read_without_the_others(tmp_path, kind):
    size = (64, 128, 128)
    values = np.arange(np.prod(size), dtype=np.float32).reshape(size)
    place = written(tmp_path, kind, values)
    assert count_pages(place) == 64
    read_picture(place, pages=slice(1))  # imports
    tracemalloc.start()
    picture = read_picture(place, pages=slice(10, 40, 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (picture.stored == values[10:40:10]).all()
    assert peak < values.nbytes / 2


def test_the_slices_of_a_series_become_a_series(tmp_path, values):
    """One file after the other, each with its own noise and weight; positions are kept."""
    pytest.importorskip("pydicom")
    positions = tuple((0.0, 0.0, 2.5 * k) for k in range(PLANES))
    volume = cl.scans.Volume(torch.from_numpy(values * 1000 - 500).round(), (0.75, 0.5), positions)
    cl.scans.write_dicom(volume, tmp_path / "series")
    result = solved(tmp_path / "series", tmp_path / "out")
    assert len(result.records) == PLANES, result.failures
    again = cl.scans.read_volume(tmp_path / "out")
    assert again.values.shape == volume.values.shape
    assert (again.spacing, again.positions) == (volume.spacing, volume.positions)
    assert float((again.values - volume.values).abs().mean()) < 100


def test_folders_are_for_many_results(tmp_path, values):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", values[0])
    with pytest.raises(InputError, match=r"is a folder; name one of its files, or .*_many"):
        cl.reconstruct(tmp_path / "in", **OPTIONS)


def test_no_inputs_are_an_error(tmp_path):
    with pytest.raises(InputError, match="there is no input"):
        solved([], tmp_path / "out")
