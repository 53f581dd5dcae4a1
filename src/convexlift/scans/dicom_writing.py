"""Volumes as derived DICOM images, which say what they were made from."""

from __future__ import annotations

import copy
import datetime
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from convexlift.images import atomic_path
from convexlift.scans.errors import PathLike, ScanFileError, load_extra
from convexlift.scans.folders import atomic_folder, slice_names
from convexlift.scans.volumes import Volume

CT_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.2"

MANDATORY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName"),
    *("PositionReferenceIndicator", "PatientPosition", "KVP", "AcquisitionNumber"),
)
"""Copied from the source, or empty: nothing about a patient or a study is made up."""

COPIED = (
    *("IssuerOfPatientID", "PatientAge", "PatientSize", "PatientWeight"),
    *("PatientIdentityRemoved", "DeidentificationMethod", "DeidentificationMethodCodeSequence"),
    *("LongitudinalTemporalInformationModified", "StudyDescription", "BodyPartExamined"),
    *("AcquisitionDate", "AcquisitionTime", "ContrastBolusAgent", "GantryDetectorTilt"),
    *("LossyImageCompression", "LossyImageCompressionRatio", "LossyImageCompressionMethod"),
    *("BurnedInAnnotation", "WindowCenter", "WindowWidth"),
)
"""Copied from the source where it has them. Private elements are not: they may say anything."""

EQUIPMENT = (
    *("Manufacturer", "InstitutionName", "StationName", "ManufacturerModelName"),
    *("DeviceSerialNumber", "SoftwareVersions"),
)

_FINEST = -10  # of the powers of two that are slopes: a thousandth of a HU
_LARGEST = 32767  # in 16 bits with a sign


def write_dicom(
    volume: Volume, path: PathLike, *, description: str = "Reconstructed image"
) -> tuple[Path, ...]:
    """A series of CT images, DERIVED and SECONDARY, with new UIDs.

    A name that ends in ``.dcm`` takes a volume of one slice; any other is a new or empty folder. HU
    are stored in 16 bits: exactly if they are whole numbers, else rounded to the finest power of
    two that fits (1/16 HU up to 2047 HU, 1/8 up to 4095). Patient, study and frame of reference are
    those of ``volume.source``; without a source they are empty. Each image names its source image,
    the scanner and this software.

    Args:
        volume: in HU.
        path: of the file or folder.
        description: what was done, for DerivationDescription and SeriesDescription.

    Returns:
        The files, in the order of the slices.
    """
    pydicom = load_extra("pydicom", "DICOM files")
    place = Path(path)
    if not 0 < len(description) <= 64:
        raise ValueError(f"description needs 1 to 64 characters, got {len(description)}")
    single = place.suffix.lower() == ".dcm"
    count = len(volume.values)
    if single and count > 1:
        raise ScanFileError(f"{place} takes one slice, not {count}; write to a folder")
    series = _Series(pydicom, volume, description, datetime.datetime.now())
    if single:
        with atomic_path(place) as part:
            series.dataset(0).save_as(part, enforce_file_format=True)
        return (place,)
    names = slice_names(count, ".dcm")
    with atomic_folder(place) as part:
        for k, name in enumerate(names):
            series.dataset(k).save_as(part / name, enforce_file_format=True)
    return tuple(place / name for name in names)


def finest_slope(values: Tensor) -> float:
    """One number s for a whole series, such that round(HU / s) fits 16 bits with a sign."""
    largest = float(values.abs().max())
    if largest <= _LARGEST and bool((values == values.round()).all()):
        return 1.0
    # Powers of two have few digits in decimal notation too, of which DICOM allows 16 characters.
    return float(2.0 ** max(math.ceil(math.log2(max(largest, 1.0) / _LARGEST)), _FINEST))


