"""Reading DICOM slices and series: agreement with pydicom, and errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
from pydicom.data import get_testdata_file
from pydicom.pixels import get_decoder
from scan_files import STORED, bundled, by_pydicom, ct_slice, save, save_series

from convexlift import scans


@pytest.mark.parametrize(
    "stored",
    [
        STORED,
        STORED.astype(np.uint16),
        (STORED & 127).astype(np.uint8),
        (STORED & 127).astype(np.int8),
        STORED.astype(np.int32),
    ],
    ids=lambda stored: str(stored.dtype),
)
def test_stored_numbers_become_hounsfield_units(tmp_path, stored):
    stored = stored[:6, :4]  # pixel data of odd length would be padded
    path = save(ct_slice(stored), tmp_path / "a.dcm")
    volume = scans.read_volume(path)
    assert volume.values.dtype == torch.float32
    assert np.array_equal(volume.values[0].numpy(), by_pydicom(path).astype(np.float32))
    assert np.array_equal(volume.values[0].numpy(), 2 * stored.astype(np.float64) - 1024)
    assert volume.spacing == (0.75, 0.5)
    assert volume.positions == ((-10.0, -20.0, 0.0),)
    assert volume.thickness == 2.5


@pytest.mark.parametrize("name", ["CT_small.dcm", "693_J2KI.dcm"])
def test_files_of_real_scanners(name):
    path = bundled(name)
    volume = scans.read_volume(path)
    data = pydicom.dcmread(path)
    values, expected = volume.values[0].numpy(), by_pydicom(path)
    inside = data.pixel_array != data.PixelPaddingValue
    assert inside.any()
    assert np.array_equal(values[inside], expected[inside])
    assert (values[~inside] == -1024).all()
    assert volume.spacing == tuple(data.PixelSpacing)


def test_a_slice_of_the_pancreas(tmp_path):
    path = get_testdata_file("explicit_VR-UN.dcm", download=False)
    if path is None:
        pytest.skip("the slice comes with the package pydicom-data, which is not installed")
    volume = scans.read_volume(path)
    assert volume.values.shape == (1, 512, 512)
    assert np.array_equal(volume.values[0].numpy(), by_pydicom(Path(path)))
    assert volume.spacing == (0.859375, 0.859375)
    assert volume.normal == (0, 0, -1)
    # Most pixels are air, or soft tissue between -150 and 250 HU.
    soft = ((volume.values > -150) & (volume.values < 250)).double().mean()
    air = (volume.values < -900).double().mean()
    assert soft > 0.2
    assert air > 0.2
    (written,) = scans.write_volume(volume, tmp_path / "again.dcm")
    assert torch.equal(scans.read_volume(written).values, volume.values)


def test_padding_is_compared_with_stored_numbers(tmp_path):
    stored = np.array([[-2000, -1999], [5, -1990]], dtype=np.int16)
    changes = {"PixelPaddingValue": -2000, "RescaleSlope": 1, "RescaleIntercept": 0}
    path = save(ct_slice(stored, **changes), tmp_path / "a.dcm")
    assert scans.read_volume(path).values.flatten().tolist() == [-1024, -1999, 5, -1990]
    path = save(ct_slice(stored, **changes, PixelPaddingRangeLimit=-1990), tmp_path / "b.dcm")
    assert scans.read_volume(path).values.flatten().tolist() == [-1024, -1024, 5, -1024]


def test_signed_padding_written_as_unsigned(tmp_path):
    stored = np.array([[-2000, 7]], dtype=np.int16)
    data = ct_slice(stored, RescaleSlope=1, RescaleIntercept=0)
    data.add_new("PixelPaddingValue", "US", 65536 - 2000)
    path = save(data, tmp_path / "a.dcm")
    assert scans.read_volume(path).values.flatten().tolist() == [-1024, 7]


def test_slices_are_sorted_along_the_normal(tmp_path):
    heights = [5.0, 0.0, 7.5, 2.5]
    arrays = save_series(tmp_path, heights, names=["d.dcm", "c", "B.IMA", "1.2.840.99"])
    (tmp_path / "notes.txt").write_text("no slice")
    (tmp_path / "DICOMDIR").write_bytes(b"no slice either")
    volume = scans.read_volume(tmp_path)
    assert [position[2] for position in volume.positions] == sorted(heights)
    assert volume.heights == tuple(sorted(heights))
    for k, height in enumerate(volume.heights):
        expected = 2 * arrays[heights.index(height)] - 1024
        assert np.array_equal(volume.values[k].numpy(), expected)
        assert volume.source[k].ImagePositionPatient[2] == height


def test_the_normal_may_point_to_the_feet_or_be_oblique(tmp_path):
    save_series(tmp_path / "feet", [0, 1, 2], ImageOrientationPatient=[1, 0, 0, 0, -1, 0])
    assert scans.read_volume(tmp_path / "feet").heights == (-2, -1, 0)
    c = math.cos(0.3), math.sin(0.3)
    oblique = [1, 0, 0, 0, round(c[0], 6), round(c[1], 6)]
    save_series(tmp_path / "oblique", [0, 1, 2], ImageOrientationPatient=oblique)
    volume = scans.read_volume(tmp_path / "oblique")
    assert volume.heights[2] - volume.heights[0] == pytest.approx(2 * c[0], abs=1e-5)
    u, v = np.array(volume.orientation[:3]), np.array(volume.orientation[3:])
    assert np.allclose(volume.normal, np.cross(u, v))


def test_a_real_series_in_a_folder():
    folder = bundled("CT_small.dcm").parent / "dicomdirtests" / "98892001" / "CT5N"
    data = [pydicom.dcmread(file) for file in folder.iterdir()]
    volume = scans.read_dicom(folder, allow_gaps=True)
    z = sorted(float(d.ImagePositionPatient[2]) for d in data)
    assert [p[2] for p in volume.positions] == z


def test_missing_slices_are_noticed(tmp_path):
    save_series(tmp_path, [0, 2.5, 5.01, 10, 12.5])
    with pytest.raises(scans.ScanFileError, match=r"2\.dcm and .*3\.dcm are 4\.99 mm apart.*2\.5"):
        scans.read_volume(tmp_path)
    volume = scans.read_dicom(tmp_path, allow_gaps=True)
    assert volume.heights == (0, 2.5, 5.01, 10, 12.5)


def test_rounded_distances_are_not_gaps(tmp_path):
    save_series(tmp_path, [0.0, 0.62, 1.25, 1.88, 2.5])
    assert len(scans.read_volume(tmp_path).values) == 5


def test_two_slices_at_the_same_place_are_refused(tmp_path):
    save_series(tmp_path, [0, 1, 1, 2])
    with pytest.raises(scans.ScanFileError, match=r"1\.dcm and .*2\.dcm are slices at the same"):
        scans.read_dicom(tmp_path, allow_gaps=True)


def test_one_of_several_series_must_be_chosen(tmp_path):
    save_series(tmp_path, [0, 1], names=["a", "b"])
    save_series(
        tmp_path, [0, 1, 2], ["c", "d", "e"], SeriesInstanceUID="2.25.9", SeriesDescription="thin"
    )
    with pytest.raises(
        scans.ScanFileError, match=r"2 series: 2\.25\.1 .*2\.25\.9 \(3 slices, thin"
    ):
        scans.read_volume(tmp_path)
    assert len(scans.read_dicom(tmp_path, series="2.25.9").values) == 3
    with pytest.raises(scans.ScanFileError, match=r"no series 1\.2, but 2\.25\.1"):
        scans.read_dicom(tmp_path, series="1.2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PixelSpacing": [0.75, 0.6]}, "pixel spacing"),
        ({"ImageOrientationPatient": [0, 1, 0, 0, 0, 1]}, "orientation"),
        ({"Columns": 4, "PixelData": bytes(32)}, "size in pixels"),
    ],
)
def test_slices_on_another_grid_are_refused(tmp_path, change, message):
    save_series(tmp_path, [0, 1, 2])
    save(ct_slice(np.zeros((4, 3), np.int16), 3, **change), tmp_path / "other.dcm")
    with pytest.raises(scans.ScanFileError, match=rf"other\.dcm.* the {message} .*one grid"):
        scans.read_volume(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Modality": "MR"}, "modality 'MR', but only CT"),
        ({"Modality": None}, "no Modality, which a CT slice needs; it may be cut short"),
        ({"RescaleSlope": None}, "no RescaleSlope"),
        ({"RescaleSlope": 0}, "RescaleSlope 0"),
        ({"RescaleIntercept": None}, "no RescaleIntercept"),
        ({"RescaleType": "OD"}, "rescaled to 'OD', not to HU"),
        ({"PixelSpacing": None}, "no PixelSpacing"),
        ({"PixelSpacing": [0, 1]}, r"PixelSpacing \(0\.0, 1\.0\); both must be > 0"),
        ({"PixelSpacing": [1]}, "it needs 2 finite"),
        ({"ImageOrientationPatient": None}, "no ImageOrientationPatient"),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "two orthogonal unit vectors"),
        ({"ImagePositionPatient": None}, "no ImagePositionPatient"),
        ({"SeriesInstanceUID": None}, "no SeriesInstanceUID"),
        ({"NumberOfFrames": 2}, r"2 frame\(s\) in one file .*one file per slice"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "colour picture .*RGB"),
        ({"PixelData": None}, "ends before its pixels"),
        ({"Rows": 70}, "cut short or damaged"),
    ],
)
def test_files_that_are_not_ct_slices_are_refused_by_name(tmp_path, changes, message):
    path = save(ct_slice(**changes), tmp_path / "a.dcm")
    with pytest.raises(scans.ScanFileError, match=rf"a\.dcm .*{message}"):
        scans.read_volume(path)


def test_infinite_pixels_are_refused(tmp_path):
    data = ct_slice(PixelData=None)
    values = np.zeros((7, 5), dtype=np.float32)
    values[2, 3] = np.nan
    data.FloatPixelData = values.tobytes()
    data.BitsAllocated = 32
    del data.BitsStored, data.HighBit, data.PixelRepresentation
    path = save(data, tmp_path / "a.dcm")
    with pytest.raises(scans.ScanFileError, match=r"a\.dcm is nan HU at \(2, 3\)"):
        scans.read_volume(path)


def test_files_that_end_too_early(tmp_path):
    path = tmp_path / "cut.dcm"
    for whole in (save(ct_slice(), tmp_path / "whole.dcm"), bundled("693_J2KI.dcm")):
        data = whole.read_bytes()
        for length in (0, 100, 200, 400, len(data) // 2, len(data) - 10):
            path.write_bytes(data[:length])
            with pytest.raises(scans.ScanFileError, match=r"cut\.dcm"):
                scans.read_volume(path)


def test_missing_files_and_empty_folders(tmp_path):
    with pytest.raises(scans.ScanFileError, match=r"nowhere: there is no such file"):
        scans.read_volume(tmp_path / "nowhere")
    with pytest.raises(scans.ScanFileError, match="holds no DICOM files"):
        scans.read_volume(tmp_path)


def test_a_broken_file_among_slices_is_named(tmp_path):
    save_series(tmp_path, [0, 1])
    (tmp_path / "broken.dcm").write_bytes(b"nothing")
    with pytest.raises(scans.ScanFileError, match=r"broken\.dcm cannot be read as a DICOM file"):
        scans.read_volume(tmp_path)


def test_12_bit_jpeg_needs_another_codec_than_pillow(tmp_path):
    data = pydicom.dcmread(bundled("JPEG-lossy.dcm"))
    if get_decoder(data.file_meta.TransferSyntaxUID).available_plugins != ("pillow",):
        pytest.skip("another decoder than Pillow is installed")
    template = ct_slice()
    for name in ("PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient"):
        data[name] = template[name]
    data.Modality, data.RescaleSlope, data.RescaleIntercept = "CT", 1, 0
    del data.NumberOfFrames
    path = save(data, tmp_path / "a.dcm")
    message = r"a\.dcm is compressed as JPEG Extended.*requires pylibjpeg.*pylibjpeg-libjpeg"
    with pytest.raises(scans.ScanFileError, match=message):
        scans.read_volume(path)
