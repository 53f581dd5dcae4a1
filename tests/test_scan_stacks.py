"""PNG and TIFF stacks, exchanged with other libraries."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, PngImagePlugin

from convexlift import scans
from convexlift.scans.stacks import SliceMetadata

VOLUME = scans.Volume(
    torch.linspace(-1200, 2100, 3 * 5 * 7, dtype=torch.float32).reshape(3, 5, 7),
    (0.7, 1 / 3),
    ((1.0, 2.0, 3.0), (1.0, 2.0, 5.5), (1.0, 2.0, 9.0)),
    (1.0, 0.0, 0.0, 0.0, 0.6, 0.8),
    2.5,
)


def same_places(left, right):
    names = ("spacing", "positions", "orientation", "thickness")
    return all(getattr(left, name) == getattr(right, name) for name in names)


def test_tiff_keeps_every_digit(tmp_path):
    (file,) = scans.write_volume(VOLUME, tmp_path / "new" / "a.tif")
    again = scans.read_volume(file)
    assert torch.equal(again.values, VOLUME.values)
    assert same_places(again, VOLUME)
    assert [path.name for path in file.parent.iterdir()] == ["a.tif"]


def test_other_libraries_read_our_tiff(tmp_path):
    (file,) = scans.write_volume(VOLUME, tmp_path / "a.tiff")
    assert np.array_equal(tifffile.imread(file), VOLUME.values.numpy())
    with Image.open(file) as picture:
        assert picture.n_frames == 3
        for k in range(3):
            picture.seek(k)
            assert np.array_equal(np.asarray(picture), VOLUME.values[k].numpy())
            tags = picture.tag_v2
            assert tags[296] == 3  # centimetres
            assert float(tags[282]) == pytest.approx(10 * 3, rel=1e-6)
            assert float(tags[283]) == pytest.approx(10 / 0.7, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"byteorder": ">"}])
def test_signed_and_float_tiff_is_in_hounsfield_units(tmp_path, dtype, options):
    stored = np.arange(-30, 30).reshape(3, 4, 5).astype(dtype)
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, stored, **options, photometric="minisblack", resolution=(40, 20),
        resolutionunit="CENTIMETER",
    )  # fmt: skip
    volume = scans.read_volume(path)
    assert np.array_equal(volume.values.numpy(), stored.astype(np.float32))
    assert volume.spacing == (0.5, 0.25)
    assert scans.read_stack(path, spacing=(1, 1), slice_spacing=2).heights == (0, 2, 4)


def test_unsigned_numbers_need_a_scale(tmp_path):
    stored = np.arange(60, dtype=np.uint16).reshape(3, 4, 5)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, stored, photometric="minisblack")
    with pytest.raises(scans.ScanFileError, match=r"a\.tif holds uint16.*slope=\.\.\., intercept="):
        scans.read_volume(path)
    with pytest.raises(
        scans.ScanFileError, match=r"a\.tif does not give its pixel size.*spacing=\(dy"
    ):
        scans.read_stack(path, intercept=-1024)
    volume = scans.read_stack(path, spacing=(1, 2), slope=0.5, intercept=-1024)
    assert np.array_equal(volume.values.numpy(), stored / 2 - 1024)
    with pytest.raises(ValueError, match="slope and intercept must be finite"):
        scans.read_stack(path, spacing=(1, 2), slope=0)


def test_resolutions_per_inch_are_ignored(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((4, 5), np.float32), resolution=(72, 72), resolutionunit="INCH")
    with pytest.raises(scans.ScanFileError, match="does not give its pixel size"):
        scans.read_volume(path)


@pytest.mark.parametrize("suffix", ["tif", "png"])
def test_files_of_a_folder_are_in_natural_order(tmp_path, suffix):
    for k in (1, 2, 10):
        pixels = np.full((2, 3), k, dtype=np.uint16)
        path = tmp_path / f"slice{k}.{suffix}"
        tifffile.imwrite(path, pixels) if suffix == "tif" else Image.fromarray(pixels).save(path)
    (tmp_path / ".hidden").write_text("")
    volume = scans.read_stack(tmp_path, spacing=(1, 1), intercept=0)
    assert volume.values[:, 0, 0].tolist() == [1, 2, 10]


def test_16_bit_png_is_read_exactly(tmp_path):
    stored = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(stored).save(tmp_path / "a.png")
    volume = scans.read_stack(tmp_path / "a.png", spacing=(1, 1), intercept=-1024)
    assert np.array_equal(volume.values[0].numpy(), stored.astype(np.float32) - 1024)


def test_16_bit_png_is_read_back_to_half_a_step(tmp_path):
    files = scans.write_png(VOLUME, tmp_path / "stack", bits=16)
    assert [file.name for file in files] == ["0001.png", "0002.png", "0003.png"]
    again = scans.read_volume(tmp_path / "stack")
    step = 3300 / 65535
    assert (again.values - VOLUME.values).abs().max() <= 0.5 * step * 1.01
    assert same_places(again, VOLUME)
    one = replace(VOLUME, values=VOLUME.values[:1], positions=VOLUME.positions[:1])
    (file,) = scans.write_volume(one, tmp_path / "one.png")
    assert (scans.read_volume(file).values - one.values).abs().max() <= 0.5 * step


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("window", ["lung", scans.Window(40, 400)])
def test_pictures_show_a_window(tmp_path, bits, window):
    (file,) = scans.write_png(VOLUME.values[0], tmp_path / "a.png", window=window, bits=bits)
    low, high = (-1350, 150) if window == "lung" else (-160, 240)
    expected = np.clip((VOLUME.values[0].double().numpy() - low) / (high - low), 0, 1)
    with Image.open(file) as picture:
        pixels = np.asarray(picture).astype(np.float64)
    assert np.abs(pixels - (2**bits - 1) * expected).max() <= 0.5 + 1e-9
    (same,) = scans.write_png(VOLUME.values[:1, None], tmp_path / "b.png", window=window, bits=bits)
    assert same.read_bytes() == file.read_bytes()


def test_clipped_pictures_are_not_read_as_hounsfield_units(tmp_path):
    one = replace(VOLUME, values=VOLUME.values[2:], positions=VOLUME.positions[2:])
    (file,) = scans.write_png(one, tmp_path / "a.png", window="bone", bits=16)
    clipped = int((one.values > 1300).sum())
    assert clipped
    with pytest.raises(scans.ScanFileError, match=rf"a\.png .* window that clipped {clipped} pix"):
        scans.read_volume(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": "belly"}, "no window 'belly'; choose one of abdomen, bone"),
        ({"bits": 12}, "bits must be 8 or 16, got 12"),
        ({"image": torch.zeros(2, 3, 4)}, r"takes one slice, not 2"),
        ({"image": torch.zeros(2, 2, 3, 4)}, r"write_png takes .* got \(2, 2, 3, 4\)"),
        ({"image": torch.full((2, 2), torch.nan)}, r"cannot write pictures: nan at"),
    ],
)
def test_bad_arguments_of_write_png_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        scans.write_png(**{"image": torch.zeros(2, 2), "path": tmp_path / "a.png", **change})
    assert not list(tmp_path.iterdir())


def test_colours_are_refused(tmp_path):
    colour = np.zeros((4, 5, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "a.png")
    with pytest.raises(scans.ScanFileError, match=r"a\.png has 3 channel.*slices must be grey"):
        scans.read_stack(tmp_path / "a.png", spacing=(1, 1), intercept=0)
    tifffile.imwrite(tmp_path / "a.tif", colour, photometric="rgb")
    with pytest.raises(scans.ScanFileError, match=r"a\.tif is RGB with 3 sample"):
        scans.read_stack(tmp_path / "a.tif", spacing=(1, 1), intercept=0)
    tifffile.imwrite(tmp_path / "b.tif", colour[..., 0], photometric="miniswhite")
    with pytest.raises(scans.ScanFileError, match=r"b\.tif is MINISWHITE"):
        scans.read_stack(tmp_path / "b.tif", spacing=(1, 1), intercept=0)
    colours = np.zeros((3, 256), np.uint16)
    tifffile.imwrite(tmp_path / "c.tif", colour[..., 0], photometric="palette", colormap=colours)
    with pytest.raises(scans.ScanFileError, match=r"c\.tif is PALETTE"):
        scans.read_stack(tmp_path / "c.tif", spacing=(1, 1), intercept=0)


def test_slices_of_several_sizes_or_formats_are_refused(tmp_path):
    for k, size in enumerate([(4, 5), (4, 6)]):
        tifffile.imwrite(tmp_path / f"{k}.tif", np.zeros(size, np.float32))
    with pytest.raises(scans.ScanFileError, match=r"1\.tif has slices of \(4, 6\) pixels"):
        scans.read_stack(tmp_path, spacing=(1, 1))
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "2.png")
    with pytest.raises(scans.ScanFileError, match="both PNG and TIFF files"):
        scans.read_volume(tmp_path)
    with tifffile.TiffWriter(tmp_path / "0.tif") as writer:
        for size in ((4, 5), (2, 3)):
            writer.write(np.zeros(size, np.float32), metadata=None)
    with pytest.raises(scans.ScanFileError, match=r"0\.tif has images of the shapes .*one stack"):
        scans.read_stack(tmp_path / "0.tif", spacing=(1, 1))
    (tmp_path / "a.bmp").touch()
    with pytest.raises(scans.ScanFileError, match=r"a\.bmp is not a stack"):
        scans.read_stack(tmp_path / "a.bmp")


def test_infinite_pixels_are_refused(tmp_path):
    stored = np.zeros((2, 3, 4), dtype=np.float64)
    stored[1, 2, 0] = 1e300  # infinite in single precision
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack")
    with pytest.raises(scans.ScanFileError, match=r"a\.tif is inf HU at .* \(1, 2, 0\)"):
        scans.read_stack(tmp_path / "a.tif", spacing=(1, 1))


@pytest.mark.parametrize("metadata", [None, {}], ids=["plain", "shaped"])
def test_tiff_files_that_end_too_early(tmp_path, metadata):
    path = tmp_path / "cut.tif"
    noise = np.random.default_rng(0).normal(size=(5, 20, 30)).astype(np.float32)
    tifffile.imwrite(path, noise, metadata=metadata, photometric="minisblack")
    whole = path.read_bytes()
    assert scans.read_stack(path, spacing=(1, 1)).values.shape == (5, 20, 30)
    for length in (0, 10, 200, len(whole) // 2, len(whole) - 600, len(whole) - 100):
        path.write_bytes(whole[:length])
        with pytest.raises(scans.ScanFileError, match=r"cut\.tif (cannot be read|is cut short)"):
            scans.read_stack(path, spacing=(1, 1))


def test_png_files_that_end_too_early(tmp_path):
    noise = np.random.default_rng(0).integers(0, 65536, (20, 30), dtype=np.uint16)
    path = tmp_path / "cut.png"
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:length])
        with pytest.raises(scans.ScanFileError, match=r"cut\.png cannot be read as PNG"):
            scans.read_stack(path, spacing=(1, 1), intercept=0)


def test_a_missing_codec_is_named(tmp_path):
    try:
        import imagecodecs  # noqa: F401

        pytest.skip("imagecodecs is installed, so no codec is missing")
    except ImportError:
        pass
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((4, 5), np.float32), compression="zlib", metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages.first.tags[259].overwrite(5)  # LZW
    with pytest.raises(scans.ScanFileError, match=r"a\.tif .*LZW.* pip install imagecodecs"):
        scans.read_stack(path, spacing=(1, 1))


def test_damaged_metadata_is_refused(tmp_path):
    record = json.loads(SliceMetadata.of(VOLUME, range(3)).to_text())
    for change in ({"spacing": None}, {"positions": [[0]]}, {"slope": "x"}, {"spacing": [1, -1]}):
        path = tmp_path / "a.tif"
        tifffile.imwrite(
            path, VOLUME.values.numpy(), metadata=None, photometric="minisblack",
            description=json.dumps({**record, **change}),
        )  # fmt: skip
        with pytest.raises(scans.ScanFileError, match=r"a\.tif"):
            scans.read_volume(path)
    info = PngImagePlugin.PngInfo()
    info.add_text("Description", "a holiday")
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "a.png", pnginfo=info)
    with pytest.raises(scans.ScanFileError, match=r"a\.png holds uint8"):
        scans.read_volume(tmp_path / "a.png")


def test_png_files_have_a_resolution(tmp_path):
    one = replace(VOLUME, values=VOLUME.values[:1], positions=VOLUME.positions[:1])
    (file,) = scans.write_png(one, tmp_path / "a.png")
    data = file.read_bytes()
    start = data.index(b"pHYs") + 4
    across, down, unit = struct.unpack(">IIB", data[start : start + 9])
    assert (across, down, unit) == ((1000 * 3), round(1000 / 0.7), 1)  # for each metre
