"""Files from visitors, decoded with care: kind and size are known before any pixel is.

A few hundred bytes can ask for gigabytes of pixels. So the first bytes say what a file is, its
header says how large it is, and only then is it decoded; nothing is ever unpickled, and DICOM files
that are deflated as a whole, whose size no header tells, are refused.
"""

from __future__ import annotations

import io
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.formats import load_extra, pillow
from convexlift.files.pictures import read_picture
from convexlift.scans.files import read_volume
from convexlift.scans.formats import ScanFileError
from convexlift.scans.hounsfield import hounsfield_to_unit
from convexlift.web.limits import Limits, PageError

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy")
SCANS = (".dcm", ".dicom", ".ima")
"""The names of files end in one of these, in capitals or not."""

BRIGHTEST = 2.0
"""Slices are cut off here, at 4024 HU, which is the upper bound of reconstructions."""

_MAGIC = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "NPY": (b"\x93NUMPY",),
}
_ENDINGS = {"TIFF": (".tif", ".tiff"), "NPY": (".npy",)}
_DEFLATED = "1.2.840.10008.1.2.1.99"
_LONGEST_NAME = 40
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture to work on.

    Attributes:
        values: (planes, 1, H, W) in float32: one plane, or three of a colour picture.
        name: for people.
        example: whether it is one of those inside the package, under that name.
    """

    values: Tensor
    name: str
    example: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return (self.values.shape[-2], self.values.shape[-1])


def read_upload(path: Path, limits: Limits, *, colours: bool = True) -> Picture:
    """A picture file as values between 0 and 1; three planes for colours, if they are wanted."""
    name = shown_name(path)
    kind = _kind(path, name, limits)
    check = {"NPY": _check_npy, "TIFF": _check_tiff}.get(kind, _check_pillow)
    try:
        check(path, name, kind, limits)
        contents = read_picture(path)
    except PageError:
        raise
    except Exception as error:
        raise _unreadable(error, path, name, "Save it again as 8-bit PNG.") from None
    if len(contents.stored) not in (1, 3) or len(contents.stored) != contents.channels:
        raise PageError(
            f"{name} holds {len(contents.stored)} planes.",
            "Upload one picture, grey or in colour: one page, without further channels.",
        )
    values = torch.from_numpy(contents.values(contents.full_range))[:, None].contiguous()
    _check_values(values, name)
    if len(values) == 3 and (not colours or _is_grey(values)):
        luma = torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1, 1)
        values = (luma * values).sum(0, keepdim=True)
    return Picture(values, name)


def read_slice(path: Path, limits: Limits) -> Picture:
    """The square in the middle of a CT slice, from a DICOM file, on the regularizers' scale."""
    name = shown_name(path)
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:132] != b"DICM":
        raise PageError(f"{name} is no DICOM file.", "Upload one CT slice, as scanners write it.")
    _check_dicom(path, name, limits)
    path = path.rename(path.with_suffix(".dcm"))
    try:
        volume = read_volume(path)
    except Exception as error:
        raise _unreadable(error, path, name, "Upload one slice of a CT series.") from None
    if volume.values.shape[0] != 1:
        raise PageError(f"{name} holds {volume.values.shape[0]} slices.", "Upload one of them.")
    height, width = volume.values.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = volume.images[..., top : top + side, left : left + side]
    return Picture(hounsfield_to_unit(square).clamp(0, BRIGHTEST).contiguous(), name)


def read_layer(content: bytes | Path, limits: Limits) -> NDArray[np.uint8]:
    """The opacity of what was drawn with the brush, (H, W); PNG or WebP from the page itself."""
    module = pillow()
    try:
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        with module.open(source, formats=("PNG", "WEBP")) as image:
            width, height = image.size
            limits.check_size(height, width, "the drawing")
            return np.asarray(image.convert("RGBA"))[..., 3]
    except PageError:
        raise
    except (module.DecompressionBombError, module.DecompressionBombWarning):
        raise _too_large("the drawing", limits) from None
    except Exception:  # decoders of damaged files raise nearly everything
        raise PageError("The drawing cannot be read.", "Clear it and draw again.") from None


def shown_name(path: Path) -> str:
    """The name of a file as the page shows it: short, and without anything odd."""
    plain = "".join(c if c.isalnum() or c in " ._-()+" else "_" for c in path.name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 9]}...{plain[-6:]}"


def _kind(path: Path, name: str, limits: Limits) -> str:
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(16)
    kind = next((k for k, openings in _MAGIC.items() if start.startswith(openings)), None)
    if kind is None:
        raise PageError(
            f"{name} is no PNG, JPEG, TIFF or NPY file.", "Save the picture as one of these."
        )
    suffix = path.suffix.lower()
    named = next((k for k, endings in _ENDINGS.items() if suffix in endings), None)
    if suffix not in PICTURES or named != (kind if kind in _ENDINGS else None):
        raise PageError(f"{name} is a {kind} file with another ending.", "Rename it.")
    return kind


