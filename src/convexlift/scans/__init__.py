"""Files of CT scanners: slices in HU, sinograms with their geometry, pictures through windows.

The extra ``convexlift[ct]`` brings the packages that read and write them.
"""

from convexlift.scans.dicom_reading import read_dicom as read_dicom
from convexlift.scans.dicom_writing import write_dicom as write_dicom
from convexlift.scans.files import read_sinogram as read_sinogram
from convexlift.scans.files import read_volume as read_volume
from convexlift.scans.files import write_sinogram as write_sinogram
from convexlift.scans.files import write_volume as write_volume
from convexlift.scans.formats import ScanFileError as ScanFileError
from convexlift.scans.hounsfield import WINDOWS as WINDOWS
from convexlift.scans.hounsfield import Window as Window
from convexlift.scans.hounsfield import attenuation_to_hounsfield as attenuation_to_hounsfield
from convexlift.scans.hounsfield import hounsfield_to_attenuation as hounsfield_to_attenuation
from convexlift.scans.hounsfield import hounsfield_to_unit as hounsfield_to_unit
from convexlift.scans.hounsfield import unit_attenuation as unit_attenuation
from convexlift.scans.hounsfield import unit_to_hounsfield as unit_to_hounsfield
from convexlift.scans.sinograms import FanGeometry as FanGeometry
from convexlift.scans.sinograms import ParallelGeometry as ParallelGeometry
from convexlift.scans.sinograms import ScanGeometry as ScanGeometry
from convexlift.scans.sinograms import Sinogram as Sinogram
from convexlift.scans.sinograms import geometry_of as geometry_of
from convexlift.scans.stacks import read_stack as read_stack
from convexlift.scans.stacks import write_png as write_png
from convexlift.scans.stacks import write_tiff as write_tiff
from convexlift.scans.volumes import Volume as Volume

__all__ = [
    "WINDOWS",
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
