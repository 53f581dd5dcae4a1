"""CT scanner files: slices in HU, sinograms with their geometry, windowed pictures.

The extra ``convexlift[ct]`` installs the packages that read and write them.
"""

from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.files import (
    ScanFileError,
    read_sinogram,
    read_volume,
    write_sinogram,
    write_volume,
)
from convexlift.scans.sinogram_formats import NpySinogram as NpySinogram  # registers the formats
from convexlift.scans.sinograms import (
    EvenViews,
    FanGeometry,
    ParallelGeometry,
    ScanGeometry,
    Sinogram,
    geometry_of,
)
from convexlift.scans.stacks import read_stack, write_png, write_tiff
from convexlift.scans.volumes import (
    WINDOWS,
    Volume,
    Window,
    attenuation_to_hounsfield,
    hounsfield_to_attenuation,
    hounsfield_to_unit,
    unit_attenuation,
    unit_to_hounsfield,
)

__all__ = [
    "WINDOWS",
    "EvenViews",
    "FanGeometry",
    "ParallelGeometry",
    "ScanFileError",
    "ScanGeometry",
    "Sinogram",
    "Volume",
    "Window",
    "attenuation_to_hounsfield",
    "geometry_of",
    "hounsfield_to_attenuation",
    "hounsfield_to_unit",
    "read_dicom",
    "read_sinogram",
    "read_stack",
    "read_volume",
    "unit_attenuation",
    "unit_to_hounsfield",
    "write_dicom",
    "write_png",
    "write_sinogram",
    "write_tiff",
    "write_volume",
]
