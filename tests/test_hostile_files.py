"""Hostile files: headers that declare too much, and files that keep a C library busy for ever."""

from __future__ import annotations

import io
import json
import lzma
import struct
import subprocess
import sys
import zlib

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
from convexlift.files.compressed import require_frame
from convexlift.files.formats import BoundedReader, at_most
from convexlift.files.npy import read_npy
from convexlift.files.pictures import read_picture
from convexlift.images import load_image, save_image
from convexlift.scans.hdf5_process import read_hdf5


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
        with pytest.raises(ValueError, match=r"huge\.tif .*declares .* save it in parts"):
            read(huge_tiff)
    result = run("denoise", huge_tiff, "-o", huge_tiff.with_name("out.tif"))
    assert result.exit_code == 1
    assert "declares 335.5 megapixels" in result.output


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


def test_servers_read_less(tmp_path):
    path = tmp_path / "a.png"
    Image.new("L", (3000, 6000), 128).save(path)  # 18 megapixels in 20 kB: more than any 16
    assert path.stat().st_size * 1100 > 18e6
    with at_most(10**7), pytest.raises(ValueError, match=r"18 megapixels, but .* bytes is 10;"):
        read_picture(path)
    assert read_picture(path).stored.shape == (1, 6000, 3000)


def test_the_limit_of_pillow_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    Image.new("L", (100, 100)).save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png").shape == (1, 1, 100, 100)
    assert Image.MAX_IMAGE_PIXELS == 1000


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


def test_hdf5_that_declares_too_much_is_refused(tmp_path):
    path = scan(tmp_path / "a.h5", data=None, shape=(10**5, 10**4, 10**4), dtype="f4", chunks=True)
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.h5 .*/exchange/data declares 1e\+13 num"):
        cl.scans.read_sinogram(path)


def test_chunks_that_expand_without_end_do_not_take_the_memory(tmp_path):
    path = scan(tmp_path / "a.h5", chunks=(4, 2, 6), compression="gzip")
    with h5py.File(path, "r+") as file:
        file["exchange/data"].id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(2**29), 1))
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.h5 cannot be read"):
        cl.scans.read_sinogram(path)


@pytest.mark.parametrize("kind", ["virtual", "external", "link", "soft link", "broken link"])
def test_datasets_in_other_files_are_refused_by_name(tmp_path, kind):
    other, path, data = scan(tmp_path / "b.h5"), scan(tmp_path / "a.h5"), "exchange/data"
    with h5py.File(path, "r+") as file:
        del file[data]
        if kind == "virtual":
            layout = h5py.VirtualLayout((4, 2, 6), float)
            layout[:] = h5py.VirtualSource(other, data, (4, 2, 6))
            file.create_virtual_dataset(data, layout)
        elif kind == "external":
            file.create_dataset(data, (4, 2, 6), "f8", external=[(str(other), 0, 384)])
        else:
            file["outside"] = h5py.ExternalLink(other, "/")
            place = "missing.h5" if kind == "broken link" else other
            soft, link = h5py.SoftLink("/outside/exchange/data"), h5py.ExternalLink(place, data)
            file[data] = soft if kind == "soft link" else link
    with pytest.raises(cl.scans.ScanFileError, match=r"a\.h5 .*'/exchange/data' .*other files"):
        cl.scans.read_sinogram(path)


