"""Every registered file format takes one exam; ``soak.samples.READERS`` has a row for each."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from convexlift import scans
from convexlift.files.formats import FileFormat, at_most
from convexlift.files.pictures import (
    Picture,
    PictureFormat,
    read_picture,
    read_plane,
    writable,
    write_picture,
)
from convexlift.scans.files import SinogramFormat, VolumeFormat
from soak.samples import READERS

PICTURES = PictureFormat.known_suffixes()
VOLUMES = VolumeFormat.known_suffixes()
SINOGRAMS = SinogramFormat.known_suffixes()
READ_ONLY_SINOGRAMS = (".tif", ".tiff")
LOSSY = {".jpg": 0.1, ".jpeg": 0.1}

RAMP = np.linspace(0, 1, 3 * 17 * 24).reshape(3, 17, 24)
CONTENT = {
    "black and white": Picture(RAMP[:1] > 0.2),
    "8 bits": Picture((255 * RAMP[:1]).astype(np.uint8)),
    "16 bits": Picture((65535 * RAMP[:1]).astype(np.uint16)),
    "floats": Picture(RAMP[:1].astype(np.float32)),
    "colours": Picture((255 * RAMP).astype(np.uint8), channels=3),
    "deep colours": Picture((65535 * RAMP).astype(np.uint16), channels=3),
    "colours and alpha": Picture(
        (255 * RAMP).astype(np.uint8), (255 * RAMP[1:2]).astype(np.uint8), 3
    ),
    "pages": Picture(RAMP.astype(np.float32), layout=RAMP.shape),
}


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(s, name) for s in PICTURES for name, picture in CONTENT.items() if not writable(picture, s)],
)
def test_pictures_are_read_as_they_were_written(tmp_path, suffix, content):
    picture, path = CONTENT[content], tmp_path / f"a{suffix}"
    write_picture(picture, path)
    again = read_picture(path)
    assert (again.channels, again.pages) == (picture.channels, picture.pages)
    assert (again.alpha is None) == (picture.alpha is None)
    assert again.stored.dtype == (np.uint8 if suffix in LOSSY else picture.stored.dtype)
    white = again.full_range[1] / picture.full_range[1]
    tolerance = LOSSY.get(suffix, 0.0) * again.full_range[1]
    np.testing.assert_allclose(again.stored, white * picture.stored, rtol=0, atol=tolerance)
    if picture.alpha is not None:
        np.testing.assert_array_equal(again.alpha, picture.alpha)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(suffix, "8 bits") for suffix in PICTURES]
    + [(suffix, "colours") for suffix in PICTURES if suffix != ".npy"],
)
def test_grey_planes_are_luma(tmp_path, suffix, content):
    picture, path = CONTENT[content], tmp_path / f"a{suffix}"
    write_picture(picture, path)
    weights = (0.299, 0.587, 0.114) if content == "colours" else (1.0,)
    luma = np.tensordot(weights, picture.stored, 1)
    tolerance = 0.51 + 255 * LOSSY.get(suffix, 0.0)
    np.testing.assert_allclose(read_plane(path), luma, rtol=0, atol=tolerance)


@pytest.mark.parametrize("suffix", PICTURES)
def test_sizes_are_checked_and_damaged_pictures_are_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (1, 40, 50), dtype=np.uint8)
    write_picture(Picture(noise), path)
    whole = path.read_bytes()
    kind = PictureFormat.of(path)
    assert not kind.misnamed(whole)
    assert kind.misnamed(b"something else") == bool(kind.marks)
    for read in (read_picture, read_plane):
        with at_most(1000), pytest.raises(ValueError, match=rf"a\{suffix} .*0\.002 megapixels"):
            read(path)
    for length in (0, 3, len(whole) // 3):
        path.write_bytes(whole[:length])
        for read in (read_picture, read_plane):
            with pytest.raises(ValueError, match=rf"a\{suffix} cannot be read as a picture"):
                read(path)


def test_an_ending_has_one_format():
    class Family(FileFormat):
        pass

    def define(name, *suffixes):
        return type(name, (Family,), {"name": name, "suffixes": suffixes})

    first = define("First", ".a", ".b")
    assert Family.known_suffixes() == (".a", ".b")
    assert type(Family.of(Path("x.B"))) is first
    assert Family.of(Path("x.c")) is None
    with pytest.raises(TypeError, match=r"Second: '\.b' already means First"):
        define("Second", ".b")
    again = define("First", ".a", ".b")  # as when a cell of a notebook is run again
    assert type(Family.of(Path("x.a"))) is again
    assert ".a" not in PictureFormat.known_suffixes()


VALUES = torch.linspace(-1000, 2000, 35, dtype=torch.float32).reshape(1, 5, 7)
VOLUME = scans.Volume(VALUES, (0.5, 0.75), ((1.0, 2.0, 3.0),), thickness=1.5)


@pytest.mark.parametrize("suffix", VOLUMES)
def test_volumes_are_read_as_they_were_written(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    files = scans.write_volume(VOLUME, path)
    assert all(file.exists() for file in files)
    again = scans.read_volume(path)
    assert (again.values - VALUES).abs().max() <= 1 / 16
    for name in ("spacing", "positions", "orientation", "thickness"):
        assert getattr(again, name) == getattr(VOLUME, name)


def sinogram():
    geometry = scans.ParallelGeometry(angles=(0.0, 0.5, 1.5), bin_width=0.3)
    return scans.Sinogram(torch.rand(2, 3, 5, dtype=torch.float32), geometry, "transmission")


@pytest.mark.parametrize("suffix", SINOGRAMS)
def test_sinograms_are_read_as_they_were_written(tmp_path, suffix):
    given = sinogram()
    if suffix in READ_ONLY_SINOGRAMS:
        with pytest.raises(scans.ScanFileError, match=r"use the ending \.h5 or \.npy"):
            scans.write_sinogram(given, tmp_path / f"a{suffix}")
        return
    again = scans.read_sinogram(scans.write_sinogram(given, tmp_path / f"a{suffix}"))
    assert torch.equal(again.projections, given.projections)
    assert again.quantity == "transmission"
    assert again.geometry.bin_width == 0.3
    assert again.geometry.angles == pytest.approx(given.geometry.angles)


SERIES = scans.Volume.stacked(torch.zeros(2, 5, 7), (1, 1))
WRITERS = {
    **{s: lambda path: write_picture(CONTENT["8 bits"], path) for s in PICTURES},
    **{f" volume{s}": lambda path: scans.write_volume(VOLUME, path) for s in VOLUMES},
    ".h5": lambda path: scans.write_sinogram(sinogram(), path),
    ".npy with its geometry": lambda path: scans.write_sinogram(
        sinogram(), path.with_suffix(".npy")
    ),
    " of slices": lambda path: scans.write_volume(SERIES, path),
    " of pictures": lambda path: scans.write_png(SERIES, path),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_full_disk_leaves_no_partial_files(tmp_path, monkeypatch, suffix):
    def full(part, path):
        assert part.exists()
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        WRITERS[suffix](tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("package", "ending"),
    [("pydicom", " volume.dcm"), ("tifffile", " volume.tif"), ("h5py", ".h5")],
)
def test_errors_say_which_package_to_install(tmp_path, monkeypatch, package, ending):
    path = tmp_path / f"a{ending}"
    WRITERS[ending](path)
    monkeypatch.setitem(sys.modules, package, None)
    read = scans.read_sinogram if ending == ".h5" else scans.read_volume
    for use in (read, WRITERS[ending]):
        with pytest.raises(ImportError, match=r'pip install "convexlift\[(cli|ct)'):
            use(path)


@pytest.mark.parametrize(
    ("family", "reader"),
    [(PictureFormat, "read_plane"), (VolumeFormat, "_contents"), (SinogramFormat, "read_sinogram")],
)
def test_damaged_files_of_every_format_are_part_of_the_soak(family, reader):
    endings = {".h5"} if family is SinogramFormat else set()  # read without a process of its own
    endings |= {row.ending for row in READERS if reader in {read.__name__ for read in row.reads}}
    covered = {type(family.of(Path(f"a{ending}"))) for ending in endings}
    suffixes = PICTURES if family is PictureFormat else family.known_suffixes()
    assert {type(family.of(Path(f"a{suffix}"))) for suffix in suffixes} <= covered
