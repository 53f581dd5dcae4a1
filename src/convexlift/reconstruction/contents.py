"""Images from files and from memory as planes for the solver, and the way back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.files.pictures import (
    Picture,
    Range,
    displayed_size,
    read_picture,
    regrid,
    writable,
    write_picture,
)
from convexlift.files.planes import SUFFIXES
from convexlift.scans.attenuation import hounsfield_to_unit, unit_to_hounsfield
from convexlift.scans.dicom_reading import read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.volumes import Volume
from convexlift.tasks import Bounds

DICOM = (".dcm", ".dicom", ".ima")
PICTURES = (*SUFFIXES, *DICOM)

Array = Tensor | NDArray[Any]
ImageLike = str | os.PathLike[str] | Array
RangeChoice = Range | Literal["auto", "data"]


class InputError(ValueError):
    """A file, an image or an option that cannot be used: one sentence, and what to do."""


@dataclass(frozen=True, eq=False)
class Contents(ABC):
    """The planes of an image.

    Attributes:
        name: of the file, or "the image".
        images: (planes, 1, H, W) in [0, 1], or near; finite.
        missing: where the image itself says that nothing is known (NaN), or None.
        numbers: of the image that became 0 and 1.
        box: bounds of the images.
        notes: what the user should know.
    """

    name: str
    images: Tensor
    missing: Tensor | None
    numbers: Range
    box: Bounds
    notes: tuple[str, ...]
    channels = 1
    has_colours = False
    orientation = 1  # of the display, as in EXIF
    may_have_impulses = False  # salt and pepper; the padding of CT slices is 0 as well
    truth_suffixes: ClassVar[tuple[str, ...]] = PICTURES

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array, or (planes, H, W)."""
        return (len(self.images), *self.images.shape[-2:])

    def about(self) -> dict[str, Any]:
        """Facts for the record."""
        return {"range": list(self.numbers)}

    def require_size(self, what: str, name: str, picture: Picture) -> None:
        """Raise for a mask or a truth that does not cover the image, as both are displayed."""
        shown = displayed_size(picture.stored.shape, picture.orientation)
        wanted = displayed_size(self.images.shape, self.orientation)
        if shown != wanted:
            how = "" if self.orientation == 1 else " when it is displayed"
            called = name if name.startswith("the ") else f"the {what} {name}"
            raise InputError(
                f"{called} is {shown[0]} x {shown[1]}, but {self.name} is {wanted[0]} x "
                f"{wanted[1]}{how}; give one of its size"
            )

    @abstractmethod
    def restored(self, images: Tensor) -> Tensor:
        """Planes in the numbers and the shape of the image."""

    @abstractmethod
    def require_target(self, target: Path) -> None:
        """Raise ``InputError`` if results cannot be written to such a file."""

    @abstractmethod
    def write(self, images: Tensor, target: Path, description: str) -> None:
        """The image again with other planes, atomically."""

    @abstractmethod
    def truth(self, truth: ImageLike, choice: RangeChoice, max_megapixels: float | None) -> Tensor:
        """Another image on the scale of this one."""


@dataclass(frozen=True, eq=False)
class PictureContents(Contents):
    """A picture file, or an array; ``like`` is the tensor whose type and device results have."""

    original: Picture
    like: Tensor | None = None
    has_colours = may_have_impulses = True
    truth_suffixes = SUFFIXES

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array, or (planes, H, W)."""
        return super().shape if self.like is None else tuple(self.like.shape)

    @property
    def channels(self) -> int:  # type: ignore[override]
        """Colours of a page."""
        return self.original.channels

    @property
    def orientation(self) -> int:  # type: ignore[override]
        """How the planes are turned to be displayed: see ``Picture``."""
        return self.original.orientation

    def about(self) -> dict[str, Any]:
        """Facts for the record."""
        return super().about() | {
            "dtype": str(self.original.stored.dtype),
            "channels": self.original.channels,
            "alpha": self.original.alpha is not None,
        }

    def restored(self, images: Tensor) -> Tensor:
        """In the numbers of the image: an array's shape, else (H, W) or (planes, H, W)."""
        low, high = self.numbers
        values = low + (high - low) * (1 - images if self.original.inverted else images)
        if self.like is not None:
            return values.reshape(self.shape).to(self.like)
        return values[0, 0] if len(values) == 1 else values[:, 0]

    def require_target(self, target: Path) -> None:
        """Floats are not written as PNG, for example."""
        if (reason := writable(self.original, target.suffix.lower())) is not None:
            raise InputError(
                f"{self.name} cannot be written to {target.name}: {reason}; try .tif or .npy"
            )

    def write(self, images: Tensor, target: Path, description: str) -> None:
        """With the same bits, alpha channel and metadata."""
        picture = self.original.with_values(images[:, 0].cpu().numpy(), self.numbers)
        with atomic_path(target) as part:
            write_picture(picture, part, target.suffix.lower())

    def truth(self, truth: ImageLike, choice: RangeChoice, max_megapixels: float | None) -> Tensor:
        """A picture laid on this one as both are displayed, or an array of the same shape."""
        picture, name = open_picture(truth, "the truth", max_megapixels, choice)
        self.require_size("truth", name, picture)
        numbers = self._truth_numbers(picture, choice)
        values = regrid(picture.values(numbers), picture.orientation, self.orientation)
        return torch.from_numpy(values)[:, None]

    def _truth_numbers(self, truth: Picture, choice: RangeChoice) -> Range:
        """Those of this picture, unless both use the whole range of different types."""
        own, other = self.original.stored.dtype, truth.stored.dtype
        beyond = other.kind == "f" and bool((np.nan_to_num(truth.stored) > 1.5).any())
        mapped = choice != "auto" or self.numbers != self.original.full_range
        alike = own == other or (own.kind, other.kind) == ("f", "f")
        return self.numbers if mapped or alike or beyond else truth.full_range


