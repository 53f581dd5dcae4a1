"""DICOM files of a made-up scanner, written by pydicom alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
from pydicom.data import get_testdata_file
from pydicom.dataset import FileMetaDataset
from pydicom.pixels import apply_rescale
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SERIES = "2.25.1"
STORED = np.random.default_rng(1).integers(-1000, 3000, (7, 5), dtype=np.int16)


def ct_slice(stored: np.ndarray = STORED, z: float = 0.0, **changes) -> pydicom.Dataset:
    """A CT slice with HU = 2 stored - 1024; a value of None takes an element away."""
    data = pydicom.Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(prefix=None)
    data.Modality = "CT"
    data.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    data.SeriesInstanceUID = SERIES
    data.StudyInstanceUID = "2.25.2"
    data.FrameOfReferenceUID = "2.25.3"
    data.Manufacturer = "A scanner's maker"
    data.PatientName = "Phantom^Made up"
    data.PatientID = "0"
    data.PixelSpacing = [0.75, 0.5]
    data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    data.ImagePositionPatient = [-10, -20, z]
    data.SliceThickness = 2.5
    data.RescaleSlope, data.RescaleIntercept = 2, -1024
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.Rows, data.Columns = stored.shape[-2:]
    data.BitsAllocated = data.BitsStored = 8 * stored.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(stored.dtype.kind == "i")
    data.PixelData = stored.tobytes()
    for name, value in changes.items():
        if value is None:
            delattr(data, name)
        else:
            setattr(data, name, value)
    return data


def save(data: pydicom.Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def save_series(folder: Path, heights, names=None, **changes) -> list[np.ndarray]:
    """Slices at the given heights, whose values say which is which."""
    arrays = [np.full((4, 3), 10 * k, dtype=np.int16) for k in range(len(heights))]
    for k, (z, array) in enumerate(zip(heights, arrays, strict=True)):
        save(ct_slice(array, z, **changes), folder / (names[k] if names else f"{k}.dcm"))
    return arrays


def bundled(name: str) -> Path:
    """A file that comes with pydicom."""
    return Path(get_testdata_file(name, download=False))


def by_pydicom(path: Path) -> np.ndarray:
    """HU as pydicom has them."""
    data = pydicom.dcmread(path)
    return np.asarray(apply_rescale(data.pixel_array, data))