class _Series:
    """What the slices of a new series share."""

    def __init__(
        self, pydicom: Any, volume: Volume, description: str, now: datetime.datetime
    ) -> None:
        self.pydicom = pydicom
        self.volume = volume
        self.description = description
        self.slope = finest_slope(volume.values)
        self.now = now
        # UIDs under 2.25 are made of random numbers and need no registered root.
        self.series, self.study, self.frame = (self._uid() for _ in range(3))

    def dataset(self, number: int) -> Any:
        """One slice with its file header."""
        values = self.volume.values[number].detach().cpu().double().numpy()
        pixels = np.round(values / self.slope).astype("<i2")
        data = self._described(number)
        self._place(data, number)
        data.SamplesPerPixel = 1
        data.PhotometricInterpretation = "MONOCHROME2"
        data.Rows, data.Columns = pixels.shape
        data.BitsAllocated = data.BitsStored = 16
        data.HighBit = 15
        data.PixelRepresentation = 1
        data.RescaleIntercept = 0
        data.RescaleSlope = self._decimal(self.slope)
        data.RescaleType = "HU"
        data.PixelData = pixels.tobytes()
        data["PixelData"].VR = "OW"
        return data

    def _described(self, number: int) -> Any:
        """Who, what, when, and made from what."""
        source = self.volume.source[number] if self.volume.source else None
        data = self.pydicom.Dataset()
        meta = self.pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = self.pydicom.uid.ExplicitVRLittleEndian
        data.file_meta = meta
        data.SpecificCharacterSet = "ISO_IR 192"  # UTF-8 has the letters of every source
        for name in MANDATORY:
            setattr(data, name, "")
        data.StudyInstanceUID = self.study
        data.FrameOfReferenceUID = self.frame
        if source is not None:
            self._copy(source, data)
        data.SOPClassUID = meta.MediaStorageSOPClassUID = CT_IMAGE_STORAGE
        data.SOPInstanceUID = meta.MediaStorageSOPInstanceUID = self._uid()
        data.SeriesInstanceUID = self.series
        data.Modality = "CT"
        data.ImageType = ["DERIVED", "SECONDARY", "AXIAL"]
        data.SeriesNumber = None
        data.InstanceNumber = number + 1
        data.SeriesDescription = data.DerivationDescription = self.description
        day, time = self.now.strftime("%Y%m%d"), self.now.strftime("%H%M%S")
        data.InstanceCreationDate = data.ContentDate = day
        data.InstanceCreationTime = data.ContentTime = time
        data.ContributingEquipmentSequence = self._equipment(source)
        data.Manufacturer = "convexlift"
        data.SoftwareVersions = _version()
        return data

    def _copy(self, source: Any, data: Any) -> None:
        for name in (*MANDATORY, *COPIED, "StudyInstanceUID", "FrameOfReferenceUID"):
            if name in source:
                data[name] = copy.deepcopy(source[name])
        if "SOPClassUID" not in source or "SOPInstanceUID" not in source:
            return
        origin = self.pydicom.Dataset()
        origin.ReferencedSOPClassUID = source.SOPClassUID
        origin.ReferencedSOPInstanceUID = source.SOPInstanceUID
        origin.SpatialLocationsPreserved = "YES"
        purpose = self._code("121322", "Source image for image processing operation")
        origin.PurposeOfReferenceCodeSequence = [purpose]
        data.SourceImageSequence = [origin]

    def _equipment(self, source: Any) -> list[Any]:
        """The scanner, where the source names it, and this software."""
        equipment = [self._software()]
        # "Manufacturer" of the image is who made these pixels, so that of the scanner comes here,
        # where DICOM does not let it be empty.
        if source is not None and source.get("Manufacturer"):
            scanner = self.pydicom.Dataset()
            for name in EQUIPMENT:
                if name in source:
                    scanner[name] = copy.deepcopy(source[name])
            purpose = self._code("109101", "Acquisition Equipment")
            scanner.PurposeOfReferenceCodeSequence = [purpose]
            equipment.insert(0, scanner)
        return equipment

    def _software(self) -> Any:
        software = self.pydicom.Dataset()
        software.PurposeOfReferenceCodeSequence = [self._code("109102", "Processing Equipment")]
        software.Manufacturer = "convexlift"
        software.SoftwareVersions = _version()
        software.ContributionDateTime = self.now.strftime("%Y%m%d%H%M%S")
        software.ContributionDescription = self.description
        return software

    def _place(self, data: Any, number: int) -> None:
        volume = self.volume
        data.PixelSpacing = [self._decimal(d) for d in volume.spacing]
        data.ImageOrientationPatient = [self._decimal(c) for c in volume.orientation]
        data.ImagePositionPatient = [self._decimal(c) for c in volume.positions[number]]
        data.SliceThickness = None if volume.thickness is None else self._decimal(volume.thickness)

    def _code(self, value: str, meaning: str) -> Any:
        code = self.pydicom.Dataset()
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning
        return code

    def _decimal(self, value: float) -> Any:
        """At most 16 characters, as DICOM has them."""
        return self.pydicom.valuerep.DSfloat(float(value), auto_format=True)

    def _uid(self) -> Any:
        return self.pydicom.uid.generate_uid(prefix=None)


def _version() -> str:
    try:
        return metadata.version("convexlift")
    except metadata.PackageNotFoundError:  # run from a folder that was not installed
        return "unknown"