@dataclass(frozen=True, eq=False)
class VolumeContents(Contents):
    """CT slices of a DICOM file, on the scale of regularizers."""

    original: Volume

    def restored(self, images: Tensor) -> Tensor:
        """In HU: (H, W) or (slices, H, W)."""
        values = unit_to_hounsfield(images)
        return values[0, 0] if len(values) == 1 else values[:, 0]

    def require_target(self, target: Path) -> None:
        """DICOM stays DICOM."""
        if target.suffix.lower() not in DICOM:
            raise InputError(f"{self.name} is DICOM, and so must be the result; let it end in .dcm")

    def write(self, images: Tensor, target: Path, description: str) -> None:
        """A derived DICOM image."""
        write_slices(self.original.with_values(unit_to_hounsfield(images)), target, description)

    def truth(self, truth: ImageLike, choice: RangeChoice, max_megapixels: float | None) -> Tensor:
        """Slices of another file, or values on the scale of regularizers."""
        return open_contents(truth, max_megapixels=max_megapixels, what="the truth").images


def open_contents(
    image: ImageLike,
    choice: RangeChoice = "auto",
    *,
    max_megapixels: float | None = None,
    what: str = "the image",
) -> Contents:
    """The planes of a file or an array.

    Args:
        image: a path, or (H, W), (C, H, W) or (B, C, H, W).
        choice: the numbers that become 0 and 1, or how they are found.
        max_megapixels: replaces the limits on the size that the header of a file may declare.
        what: arrays are called in errors.
    """
    if isinstance(image, str | os.PathLike) and Path(image).suffix.lower() in DICOM:
        volume = read_dicom(Path(image), max_megapixels=max_megapixels)
        images = hounsfield_to_unit(volume.images).float()
        return VolumeContents(str(image), images, None, (-1024.0, 1500.0), (0.0, 2.0), (), volume)
    picture, name = open_picture(image, what, max_megapixels, choice)
    numbers, notes = _range(picture, choice)
    values = picture.values(numbers)
    unknown = ~np.isfinite(values)
    if unknown.all():
        raise InputError(f"{name} has no finite number in it")
    images = torch.from_numpy(np.where(unknown, np.float32(0), values))[:, None].contiguous()
    missing = torch.from_numpy(unknown)[:, None] if unknown.any() else None
    like = None
    if not isinstance(image, str | os.PathLike):
        like = torch.as_tensor(image)
        like = like if like.is_floating_point() else like.float()
    return PictureContents(name, images, missing, numbers, (0.0, 1.0), notes, picture, like)


def open_picture(
    image: ImageLike, what: str, max_megapixels: float | None, choice: RangeChoice = "auto"
) -> tuple[Picture, str]:
    """The picture of a file or an array, and its name in errors."""
    if isinstance(image, str | os.PathLike):
        return read_picture(Path(image), max_megapixels=max_megapixels), str(image)
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
    return Picture(array.reshape(-1, *shape[-2:]), layout=shape), what


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Errors of the disk, which know nothing of results, with the name of the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(
            f"{place} cannot be written ({reason}); make room there, or name another folder"
        ) from error


def write_slices(volume: Volume, target: Path, description: str) -> None:
    """A DICOM file, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_dicom(volume.to(device="cpu"), target, description=description)


def _range(picture: Picture, choice: RangeChoice) -> tuple[Range, tuple[str, ...]]:
    """The numbers that become 0 and 1, and a note if that may surprise."""
    if isinstance(choice, tuple):
        return choice, ()
    stored = picture.stored
    finite = stored[np.isfinite(stored)] if stored.dtype.kind == "f" else stored
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    data = (low, high) if high > low else (low, low + 1)
    if choice == "data":
        return data, ()
    full = picture.full_range
    beyond = low < -0.5 or high > 1.5 if stored.dtype.kind == "f" else low < 0
    if beyond:
        return data, (f"its numbers from {low:g} to {high:g} were mapped to 0 ... 1 (--range)",)
    if stored.dtype.kind in "iu" and high < full[1] / 8 and stored.dtype.itemsize > 1:
        share = 100 * high / full[1]
        return full, (f"it uses {share:.2g} % of its range only; --range data may do better",)
    return full, ()
