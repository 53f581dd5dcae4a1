"""Images from files and from memory as planes for the solver, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift import scans
from convexlift.files.formats import InputError as InputError
from convexlift.files.pictures import (
    Picture,
    PictureFormat,
    Range,
    count_pages,
    displayed_size,
    equal_channels,
    read_picture,
    regrid,
    writable,
    write_picture,
)
from convexlift.reconstruction.ranges import NumberRange, RangeChoice, number_range
from convexlift.scans.dicom_pictures import (
    DATASET,
    WINDOW,
    display_range,
    is_hounsfield,
    read_dicom_picture,
    write_dicom_picture,
)
from convexlift.scans.dicom_reading import DICOM_SUFFIXES
from convexlift.tasks import Bounds

DICOM = DICOM_SUFFIXES
PICTURES = (*PictureFormat.known_suffixes(), *DICOM)
"""Endings of file names."""

Array = Tensor | NDArray[Any]
ImageLike = str | os.PathLike[str] | Array


def is_path(image: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether the argument is a path, and not an image."""
    return isinstance(image, str | os.PathLike)


@dataclass(frozen=True, eq=False)
class Contents:
    """The planes of an image, and the conversion back to a file or an array like it.

    Attributes:
        name: the name of the file, or "the image".
        picture: the stored picture; for CT in DICOM, its slices in HU.
        images: (planes, 1, H, W), finite, in or near [0, 1].
        missing: where the image itself is unknown (NaN), or None.
        scale: the numbers of the image that became 0 and 1.
        volume: the volume of CT in DICOM.
        like: the array, whose shape, type and device results have.
        pages: the pages of the file that were read, if not all.
        merged: whether each plane stands for three equal channels.
    """

    name: str
    picture: Picture
    images: Tensor
    missing: Tensor | None
    scale: NumberRange
    volume: scans.Volume | None = None
    like: Tensor | None = None
    pages: slice | None = None
    merged: bool = False

    @property
    def channels(self) -> int:
        """3 for pictures in colour and arrays (..., 3, H, W), else 1."""
        if self.merged:
            return 1
        if self.like is not None:
            return 3 if self.like.ndim > 2 and self.like.shape[-3] == 3 else 1
        return 3 if self.picture.channels == 3 else 1

    @property
    def is_dicom(self) -> bool:
        """Whether the image comes from DICOM, of any modality."""
        return self.volume is not None or WINDOW in self.picture.metadata

    @property
    def numbers(self) -> Range:
        """Black and white."""
        return self.scale.numbers

    @property
    def box(self) -> Bounds:
        """Bounds of the images."""
        if WINDOW in self.picture.metadata:  # pixels outside the display window are kept
            low, high = float(self.images.min()), float(self.images.max())
            return (min(0.0, low), max(1.0, high))
        return (0.0, 1.0 if self.volume is None else 2.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array, or (planes, H, W)."""
        planes, _, *size = self.images.shape
        return (planes, *size) if self.like is None else tuple(self.like.shape)

    def about(self) -> dict[str, Any]:
        """Facts for the record."""
        facts: dict[str, Any] = {"range": list(self.numbers)}
        if self.volume is not None:
            return facts
        stored, channels = self.picture.stored.dtype, self.picture.channels
        alpha = self.picture.alpha is not None
        return facts | {"dtype": str(stored), "channels": channels, "alpha": alpha}

    def as_grey(self) -> Contents:
        """With one plane in place of red, green and blue if these are equal: grey saved as RGB.

        Their noise is the same, too. Regularizers for colours expect independent noise, and would
        keep most of it.
        """
        if self.channels != 3 or not equal_channels(self.picture.stored):
            return self
        missing = None if self.missing is None else self.missing[1::3]
        return replace(self, images=self.images[1::3], missing=missing, merged=True)

    def unmerged(self, planes: Tensor) -> Tensor:
        """Planes for all channels, if one stands for three."""
        return planes.repeat_interleave(3, 0) if self.merged else planes

    def restored(self, images: Tensor) -> Tensor:
        """The images in the original numbers: an array's shape, else (H, W) or (planes, H, W)."""
        low, high = self.numbers
        images = self.unmerged(images)
        values = low + (high - low) * (1 - images if self.picture.inverted else images)
        if self.like is not None:
            return values.reshape(self.shape).to(self.like)
        return squeezed(values)

    def require_target(self, target: Path) -> None:
        """Raise if a file of this name cannot hold the results: floats in PNG, for example."""
        kind = target.suffix.lower()
        if self.volume is not None or DATASET in self.picture.metadata:
            if kind not in DICOM:
                raise InputError(f"{self.name} is DICOM; give the result the ending .dcm, too")
        elif (reason := writable(self.picture, kind)) is not None:
            raise InputError(
                f"{self.name} cannot be written to {target.name}: {reason}; try .tif or .npy"
            )

    def write(
        self, images: Tensor, target: Path, description: str, series: str | None = None
    ) -> None:
        """Write other planes like the file, atomically, with its bits, alpha channel and metadata.

        CT slices of one series that are written with the same ``series`` form one series again.
        """
        if self.volume is not None:
            volume = self.volume.with_values(scans.unit_to_hounsfield(images.cpu()))
            scans.write_dicom(volume, target, description=description, series=series)
            return
        planes = self.unmerged(images)[:, 0].cpu().numpy()
        picture = self.picture.with_values(planes, self.numbers)
        if DATASET in picture.metadata:
            write_dicom_picture(picture, target, description)
        else:
            write_picture(picture, target)

    def truth(self, truth: ImageLike, choice: RangeChoice) -> Tensor:
        """Another image on the scale of this one, aligned as both are displayed."""
        if self.volume is not None:
            return open_contents(truth, what="the truth").images
        picture, name = open_picture(truth, "the truth", choice, self.pages_of(truth))
        self.require_size("truth", name, picture)
        own, other = self.picture.stored.dtype, picture.stored.dtype
        # In the numbers of this picture, unless both use the whole range of different types.
        beyond = other.kind == "f" and number_range(picture, "auto").numbers != (0.0, 1.0)
        alike = own == other or (own.kind, other.kind) == ("f", "f")
        shared = choice != "auto" or alike or beyond
        values = picture.values(self.numbers if shared else picture.full_range)
        planes = regrid(values, picture.orientation, self.picture.orientation)
        return torch.from_numpy(planes)[:, None]

    def pages_of(self, place: ImageLike) -> slice | None:
        """The same pages of a mask or truth if it has one for each page of the file; else all."""
        if self.pages is None or count_in(place) != count_in(self.name):
            return None
        return self.pages

    def require_size(self, what: str, name: str, picture: Picture) -> None:
        """Raise if a mask or truth does not cover the image, as both are displayed."""
        turned = self.picture.orientation
        shown = displayed_size(picture.stored.shape, picture.orientation)
        wanted = displayed_size(self.images.shape, turned)
        if shown != wanted:
            how = "" if turned == 1 else " when it is displayed"
            called = name if name.startswith("the ") else f"the {what} {name}"
            raise InputError(
                f"{called} is {shown[0]} x {shown[1]}, but {self.name} is {wanted[0]} x "
                f"{wanted[1]}{how}; give one of its size"
            )


def merge_equal_channels(contents: Contents, seen: Tensor | None) -> tuple[Contents, Tensor | None]:
    """A grey picture saved as RGB, and its mask, with one plane for each page; others unchanged."""
    grey = contents.as_grey()
    if seen is None or not grey.merged:
        return grey, seen
    masks = seen.reshape(-1, 3, *seen.shape[2:])
    return (grey, masks[:, :1]) if bool((masks == masks[:, :1]).all()) else (contents, seen)


def squeezed(images: Tensor) -> Tensor:
    """(H, W) for one plane, else (planes, H, W)."""
    return images[0, 0] if len(images) == 1 else images[:, 0]


def open_contents(
    image: ImageLike,
    choice: RangeChoice = "auto",
    *,
    what: str = "the image",
    pages: slice | None = None,
) -> Contents:
    """The planes of a file, or some of its pages, or of an array (H, W), (C, H, W) or (B, C, H, W).

    ``choice`` gives the numbers that become 0 and 1, or the rule that finds them; errors call an
    array ``what``.
    """
    is_dicom = is_path(image) and Path(image).suffix.lower() in DICOM
    if pages is not None and (is_dicom or not is_path(image)):
        raise InputError("--slices chooses planes of TIFF and NPY files")
    if is_path(image) and Path(image).is_dir():
        raise InputError(
            f"{image} is a folder; name one of its files, or reconstruct all of them with "
            "cl.reconstruct_many"
        )
    if is_dicom and is_hounsfield(Path(str(image))):
        volume = scans.read_dicom(Path(str(image)))
        images = scans.hounsfield_to_unit(volume.images).float()
        picture = Picture(volume.values.numpy())
        hounsfield = NumberRange((-1024.0, 1500.0))
        return Contents(str(image), picture, images, None, hounsfield, volume=volume)
    picture, name = open_picture(image, what, choice, pages)
    if WINDOW in picture.metadata and choice == "auto":
        low, high = display_range(picture)
        stored = "stored " * (DATASET in picture.metadata)
        note = f"its {stored}numbers from {low:g} to {high:g} were mapped to 0 ... 1 (--range)"
        scale = NumberRange((low, high), notes=(note,))
    else:
        scale = number_range(picture, choice)
    values = picture.values(scale.numbers)
    unknown = ~np.isfinite(values)
    if unknown.all():
        raise InputError(f"{name} has no finite number in it")
    missing = torch.from_numpy(unknown)[:, None] if unknown.any() else None
    if missing is not None:
        values[unknown] = 0
    images = torch.from_numpy(values)[:, None]
    like = None
    if not is_path(image):
        like = torch.as_tensor(image)
        # For integers, floats of the same shape that take no memory.
        like = like if like.is_floating_point() else torch.zeros(()).to(like.device).expand_as(like)
    return Contents(name, picture, images, missing, scale, like=like, pages=pages)


def count_in(image: ImageLike) -> int:
    """The number of pages of a file or planes of an array."""
    if isinstance(image, Tensor | np.ndarray):
        return int(np.prod(image.shape[:-2]))
    if Path(image).suffix.lower() in DICOM:
        return read_dicom_picture(Path(image)).pages
    return count_pages(Path(image))


def open_picture(
    image: ImageLike,
    what: str,
    choice: RangeChoice = "auto",
    pages: slice | None = None,
) -> tuple[Picture, str]:
    """The picture of a file or an array, and its name in errors."""
    if is_path(image) and Path(image).suffix.lower() in DICOM:
        return read_dicom_picture(Path(image)), str(image)
    if is_path(image):
        picture = read_picture(Path(image), pages=pages)
        return picture, str(image)
    if not isinstance(image, Tensor | np.ndarray):
        raise InputError(f"{what} is a path, a tensor or an array, got {type(image).__name__}")
    if isinstance(image, Tensor):
        wide = image.float() if image.dtype in (torch.bfloat16, torch.float16) else image
        array: NDArray[Any] = wide.detach().cpu().numpy()
    else:
        array = image
    shape, kind = array.shape, array.dtype
    if array.ndim not in (2, 3, 4) or 0 in shape:
        raise InputError(
            f"{what} has the shape {shape}; give (H, W), (C, H, W) or (B, C, H, W), none of them 0"
        )
    if kind.kind not in "biuf":
        raise InputError(f"{what} holds {kind}; give real numbers, such as floats in [0, 1]")
    if kind.kind in "iu" and kind.itemsize > 2 and not isinstance(choice, tuple):
        raise InputError(
            f"{what} holds {kind}, whose black and white are unknown; give --range (0, 255), say, "
            "or floats in [0, 1]"
        )
    planes = array.reshape(-1, *shape[-2:])
    if pages is not None:
        return Picture(planes[pages], layout=planes[pages].shape), what
    return Picture(planes, layout=shape), what


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Turn errors of the disk into an ``InputError`` with the name of the result."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(
            f"{place} cannot be written ({reason}); make room there, or name another folder"
        ) from error
