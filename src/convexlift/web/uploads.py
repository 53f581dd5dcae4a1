"""Files from visitors: the routes that receive them, and decoding within limits.

A few hundred bytes can declare gigabytes of pixels. The first bytes of a file give its kind, its
header gives its size, and only then is it decoded. Nothing is unpickled, and DICOM files that are
deflated as a whole, whose size no header declares, are refused.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from torch import Tensor

from convexlift.files.pictures import read_picture
from convexlift.files.planes import pillow
from convexlift.scans.attenuation import LOWEST, RANGE, hounsfield_to_unit
from convexlift.scans.errors import ScanFileError, load_extra
from convexlift.scans.files import read_volume
from convexlift.web.job import BOX
from convexlift.web.limits import MEGABYTE, Limits, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.requests import VISITOR
from convexlift.web.visitors import MOST_LAYERS, MOST_UPLOADS, Sessions, session_key

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy")
SCANS = (".dcm", ".dicom", ".ima")
"""Endings of file names, in upper or lower case."""

_WINDOW = ((-200 - LOWEST) / RANGE, (300 - LOWEST) / RANGE)  # soft tissue, -200 to 300 HU
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


def upload_routes(sessions: Sessions) -> list[Route]:
    """Routes for files and drawings, which come before Gradio's own.

    Gradio names uploads by their content, in one folder for all visitors, and keeps the drawings
    of all visitors in one place without a bound.
    """
    limits = sessions.limits

    async def upload(request: Request) -> Response:
        paths = []
        async with request.form(max_files=MOST_UPLOADS, max_fields=MOST_UPLOADS) as form:
            files = [item for _, item in form.multi_items() if isinstance(item, UploadFile)]
            if any((file.size or 0) > limits.upload_bytes for file in files):
                most = f"the limit is {limits.upload_bytes / MEGABYTE:.3g} MB"
                return PlainTextResponse(f"The file is too large: {most}.", status_code=413)
            if not files:
                return PlainTextResponse("There is no file in the request.", status_code=400)
            for file in files:
                arguments = request.scope[VISITOR], file.filename or "", file.file
                paths.append(str(await run_in_threadpool(sessions.uploads.add, *arguments)))
        return JSONResponse(paths)

    async def upload_progress(request: Request) -> Response:
        # Uploads are small: their progress is not reported.
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    async def component_server(request: Request) -> Response:
        async with request.form(max_files=1, max_fields=16) as form:
            drawing, kind, name = form.get("file"), form.get("type"), form.get("id")
            key = session_key(request.scope[VISITOR], form.get("session_hash"))
            layer = _layer_number(form.get("index"))
            if form.get("fn_name") != "accept_blobs" or key is None or not isinstance(name, str):
                raise HTTPException(404, "There is no such function.")
            # The background and the composite show the picture, which the server has already.
            if kind == "layer" and layer is not None and isinstance(drawing, UploadFile):
                content = await drawing.read()
                try:
                    opacity = await run_in_threadpool(read_layer, content, limits)
                    sessions.of(key).keep_drawing(name[:64], layer, opacity)
                except PageError as error:
                    raise HTTPException(400, str(error)) from None
        return JSONResponse(None)

    return [
        Route("/gradio_api/upload", upload, methods=["POST"]),
        Route("/gradio_api/upload_progress", upload_progress, methods=["GET"]),
        Route("/gradio_api/component_server", component_server, methods=["POST"]),
        Route("/gradio_api/component_server/", component_server, methods=["POST"]),
    ]


def read_upload(path: Path, limits: Limits, *, colours: bool = True) -> InputPicture:
    """A picture file as values between 0 and 1; three planes for colours, unless unwanted."""
    name = shown_name(path)
    kind = _kind(path, name, limits)
    _check_declared_size(path, name, kind, limits)
    try:
        contents = read_picture(path)
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
    return InputPicture(values, name)


def read_slice(path: Path, limits: Limits) -> InputPicture:
    """The central square of a CT slice, from a DICOM file, on the scale of the regularizers."""
    name = shown_name(path)
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:132] != b"DICM":
        raise PageError(f"{name} is not a DICOM file.", "Upload one CT slice as DICOM.")
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
    values = hounsfield_to_unit(square).clamp(*BOX["ct"]).contiguous()
    return InputPicture(values, name, window=_WINDOW)


def read_layer(content: bytes | Path, limits: Limits) -> NDArray[np.uint8]:
    """The opacity of a layer painted with the brush, (H, W); PNG or WebP, sent by the page."""
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
    """The name of a file as the page shows it: short, without special characters."""
    plain = "".join(c if c.isalnum() or c in " ._-()+" else "_" for c in path.name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 9]}...{plain[-6:]}"


def _kind(path: Path, name: str, limits: Limits) -> str:
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(16)
    kind = next((k for k, openings in _MAGIC.items() if start.startswith(openings)), None)
    if kind is None:
        raise PageError(
            f"{name} is not a PNG, JPEG, TIFF or NPY file.", "Save the picture as one of these."
        )
    suffix = path.suffix.lower()
    named = next((k for k, endings in _ENDINGS.items() if suffix in endings), None)
    if suffix not in PICTURES or named != (kind if kind in _ENDINGS else None):
        raise PageError(f"{name} is a {kind} file with another ending.", "Rename it.")
    return kind


def _check_declared_size(path: Path, name: str, kind: str, limits: Limits) -> None:
    """Refuse a file by the size in its header, before any pixel is decoded."""
    module = pillow()
    declared = {"NPY": _declared_by_npy, "TIFF": _declared_by_tiff}.get(kind, _declared_by_pillow)
    try:
        height, width, pages, numbers = declared(path, name)
    except PageError:
        raise
    except (module.DecompressionBombError, module.DecompressionBombWarning):
        raise _too_large(name, limits) from None
    except Exception:  # decoders of damaged files raise nearly everything
        raise PageError(
            f"{name} cannot be read: it is damaged.", "Save it again, or upload another file."
        ) from None
    if pages > 1:
        raise PageError(f"{name} has {pages} pages.", "Upload one of them.")
    limits.check_size(height, width, name)
    if numbers > 4 * limits.pixels:
        raise PageError(
            f"{name} declares {numbers:,} numbers.", "Upload one picture, grey or in colour."
        )


def _declared_by_pillow(path: Path, name: str) -> tuple[int, int, int, int]:
    """Height, width, pages, and the numbers that are decoded at once."""
    with pillow().open(path, formats=("PNG", "JPEG")) as image:
        width, height = image.size
        return height, width, getattr(image, "n_frames", 1), height * width


def _declared_by_tiff(path: Path, name: str) -> tuple[int, int, int, int]:
    with load_extra("tifffile", "TIFF files").TiffFile(path) as file:
        page = file.pages.first
        # A tile is decoded as a whole, whatever the size of the picture is.
        tile = page.tilelength * page.tilewidth if page.is_tiled else 0
        numbers = max(math.prod(page.shape), tile)
        return int(page.imagelength), int(page.imagewidth), len(file.pages), numbers


def _declared_by_npy(path: Path, name: str) -> tuple[int, int, int, int]:
    form = np.lib.format
    with path.open("rb") as file:
        first = form.read_magic(file) == (1, 0)
        read: Any = form.read_array_header_1_0 if first else form.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.hasobject:
        raise PageError(f"{name} holds Python objects.", "Save plain numbers with numpy.save.")
    sides = [side for side in shape if side not in (1, 3, 4)]
    if len(sides) != 2 or len(shape) > 4:
        raise PageError(f"{name} has the shape {shape}.", "Upload (H, W) or (H, W, 3).")
    return sides[0], sides[1], 1, math.prod(shape)


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
        raise PageError(f"{name} contains no image.", "Upload one CT slice.") from None
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
    """For files that Pillow refuses before it reports their size."""
    return PageError(
        f"{name} has far too many pixels.", f"The limit is {limits.pixels:,}: scale it down."
    )


def _unreadable(error: Exception, path: Path, name: str, hint: str) -> PageError:
    """One sentence that names the file: the reader's own message, if it was written for people."""
    if isinstance(error, ValueError | ImportError | ScanFileError):
        reason = _sentence(str(error).replace(str(path), name))
        return PageError(reason if name in reason else f"{name} cannot be read: {reason}", hint)
    log.warning("a reader failed", exc_info=error)
    return PageError(f"{name} cannot be read: it is damaged, or of a rare kind.", hint)


def _layer_number(text: Any) -> int | None:
    with contextlib.suppress(TypeError, ValueError):
        number = int(text)
        if 0 <= number < MOST_LAYERS:
            return number
    return None


def _is_grey(values: Tensor) -> bool:
    return bool((values[0] == values[1]).all() and (values[1] == values[2]).all())


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:200]}..." if len(text) > 200 else f"{text}."
