"""Images from files and from memory as planes for the solver, the way back, and masks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    displayed_size,
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
from convexlift.scans.volume_sources import is_series, is_source, read_slab
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
    """The planes of an image, and the way back to a file or an array like it.

    Attributes:
        name: of the file, or "the image".
        picture: as it was stored; of CT in DICOM, its slices in HU.
        images: (planes, 1, H, W) in [0, 1], or near; finite.
        missing: where the image itself is unknown (NaN), or None.
        scale: the numbers of the image that became 0 and 1.
        volume: of CT in DICOM.
        like: the array, whose shape, type and device results have.
    """

    name: str
    picture: Picture
    images: Tensor
    missing: Tensor | None
    scale: NumberRange
    volume: scans.Volume | None = None
    like: Tensor | None = None

    @property
    def channels(self) -> int:
        """3 for pictures in colour and arrays (..., 3, H, W), else 1."""
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
        if WINDOW in self.picture.metadata:  # pixels outside of the display window are kept
            low, high = float(self.images.min()), float(self.images.max())
            return (min(0.0, low), max(1.0, high))
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
        return squeezed(values)

    def require_target(self, target: Path) -> None:
        """Raise if a file of this name cannot hold results: floats in PNG, for example."""
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
        """The file again with other planes, atomically: its bits, alpha channel and metadata.

        CT slices of one series that are written under the same name of a ``series`` are one again.
        """
        if self.volume is not None:
            volume = self.volume.with_values(scans.unit_to_hounsfield(images.cpu()))
            scans.write_dicom(volume, target, description=description, series=series)
            return
        picture = self.picture.with_values(images[:, 0].cpu().numpy(), self.numbers)
        if DATASET in picture.metadata:
            write_dicom_picture(picture, target, description)
        else:
            write_picture(picture, target)

    def truth(self, truth: ImageLike, choice: RangeChoice, max_megapixels: float | None) -> Tensor:
        """Another image on the scale of this one, and laid on it as both are displayed."""
        if self.volume is not None:
            return open_contents(truth, max_megapixels=max_megapixels, what="the truth").images
        picture, name = open_picture(truth, "the truth", max_megapixels, choice)
        self.require_size("truth", name, picture)
        own, other = self.picture.stored.dtype, picture.stored.dtype
        # In the numbers of this picture, unless both use the whole range of different types.
        beyond = other.kind == "f" and number_range(picture, "auto").numbers != (0.0, 1.0)
        alike = own == other or (own.kind, other.kind) == ("f", "f")
        shared = choice != "auto" or alike or beyond
        values = picture.values(self.numbers if shared else picture.full_range)
        planes = regrid(values, picture.orientation, self.picture.orientation)
        return torch.from_numpy(planes)[:, None]

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


def squeezed(images: Tensor) -> Tensor:
    """(H, W) for one plane, else (planes, H, W)."""
    return images[0, 0] if len(images) == 1 else images[:, 0]


def open_contents(
    image: ImageLike,
    choice: RangeChoice = "auto",
    *,
    max_megapixels: float | None = None,
    what: str = "the image",
    pages: slice | None = None,
) -> Contents:
    """The planes of a file, or some of its pages, or of an array (H, W), (C, H, W) or (B, C, H, W).

    ``choice`` gives the numbers that become 0 and 1, or the rule that finds them; errors call an
    array ``what``.
    """
    is_dicom = is_path(image) and Path(image).suffix.lower() in DICOM
    if pages is not None and (is_dicom or not is_path(image)):
        raise InputError("--slices chooses planes of TIFF, NPY, HDF5 and zarr files, and of series")
    series = is_path(image) and is_series(Path(image))
    if series or (is_dicom and is_hounsfield(Path(str(image)), max_megapixels)):
        volume = scans.read_dicom(
            Path(str(image)), max_megapixels=max_megapixels, slices=pages or slice(None)
        )
        images = scans.hounsfield_to_unit(volume.images).float()
        picture = Picture(volume.values.numpy())
        hounsfield = NumberRange((-1024.0, 1500.0))
        return Contents(str(image), picture, images, None, hounsfield, volume=volume)
    picture, name = open_picture(image, what, max_megapixels, choice, pages)
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
        # Of integers, floats of the same shape, which take no memory.
        like = like if like.is_floating_point() else torch.zeros(()).to(like.device).expand_as(like)
    return Contents(name, picture, images, missing, scale, like=like)


def open_picture(
    image: ImageLike,
    what: str,
    max_megapixels: float | None,
    choice: RangeChoice = "auto",
    pages: slice | None = None,
) -> tuple[Picture, str]:
    """The picture of a file or an array, and its name in errors."""
    if is_path(image) and Path(image).suffix.lower() in DICOM:
        return read_dicom_picture(Path(image), max_megapixels), str(image)
    if is_path(image) and is_source(Path(image)):
        return read_slab(Path(image), pages or slice(None), max_megapixels), str(image)
    if is_path(image):
        picture = read_picture(Path(image), max_megapixels=max_megapixels, pages=pages)
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
    return Picture(array.reshape(-1, *shape[-2:]), layout=shape), what


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


Colour = tuple[int, int, int]


def parse_colour(text: str) -> Colour:
    """``#ff00ff``, ``ff00ff``, ``#f0f``, or a grey level such as ``255``."""
    word = text.strip().lower().removeprefix("#")
    if text.strip().isdecimal() and int(text) <= 255 and len(text.strip()) <= 3:
        grey = int(text)
        return (grey, grey, grey)
    if re.fullmatch(r"[0-9a-f]{3}", word):
        word = "".join(2 * letter for letter in word)
    if not re.fullmatch(r"[0-9a-f]{6}", word):
        raise InputError(f"{text!r} is not a colour; write '#ff00ff', or a grey level such as 255")
    red, green, blue = (int(word[i : i + 2], 16) for i in (0, 2, 4))
    return (red, green, blue)


