"""Volumes reconstructed slab by slab into zarr stores, without ever being whole in memory."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc

import numpy as np
import pytest
import torch
from reconstruct_runs import noisy, run
from test_cluster import OPTIONS, Machines

import convexlift as cl
from convexlift.files.pictures import count_pages, read_picture
from convexlift.reconstruction import InputError, cluster

zarr = pytest.importorskip("zarr")
tifffile = pytest.importorskip("tifffile")

SHAPE = (20, 16, 24)


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


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
    else:
        np.save(place, values)
    return place


def solved(place, output, **more):
    return cl.reconstruct_many(place, output, **OPTIONS | more)


def test_every_format_gives_the_same_volume(tmp_path, values):
    found = []
    for kind in ("zarr", "tif", "npy"):
        result = solved(written(tmp_path, kind, values), tmp_path / f"{kind}.out.zarr")
        assert not result.failures
        assert sum(len(record["planes"]) for record in result.records) == SHAPE[0]
        found.append(stored(tmp_path / f"{kind}.out.zarr"))
        assert found[-1].dtype == np.uint16
        assert found[-1].shape == SHAPE
    assert all((each == found[0]).all() for each in found)


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
    names = sorted(path.stem for path in (tmp_path / "out.records").glob("*.json"))
    assert names == ["000000-000009", "000009-000018", "000018-000020"]
    assert sorted(record["input"][-8:] for record in result.records)[0] == "arr[0:9]"
    assert zarr.open(tmp_path / "out.zarr", mode="r")["0"].chunks == (3, 16, 24)


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
    (tmp_path / "out.records" / "000000-000009.json").unlink()
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
    with pytest.raises(InputError, match=r"give the result the ending \.zarr"):
        solved(place, tmp_path / "out.tif")
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


def test_a_volume_of_sinograms(tmp_path):
    angles = tuple(np.linspace(0, np.pi, 12, endpoint=False).tolist())
    geometry = cl.scans.ParallelGeometry(angles=angles, bin_width=2.0, unit="mm")
    rays = cl.ParallelBeam(16, angles=12, bins=16, extent=32.0)
    phantom = 0.02 * cl.phantoms.shepp_logan(16).float()
    projections = rays(phantom)[0].expand(10, -1, -1).clone()
    scan = cl.scans.Sinogram(projections, geometry, "line integrals")
    cl.scans.write_sinogram(scan, tmp_path / "scan.npy")
    options = OPTIONS | {"weight": 0.01, "sigma": 0.01}
    with pytest.raises(InputError, match="rows= FIRST:END is needed"):
        cl.reconstruct_many(tmp_path / "scan.npy", tmp_path / "out.zarr", "ct", **options)
    result = cl.reconstruct_many(
        tmp_path / "scan.npy", tmp_path / "out.zarr", "ct", rows=(0, 10), **options
    )
    assert not result.failures
    whole = cl.reconstruct(tmp_path / "scan.npy", "ct", **options)
    assert np.abs(stored(tmp_path / "out.zarr") - whole.x.numpy()).max() < 1.0  # HU


def test_the_command_line_writes_a_volume(tmp_path, values):
    place = written(tmp_path, "zarr", values)
    result = run("denoise", place, "-o", tmp_path / "out.zarr", "--table", tmp_path / "all.csv")
    assert result.exit_code == 0, result.output
    assert "3 of 3 files done" in result.output
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 4
    assert not (tmp_path / "contact-sheet.html").exists()


@pytest.mark.slow
def test_a_volume_survives_a_killed_worker(tmp_path, values):
    place = written(tmp_path, "zarr", np.concatenate([values] * 8))
    (tmp_path / "machines").mkdir()
    machines = Machines(tmp_path / "machines")

    class Killer(cl.reconstruction.BatchListener):
        done = 0

        def finished(self, source, record, previews):
            self.done += 1
            if self.done == 2:
                os.kill(workers[0].pid, signal.SIGKILL)

    try:
        workers = [machines.worker(), machines.worker()]
        with cluster.connected(machines.address) as client:
            client.wait_for_workers(2, timeout=120)
            result = solved(place, tmp_path / "out.zarr", client=client, listener=Killer())
    finally:
        machines.end()
    assert not result.failures
    solved(place, tmp_path / "here.zarr")
    assert (stored(tmp_path / "out.zarr") == stored(tmp_path / "here.zarr")).all()
    marks = [json.loads(path.read_text())["output_sha256"]
             for folder in ("out.records", "here.records")
             for path in sorted((tmp_path / folder).glob("*.json"))]  # fmt: skip
    assert marks[: len(marks) // 2] == marks[len(marks) // 2 :]
