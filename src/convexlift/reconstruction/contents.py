"""Images from files and from memory as planes for the solver, and the way back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.files.pictures import (
    Picture,
    PictureFormat,
    Range,
    displayed_size,
    read_picture,
    regrid,
    writable,
    write_picture,
)
from convexlift.scans.dicom_reading import DICOM_SUFFIXES, read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.hounsfield import hounsfield_to_unit, unit_to_hounsfield
from convexlift.scans.volumes import Volume
from convexlift.tasks import Bounds

DICOM = DICOM_SUFFIXES
PICTURES = (*PictureFormat.known_suffixes(), *DICOM)

Array = Tensor | NDArray[Any]
ImageLike = str | os.PathLike[str] | Array
RangeChoice = Range | Literal["auto", "data"]


def is_path(image: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is a path, and not an image."""
    return isinstance(image, str | os.PathLike)


class InputError(ValueError):
    """A file, an image or an option that cannot be used: one sentence, and what to do."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The planes of an image, and the way back to a file or an array like it.

    Attributes:
        name: of the file, or "the image".
        picture: as it was stored; of a DICOM file, its slices in HU.
        images: (planes, 1, H, W) in [0, 1], or near; finite.
        missing: where the image itself says that nothing is known (NaN), or None.
        numbers: of the image that became 0 and 1.
        notes: what the user should know.
        volume: of a DICOM file.
        like: the array, whose shape, type and device results have.
    """

    name: str
    picture: Picture
    images: Tensor
    missing: Tensor | None
    numbers: Range
    notes: tuple[str, ...] = ()
    volume: Volume | None = None
    like: Tensor | None = None

    @property
    def box(self) -> Bounds:
        """Bounds of the images."""
        return (0.0, 1.0 if self.volume is None else 2.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array, or (planes, H, W)."""
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

    def restored(self, images: Tensor) -> Tensor:
        """In the numbers of the image: an array's shape, else (H, W) or (planes, H, W)."""
        low, high = self.numbers
        values = low + (high - low) * (1 - images if self.picture.inverted else images)
        if self.like is not None:
            return values.reshape(self.shape).to(self.like)
        return values[0, 0] if len(values) == 1 else values[:, 0]

    def require_target(self, target: Path) -> None:
        """Raise if a file of this name cannot hold results: floats in PNG, for example."""
        kind = target.suffix.lower()
        if self.volume is not None:
            if kind not in DICOM:
                raise InputError(
                    f"{self.name} is DICOM, and so must be the result; let it end in .dcm"
                )
        elif (reason := writable(self.picture, kind)) is not None:
            raise InputError(
                f"{self.name} cannot be written to {target.name}: {reason}; try .tif or .npy"
            )

    def write(self, images: Tensor, target: Path, description: str) -> None:
        """The file again with other planes, atomically: its bits, alpha channel and metadata."""
        if self.volume is not None:
            volume = self.volume.with_values(unit_to_hounsfield(images))
            write_dicom_file(volume, target, description)
            return
        picture = self.picture.with_values(images[:, 0].cpu().numpy(), self.numbers)
        with atomic_path(target) as part:
            write_picture(picture, part, target.suffix.lower())

    def truth(self, truth: ImageLike, choice: RangeChoice, max_megapixels: float | None) -> Tensor:
        """Another image on the scale of this one, and laid on it as both are displayed."""
        if self.volume is not None:
            return open_contents(truth, max_megapixels=max_megapixels, what="the truth").images
        picture, name = open_picture(truth, "the truth", max_megapixels, choice)
        self.require_size("truth", name, picture)
        own, other = self.picture.stored.dtype, picture.stored.dtype
        # In the numbers of this picture, unless both use the whole range of different types.
        beyond = other.kind == "f" and bool((np.nan_to_num(picture.stored) > 1.5).any())
        mapped = choice != "auto" or self.numbers != self.picture.full_range
        alike = own == other or (own.kind, other.kind) == ("f", "f")
        values = picture.values(self.numbers if mapped or alike or beyond else picture.full_range)
        return torch.from_numpy(regrid(values, picture.orientation, self.picture.orientation))[
            :, None
        ]

    def require_size(self, what: str, name: str, picture: Picture) -> None:
        """Raise for a mask or a truth that does not cover the image, as both are displayed."""
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
    if is_path(image) and Path(image).suffix.lower() in DICOM:
        volume = read_dicom(Path(image), max_megapixels=max_megapixels)
        images = hounsfield_to_unit(volume.images).float()
        picture = Picture(volume.values.numpy())
        return Contents(str(image), picture, images, None, (-1024.0, 1500.0), volume=volume)
    picture, name = open_picture(image, what, max_megapixels, choice)
    numbers, notes = _range(picture, choice)
    values = picture.values(numbers)
    unknown = ~np.isfinite(values)
    if unknown.all():
        raise InputError(f"{name} has no finite number in it")
    images = torch.from_numpy(np.where(unknown, np.float32(0), values))[:, None].contiguous()
    missing = torch.from_numpy(unknown)[:, None] if unknown.any() else None
    like = None
    if not is_path(image):
        like = torch.as_tensor(image)
        like = like if like.is_floating_point() else like.float()
    return Contents(name, picture, images, missing, numbers, notes, like=like)


def open_picture(
    image: ImageLike, what: str, max_megapixels: float | None, choice: RangeChoice = "auto"
) -> tuple[Picture, str]:
    """The picture of a file or an array, and its name in errors."""
    if is_path(image):
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


def write_dicom_file(volume: Volume, target: Path, description: str) -> None:
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
