"""Writing DICOM slices: content, references to the source, and no partial files."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pydicom
import pytest
import torch
from scan_files import bundled, by_pydicom, ct_slice, save, save_series

from convexlift import scans
from convexlift.scans.dicom_writing import COPIED, MANDATORY, finest_slope


def test_a_written_series_is_read_back(tmp_path):
    save_series(tmp_path / "source", [0, 2.5, 5])
    source = scans.read_volume(tmp_path / "source")
    values = 300 * torch.randn(3, 1, 4, 3)
    written = scans.write_volume(source.with_values(values), tmp_path / "new" / "series")
    assert [file.name for file in written] == ["0001.dcm", "0002.dcm", "0003.dcm"]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["series"]
    again = scans.read_volume(tmp_path / "new" / "series")
    assert (again.values - values[:, 0]).abs().max() <= finest_slope(values) / 2 * (1 + 1e-6)
    assert again.spacing == source.spacing
    assert again.positions == source.positions
    assert again.orientation == source.orientation
    assert again.thickness == source.thickness
    for file, values in zip(written, again.values, strict=True):
        assert np.array_equal(by_pydicom(file).astype(np.float32), values.numpy())


def test_whole_numbers_are_written_exactly(tmp_path):
    values = torch.tensor([[[-32767.0, 32767.0], [-1024.0, 0.0]]])
    (file,) = scans.write_volume(scans.Volume.stacked(values, (1, 1)), tmp_path / "a.dcm")
    assert torch.equal(scans.read_volume(file).values.double(), values)
    assert pydicom.dcmread(file).RescaleSlope == 1


@pytest.mark.parametrize("largest", [0.3, 1.5, 2047.4, 2048.1, 4000.5, 32767.5, 1e6])
def test_the_slope_is_the_finest_power_of_two_that_fits(largest):
    slope = finest_slope(torch.tensor([-largest, 0.1]))
    assert math.log2(slope).is_integer()
    assert largest / slope <= 32767
    assert slope == 2**-10 or largest / (slope / 2) > 32767


def test_written_slices_name_their_source(tmp_path):
    first = scans.read_volume(bundled("CT_small.dcm"))
    (file,) = scans.write_volume(first, tmp_path / "a.dcm", description="Total variation")
    source, data = pydicom.dcmread(bundled("CT_small.dcm")), pydicom.dcmread(file)
    assert list(data.ImageType)[:2] == ["DERIVED", "SECONDARY"]
    for name in ("SOPInstanceUID", "SeriesInstanceUID"):
        assert data[name].value != source[name].value
        assert data[name].value.is_valid
    for name in ("PatientName", "PatientID", "PatientBirthDate", "StudyInstanceUID", "StudyDate"):
        assert data[name].value == source[name].value
    assert data.FrameOfReferenceUID == source.FrameOfReferenceUID
    assert data.SourceImageSequence[0].ReferencedSOPInstanceUID == source.SOPInstanceUID
    scanner, software = data.ContributingEquipmentSequence
    assert scanner.Manufacturer == source.Manufacturer
    assert software.Manufacturer == data.Manufacturer == "convexlift"
    assert data.DerivationDescription == "Total variation"
    assert data.file_meta.MediaStorageSOPInstanceUID == data.SOPInstanceUID
    # Nothing else: neither private elements nor what was true of the scanner's own pixels.
    assert not [element for element in data if element.tag.is_private]
    (other,) = scans.write_volume(scans.Volume.stacked(first.values, (1, 1)), tmp_path / "b.dcm")
    without_source = {element.keyword for element in pydicom.dcmread(other)}
    assert {element.keyword for element in data} - without_source <= {
        *(*COPIED, "SliceThickness", "SourceImageSequence"),
    }


@pytest.mark.parametrize(
    ("charset", "name"), [("ISO_IR 100", "M\u00fcller^Zo\u00eb"), ("ISO_IR 144", "\u0416\u0423")]
)
def test_names_in_other_alphabets(tmp_path, charset, name):
    data = ct_slice(SpecificCharacterSet=charset, PatientName=name, StudyDescription=name)
    volume = scans.read_volume(save(data, tmp_path / "a.dcm"))
    (file,) = scans.write_volume(volume, tmp_path / "b.dcm", description="\u03bb = 0.1")
    again = pydicom.dcmread(file)
    assert str(again.PatientName) == again.StudyDescription == name
    assert again.SeriesDescription == "\u03bb = 0.1"


def test_patient_elements_are_empty_without_a_source(tmp_path):
    volume = scans.Volume.stacked(torch.zeros(2, 3, 4), (1, 1), 2.0)
    written = scans.write_volume(volume, tmp_path / "series")
    headers = [pydicom.dcmread(file) for file in written]
    for data in headers:
        for name in MANDATORY:
            assert data[name].is_empty, name
        assert "SourceImageSequence" not in data
        assert not [element for element in data if element.tag.group == 0x10 and element.value]
    for name, count in (("SOPInstanceUID", 2), ("SeriesInstanceUID", 1), ("StudyInstanceUID", 1)):
        assert len({data[name].value for data in headers}) == count


def test_long_decimals_fit_into_dicom(tmp_path):
    volume = scans.Volume(
        torch.zeros(1, 2, 2), (0.1 + 0.2, 1 / 3), ((-1e-7 / 3, 123456 / 7, -(2.0**0.5)),)
    )
    (file,) = scans.write_volume(volume, tmp_path / "a.dcm")
    again = scans.read_volume(file)
    assert np.allclose(again.spacing, volume.spacing, rtol=1e-12)
    assert np.allclose(again.positions, volume.positions, rtol=1e-9, atol=1e-9)


def test_bad_names_and_full_folders_are_refused(tmp_path):
    volume = scans.Volume.stacked(torch.zeros(2, 3, 4), (1, 1))
    with pytest.raises(scans.ScanFileError, match=r"a\.dcm takes one slice, not 2; write to a fol"):
        scans.write_volume(volume, tmp_path / "a.dcm")
    with pytest.raises(scans.ScanFileError, match=r"a\.nii does not name a volume"):
        scans.write_volume(volume, tmp_path / "a.nii")
    with pytest.raises(ValueError, match="1 to 64 characters"):
        scans.write_volume(volume, tmp_path / "a", description="x" * 65)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other.dcm").touch()
    with pytest.raises(scans.ScanFileError, match="full already exists"):
        scans.write_volume(volume, tmp_path / "full")
    assert [file.name for file in tmp_path.iterdir()] == ["full"]


def test_volumes_need_one_header_for_each_slice():
    volume = scans.read_volume(bundled("CT_small.dcm"))
    assert "CompressedSamples" not in repr(volume)  # the patient's name
    with pytest.raises(ValueError, match="1 headers for 2 slices"):
        replace(volume, values=torch.zeros(2, 3, 3), positions=2 * volume.positions)
