"""Which pixels of an image were seen: by a mask, by a colour, or by NaN in floats."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import regrid
from convexlift.reconstruction.contents import (
    Contents,
    ImageLike,
    InputError,
    is_path,
    open_picture,
)

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
) -> Tensor | None:
    """1 where a pixel was seen, (planes, 1, H, W), or None if all were.

    Missing are pixels that are NaN, black in the mask (white if ``inverted``), or within
    ``tolerance`` levels of 255 of ``colour``. A mask file is laid on the image as both are
    displayed, since masks are drawn on displayed pictures; an array broadcasts to the image.
    """
    if contents.missing is None and mask is None and colour is None:
        return None
    seen = torch.ones_like(contents.images)
    if contents.missing is not None:
        seen[contents.missing] = 0
    if mask is not None:
        seen *= _from_mask(contents, mask, inverted)
    if colour is not None:
        seen *= _from_colour(contents, colour, tolerance)
    if bool((seen.flatten(1).sum(1) == 0).any()):
        raise InputError(
            f"the mask of {contents.name} hides a whole image; white is seen (--invert-mask)"
        )
    return None if bool((seen == 1).all()) else seen


def _from_mask(contents: Contents, mask: ImageLike, inverted: bool) -> Tensor:
    own = contents.pages_of(mask)
    picture, name = open_picture(mask, "the mask", (0.0, 1.0), own)
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
