"""Options of volumes: masks, truths, maps, ranges of planes, and what must not be replaced."""

from __future__ import annotations

import json

import numpy as np
import pytest
import typer
from reconstruct_runs import OPTIONS, noisy, run, solved

import convexlift as cl
from convexlift import cluster
from convexlift.cli.look import describe_run
from convexlift.files.formats import MEGAPIXELS
from convexlift.files.volume_stores import read_planes
from convexlift.reconstruction import InputError, sources
from convexlift.reconstruction.calls import find_inputs, reconstructor_for
from convexlift.reconstruction.sources import find_sources

h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.single_precision

PLANES, SIDE = 12, 16
FIXED = OPTIONS | {"sigma": 0.05, "weight": 0.05}


@pytest.fixture
def volume(tmp_path):
    """A store, and the values in it."""
    values = np.stack([noisy(size=SIDE, seed=k) for k in range(PLANES)])
    zarr.create_array(tmp_path / "v.zarr", data=values, chunks=(1, SIDE, SIDE))
    return tmp_path / "v.zarr", values


def masks(folder):
    """One for each plane, in which row k of plane k is missing."""
    seen = np.ones((PLANES, SIDE, SIDE), np.uint8)
    for k in range(PLANES):
        seen[k, k] = 0
    np.save(folder / "mask.npy", 255 * seen)
    return folder / "mask.npy", seen


