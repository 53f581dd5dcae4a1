"""Volumes as derived DICOM images that refer to their source images."""

from __future__ import annotations

import copy
import datetime
import hashlib
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.scans.dicom_reading import DICOM_SUFFIXES, read_dicom
from convexlift.scans.files import PathLike, VolumeFormat, write_slices
from convexlift.scans.volumes import Volume

CT_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.2"

MANDATORY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName"),
    *("PositionReferenceIndicator", "PatientPosition", "KVP", "AcquisitionNumber"),
)
"""Copied from the source, or empty: nothing about a patient or a study is invented."""
COPIED = (
    *("IssuerOfPatientID", "PatientAge", "PatientSize", "PatientWeight"),
    *("PatientIdentityRemoved", "DeidentificationMethod", "DeidentificationMethodCodeSequence"),
    *("LongitudinalTemporalInformationModified", "StudyDescription", "BodyPartExamined"),
    *("AcquisitionDate", "AcquisitionTime", "ContrastBolusAgent", "GantryDetectorTilt"),
    *("LossyImageCompression", "LossyImageCompressionRatio", "LossyImageCompressionMethod"),
    *("BurnedInAnnotation", "WindowCenter", "WindowWidth"),
)
"""Copied from the source if present. Private elements are not: they may contain anything."""
EQUIPMENT = (
    *("Manufacturer", "InstitutionName", "StationName", "ManufacturerModelName"),
    *("DeviceSerialNumber", "SoftwareVersions"),
)

_FINEST = -10  # smallest slope, as a power of two: a thousandth of a HU
_LARGEST = 32767  # the largest signed 16-bit integer


def write_dicom(
    volume: Volume,
    path: PathLike,
    *,
    description: str = "Reconstructed image",
    series: str | None = None,
) -> tuple[Path, ...]:
    """A series of CT images, DERIVED and SECONDARY, with new UIDs.

    A name ending in ``.dcm``, ``.dicom`` or ``.ima`` takes a volume of one slice; any other is a
    new or empty folder. HU are stored in 16 bits: exactly if they are integers, else rounded to the
    finest power of two that fits (1/16 HU up to 2047 HU, 1/8 up to 4095). Patient, study and frame
    of reference are copied from ``volume.source``; without a source they are empty. Each image
    refers to its source image, the scanner and this software.

    Args:
        volume: the volume, in HU.
        path: the file or folder.
        description: describes the processing, in DerivationDescription and SeriesDescription.
        series: a name. Slices of one source series that are written one by one with the same name
            belong to one new series and keep their numbers.

    Returns:
        The files, in the order of the slices.
    """
    pydicom = load_extra("pydicom", "DICOM files")
    if not 0 < len(description) <= 64:
        raise ValueError(f"description must have 1 to 64 characters, got {len(description)}")
    made = _Series(pydicom, volume, description, series)

    def save(target: Path, k: int) -> None:
        made.dataset(k).save_as(target, enforce_file_format=True)

    return write_slices(Path(path), len(volume.values), DICOM_SUFFIXES, save)


def finest_slope(values: Tensor) -> float:
    """The slope s for a whole series such that round(HU / s) fits signed 16-bit integers."""
    largest = float(values.abs().max())
    if largest <= _LARGEST and bool((values == values.round()).all()):
        return 1.0
    # Powers of two also have few decimal digits, of which DICOM allows 16 characters.
    return float(2.0 ** max(math.ceil(math.log2(max(largest, 1.0) / _LARGEST)), _FINEST))