def test_links_within_a_file_are_followed(tmp_path):
    path = scan(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.move("exchange/data", "frames")
        file["exchange/data"] = h5py.SoftLink("/frames")
    found = cl.scans.read_sinogram(path, rows=slice(0, 1))
    assert found.projections.shape == (1, 4, 6)


@pytest.mark.parametrize(
    ("code", "said"), [("while True: pass", "not read within 1 seconds"), ("os.abort()", "crashed")]
)
def test_a_child_that_hangs_or_crashes_is_an_error(tmp_path, monkeypatch, code, said):
    path = scan(tmp_path / "a.h5")
    (tmp_path / "h5py.py").write_text(f"import os\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=said):
        read_hdf5(path, ["/exchange"], slice(None), 100, seconds=1)


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


# Pixels that expand beyond their header -----------------------------------------------------------

LARGE = 2**27
READ = """
import resource, sys
from pathlib import Path
from convexlift.reconstruction.contents import open_contents
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_contents(Path(sys.argv[1]))
except ValueError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def refusal(path):
    """The error of a reader, which may take less than half of ``LARGE``."""
    if sys.platform != "linux":
        pytest.skip("memory is measured as on Linux")
    command = [sys.executable, "-c", READ, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    *said, megabytes = ended.stdout.splitlines()
    assert int(megabytes) < 64
    return " ".join(said)


def run_lengths(count):
    return b"\x81\0" * (count // 128)


BLOCKS = {
    "deflate": (8, lambda: zlib.compress(bytes(LARGE))),
    "LZMA": (34925, lambda: lzma.compress(b"\0") + lzma.compress(bytes(LARGE))),
    "run lengths": (32773, lambda: run_lengths(LARGE)),
}


def tiff_with_block(path, compression, block, **options):
    """Two pages with another strip or tile; of deflate, only the second has it."""
    pages = np.zeros((2, 16, 16), np.uint8)
    tifffile.imwrite(path, pages, compression="zlib", metadata=None, **options)
    kind, length = "Tile" if "tile" in options else "Strip", path.stat().st_size
    new = {f"{kind}Offsets": length, f"{kind}ByteCounts": len(block), "Compression": compression}
    with tifffile.TiffFile(path, mode="r+b") as file:
        for page in file.pages[compression == 8 :]:
            for name, value in new.items():
                page.tags[name].overwrite(value)
    with path.open("ab") as file:
        file.write(block)
    return path


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_tiff_files_expand_to_their_size_only(tmp_path, kind):
    compression, make = BLOCKS[kind]
    path = tiff_with_block(tmp_path / "a.tif", compression, make())
    said = refusal(path)
    assert "a.tif cannot be read as a picture: it expands beyond 256 bytes" in said


@pytest.mark.parametrize("options", [{}, {"tile": (16, 16)}, {"rowsperstrip": 2**31}])
def test_strips_and_tiles_are_checked(tmp_path, options):
    path = tiff_with_block(tmp_path / "a.tif", 8, zlib.compress(bytes(10**6)), **options)
    for read in (read_picture, cl.scans.read_stack):
        with pytest.raises(ValueError, match=r"a\.tif .* expands beyond 256 bytes"):
            read(path)


def test_blocks_that_cannot_be_bounded_are_refused_by_name(tmp_path):
    for compression, name in ((50001, "WEBP"), (34933, "PNG")):
        path = tiff_with_block(tmp_path / "a.tif", compression, b"")
        with pytest.raises(ValueError, match=f"compressed as {name}, which is not read"):
            read_picture(path)


def encapsulated(path, syntax, frame):
    data = ct_slice(np.zeros((7, 5), np.uint8))
    data.file_meta.TransferSyntaxUID = syntax
    data.PixelData = pydicom.encaps.encapsulate([frame])
    data["PixelData"].VR = "OB"
    return save(data, path)


def coded(height, width, kind="JPEG", **options):
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, kind, **options)
    return file.getvalue()


def test_frames_of_dicom_files_expand_to_their_size_only(tmp_path):
    for syntax, options in (
        (pydicom.uid.JPEGBaseline8Bit, {}),
        (pydicom.uid.JPEG2000Lossless, {"kind": "JPEG2000", "no_jp2": True}),
    ):
        right = encapsulated(tmp_path / "right.dcm", syntax, coded(7, 5, **options))
        assert cl.scans.read_volume(right).values.shape == (1, 7, 5)
        large = encapsulated(tmp_path / "a.dcm", syntax, coded(900, 900, **options))
        with pytest.raises(ValueError, match=r"a\.dcm .* it holds 900 x 900 compressed pixels"):
            cl.scans.read_volume(large)
    segment = struct.pack("<16L", 1, 64, *[0] * 14) + run_lengths(LARGE)
    large = encapsulated(tmp_path / "a.dcm", pydicom.uid.RLELossless, segment)
    assert "it expands beyond 35 bytes" in refusal(large)


HEADS = (b"", b"\xff\xd8", b"\xff\xd8\xff\xd0\0\x04", b"\xff\xd8\0\xff\xc0", b"\xff\x4f\xff\x51")


@pytest.mark.parametrize("head", HEADS)
def test_frames_without_a_size_are_refused(head):
    with pytest.raises(ValueError, match="no JPEG or JPEG 2000 pixels with a size"):
        require_frame(head, 100, 100)
    # A second header behind other bytes does not count.
    with pytest.raises(ValueError, match=r"with a size|declares"):
        require_frame(head + coded(90, 900), 100, 100)


def test_dicom_that_inflates_too_much_is_refused(tmp_path):
    path = save(ct_slice(), tmp_path / "a.dcm")
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)
    assert cl.scans.read_volume(path).values.shape[0] == 1
    dataset.PixelData = bytes(LARGE + 2**20)
    dataset.save_as(path, enforce_file_format=True)
    assert "expands beyond" in refusal(path)


# Models ------------------------------------------------------------------------------------------


def load_edited(path, edit):
    sheet = path.with_suffix(".json")
    content = json.loads(sheet.read_text())
    edit(content["architecture"])
    sheet.write_text(json.dumps(content))
    return cl.load(path)


def test_weights_that_a_description_only_declares_take_no_memory(tmp_path):
    """They would be 5.4 terabytes."""
    _, path = save_toy(tmp_path)
    with pytest.raises(ValueError, match=r"toy\.safetensors: .* shape \(3, 1, 670001, 670001\)"):
        load_edited(
            path, lambda a: a["layers"][0]["skip"]["Convolution"].update(kernel_size=670001)
        )


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
