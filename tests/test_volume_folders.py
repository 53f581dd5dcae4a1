"""Volumes in folders: DICOM of every modality, names without an ending, slices that change."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image
from reconstruct_runs import OPTIONS, noisy, solved
from scan_files import ct_slice, save

import convexlift as cl
from convexlift.reconstruction import InputError
from convexlift.reconstruction.contents import open_contents
from convexlift.scans.dicom_reading import series_headers
from convexlift.scans.volume_sources import count_planes, is_series, read_slab, slice_files

h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.single_precision

COUNT, SIDE = 12, 16


def series(folder, modality, slopes=(1.0,), name="{}.dcm", **more):
    """Slices with the same content in the units of the modality, 0 to 1000 and some noise."""
    for number in range(COUNT):
        slope = slopes[number % len(slopes)]
        values = 1000 * noisy(size=SIDE, seed=number)
        stored = np.rint(values / slope).astype(np.uint16)
        save(
            ct_slice(stored, 2.0 * number, Modality=modality, RescaleSlope=slope,
                     RescaleIntercept=0, InstanceNumber=number + 1, **more),
            folder / name.format(number),
        )  # fmt: skip
    return folder


def head_series(folder, sigma):
    """A head without noise, and its ten noisy slices in Hounsfield units, which are written."""
    head = np.where(np.hypot(*np.mgrid[-8:8, -8:8]) < 6, 40.0, -1000.0)
    noise = sigma * np.random.default_rng(0).normal(0, 1, (10, 16, 16))
    values = torch.from_numpy(head + noise).round().float()
    positions = tuple((0.0, 0.0, 2.5 * k) for k in range(10))
    volume = cl.scans.Volume(values, (0.75, 0.5), positions)
    cl.scans.write_dicom(volume, folder)
    return head, volume


def test_a_series_in_hounsfield_units(tmp_path):
    head, volume = head_series(tmp_path / "series", sigma=10)
    solved(tmp_path / "series", tmp_path / "out.zarr")
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    image = dict(group.attrs)["ome"]["multiscales"][0]
    assert image["axes"][0] == {"name": "z", "type": "space", "unit": "millimeter"}
    steps = image["datasets"][0]["coordinateTransformations"]
    assert steps == [{"type": "scale", "scale": [2.5, 0.75, 0.5]}]
    found = group["0"][:]
    assert found.dtype == np.float32
    assert np.abs(found - head).mean() < 0.7 * np.abs(volume.values.numpy() - head).mean()
    part = cl.reconstruct(tmp_path / "series", slices=(3, 5), **OPTIONS)
    assert part.x.shape == (2, 16, 16)
    (tmp_path / "tif").mkdir()
    solved(tmp_path / "series", tmp_path / "tif" / "out.tif")
    with tifffile.TiffFile(tmp_path / "tif" / "out.tif") as file:
        across, down = file.pages[0].tags["XResolution"].value
        assert across / down == pytest.approx(20)  # pixels in a centimetre
        assert (file.asarray() == found).all()


def test_slices_in_a_folder_share_noise_and_weight(tmp_path):
    _, volume = head_series(tmp_path / "series", sigma=np.linspace(5, 20, 10)[:, None, None])
    result = solved(tmp_path / "series", tmp_path / "clean", volume=True)
    assert len({record["settings"]["sigma"] for record in result.records}) == 1
    apart = solved(tmp_path / "series", tmp_path / "apart")
    assert len({record["noise"]["level"] for record in apart.records}) > 1
    series = cl.scans.read_dicom(tmp_path / "clean")  # raises unless it is one series
    assert series.positions == volume.positions
    numbers = [int(each.InstanceNumber) for each in series.source]
    assert numbers == list(range(1, 11))
    assert len({each.SOPInstanceUID for each in series.source}) == 10
    assert series.source[0].SeriesInstanceUID != cl.scans.read_dicom(
        tmp_path / "series"
    ).source[0].SeriesInstanceUID  # fmt: skip
    with pytest.raises(InputError, match="takes one folder of slices"):
        solved(tmp_path / "series" / "0001.dcm", tmp_path / "one", volume=True)


def test_slices_are_rescaled_one_by_one(tmp_path):
    folder = series(tmp_path / "pet", "PT", slopes=(1.0, 2.0, 3.0, 4.0))
    expected = np.stack([1000 * noisy(size=SIDE, seed=k) for k in range(COUNT)])
    found = read_slab(folder, slice(None))
    assert np.abs(found.stored - expected).max() <= 2  # half of a step of the coarsest slices
    result = solved(folder, tmp_path / "out.npy")
    assert not result.failures
    clean = np.load(tmp_path / "out.npy")
    assert clean.dtype == np.float32
    assert np.allclose(clean.mean((1, 2)), expected.mean((1, 2)), rtol=0.02)
    assert len({tuple(record["range"]) for record in result.records}) == 1


def test_the_display_window_is_the_range(tmp_path):
    folder = series(tmp_path / "mr", "MR", slopes=(0.5,), WindowCenter=500, WindowWidth=1000)
    save(ct_slice(np.zeros((SIDE, SIDE), np.uint16), 30.0, Modality="MR", RescaleSlope=0.5,
                  RescaleIntercept=0, InstanceNumber=13, WindowCenter=600, WindowWidth=1200),
         folder / "brighter.dcm")  # fmt: skip
    contents = open_contents(folder)
    assert contents.numbers == (0.0, 1200.0)
    assert contents.is_dicom  # in which salt and pepper are not looked for
    assert open_contents(folder, pages=slice(0, 2)).numbers == (0.0, 1000.0)
    result = solved(folder, tmp_path / "out.tif")
    assert {tuple(record["range"]) for record in result.records} == {(0.0, 1200.0)}
    assert result.records[0]["settings"]["sigma"] > 0.02
    whole = cl.reconstruct(folder, slices=(0, 3), **OPTIONS)
    assert whole.save(tmp_path / "three.tif").is_file()


@pytest.mark.parametrize("modality", ["CT", "MR"])
@pytest.mark.parametrize("name", ["IM{:02d}", "slice.{:03d}", "{}.img"])
def test_slices_need_no_ending(tmp_path, modality, name):
    folder = series(tmp_path / "bare", modality, name=name)
    (folder / "DICOMDIR").write_bytes(b"a list")
    assert count_planes(folder) == COUNT
    assert is_series(folder) == (modality == "CT")
    result = solved(folder, tmp_path / "out.tif", slices=(0, 4))
    assert len(result.records) == 1, result.failures


def test_a_note_beside_pictures_is_no_slice(tmp_path):
    folder = pictures(tmp_path)
    (folder / "README").write_text("ten slices")
    assert len(slice_files(folder)) == COUNT


def pictures(place):
    folder = place / "slices"
    folder.mkdir()
    for number in range(COUNT):
        shown = np.rint(255 * noisy(size=SIDE, seed=number)).astype(np.uint8)
        Image.fromarray(shown).save(folder / f"{number}.png")
    return folder


def rewrite(path, content):
    """Other content in the same file, whose folder does not change."""
    before = path.parent.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.truncate()
        file.write(content)
    os.utime(path, ns=(before + 10**10, before + 10**10))
    assert path.parent.stat().st_mtime_ns == before


def exchange(folder):
    """The first two slices."""
    first, second = (folder / f"{n}.dcm" for n in "01")
    one, other = first.read_bytes(), second.read_bytes()
    rewrite(first, other)
    rewrite(second, one)


def test_a_slice_that_changes_is_reconstructed_again(tmp_path):
    folder = pictures(tmp_path)
    options = {"sigma": 0.05, "weight": 0.05, "resume": True}
    solved(folder, tmp_path / "out.npy", **options)
    before = np.load(tmp_path / "out.npy")
    kept = solved(folder, tmp_path / "out.npy", **options)
    assert (len(kept.earlier), len(kept.records)) == (2, 0)
    rewrite(folder / "3.png", (folder / "9.png").read_bytes())
    again = solved(folder, tmp_path / "out.npy", **options)
    assert again.records
    after = np.load(tmp_path / "out.npy")
    assert (after[3] != before[3]).any()
    assert (after[4] == before[4]).all()


def test_a_chunk_that_changes_is_reconstructed_again(tmp_path):
    values = np.stack([noisy(size=SIDE, seed=k) for k in range(COUNT)])
    zarr.create_array(tmp_path / "in.zarr", data=values, chunks=(2, SIDE, SIDE))
    options = {"sigma": 0.05, "weight": 0.05, "resume": True}
    solved(tmp_path / "in.zarr", tmp_path / "out.zarr", **options)
    chunks = tmp_path / "in.zarr" / "c"
    rewrite(chunks / "0" / "0" / "0", (chunks / "5" / "0" / "0").read_bytes())
    assert solved(tmp_path / "in.zarr", tmp_path / "out.zarr", **options).records


def test_headers_of_slices_that_change_are_read_again(tmp_path):
    folder = series(tmp_path / "ct", "CT")
    assert [header.path.stem for header in series_headers(folder)[:2]] == ["0", "1"]
    assert read_slab(series(tmp_path / "mr", "MR"), slice(1)).stored.mean() > 100
    exchange(folder)
    assert [header.path.stem for header in series_headers(folder)[:2]] == ["1", "0"]
    slices = tmp_path / "mr"
    assert [path.stem for path in slice_files(slices)[:2]] == ["0", "1"]
    exchange(slices)
    assert [path.stem for path in slice_files(slices)[:2]] == ["1", "0"]


def test_plugins_of_hdf5_are_loaded_for_volumes(tmp_path, monkeypatch):
    mark = tmp_path / "loaded"
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "hdf5plugin.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(plugins)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["data"] = np.zeros((3, 8, 8))
    assert count_planes(tmp_path / "in.h5") == 3
    assert mark.exists()