class _Series:
    """A new series: elements shared by its slices, and the dataset of each slice."""

    def __init__(
        self, pydicom: Any, volume: Volume, description: str, name: str | None = None
    ) -> None:
        self.pydicom = pydicom
        self.volume = volume
        self.description = description
        self.slope = finest_slope(volume.values)
        self.now = datetime.datetime.now()
        # UIDs under 2.25 are random numbers and need no registered root.
        self.series, self.study, self.frame = (self._uid() for _ in range(3))
        self.named = name is not None and bool(volume.source)
        if self.named:
            origin = f"{volume.source[0].get('SeriesInstanceUID')} {name}"
            digest = hashlib.sha256(origin.encode()).digest()
            self.series = pydicom.uid.UID(f"2.25.{int.from_bytes(digest[:16], 'big')}")

    def dataset(self, number: int) -> Any:
        """One slice with its file header."""
        volume = self.volume
        values = volume.values[number].detach().cpu().double().numpy()
        pixels = np.round(values / self.slope).astype("<i2")
        data = self._described(number)
        _fill(
            data,
            PixelSpacing=self._decimals(*volume.spacing),
            ImageOrientationPatient=self._decimals(*volume.orientation),
            ImagePositionPatient=self._decimals(*volume.positions[number]),
            SliceThickness=self._decimals(volume.thickness)[0] if volume.thickness else None,
            SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2",
            Rows=pixels.shape[0], Columns=pixels.shape[1],
            BitsAllocated=16, BitsStored=16, HighBit=15, PixelRepresentation=1,
            RescaleIntercept=0, RescaleSlope=self._decimals(self.slope)[0], RescaleType="HU",
            PixelData=pixels.tobytes(),
        )  # fmt: skip
        data["PixelData"].VR = "OW"
        return data

    def _described(self, number: int) -> Any:
        """Patient, study, time and source."""
        source = self.volume.source[number] if self.volume.source else None
        day, time = self.now.strftime("%Y%m%d"), self.now.strftime("%H%M%S")
        data = self.pydicom.Dataset()
        data.file_meta = meta = self.pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = self.pydicom.uid.ExplicitVRLittleEndian
        data.SpecificCharacterSet = "ISO_IR 192"  # UTF-8 covers the characters of every source
        _fill(data, **dict.fromkeys(MANDATORY, ""))
        _fill(data, StudyInstanceUID=self.study, FrameOfReferenceUID=self.frame)
        if source is not None:
            names = (*MANDATORY, *COPIED, "StudyInstanceUID", "FrameOfReferenceUID")
            _copy(source, data, names)
            if "SOPClassUID" in source and "SOPInstanceUID" in source:
                origin = self._referenced(
                    "121322", "Source image for image processing operation",
                    ReferencedSOPClassUID=source.SOPClassUID,
                    ReferencedSOPInstanceUID=source.SOPInstanceUID,
                    SpatialLocationsPreserved="YES",
                )  # fmt: skip
                data.SourceImageSequence = [origin]
        instance = source.get("InstanceNumber") if self.named and source is not None else None
        data.SOPClassUID = meta.MediaStorageSOPClassUID = CT_IMAGE_STORAGE
        data.SOPInstanceUID = meta.MediaStorageSOPInstanceUID = self._uid()
        return _fill(
            data,
            SeriesInstanceUID=self.series, SeriesNumber=None,
            InstanceNumber=instance or number + 1,
            Modality="CT", ImageType=["DERIVED", "SECONDARY", "AXIAL"],
            SeriesDescription=self.description, DerivationDescription=self.description,
            InstanceCreationDate=day, InstanceCreationTime=time, ContentDate=day, ContentTime=time,
            ContributingEquipmentSequence=self._equipment(source),
            Manufacturer="convexlift", SoftwareVersions=_version(),
        )  # fmt: skip

    def _equipment(self, source: Any) -> list[Any]:
        """The scanner, if the source names it, and this software."""
        software = self._referenced(
            "109102", "Processing Equipment",
            Manufacturer="convexlift", SoftwareVersions=_version(),
            ContributionDateTime=self.now.strftime("%Y%m%d%H%M%S"),
            ContributionDescription=self.description,
        )  # fmt: skip
        # "Manufacturer" of the image is the maker of these pixels. The scanner's is stated here,
        # where DICOM does not allow it to be empty.
        if source is None or not source.get("Manufacturer"):
            return [software]
        scanner = self._referenced("109101", "Acquisition Equipment")
        return [_copy(source, scanner, EQUIPMENT), software]

    def _referenced(self, code: str, meaning: str, **elements: Any) -> Any:
        """An item of a sequence, with the code of its purpose."""
        names = {"CodeValue": code, "CodingSchemeDesignator": "DCM", "CodeMeaning": meaning}
        purpose = _fill(self.pydicom.Dataset(), **names)
        return _fill(self.pydicom.Dataset(), PurposeOfReferenceCodeSequence=[purpose], **elements)

    def _decimals(self, *values: float) -> list[Any]:
        """Numbers of at most 16 characters, as DICOM requires."""
        return [self.pydicom.valuerep.DSfloat(float(v), auto_format=True) for v in values]

    def _uid(self) -> Any:
        return self.pydicom.uid.generate_uid(prefix=None)


def _fill(data: Any, **elements: Any) -> Any:
    for name, value in elements.items():
        setattr(data, name, value)
    return data


def _copy(source: Any, data: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in source:
            data[name] = copy.deepcopy(source[name])
    return data


def _version() -> str:
    try:
        return metadata.version("convexlift")
    except metadata.PackageNotFoundError:  # run from a source folder, not installed
        return "unknown"


class Dicom(VolumeFormat):
    """A slice, or a folder with the slices of one series."""

    name = "DICOM"
    suffixes = (".dcm", "")  # for writing; every unknown ending is read as DICOM

    def read(self, place: Path) -> Volume:
        """Read with ``read_dicom``."""
        return read_dicom(place)

    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write with ``write_dicom``."""
        return write_dicom(volume, place, description=description)
