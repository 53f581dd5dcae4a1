"""CT slices: read for simulated scans, and written in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import Picture, read_picture, write_picture
from convexlift.reconstruction.contents import (
    DICOM,
    InputError,
    is_path,
    open_contents,
)
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.files import ScanFileError, read_volume
from convexlift.scans.sinograms import Sinogram
from convexlift.scans.stacks import write_png, write_tiff
from convexlift.scans.volumes import Volume, Window, hounsfield_to_unit, unit_to_hounsfield

RESULTS = (".tif", ".tiff", ".npy", ".png", ".dcm")


def read_slices(
    image: Any, max_megapixels: float | None
) -> tuple[str, Volume, Tensor, tuple[int, ...] | None]:
    """A name, slices in HU and as images on the scale of regularizers, and the shape of an array.

    Arrays and pictures without HU are on that scale, too.
    """
    name, volume = str(image), image
    if isinstance(image, Sinogram):
        raise InputError("--simulate needs slices, and this is a sinogram; leave it out")
    if isinstance(image, Volume):
        name = "the volume"
    elif not is_path(image):
        contents = open_contents(image, (0.0, 1.0))
        volume = Volume.stacked(unit_to_hounsfield(contents.images[:, 0]), (1.0, 1.0))
        return contents.name, volume, contents.images, contents.shape
    else:
        try:
            volume = read_volume(image, max_megapixels=max_megapixels)
        except (ScanFileError, ImportError):
            if Path(image).suffix.lower() in DICOM:
                raise
            picture = read_picture(Path(image), max_megapixels=max_megapixels)
            if picture.channels > 1:
                raise InputError(f"{image} has colours; save the slice as grey") from None
            unit = torch.from_numpy(picture.values(picture.full_range))
            volume = Volume.stacked(unit_to_hounsfield(unit), (1.0, 1.0))
    return name, volume, hounsfield_to_unit(volume.images).float(), None


def squeezed(images: Tensor) -> Tensor:
    """(H, W) for one slice, else (slices, H, W)."""
    return images[0, 0] if len(images) == 1 else images[:, 0]


def require_ending(target: Path) -> None:
    """Raise unless the file name has the ending of a format for slices."""
    if target.suffix.lower() not in RESULTS:
        raise InputError(
            f"{target} does not name a slice; use one of the endings {', '.join(RESULTS)}"
        )


def write_slices(volume: Volume, place: Path, description: str, window: Window | str) -> None:
    """DICOM, TIFF or NPY in HU, or PNG through a window."""
    volume, kind = volume.to(device="cpu"), place.suffix.lower()
    if kind == ".dcm":
        write_dicom(volume, place, description=description)
    elif kind == ".png":
        _require_one(place, len(volume.values))
        write_png(volume, place, window=Window.named(window))
    elif kind == ".npy":
        write_numbers(volume.images, place)
    else:
        write_tiff(volume, place)


def write_numbers(images: Tensor, place: Path) -> None:
    """The numbers as they are; PNG from the smallest to the largest."""
    values = images[:, 0].detach().cpu().numpy()
    if place.suffix.lower() == ".png":
        _require_one(place, len(values))
        low, high = float(values.min()), float(values.max())
        values = np.rint(255 * (values - low) / max(high - low, 1e-30)).astype(np.uint8)
    shape = values.shape[1:] if len(values) == 1 else values.shape
    write_picture(Picture(values, layout=shape), place)


def _require_one(place: Path, count: int) -> None:
    if count > 1:
        raise InputError(f"{place} holds one slice, and there are {count}; write .tif")
