"""Hostile files: headers that declare too much, and files that keep a C library busy for ever."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pydicom
import pytest
import tifffile
import torch
from model_files import save_toy
from PIL import Image
from reconstruct_runs import noisy, run
from scan_files import ct_slice, save

import convexlift as cl
from convexlift.files.formats import BoundedReader, allowed_megapixels, require_plausible
from convexlift.files.npy import read_npy
from convexlift.files.pictures import read_picture
from convexlift.images import load_image, save_image
from convexlift.scans.isolated_hdf5 import IsolatedError, run_isolated

CASES = Path(__file__).parents[2] / "shared" / "cases"
"""Further samples, where they are available."""


def edit_tag(path, tag, kind, count, value):
    """Change an entry of the first directory of a little-endian TIFF file."""
    data = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, start)
    for place in range(start + 2, start + 2 + 12 * entries, 12):
        if struct.unpack_from("<H", data, place)[0] == tag:
            struct.pack_into("<HHII", data, place, tag, kind, count, value)
            path.write_bytes(data)
            return
    raise AssertionError(f"no tag {tag}")


@pytest.fixture
def huge_tiff(tmp_path):
    """A kilobyte that declares 20 x 16.8 million pixels."""
    path = tmp_path / "huge.tif"
    tifffile.imwrite(path, np.zeros((24, 20), np.uint8))
    edit_tag(path, 257, 4, 1, 16_777_240)
    return path


def test_headers_that_declare_more_than_the_file_can_hold_are_refused(huge_tiff):
    for read in (read_picture, load_image, cl.scans.read_stack):
        with pytest.raises(ValueError, match=r"huge\.tif .*declares .* --max-megapixels \d+"):
            read(huge_tiff)
    result = run("denoise", huge_tiff, "-o", huge_tiff.with_name("out.tif"))
    assert result.exit_code == 1
    assert "declares 335.5 megapixels" in result.output
    assert "--max-megapixels 336" in result.output


def test_pages_that_form_a_loop_are_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((3, 16, 16), np.uint8), photometric="minisblack", metadata=None)
    with tifffile.TiffFile(path) as file:
        second, last = file.pages[1].offset, file.pages.next_page_offset
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, last, second)
    path.write_bytes(data)
    for read in (read_picture, cl.scans.read_stack):
        with pytest.raises(ValueError, match=r"a\.tif .*its pages form a loop"):
            read(path)


MICROSCOPE = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">
<Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="16" SizeY="16" SizeC="1" SizeZ="1"
SizeT="{times}"><Channel ID="Channel:0" SamplesPerPixel="1"/><TiffData IFD="0" PlaneCount="1"/>
</Pixels></Image></OME>"""


@pytest.mark.parametrize("times", ["200000000", "&#50;00000000"])
def test_sizes_in_ome_metadata_are_limited(tmp_path, times):
    path = tmp_path / "a.ome.tif"
    grey = {"photometric": "minisblack", "metadata": None}
    tifffile.imwrite(
        path, np.zeros((16, 16), np.uint8), description=MICROSCOPE.format(times=1), **grey
    )
    assert read_picture(path).stored.shape == (1, 16, 16)
    tifffile.imwrite(
        path, np.zeros((16, 16), np.uint8), description=MICROSCOPE.format(times=times), **grey
    )
    with pytest.raises(ValueError, match=r"a\.ome\.tif .*declares 5\.12e\+04 megapixels"):
        read_picture(path)


def test_the_limit_can_be_raised_and_lowered(tmp_path):
    path = tmp_path / "a.png"
    Image.new("L", (3000, 6000), 128).save(path)  # 18 megapixels in 20 kB: more than any 16
    assert path.stat().st_size * 1100 > 18e6
    assert read_picture(path).stored.shape == (1, 6000, 3000)
    with pytest.raises(ValueError, match=r"the limit for its \d+ bytes is 10;"):
        read_picture(path, max_megapixels=10)
    result = run("denoise", path, "-o", tmp_path / "b.png", "--max-megapixels", "2")
    assert result.exit_code == 1
    assert "declares 18 megapixels" in result.output
    assert run("denoise", path, "-o", tmp_path / "b.png", "--max-megapixels", "0").exit_code == 2