def test_an_unreachable_scheduler_leaves_stores_as_they_are(tmp_path, volume, monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS", 0.5)
    path, values = volume
    target = tmp_path / "out.zarr"
    arguments = ["denoise", path, "-o", target, "--scheduler", "tcp://127.0.0.1:9"]
    assert run(*arguments).exit_code == 2
    assert not target.exists()
    zarr.create_array(target, data=values, chunks=(1, SIDE, SIDE))
    result = run(*arguments, "--force")
    assert "no scheduler answers" in result.output
    assert (zarr.open_array(target)[:] == values).all()


# What is read --------------------------------------------------------------------------------


def test_a_volume_replaces_no_mask_truth_or_regularizer(tmp_path, volume):
    path, values = volume
    mask, _ = masks(tmp_path)
    np.save(tmp_path / "truth.npy", values)
    cl.save(cl.TotalVariation(), tmp_path / "model")
    (tmp_path / "out.npy.records").mkdir()
    hidden = tmp_path / "out.npy.records" / "mask.npy"
    hidden.write_bytes(mask.read_bytes())
    cases = [
        ("inpaint", mask, {"mask": mask}),
        ("denoise", tmp_path / "truth.npy", {"truth": tmp_path / "truth.npy"}),
        ("inpaint", tmp_path / "out.npy", {"mask": hidden}),
    ]
    for task, output, more in cases:
        kept = (output if output.exists() else hidden).read_bytes()
        with pytest.raises(InputError, match="are the same, or one is in the other"):
            solved(path, output, task, force=True, **more)
        assert (output if output.exists() else hidden).read_bytes() == kept
    (tmp_path / "model.zarr").symlink_to(tmp_path / "model.json")
    options = {"regularizer": str(tmp_path / "model"), "weight": 0.1}
    with pytest.raises(InputError, match="are the same, or one is in the other"):
        solved(path, tmp_path / "model.zarr", force=True, **options)
    with pytest.raises(InputError, match="is the name of a result"):
        solved(path, tmp_path / "out.npy", table=tmp_path / "out.npy.records" / "all.csv")


@pytest.mark.parametrize("slices", [None, (3, 12)])
def test_masks_and_truths_have_a_page_for_each_plane(tmp_path, volume, slices):
    path, values = volume
    mask, seen = masks(tmp_path)
    np.save(tmp_path / "truth.npy", values)
    more = {"mask": mask, "truth": tmp_path / "truth.npy", "slices": slices}
    result = cl.reconstruct_many(path, tmp_path / "out.npy", "inpaint", **FIXED | more)
    assert not result.failures
    first, end = slices or (0, PLANES)
    assert {record["missing"] for record in result.records} == {1 / SIDE}
    alone = cl.reconstruct(path, "inpaint", **FIXED | more | {"slices": (first, end)})
    assert np.abs(np.load(tmp_path / "out.npy") - alone.x.numpy()).max() < 0.05
    # A mask of another plane hides pixels in which truth and data are the same.
    for record in result.records:
        assert record["psnr"] > 20
    arrays = {"mask": seen.astype(bool), "truth": values}
    options = FIXED | arrays | {"slices": slices}
    again = cl.reconstruct_many(path, tmp_path / "again.npy", "inpaint", **options)
    assert not again.failures
    assert (np.load(tmp_path / "again.npy") == np.load(tmp_path / "out.npy")).all()


def test_masks_with_other_numbers_of_pages_are_refused(tmp_path, volume):
    path, values = volume
    _, seen = masks(tmp_path)
    for what, pages in (("mask", 8), ("truth", 1), ("truth", 4)):
        given = seen[:pages] if what == "mask" else values[:pages]
        np.save(tmp_path / "few.npy", given)
        more = {"mask": seen, what: tmp_path / "few.npy"}
        with pytest.raises(InputError, match=f"the {what} has {pages} pages, but .* has 12"):
            cl.reconstruct_many(path, tmp_path / "out.npy", "inpaint", **FIXED | more)
        assert not (tmp_path / "out.npy").exists()
    one = cl.reconstruct_many(path, tmp_path / "out.npy", "inpaint", **FIXED | {"mask": seen[2]})
    assert len(one.records) == 2


# What is written -----------------------------------------------------------------------------


def test_every_slab_has_its_map(tmp_path, volume):
    path, _ = volume
    result = solved(path, tmp_path / "out.h5", gap_map=True)
    numbers = [np.load(record["gap_map"][0]) for record in result.records]
    assert [len(each) for each in numbers] == [8, 4]
    assert len({record["gap_map"][1] for record in result.records}) == 2
    for record, each in zip(result.records, numbers, strict=True):
        assert each.sum() == pytest.approx(record["objective"] - record["lower_bound"], rel=0.1)
    with pytest.raises(InputError, match="exists"):
        solved(path, tmp_path / "out.h5", gap_map=True)


def test_results_of_one_stem_have_their_own_records(tmp_path, volume):
    path, _ = volume
    for ending in (".tif", ".h5", ".npy"):
        result = solved(path, tmp_path / f"out{ending}")
        assert len(result.records) == 2
        assert len(list((tmp_path / f"out{ending}.records").glob("*.json"))) == 2


def test_estimates_are_not_called_given(tmp_path, volume):
    path, _ = volume
    result = solved(path, tmp_path / "out.npy")
    assert {record["noise"]["estimated"] for record in result.records} == {True}
    assert {record["weight"]["rule"] for record in result.records} == {"card"}
    more = {"weight": "auto", "sigma": 0.05, "slices": (0, 8)}
    searched = solved(path, tmp_path / "auto.npy", **more)
    assert searched.records[0]["noise"]["estimated"] is False
    assert searched.records[0]["weight"]["rule"] == "auto"
    assert len(searched.records[0]["weight"]["trials"]) > 1
    shown = run("denoise", path, "-o", tmp_path / "shown.npy", "--sigma", "0.05")
    assert "sigma 0.05 (given); weight" in shown.output
    assert "(of the card" in shown.output


@pytest.mark.parametrize("ending", [".h5", ".npy", ".zarr"])
@pytest.mark.sampled(3)
def test_volumes_of_booleans_are_resumed(tmp_path, ending):
    values = np.stack([noisy(size=SIDE, seed=k) > 0.5 for k in range(PLANES)])
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["data"] = values
    out = tmp_path / f"out{ending}"
    options = FIXED | {"noise": "salt-and-pepper"}
    assert len(cl.reconstruct_many(tmp_path / "b.h5", out, **options).records) == 2
    found = read_planes(out, 0, PLANES)
    assert (found.astype(bool) == values).mean() > 0.5
    assert not found.astype(bool).all()
    again = cl.reconstruct_many(tmp_path / "b.h5", out, resume=True, **options)
    assert len(again.earlier) == 2


# Which planes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "slices", "said"),
    [("h5", "5:100", "within 0:12, got 5:100"), ("zarr", "50:100", "within 0:12, got 50:100"),
     ("tif", "5:100", "within 0:12, got 5:100"), ("h5", "0:10:2", "within 0:12, got 0:10:2"),
     ("zarr", "4", "FIRST:END"), ("zarr", "0:10:0", "FIRST:END"), ("zarr", "0:4:2:1", "FIRST:END"),
     ("zarr", "a:b", "FIRST:END")],
)  # fmt: skip
def test_planes_that_are_not_there_are_refused(tmp_path, volume, kind, slices, said):
    path, values = volume
    if kind == "tif":
        tifffile.imwrite(path := tmp_path / "v.tif", values)
    if kind == "h5":
        with h5py.File(path := tmp_path / "v.h5", "w") as file:
            file["data"] = values
    for more in ((), ("--dry-run",)):
        result = run("denoise", path, "-o", tmp_path / "out.zarr", "--slices", slices, *more)
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())
        assert not (tmp_path / "out.zarr").exists()


