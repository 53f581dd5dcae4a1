"""DICOM of modalities other than CT: stored numbers in, stored numbers out."""

from __future__ import annotations

import shutil

import numpy as np
import pydicom
import pytest
from reconstruct_runs import run
from scan_files import bundled

from convexlift.scans import ScanFileError
from convexlift.scans.dicom_pictures import (
    display_range,
    is_hounsfield,
    read_dicom_picture,
    write_dicom_picture,
)

pytestmark = pytest.mark.single_precision


def changed(place, name="MR_small.dcm", **elements):
    data = pydicom.dcmread(bundled(name))
    for key, value in elements.items():
        setattr(data, key, value)
    data.save_as(place)
    return place


@pytest.mark.parametrize("modality", ["MR", "NM", "CR", "OT"])
def test_denoising_keeps_what_numbers_mean(modality, tmp_path):
    place = changed(
        tmp_path / "a.dcm", Modality=modality, RescaleSlope=2, RescaleIntercept=-10,
        WindowCenter=[1500, 300], WindowWidth=[3000, 200],
    )  # fmt: skip
    before = pydicom.dcmread(place)
    before.add_new(0x00091010, "LO", "private")
    before.save_as(place)
    result = run("denoise", place, "-o", tmp_path / "b.dcm")
    assert result.exit_code == 0, result.output
    after = pydicom.dcmread(tmp_path / "b.dcm")
    names = ("Modality", "RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth",
             "PatientName", "PixelSpacing", "BitsStored", "PixelRepresentation")  # fmt: skip
    for name in names:
        assert after.get(name) == before.get(name), name
    assert after.SOPInstanceUID != before.SOPInstanceUID
    assert after.file_meta.MediaStorageSOPInstanceUID == after.SOPInstanceUID
    assert after.SourceImageSequence[0].ReferencedSOPInstanceUID == before.SOPInstanceUID
    assert list(after.ImageType[:2]) == ["DERIVED", "SECONDARY"]
    assert 0x00091010 not in after
    old, new = (data.pixel_array.astype(float) for data in (before, after))
    assert new.shape == old.shape
    assert 0 < np.abs(new - old).mean() < 0.1 * old.std()
    assert "its stored numbers from 5 to 1505 were mapped" in result.output  # (c -+ w/2 + 10) / 2


def test_stored_numbers_survive_a_round_trip(tmp_path):
    """All modalities of the samples: bits, frames, colours."""
    for name in ("MR_small.dcm", "MR_small_RLE.dcm", "examples_rgb_color.dcm", "rtdose_1frame.dcm",
                 "SC_rgb_rle_2frame.dcm"):  # fmt: skip
        picture = read_dicom_picture(bundled(name))
        write_dicom_picture(picture, tmp_path / "again.dcm", "a test")
        again = read_dicom_picture(tmp_path / "again.dcm")
        assert np.array_equal(again.stored, picture.stored), name
        assert again.channels == picture.channels


def test_elements_of_messages_are_left_out(tmp_path):
    """pydicom reads them from a file, and refuses to write them."""
    place = changed(tmp_path / "a.dcm")
    damaged = place.read_bytes().replace(b"\x10\x00\x20\x00", b"\x00\x00\x20\x00", 1)
    place.write_bytes(damaged)
    assert 0x00000020 in pydicom.dcmread(place)  # was (0010,0020)
    result = run("denoise", place, "-o", tmp_path / "b.dcm")
    assert result.exit_code == 0, result.output
    assert 0x00000020 not in pydicom.dcmread(tmp_path / "b.dcm")


def test_zero_is_white_in_monochrome1(tmp_path):
    place = changed(tmp_path / "a.dcm", PhotometricInterpretation="MONOCHROME1", Modality="CR")
    picture = read_dicom_picture(place)
    low, high = display_range(picture)
    values = picture.values((low, high))
    assert np.allclose(values[0, 0, 0], 1 - (float(picture.stored[0, 0, 0]) - low) / (high - low))


def test_pixels_outside_of_the_window_are_not_clipped(tmp_path):
    place = changed(tmp_path / "a.dcm", WindowCenter=300, WindowWidth=200)
    assert run("denoise", place, "-o", tmp_path / "b.dcm", "--sigma", 0.05).exit_code == 0
    before, after = (pydicom.dcmread(tmp_path / f"{n}.dcm").pixel_array for n in "ab")
    assert before.max() > 1000
    assert after.max() > 0.8 * before.max()


def test_ct_stays_in_hounsfield_units():
    assert is_hounsfield(bundled("CT_small.dcm"))
    assert not is_hounsfield(bundled("MR_small.dcm"))


def test_other_endings_and_palettes_are_refused_by_name(tmp_path):
    shutil.copy(bundled("MR_small.dcm"), tmp_path / "a.dcm")
    result = run("denoise", tmp_path / "a.dcm", "-o", tmp_path / "b.png")
    assert result.exit_code == 2
    assert "is DICOM; give the result the ending .dcm" in result.output
    with pytest.raises(ScanFileError, match="palette"):
        read_dicom_picture(bundled("examples_palette.dcm"))


def test_the_result_fits_its_bits(tmp_path):
    picture = read_dicom_picture(changed(tmp_path / "a.dcm", BitsStored=12, HighBit=11))
    beyond = picture.with_values(np.full(picture.stored.shape, 2.0), (0.0, 4095.0))
    write_dicom_picture(beyond, tmp_path / "b.dcm", "a test")
    assert read_dicom_picture(tmp_path / "b.dcm").stored.max() == 2047  # signed