def _check_pillow(path: Path, name: str, kind: str, limits: Limits) -> None:
    module = pillow()
    try:
        with module.open(path, formats=(kind,)) as image:
            width, height = image.size
            frames = getattr(image, "n_frames", 1)
    except (module.DecompressionBombError, module.DecompressionBombWarning):
        raise _too_large(name, limits) from None
    except Exception:
        raise PageError(f"{name} is damaged.", "Save it again, or upload another file.") from None
    limits.check_size(height, width, name)
    if frames > 1:
        raise PageError(f"{name} holds {frames} frames.", "Upload one of them.")


def _check_tiff(path: Path, name: str, kind: str, limits: Limits) -> None:
    tifffile = load_extra("tifffile", "TIFF files")
    try:
        with tifffile.TiffFile(path) as file:
            pages = len(file.pages)
            page = file.pages.first
            shape, height, width = tuple(page.shape), page.imagelength, page.imagewidth
            # Of tiles, a whole one is decoded whatever the picture's size is.
            piece = page.tilelength * page.tilewidth if page.is_tiled else 0
    except Exception:
        raise PageError(f"{name} is damaged.", "Save it again, or upload another file.") from None
    if pages > 1:
        raise PageError(f"{name} has {pages} pages.", "Upload one of them.")
    limits.check_size(height, width, name)
    if math.prod(shape) > 4 * limits.pixels or piece > 4 * limits.pixels:
        raise PageError(f"{name} has the shape {shape}.", "Upload one picture, grey or in colour.")


def _check_npy(path: Path, name: str, kind: str, limits: Limits) -> None:
    form = np.lib.format
    try:
        with path.open("rb") as file:
            version = form.read_magic(file)
            read: Any = form.read_array_header_1_0 if version == (1, 0) else None
            shape, _, dtype = (read or form.read_array_header_2_0)(file)
    except Exception:
        raise PageError(f"{name} is damaged.", "Write it again with numpy.save.") from None
    if dtype.hasobject:
        raise PageError(f"{name} holds Python objects.", "Save plain numbers with numpy.save.")
    sides = [side for side in shape if side not in (1, 3, 4)]
    if len(sides) != 2 or len(shape) > 4:
        raise PageError(f"{name} has the shape {shape}.", "Upload (H, W) or (H, W, 3).")
    limits.check_size(sides[0], sides[1], name)


def _check_dicom(path: Path, name: str, limits: Limits) -> None:
    pydicom = load_extra("pydicom", "DICOM files")
    try:
        meta = pydicom.filereader.read_file_meta_info(path)
        deflated = str(meta.get("TransferSyntaxUID", "")) == _DEFLATED
        header = None if deflated else pydicom.dcmread(path, stop_before_pixels=True)
    except Exception:
        raise PageError(f"{name} is damaged.", "Export the slice again.") from None
    if header is None:
        raise PageError(f"{name} is deflated as a whole.", "Export it without that compression.")
    try:
        height, width = int(header.Rows), int(header.Columns)
        frames = int(header.get("NumberOfFrames", 1) or 1)
    except (AttributeError, TypeError, ValueError):
        raise PageError(f"{name} holds no image.", "Upload one CT slice.") from None
    limits.check_size(height, width, name)
    if frames != 1:
        raise PageError(f"{name} holds {frames} frames.", "Upload one slice.")


def _check_values(values: Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise PageError(
            f"{name} holds NaN or infinite values.",
            "Set them to 0, and mark them as missing with the brush or a mask.",
        )
    low, high = float(values.min()), float(values.max())
    if low < -0.5 or high > 1.5:
        raise PageError(
            f"{name} holds numbers from {low:g} to {high:g}.",
            "Scale them so that 0 is black and 1 is white.",
        )


def _too_large(name: str, limits: Limits) -> PageError:
    """Where Pillow itself refuses, before it says how large the picture is."""
    return PageError(
        f"{name} has far too many pixels.", f"At most {limits.pixels:,} are taken: scale it down."
    )


def _unreadable(error: Exception, path: Path, name: str, hint: str) -> PageError:
    """One sentence that names the file: the reader's own, unless it failed without one."""
    if isinstance(error, ValueError | ImportError | ScanFileError):
        reason = _sentence(str(error).replace(str(path), name))
        return PageError(reason if name in reason else f"{name} cannot be read: {reason}", hint)
    log.warning("a reader failed", exc_info=error)
    return PageError(f"{name} cannot be read: it is damaged, or of a rare kind.", hint)


def _is_grey(values: Tensor) -> bool:
    return bool((values[0] == values[1]).all() and (values[1] == values[2]).all())


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:200]}..." if len(text) > 200 else f"{text}."
