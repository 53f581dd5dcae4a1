"""Pictures as tensors, and as PNG: grey or colour, and maps of errors and gaps in false colours."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from convexlift.files.formats import pillow
from convexlift.files.png_jpeg import with_deep_colours

Pixels = NDArray[np.uint8]

PREVIEW = 512
"""The longer side in pixels of pictures shown during a run."""


@dataclass(frozen=True, eq=False)
class InputPicture:
    """A picture that a visitor chose.

    Attributes:
        values: (1, C, H, W) in float32: one channel, or red, green and blue.
        name: shown on the page.
        example: whether it comes with the package, under that name.
        clean: whether it is known to be clean: an example, or the visitor says so. Results are
            compared with clean pictures only.
        window: the values that are shown as black and white.
        scaled_from: height and width of a picture that was too large, before it was scaled down.
        middle: the unscaled middle of such a picture.
        whole: makes the whole unscaled picture, which is kept in the few bits of its file.
        tiled: whether to solve it in tiles.
        jpeg: luma quantization of the JPEG file whose blocks these are, for the estimate of noise.
    """

    values: Tensor
    name: str
    example: bool = False
    clean: bool = False
    window: tuple[float, float] = (0.0, 1.0)
    scaled_from: tuple[int, int] | None = None
    middle: InputPicture | None = None
    whole: Callable[[], InputPicture] | None = None
    tiled: bool = False
    jpeg: tuple[int, ...] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return (self.values.shape[-2], self.values.shape[-1])


class NotShown(ValueError):
    """The values are not finite and cannot be shown."""


def grey_or_colour(x: Tensor, low: float = 0.0, high: float = 1.0) -> Pixels:
    """One plane as (H, W); three planes, or one image of three channels, as (H, W, 3).

    ``low`` is black and ``high`` white.
    """
    _require_finite(x)
    levels = ((x.detach().cpu() - low) / (high - low)).clamp(0, 1)
    pixels = (255 * levels).round().to(torch.uint8).flatten(0, 1)
    plane: Pixels = (pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy()
    return plane


def false_colours(values: Tensor, highest: float) -> Pixels:
    """(H, W) between 0 and ``highest`` as (H, W, 3), dark to bright."""
    _require_finite(values)
    levels = (values.detach().cpu() / max(highest, 1e-30)).clamp(0, 1).numpy()
    colours: Pixels = matplotlib.colormaps["magma"](levels, bytes=True)[..., :3]
    return colours


def preview(x: Tensor) -> Tensor:
    """Means over blocks, so that the longer side has at most ``PREVIEW`` pixels."""
    block = math.ceil(max(x.shape[-2:]) / PREVIEW)
    return x if block == 1 else avg_pool2d(x, block)


def png(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    pillow().fromarray(pixels).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def data_url(pixels: Pixels) -> str:
    """A picture inside the page: no file is written for it."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def deep_png(x: Tensor) -> bytes:
    """The content of a PNG file with 16 bits per sample, for downloads."""
    _require_finite(x)
    # In double precision: in single precision, the product itself is rounded.
    levels = (65535 * x.detach().cpu().to(torch.float64).clamp(0, 1)).round().flatten(0, 1)
    planes = levels.numpy().astype(np.uint16)
    if len(planes) == 1:
        return png(planes[0])
    pixels = planes.transpose(1, 2, 0)
    # Pillow has no 16-bit colours: it writes the high bytes, and the samples are replaced.
    return with_deep_colours(png((pixels >> 8).astype(np.uint8)), pixels)


def _require_finite(x: Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        raise NotShown("the values are not finite")
