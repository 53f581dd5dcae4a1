"""Volumes reconstructed slab by slab into zarr stores, without ever being whole in memory."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import closing

import numpy as np
import pytest
import torch
from cluster_runs import Killer, Machines
from PIL import Image
from reconstruct_runs import OPTIONS, noisy, run, solved

import convexlift as cl
from convexlift.files.pictures import count_pages, read_picture
from convexlift.files.volume_stores import write_planes
from convexlift.reconstruction import InputError, results, sources
from convexlift.scans.volume_sources import count_planes, read_slab

zarr = pytest.importorskip("zarr")
tifffile = pytest.importorskip("tifffile")
h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.single_precision

SHAPE = (20, 16, 24)


@pytest.fixture(scope="module")
def values():
    planes = np.stack([noisy(size=24, seed=i)[:16] for i in range(SHAPE[0])])
    return np.rint(65535 * planes).astype(np.uint16)


def stored(place):
    return zarr.open(place, mode="r")["0"][:]


def written(folder, kind, values):
    place = folder / f"in.{kind}"
    if kind == "zarr":
        zarr.create_array(place, data=values, chunks=(3, *values.shape[1:]))
    elif kind == "tif":
        tifffile.imwrite(place, values)
    elif kind == "h5":
        with h5py.File(place, "w") as file:
            file.create_dataset("entry/scan", data=values, chunks=(3, *values.shape[1:]))
            file["entry/angles"] = np.arange(5.0)
    elif kind == "folder":
        place = folder / "slices"
        place.mkdir()
        for number, plane in enumerate(values):  # names whose alphabetical order is another one
            Image.fromarray(plane).save(place / f"slice-{number}.png")
    else:
        np.save(place, values)
    return place


def test_every_format_gives_the_same_volume(tmp_path, values):
    found = []
    for kind in ("zarr", "tif", "npy", "h5", "folder"):
        result = solved(written(tmp_path, kind, values), tmp_path / f"{kind}.out.zarr")
        assert not result.failures
        assert sum(len(record["planes"]) for record in result.records) == SHAPE[0]
        found.append(stored(tmp_path / f"{kind}.out.zarr"))
        assert found[-1].dtype == np.uint16
        assert found[-1].shape == SHAPE
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize("kind", ["h5", "tif", "npy"])
@pytest.mark.sampled(3)
def test_every_format_holds_the_same_volume(tmp_path, values, kind):
    place, out = written(tmp_path, "zarr", values), tmp_path / f"out.{kind}"
    solved(place, tmp_path / "zarr" / "out.zarr")
    result = solved(place, out)
    assert len(result.records) == 3
    read = {"h5": lambda: h5py.File(out)["data"][:], "tif": lambda: tifffile.imread(out),
            "npy": lambda: np.load(out)}[kind]  # fmt: skip
    expected = stored(tmp_path / "zarr" / "out.zarr")
    assert read().dtype == np.uint16
    assert (read() == expected).all()
    with pytest.raises(InputError, match="exists; name another output"):
        solved(place, out)
    write_planes(out, 19, np.zeros((1, *SHAPE[1:]), np.uint16))  # the last plane is lost
    (tmp_path / f"out.{kind}.records" / "000000-000009.json").unlink()
    again = solved(place, out, resume=True)
    assert len(again.records) == 2
    assert (read() == expected).all()


def test_a_folder_of_slices_is_read_slice_by_slice(tmp_path, values):
    place = written(tmp_path, "folder", values)
    assert count_planes(place) == SHAPE[0]
    assert (read_slab(place, slice(9, 12)).stored == values[9:12]).all()
    Image.fromarray(values[0][:8]).save(place / "slice-11.png")
    result = solved(place, tmp_path / "out.npy")
    assert [str(source)[-6:] for source, _ in result.failures] == ["[8:16]"]
    assert "slices of one size and type" in result.failures[0][1]
    assert len(result.records) == 2


def test_a_stack_that_is_not_read_at_once_becomes_one(tmp_path, values, monkeypatch):
    monkeypatch.setattr(sources, "MEGAPIXELS", 0.005)
    monkeypatch.setattr(sources, "SMALLEST", 1000)
    result = solved(written(tmp_path, "tif", values), tmp_path / "out.tif")
    assert len(result.records) == 3
    solved(tmp_path / "in.tif", tmp_path / "other.zarr")
    assert (tifffile.imread(tmp_path / "out.tif") == stored(tmp_path / "other.zarr")).all()


def test_pages_of_a_stack_beyond_the_limit_are_read(tmp_path):
    values = np.zeros((40, 64, 64), np.uint8)
    place = written(tmp_path, "tif", values)
    with pytest.raises(ValueError, match="megapixels"):
        read_picture(place, max_megapixels=0.1)
    assert read_picture(place, max_megapixels=0.1, pages=slice(3, 5)).stored.shape == (2, 64, 64)
    with pytest.raises(ValueError, match="megapixels"):
        read_picture(place, max_megapixels=0.1, pages=slice(30))


def test_an_hdf5_file_needs_one_volume(tmp_path, values):
    place = tmp_path / "two.h5"
    with h5py.File(place, "w") as file:
        file["a"], file["b"] = values, values
    with pytest.raises(ValueError, match=r"one volume \(\.\.\., H, W\) of numbers.*a, b"):
        solved(place, tmp_path / "out.zarr")
    place.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"two\.h5"):
        solved(place, tmp_path / "out.zarr")
    with h5py.File(place, "w") as file:
        file["a"], file["data"] = values, values[:4].reshape(2, 2, 16, 24)
    assert count_planes(place) == 4
    assert (read_slab(place, slice(1, 3)).stored == values[1:3]).all()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("no picture")
    with pytest.raises(ValueError, match="neither DICOM files nor pictures"):
        solved(tmp_path / "notes", tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_a_plane_is_what_the_plane_alone_gives(tmp_path, values):
    """With the noise, range and weight of the volume, to the tolerance."""
    result = solved(written(tmp_path, "zarr", values), tmp_path / "out.zarr", tolerance=1e-4,
                    max_iterations=2000)  # fmt: skip
    settings = result.records[0]["settings"]
    alone = cl.reconstruct(
        torch.from_numpy(values[5] / 65535).float(), weight=float(settings["weight"]),
        sigma=settings["sigma"], range=(0.0, 1.0), regularizer="tv", tolerance=1e-4, device="cpu",
    )  # fmt: skip
    assert np.abs(stored(tmp_path / "out.zarr")[5] / 65535 - alone.x.numpy()).max() < 2e-2
    assert {record["settings"]["sigma"] for record in result.records} == {settings["sigma"]}


def test_slabs_are_whole_chunks(tmp_path, values):
    result = solved(written(tmp_path, "zarr", values), tmp_path / "out.zarr")
    names = sorted(path.stem for path in (tmp_path / "out.zarr.records").glob("*.json"))
    assert names == ["000000-000009", "000009-000018", "000018-000020"]
    assert sorted(record["input"][-8:] for record in result.records)[0] == "arr[0:9]"
    assert zarr.open(tmp_path / "out.zarr", mode="r")["0"].chunks == (3, 16, 24)


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((1, 1, 20), (1, 1, 16)), ((2, 10), (1, 4)), ((2, 10), (2, 5)), ((10, 2), (4, 2)),
     ((2, 2, 5), (1, 2, 64)), ((20, 1), (16, 1)), ((20,), (64,))],
)  # fmt: skip
def test_no_two_slabs_share_a_chunk(tmp_path, values, shape, chunks):
    place, out = tmp_path / "in.zarr", tmp_path / "out.zarr"
    size = SHAPE[1:]
    zarr.create_array(place, data=values.reshape(*shape, *size), chunks=(*chunks, *size))
    result = solved(place, out)
    array = zarr.open(out, mode="r")["0"]
    assert array.shape == (*shape, *size)
    numbers = np.stack(np.unravel_index(np.arange(SHAPE[0]), shape), 1)  # of each plane's chunk
    numbers //= np.array(array.chunks[:-2])
    names = [path.stem.split("-") for path in (tmp_path / "out.zarr.records").glob("*.json")]
    slabs = [{tuple(n) for n in numbers[int(first) : int(end)].tolist()} for first, end in names]
    assert len(slabs) == len(result.records)
    assert sum(map(len, slabs)) == len(set.union(*slabs))
    assert len(solved(place, out, resume=True).earlier) == len(slabs)


def test_a_store_with_other_chunks_is_not_resumed(tmp_path, values):
    place, out = written(tmp_path, "zarr", values), tmp_path / "out.zarr"
    zarr.create_array(out, data=values, chunks=(20, *SHAPE[1:]))
    with pytest.raises(InputError, match=r"chunks \(20, 16, 24\), not \(3, 16, 24\)"):
        solved(place, out, resume=True)


def test_names_of_stores_may_be_in_capitals(tmp_path, values):
    place = written(tmp_path, "zarr", values)
    solved(place, tmp_path / "out.zarr")
    (tmp_path / "capitals").mkdir()
    place = place.rename(tmp_path / "capitals" / "IN.ZARR")
    out = tmp_path / "capitals" / "OUT.ZARR"
    assert len(solved(place, out).records) == 3
    assert (stored(out) == stored(tmp_path / "out.zarr")).all()
    assert len(solved(place, out, resume=True).earlier) == 3
    assert count_planes(place) == SHAPE[0]
    before = results.files_digest([place])
    (place / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    assert results.files_digest([place]) != before


def test_globs_and_folders_find_stores(tmp_path, values):
    folder = tmp_path / "scans"
    folder.mkdir()
    place = written(folder, "zarr", values)
    (folder / "other").mkdir()
    (folder / ".hidden.zarr").mkdir()
    for number, each in enumerate((folder, folder / "*.zarr", folder / "**", folder / "*")):
        (found,) = sources.find_sources([str(each)], tmp_path / "out", sources.PICTURES)
        assert (found.path, found.target) == (place, tmp_path / "out" / "in.zarr")
        if number < 2:
            assert len(solved(each, tmp_path / f"out{number}").records) == 3
            assert stored(tmp_path / f"out{number}" / "in.zarr").shape == SHAPE
    (folder / "second.zarr").mkdir()
    with pytest.raises(InputError, match="reconstruct volumes one by one"):
        solved(folder, tmp_path / "both")
    with pytest.raises(InputError, match="no file with one of the endings"):
        sources.find_sources([str(folder)], tmp_path / "out", sources.SINOGRAMS)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_axes_and_scale_of_ome_zarr_are_kept(tmp_path, values, version):
    axes = [{"name": "c", "type": "channel"}, {"name": "z", "type": "space", "unit": "micrometer"},
            {"name": "y", "type": "space"}, {"name": "x", "type": "space"}]  # fmt: skip
    steps = [{"type": "scale", "scale": [1.0, 2.0, 0.5, 0.5]}]
    image = {"axes": axes, "datasets": [{"path": "fine", "coordinateTransformations": steps}]}
    attributes = {"multiscales": [image | {"version": "0.4"}]}
    if version == "0.5":
        attributes = {"ome": {"version": "0.5", "multiscales": [image]}}
    place = tmp_path / "in.zarr"
    group = zarr.open_group(place, mode="w", zarr_format=2 if version == "0.4" else 3)
    group.attrs.update(attributes)
    group.create_array("fine", data=values.reshape(2, 10, 16, 24), chunks=(1, 4, 16, 24))
    solved(place, tmp_path / "out.zarr")
    made = dict(zarr.open_group(tmp_path / "out.zarr", mode="r").attrs)["ome"]
    assert made["version"] == "0.5"
    assert made["multiscales"][0]["axes"] == axes
    assert made["multiscales"][0]["datasets"][0]["coordinateTransformations"] == steps
    assert stored(tmp_path / "out.zarr").shape == (2, 10, 16, 24)
    solved(written(tmp_path, "npy", values), tmp_path / "plain.zarr")
    assert (stored(tmp_path / "out.zarr").reshape(SHAPE) == stored(tmp_path / "plain.zarr")).all()


def test_slices_are_a_part_of_the_volume(tmp_path, values):
    result = solved(written(tmp_path, "tif", values), tmp_path / "out.zarr", slices=(4, 15))
    assert stored(tmp_path / "out.zarr").shape == (11, 16, 24)
    assert [record["input"][-7:] for record in result.records] == ["f[4:12]", "[12:15]"]
    whole = cl.reconstruct(tmp_path / "in.tif", slices=(4, 15), **OPTIONS)
    assert whole.x.shape == (11, 16, 24)


@pytest.mark.parametrize("kind", ["tif", "npy", "zarr"])
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


def test_a_damaged_slab_is_done_again(tmp_path, values):
    place, out = written(tmp_path, "zarr", values), tmp_path / "out.zarr"
    solved(place, out)
    before = stored(out)
    zarr.open(out, mode="r+")["0"][10] = 7
    (tmp_path / "out.zarr.records" / "000000-000009.json").unlink()
    result = solved(place, out, resume=True)
    assert len(result.records) == 2
    assert len(result.earlier) == 1
    assert (stored(out) == before).all()


def test_a_slab_that_fails_is_named_and_the_others_are_done(tmp_path, values):
    place = written(tmp_path, "zarr", values)
    (place / "c" / "6" / "0" / "0").write_bytes(b"damaged")
    result = solved(place, tmp_path / "out.zarr")
    assert [str(source)[-7:] for source, _ in result.failures] == ["[18:20]"]
    assert len(result.records) == 2


def test_bad_volumes_are_refused_before_any_work(tmp_path, values):
    place, out = written(tmp_path, "zarr", values), tmp_path / "out.zarr"
    with pytest.raises(InputError, match=r"is a volume; give the result one of the endings \.zarr"):
        solved(place, tmp_path / "out.png")
    solved(place, out)
    with pytest.raises(InputError, match="exists; name another output"):
        solved(place, out)
    zarr.create_array(tmp_path / "short.zarr", data=values[:4], chunks=(1, 16, 24))
    with pytest.raises(InputError, match=r"has the shape \(20, 16, 24\).*not \(4, 16, 24\)"):
        solved(tmp_path / "short.zarr", out, resume=True)
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    with pytest.raises(ValueError, match="a group without OME-Zarr metadata"):
        solved(tmp_path / "group.zarr", tmp_path / "other.zarr")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(ValueError, match=r"empty\.zarr"):
        solved(tmp_path / "empty.zarr", tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()
    solved(tmp_path / "short.zarr", out, force=True)
    assert stored(out).shape == (4, 16, 24)


@pytest.mark.parametrize("kind", ["zarr", "h5", "folder"])
def test_an_input_is_never_replaced(tmp_path, values, kind):
    place = written(tmp_path, kind, values)
    outputs = [place / "out.npy"] if kind == "folder" else [place, tmp_path / "." / place.name]
    for output in outputs:
        with pytest.raises(InputError, match="the same, or one is in the other"):
            solved(place, output, force=True)
    assert len(
        read_picture(place).stored if kind == "zarr" else read_slab(place, slice(None)).stored
    )


@pytest.mark.slow
def test_a_volume_of_sinograms(tmp_path):
    angles = tuple(np.linspace(0, np.pi, 12, endpoint=False).tolist())
    geometry = cl.scans.ParallelGeometry(angles=angles, bin_width=2.0, unit="mm")
    rays = cl.ParallelBeam(16, angles=12, bins=16, extent=32.0)
    phantom = 0.02 * cl.phantoms.shepp_logan(16).float()
    projections = rays(phantom)[0].expand(10, -1, -1).clone()
    scan = cl.scans.Sinogram(projections, geometry, "line integrals")
    cl.scans.write_sinogram(scan, tmp_path / "scan.npy")
    options, place = {"weight": 0.01, "sigma": 0.01}, tmp_path / "scan.npy"
    with pytest.raises(InputError, match="rows= FIRST:END is needed"):
        solved(place, tmp_path / "out.zarr", "ct", **options)
    result = solved(place, tmp_path / "out.zarr", "ct", rows=(0, 10), **options)
    assert not result.failures
    whole = cl.reconstruct(place, "ct", **OPTIONS | options)
    truth = cl.scans.attenuation_to_hounsfield(phantom.expand(10, -1, -1, -1))
    options |= {"truth": truth, "rows": (1, 10)}
    compared = solved(place, tmp_path / "again.zarr", "ct", **options)
    assert ["psnr" in record for record in compared.records] == [True, True]
    with pytest.raises(InputError, match="the truth has 4 slices, and there are rows up to 10"):
        solved(place, tmp_path / "no.zarr", "ct", **options | {"truth": truth[:4]})
    assert np.abs(stored(tmp_path / "out.zarr") - whole.x.numpy()).max() < 1.0  # HU


def test_the_command_line_writes_a_volume(tmp_path, values):
    scan = written(tmp_path, "h5", values)
    looked = run("denoise", scan, "-o", tmp_path / "out.h5", "--dry-run")
    assert f"{scan}: a volume, slab by slab" in looked.output
    refused = run("denoise", scan, "-o", tmp_path / "out.png")
    assert refused.exit_code == 2
    assert "give the result one of the endings .zarr" in " ".join(refused.output.split())
    place = written(tmp_path, "zarr", values)
    result = run("denoise", place, "-o", tmp_path / "out.zarr", "--table", tmp_path / "all.csv")
    assert result.exit_code == 0, result.output
    assert "3 of 3 files done" in result.output
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_volume_survives_a_killed_worker(tmp_path, values):
    place = written(tmp_path, "zarr", np.concatenate([values] * 8))
    with (
        closing(Machines(tmp_path / "machines")) as machines,
        machines.connected() as (client, workers),
    ):
        listener = Killer(workers[0], 2)
        result = solved(place, tmp_path / "out.zarr", client=client, listener=listener)
    assert not result.failures
    solved(place, tmp_path / "here.zarr")
    assert (stored(tmp_path / "out.zarr") == stored(tmp_path / "here.zarr")).all()
    marks = [json.loads(path.read_text())["output_sha256"]
             for folder in ("out.zarr.records", "here.zarr.records")
             for path in sorted((tmp_path / folder).glob("*.json"))]  # fmt: skip
    assert marks[: len(marks) // 2] == marks[len(marks) // 2 :]
