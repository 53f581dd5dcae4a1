"""Which pixels were seen: from an image, from a colour in the image itself, or from NaN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import Picture, read_picture, regrid
from convexlift.reconstruction.input_files import Contents, InputError, companion, require_size


@dataclass(frozen=True)
class MaskChoice:
    """Where masks come from; NaN in float files always says "missing".

    Masks lie on pictures as both are displayed: people draw them on what they see.

    Args:
        file: an image, or a folder of images with the names of the inputs. White is seen.
        inverted: white is missing.
        colour: three numbers from 0 to 255; pixels of this colour are missing.
        tolerance: how far each channel may be from that colour, of 255.
        max_megapixels: replaces the limits on the size that a mask's header may declare.
    """

    file: Path | None = None
    inverted: bool = False
    colour: tuple[int, int, int] | None = None
    tolerance: int = 0
    max_megapixels: float | None = None

    def __post_init__(self) -> None:
        if self.file is not None and not self.file.exists():
            raise InputError(f"there is no mask {self.file}; check the name")
        if self.file is not None and self.file.is_file():
            read_picture(
                self.file, max_megapixels=self.max_megapixels
            )  # says what is wrong with it
        if not 0 <= self.tolerance <= 255:
            raise InputError(f"the tolerance of a colour is 0 to 255, got {self.tolerance}")


def parse_colour(text: str) -> tuple[int, int, int]:
    """``#ff00ff``, ``ff00ff``, ``#f0f``, or a grey level such as ``255``."""
    word = text.strip().lower().removeprefix("#")
    if text.strip().isdecimal() and int(text) <= 255 and len(text.strip()) <= 3:
        grey = int(text)
        return (grey, grey, grey)
    if re.fullmatch(r"[0-9a-f]{3}", word):
        word = "".join(2 * letter for letter in word)
    if not re.fullmatch(r"[0-9a-f]{6}", word):
        raise InputError(f"{text!r} is no colour; write '#ff00ff', or a grey level such as 255")
    red, green, blue = (int(word[i : i + 2], 16) for i in (0, 2, 4))
    return (red, green, blue)


def seen_pixels(contents: Contents, name: Path, choice: MaskChoice) -> Tensor | None:
    """1 where a pixel was seen, (planes, 1, H, W), or None if all were."""
    seen = torch.ones_like(contents.images)
    if contents.missing is not None:
        seen[contents.missing] = 0
    if choice.file is not None:
        seen *= _from_file(contents, name, choice.file, choice)
    if choice.colour is not None:
        seen *= _from_colour(contents, name, choice.colour, choice.tolerance)
    if bool((seen.flatten(1).sum(1) == 0).any()):
        raise InputError(f"the mask of {name} hides a whole image; white is seen (--invert-mask)")
    return None if bool((seen == 1).all()) else seen


def _from_file(contents: Contents, name: Path, file: Path, choice: MaskChoice) -> Tensor:
    place = companion(file, name, "mask") if file.is_dir() else file
    picture = read_picture(place, max_megapixels=choice.max_megapixels)
    require_size("mask", place, picture, contents, name)
    values = picture.values(picture.full_range)
    white = np.nan_to_num(values) >= 0.5
    if picture.stored.dtype.kind in "iu" and values.max(initial=0) * picture.full_range[1] <= 1:
        white = picture.stored > 0  # 0 and 1 in integers, as programs write labels
    white = regrid(white ^ choice.inverted, picture.orientation, contents.orientation)
    mask = torch.from_numpy(white).to(contents.images)
    planes, _, height, width = contents.images.shape
    channels = contents.original.channels if isinstance(contents.original, Picture) else 1
    pages = planes // channels
    mask = mask.reshape(-1, picture.channels, height, width)
    if mask.shape[1] not in (1, channels):
        mask = mask.amin(1, keepdim=True)  # colours: seen if all are white
    if len(mask) in (1, pages):
        return mask.expand(pages, channels, -1, -1).reshape(planes, 1, height, width)
    if tuple(mask.shape[:2]) == (planes, 1):
        return mask
    raise InputError(
        f"the mask {place} has {len(mask)} pages, but {name} has {pages}; give one for each, "
        "or one for all"
    )


def _from_colour(
    contents: Contents, name: Path, colour: tuple[int, int, int], tolerance: int
) -> Tensor:
    if not isinstance(contents.original, Picture):
        raise InputError(f"{name} is DICOM and has no colours; use --mask")
    channels = contents.original.channels
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
