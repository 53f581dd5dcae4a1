"""CT slices: read for simulated scans, and written in every format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift import scans
from convexlift.files.pictures import Picture, read_picture, write_picture
from convexlift.reconstruction.contents import (
    DICOM,
    InputError,
    is_path,
    open_contents,
)

RESULTS = (".tif", ".tiff", ".npy", ".png", ".dcm")
HIGHEST_TISSUE = 10_000.0
"""HU above which a note is due; bone has up to 3000."""
HIDDEN = 0.98
"""The share of pixels outside a window above which a picture shows next to nothing."""


def read_slices(image: Any) -> tuple[str, scans.Volume, Tensor, tuple[int, ...] | None]:
    """A name, slices in HU and on the scale of regularizers, and the shape of an array.

    Arrays and pictures without HU are taken to be on that scale.
    """
    name, volume = str(image), image
    if isinstance(image, scans.Sinogram):
        raise InputError("--simulate needs slices, and this is a sinogram; leave it out")
    if isinstance(image, scans.Volume):
        name = "the volume"
    elif not is_path(image):
        contents = open_contents(image, (0.0, 1.0))
        volume = scans.Volume.stacked(scans.unit_to_hounsfield(contents.images[:, 0]), (1.0, 1.0))
        return contents.name, volume, contents.images, contents.shape
    else:
        try:
            volume = scans.read_volume(image)
        except (scans.ScanFileError, ImportError):
            if Path(image).suffix.lower() in DICOM:
                raise
            picture = read_picture(Path(image))
            if picture.channels > 1:
                raise InputError(f"{image} has colours; save the slice as grey") from None
            unit = torch.from_numpy(picture.values(picture.full_range))
            volume = scans.Volume.stacked(scans.unit_to_hounsfield(unit), (1.0, 1.0))
    return name, volume, scans.hounsfield_to_unit(volume.images).float(), None


def require_ending(target: Path) -> None:
    """Raise unless the file name has the ending of a format for slices."""
    if target.suffix.lower() not in RESULTS:
        raise InputError(
            f"{target} does not name a slice; use one of the endings {', '.join(RESULTS)}"
        )


def write_slices(
    volume: scans.Volume, place: Path, description: str, window: scans.Window | str
) -> None:
    """DICOM, TIFF or NPY in HU, or PNG through a window."""
    volume, kind = volume.to(device="cpu"), place.suffix.lower()
    if kind == ".dcm":
        scans.write_dicom(volume, place, description=description)
    elif kind == ".png":
        _require_one(place, len(volume.values))
        scans.write_png(volume, place, window=scans.Window.named(window))
    elif kind == ".npy":
        write_numbers(volume.images, place)
    else:
        scans.write_tiff(volume, place)


def unusual_values(
    hounsfield: Tensor, target: Path | None, window: scans.Window | str
) -> Iterator[str]:
    """Notes on HU that neither tissue nor bone has, and on a window that hides the slice."""
    values = hounsfield.flatten()[:: 1 + hounsfield.numel() // 10**6].double()
    if (largest := float(values.quantile(0.99))) > HIGHEST_TISSUE:
        yield (
            f"values up to {largest:.2g} HU, where bone has 3000: lengths in the geometry are taken"
            ' for mm; if they are pixels of the detector, write "unit": "pixel" there, or leave '
            "--bin-width out"
        )
    shown = scans.Window.named(window)
    outside = (values <= shown.low) | (values >= shown.low + shown.width)
    is_picture = target is not None and target.suffix.lower() == ".png"
    if is_picture and float(outside.double().mean()) > HIDDEN:
        low, high = (float(values.quantile(share)) for share in (0.005, 0.995))
        middle, width = round((low + high) / 2), max(1, round(high - low))
        yield (
            f"nearly all values are outside of the window, {shown.low:g} to "
            f"{shown.low + shown.width:g} HU; --window={middle},{width} shows them, or write .tif"
        )


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