def test_pages_that_are_not_there_are_refused(tmp_path, volume):
    _, values = volume
    tifffile.imwrite(tmp_path / "v.tif", values)
    with pytest.raises(InputError, match=r"has no page 99; slices= counts them from 0 on"):
        cl.reconstruct(tmp_path / "v.tif", slices=(5, 100), **OPTIONS)


def test_rows_that_are_not_there_are_refused(tmp_path):
    projections = np.ones((3, 12, 16), np.float32)
    np.save(tmp_path / "scan.npy", projections)
    more = {"beam": "parallel", "bin_width": 1.0, "quantity": "line integrals", "photons": 1e4}
    with pytest.raises(InputError, match=r"row 9 \(rows=\) cannot be read"):
        solved(tmp_path / "scan.npy", tmp_path / "out.zarr", "ct", rows=(0, 10), **more)
    assert not (tmp_path / "out.zarr").exists()


def test_large_sinograms_are_no_stacks_of_pictures(tmp_path, monkeypatch):
    assert sources.MEGAPIXELS == MEGAPIXELS
    monkeypatch.setattr(sources, "MEGAPIXELS", 0.001)
    monkeypatch.setattr(sources, "SMALLEST", 100)
    np.save(tmp_path / "scan.npy", np.ones((3, 24, 40), np.float32))
    for task, large in (("denoise", True), ("ct", False)):
        suffixes = reconstructor_for(task).suffixes
        (found,) = find_sources([str(tmp_path / "scan.npy")], tmp_path / "out.tif", suffixes)
        assert found.volume == large


def test_no_inputs_are_an_error(tmp_path):
    with pytest.raises(InputError, match="there is no input"):
        solved([], tmp_path / "out")


# Dry runs ------------------------------------------------------------------------------------


def test_a_dry_run_names_the_records_that_a_run_writes(tmp_path, volume):
    path, _ = volume
    looked = run("denoise", path, "-o", tmp_path / "out.tif", "--dry-run")
    assert "out.tif, with out.tif.records/" in looked.output
    done = run("denoise", path, "-o", tmp_path / "out.tif")
    assert f"lower bound and gap: {tmp_path / 'out.tif.records'}." in done.output
    assert json.loads(next((tmp_path / "out.tif.records").glob("*.json")).read_text())["gap"] >= 0
    one = run("denoise", path, "-o", tmp_path / "one.tif", "--slices", "0:4")
    assert f"lower bound and gap: {tmp_path / 'one.tif.records'}." in one.output


def test_a_dry_run_fails_where_the_run_fails(tmp_path, monkeypatch):
    np.save(tmp_path / "good.npy", noisy())
    (tmp_path / "bad.npy").write_bytes(np.lib.format.magic(1, 0) + b"\x10\0{'descr': '<f4'")
    damaged = run("denoise", tmp_path / "bad.npy", "-o", tmp_path / "out.npy", "--dry-run")
    assert damaged.exit_code == 2
    assert "would fail" in damaged.output
    slices = run("denoise", tmp_path / "good.npy", "-o", tmp_path / "out", "--volume", "--dry-run")
    assert slices.exit_code == 2
    assert "--volume is for denoise and inpaint" in " ".join(slices.output.split())
    chosen = reconstructor_for("denoise", **OPTIONS)
    found = find_inputs(chosen, [str(tmp_path / "good.npy")], tmp_path / "out.npy")

    def broken(*_):
        raise RuntimeError("of a decoder")

    monkeypatch.setattr(type(chosen), "opened", broken)
    lines = []
    with pytest.raises(typer.Exit):
        lines.extend(describe_run(chosen, found, proof=False))
    assert "would fail: it is damaged, or of an unsupported kind (RuntimeError)" in lines[0]
    assert lines[-1].startswith("Nothing was written")