def seen_pixels(
    contents: Contents,
    mask: ImageLike | None = None,
    *,
    inverted: bool = False,
    colour: Colour | None = None,
    tolerance: int = 0,
    max_megapixels: float | None = None,
) -> Tensor | None:
    """1 where a pixel was seen, (planes, 1, H, W), or None if all were.

    Missing are pixels that are NaN, black in the mask (white if ``inverted``), or within
    ``tolerance`` levels of 255 of ``colour``. A mask file is laid on the image as both are
    displayed, since people draw masks on displayed pictures; an array broadcasts to the image.
    """
    if contents.missing is None and mask is None and colour is None:
        return None
    seen = torch.ones_like(contents.images)
    if contents.missing is not None:
        seen[contents.missing] = 0
    if mask is not None:
        seen *= _from_mask(contents, mask, inverted, max_megapixels)
    if colour is not None:
        seen *= _from_colour(contents, colour, tolerance)
    if bool((seen.flatten(1).sum(1) == 0).any()):
        raise InputError(
            f"the mask of {contents.name} hides a whole image; white is seen (--invert-mask)"
        )
    return None if bool((seen == 1).all()) else seen


def _from_mask(
    contents: Contents, mask: ImageLike, inverted: bool, max_megapixels: float | None
) -> Tensor:
    picture, name = open_picture(mask, "the mask", max_megapixels, (0.0, 1.0))
    contents.require_size("mask", name, picture)
    values = picture.values(picture.full_range)
    white = np.nan_to_num(values) >= 0.5
    if picture.stored.dtype.kind in "iu" and values.max(initial=0) * picture.full_range[1] <= 1:
        white = picture.stored > 0  # 0 and 1 in integers, as programs write labels
    white = regrid(white ^ inverted, picture.orientation, contents.picture.orientation)
    seen = torch.from_numpy(white).to(contents.images)
    planes, _, height, width = contents.images.shape
    if not is_path(mask):
        try:
            whole = seen.reshape(picture.layout).expand(contents.shape)
        except RuntimeError:
            raise InputError(
                f"the mask has the shape {picture.layout}, but {contents.name} has "
                f"{contents.shape}; give one of its shape, or (H, W) for all"
            ) from None
        return whole.reshape(planes, 1, height, width)
    channels = contents.picture.channels
    pages = planes // channels
    seen = seen.reshape(-1, picture.channels, height, width)
    if seen.shape[1] not in (1, channels):
        seen = seen.amin(1, keepdim=True)  # colours: seen if all are white
    if len(seen) in (1, pages):
        return seen.expand(pages, channels, -1, -1).reshape(planes, 1, height, width)
    if tuple(seen.shape[:2]) == (planes, 1):
        return seen
    raise InputError(
        f"the mask {name} has {len(seen)} pages, but {contents.name} has {pages}; give one for "
        "each, or one for all"
    )


def _from_colour(contents: Contents, colour: Colour, tolerance: int) -> Tensor:
    name, channels = contents.name, contents.picture.channels
    if contents.volume is not None:
        raise InputError(f"{name} is DICOM and has no colours; use --mask")
    wanted = torch.tensor(colour[:channels] if channels == 3 else colour[:1]).to(contents.images)
    if channels == 1 and len(set(colour)) > 1:
        raise InputError(f"{name} is grey; give a grey level to --mask-colour, such as 255")
    planes, _, height, width = contents.images.shape
    pixels = contents.images.reshape(planes // channels, channels, height, width)
    far = (255 * pixels - wanted[None, :, None, None]).abs().amax(1, keepdim=True)
    seen = (far > tolerance + 0.5).to(contents.images)
    if bool((seen == 1).all()):
        levels = ", ".join(str(level) for level in colour)
        raise InputError(
            f"{name} has no pixel of the mask colour ({levels}); "
            "JPEG changes colours, for which there is --colour-tolerance"
        )
    return seen.expand(-1, channels, -1, -1).reshape(planes, 1, height, width)