def test_the_limit_of_pillow_can_be_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    Image.new("L", (100, 100)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png .*--max-megapixels"):
        load_image(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png", max_megapixels=1).shape == (1, 1, 100, 100)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_limits_grow_with_the_length_of_a_file():
    assert allowed_megapixels(1000, 1) == 16  # small images may be constant
    assert allowed_megapixels(10**5, 1) == pytest.approx(110)
    assert allowed_megapixels(10**5, 2) == pytest.approx(55)
    assert allowed_megapixels(10**9, 1) == 500


def test_sizes_that_are_not_positive_integers_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    for shape in ((24, ()), (0, 3), (2.5, 3)):
        with pytest.raises(ValueError, match="declares the size"):
            require_plausible(tmp_path / "a", shape, 1, None)


def test_sizes_of_tiles_are_limited(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((32, 32), np.uint8), tile=(16, 16), compression="zlib")
    edit_tag(path, 322, 4, 1, 2**24)
    with pytest.raises(ValueError, match=r"a\.tif .*megapixels"):
        read_picture(path)


def test_tags_without_values_are_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((24, 20), np.uint8))
    edit_tag(path, 256, 3, 0, 0)
    with pytest.raises(ValueError, match=r"a\.tif cannot be read as a picture: its header"):
        read_picture(path)


@pytest.mark.parametrize("shape", ["(100000, 100000)", "(2, 1000000000000000)"])
def test_npy_headers_are_compared_with_the_file(tmp_path, shape):
    path = tmp_path / "a.npy"
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    for read in (read_picture, load_image, read_npy):
        with pytest.raises(ValueError, match="bytes, but 0 follow"):
            read(path)


def test_reading_allocates_no_more_than_the_file_has(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdef")
    with BoundedReader(tmp_path / "a") as file:
        assert file.read(2) == b"ab"
        assert file.read(2**62) == b"cdef"  # a MemoryError with open()
        assert file.read(2**62) == b""
        file.seek(0)
        assert file.read() == b"abcdef"


def test_only_three_formats_are_decoded_by_pillow(tmp_path):
    Image.new("L", (12, 12)).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png cannot be read"):
        read_picture(tmp_path / "a.png")


# HDF5 --------------------------------------------------------------------------------------------


def scan(path, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", **({"data": np.ones((4, 2, 6))} | options))
        file["exchange/theta"] = np.linspace(0, 90, 4)
        file["exchange/theta"].attrs["units"] = "deg"
    return path


def test_hdf5_is_read_in_a_process_of_its_own(tmp_path):
    path = scan(tmp_path / "a.h5")
    sinogram = cl.scans.read_sinogram(path, rows=slice(0, 1))
    assert sinogram.projections.shape == (1, 4, 6)
    with pytest.raises(ValueError, match="read_seconds must be a number > 0"):
        cl.scans.read_sinogram(path, read_seconds=0)


def test_hdf5_that_declares_too_much_is_refused(tmp_path):
    path = scan(tmp_path / "a.h5", data=None, shape=(10**5, 10**4, 10**4), dtype="f4", chunks=True)
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.h5 .*declares 1e\+07 megapixels"):
        cl.scans.read_sinogram(path)
    assert cl.scans.read_sinogram(scan(tmp_path / "b.h5"), max_megapixels=1).projections.shape == (
        2,
        4,
        6,
    )


READER = """
import time
import numpy as np

def well(count):
    return {"ones": np.ones(count)}, {"text": "hello"}

def endless():
    while True:
        pass

def asleep():
    time.sleep(1000)

def greedy():
    return {"much": np.ones(10**9)}, {}

def refusing():
    raise ValueError("it is   not well")

def careless():
    raise KeyError("x")

def crashing():
    import os
    os.abort()
"""


@pytest.fixture
def isolated(tmp_path):
    (tmp_path / "reader.py").write_text(READER)

    def call(function, seconds=30.0, **arguments):
        return run_isolated(
            tmp_path / "reader.py", function, arguments, seconds=seconds, extra_bytes=2**28
        )

    return call


def test_isolated_readers_return_arrays_and_texts(isolated):
    arrays, texts = isolated("well", count=3)
    assert arrays["ones"].tolist() == [1.0, 1.0, 1.0]
    assert texts == {"text": "hello"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("endless", "not read within 2 seconds.*--read-seconds 20"),
        ("asleep", "not read within 2 seconds"),
        ("greedy", "more memory"),
        ("refusing", "^it is not well$"),
        ("careless", r"it is damaged \(KeyError\)"),
        ("crashing", "crashed"),
    ],
)
@pytest.mark.sampled(2)
def test_isolated_readers_are_stopped(isolated, function, message):
    with pytest.raises(IsolatedError, match=message):
        isolated(function, seconds=2.0 if "not read" in message else 30.0)


@pytest.mark.skipif(not CASES.is_dir(), reason="the samples are not here")
@pytest.mark.parametrize("name", ["endless.h5", "slow.h5"])
@pytest.mark.slow
def test_hdf5_files_that_never_end(name):
    with pytest.raises(cl.scans.ScanFileError, match=name):
        cl.scans.read_sinogram(CASES / name, read_seconds=3)


@pytest.mark.skipif(not CASES.is_dir(), reason="the samples are not here")
@pytest.mark.parametrize("name", ["bad_samples.tif", "huge_declared.tif"])
def test_tiff_files_with_nonsensical_headers(name):
    for read in (read_picture, load_image, cl.scans.read_stack):
        with pytest.raises(ValueError, match=name):
            read(CASES / name)


# DICOM -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("syntax", [None, "1.2.3.4"])
def test_dicom_without_a_transfer_syntax_is_refused_by_name(tmp_path, syntax):
    path = save(ct_slice(), tmp_path / "a.dcm")
    dataset = pydicom.dcmread(path)
    del dataset.file_meta.TransferSyntaxUID
    if syntax is not None:
        dataset.file_meta.TransferSyntaxUID = syntax
    with path.open("wb") as file:
        pydicom.filewriter.dcmwrite(file, dataset, implicit_vr=False, little_endian=True)
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.dcm .*TransferSyntaxUID"):
        cl.scans.read_volume(path)


def test_dicom_that_inflates_too_much_is_refused(tmp_path):
    path = save(ct_slice(), tmp_path / "a.dcm")
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)
    assert cl.scans.read_volume(path).values.shape[0] == 1
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.dcm inflates to more than"):
        cl.scans.read_volume(path, max_megapixels=1e-5)


# Models ------------------------------------------------------------------------------------------


def load_edited(path, edit):
    sheet = path.with_suffix(".json")
    content = json.loads(sheet.read_text())
    edit(content["architecture"])
    sheet.write_text(json.dumps(content))
    return cl.load(path)


def test_weights_that_a_description_only_declares_take_no_memory(tmp_path, monkeypatch):
    _, path = save_toy(tmp_path)
    allocated = []
    before = torch.rand

    def rand(shape, **options):
        result = before(shape, **options)
        allocated.append(0 if result.is_meta else result.numel())
        return result

    monkeypatch.setattr(torch, "rand", rand)
    with pytest.raises(ValueError, match=r"toy\.safetensors: .* shape \(3, 1, 15001, 15001\)"):
        load_edited(path, lambda a: a["layers"][0]["skip"]["Convolution"].update(kernel_size=15001))
    assert max(allocated) == 0


def test_descriptions_with_many_more_parts_than_tensors_are_refused(tmp_path):
    _, path = save_toy(tmp_path)
    with pytest.raises(ValueError, match=r"toy\.json: its architecture has \d+ parts, too many"):
        load_edited(path, lambda a: a["layers"].extend(1500 * a["layers"][1:]))


def test_layers_without_channels_are_refused(tmp_path):
    _, path = save_toy(tmp_path)
    with pytest.raises(ValueError, match=r"toy\.json: .*channels of at least 1, got 0"):
        load_edited(path, lambda a: a["layers"][-1].update(channels=0))


# Weights that overflow ---------------------------------------------------------------------------


def test_a_result_without_a_lower_bound_is_a_failure(tmp_path):
    torch.set_default_dtype(torch.float32)
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "b.png", "--weight", "1e300")
    assert result.exit_code == 1
    assert "no useful lower bound was found with the weight 1e+300" in result.output
    assert not (tmp_path / "b.png").exists()
    assert not (tmp_path / "b.json").exists()
