"""Files from visitors: the routes that receive them, and decoding within limits.

A few hundred bytes can declare gigabytes of pixels. The first bytes of a file give its kind, the
readers of the package check the size in its header, and only then is it decoded. Nothing is
unpickled.
"""

from __future__ import annotations

import io
import logging
import math
from dataclasses import replace
from pathlib import Path
from threading import Lock
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

from convexlift.files.formats import EXPORTS, at_most, pillow
from convexlift.files.pictures import LUMA, equal_channels, read_picture, regrid
from convexlift.files.png_jpeg import luma_table
from convexlift.scans.files import read_volume
from convexlift.scans.volumes import LOWEST, RANGE, hounsfield_to_unit
from convexlift.web.limits import MEGABYTE, PREVIEW_PIXELS, SCALABLE, Limits, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.requests import VISITOR
from convexlift.web.run import BOX
from convexlift.web.visitors import MOST_LAYERS, MOST_UPLOADS, Sessions, session_key

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy")
SCANS = (".dcm", ".dicom", ".ima")
"""Endings of file names, in upper or lower case. Not those of other kinds that could be offered
only to refuse them: telephones convert photographs to one of these."""

_WINDOW = ((-200 - LOWEST) / RANGE, (300 - LOWEST) / RANGE)  # soft tissue, -200 to 300 HU
_MAGIC = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "NPY": (b"\x93NUMPY",),
}
_HEIF = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1", b"ftypavif")
_ENDINGS = {"TIFF": (".tif", ".tiff"), "NPY": (".npy",)}
_LONGEST_NAME = 40
_DECODING = Lock()  # one file at a time: a large picture takes hundreds of megabytes
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
            index = str(form.get("index"))
            layer = int(index) if index in map(str, range(MOST_LAYERS)) else None
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


def read_upload(
    path: Path, limits: Limits, *, colours: bool = True, mask: bool = False
) -> InputPicture:
    """A picture file as values between 0 and 1, upright.

    A picture with too many pixels is replaced by means over blocks, which keep independent noise
    independent, together with its middle and the whole in full size. A block of a mask is known if
    all of its pixels are.

    Args:
        path: the file.
        limits: the limits of the server.
        colours: whether to keep red, green and blue.
        mask: whether it is a mask.
    """
    name = shown_name(path)
    _check_kind(path, name, limits)
    with _DECODING:
        return _decoded(path, name, limits, colours, mask)


def _decoded(path: Path, name: str, limits: Limits, colours: bool, mask: bool) -> InputPicture:
    try:
        with at_most(SCALABLE * 4 * limits.pixels):  # red, green, blue and alpha
            contents = read_picture(path)
    except Exception as error:  # decoders of damaged files raise nearly every type
        hint = f"Save it as 8-bit PNG with at most {limits.pixels:,} pixels."
        raise _unreadable(error, path, name, hint) from None
    height, width = contents.stored.shape[-2:]
    limits.check_least(height, width, name)
    if height * width > SCALABLE * limits.pixels:
        limits.check_size(height, width, name)
    if len(contents.stored) not in (1, 3) or len(contents.stored) != contents.channels:
        raise PageError(
            f"{name} holds {len(contents.stored)} planes.",
            "Upload one picture, grey or in colour: one page, without further channels.",
        )
    grey = len(contents.stored) == 3 and equal_channels(contents.stored)
    stored = regrid(contents.stored, contents.orientation, 1)
    height, width = stored.shape[-2:]

    def picture(stored: NDArray[Any], **more: Any) -> InputPicture:
        numbers = replace(contents, stored=stored).values(contents.full_range)
        values = torch.from_numpy(numbers)[None].contiguous()
        _check_values(values, name)
        if values.shape[1] == 3 and (grey or equal_channels(stored)):
            values = values[:, 1:2]
        elif values.shape[1] == 3 and not colours:
            luma = torch.tensor(LUMA).reshape(3, 1, 1)
            values = (luma * values).sum(1, keepdim=True)
        return InputPicture(values, name, **more)

    upright = contents.orientation == 1  # else rows and columns of the table are not the picture's
    jpeg = luma_table(contents) if upright else None
    if height * width <= limits.pixels:
        return picture(stored, jpeg=jpeg)
    excess = height * width / min(limits.pixels, PREVIEW_PIXELS)
    block = math.ceil(math.sqrt(excess))
    rows, columns = (max(side // block, 1) for side in (height, width))
    limits.check_least(rows, columns, f"{name}, scaled down,")
    blocks = stored[:, : rows * block, : columns * block]
    blocks = blocks.reshape(-1, rows, block, columns, block)
    darkest = blocks.max if contents.inverted else blocks.min
    scaled = darkest((2, 4)) if mask else blocks.mean((2, 4), dtype=np.float32)
    down, across = (int(side / math.sqrt(excess)) for side in (height, width))
    top, left = (height - down) // 16 * 8, (width - across) // 16 * 8  # where a JPEG block begins
    middle = picture(stored[:, top : top + down, left : left + across], jpeg=jpeg)
    return picture(
        scaled, scaled_from=(height, width), middle=middle,
        whole=None if mask else lambda: picture(stored, tiled=True, jpeg=jpeg),
    )  # fmt: skip


def read_slice(path: Path, limits: Limits) -> InputPicture:
    """The central square of a CT slice, from a DICOM file, on the scale of the regularizers."""
    name = shown_name(path)
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:132] != b"DICM":
        raise PageError(
            f"{name} is not a DICOM file.",
            "Upload one CT slice as DICOM. For the data of a scanner: convexlift reconstruct ct, "
            "on the command line.",
        )
    path = path.rename(path.with_suffix(".dcm"))
    try:
        with at_most(4 * limits.pixels):
            volume = read_volume(path)
    except Exception as error:
        hint = f"Upload one slice of a CT series with at most {limits.pixels:,} pixels."
        raise _unreadable(error, path, name, hint) from None
    slices, height, width = volume.values.shape
    if slices != 1:
        raise PageError(f"{name} holds {slices} slices.", "Upload one of them.")
    limits.check_size(height, width, name)
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
        raise PageError("The drawing has far too many pixels.", "Make it smaller.") from None
    except Exception:  # decoders of damaged files raise nearly every type
        raise PageError("The drawing cannot be read.", "Clear it and draw again.") from None


def shown_name(path: Path) -> str:
    """The name of a file as the page shows it: short, without special characters."""
    plain = "".join(c if c.isalnum() or c in " ._-()+" else "_" for c in path.name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 9]}...{plain[-6:]}"


def _check_kind(path: Path, name: str, limits: Limits) -> None:
    limits.check_bytes(path.stat().st_size, name)
    with path.open("rb") as file:
        start = file.read(16)
    kind = next((k for k, openings in _MAGIC.items() if start.startswith(openings)), None)
    suffix = path.suffix.lower()
    other = ".heic" if start[4:12] in _HEIF else suffix  # often renamed to .jpg
    if other in EXPORTS and kind in (None, "TIFF"):  # many raw files begin as TIFF files do
        what, _, advice = EXPORTS[other].partition("; ")
        raise PageError(f"{name} is {what}.", f"{advice[0].upper()}{advice[1:]}.")
    if kind is None:
        raise PageError(
            f"{name} is not a PNG, JPEG, TIFF or NPY file.", "Save the picture as one of these."
        )
    named = next((k for k, endings in _ENDINGS.items() if suffix in endings), None)
    if suffix not in PICTURES or named != (kind if kind in _ENDINGS else None):
        raise PageError(f"{name} is a {kind} file with another ending.", "Rename it.")


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


def _unreadable(error: Exception, path: Path, name: str, hint: str) -> PageError:
    """The reader's reason, with the name of the file as the visitor knows it, and a hint."""
    if not isinstance(error, ValueError | ImportError):
        log.warning("a reader failed", exc_info=error)
        return PageError(f"{name} cannot be read: it is damaged, or of a rare kind.", hint)
    reason = " ".join(str(error).replace(str(path), name).partition(";")[0].split())
    reason = f"{reason[:200]}..." if len(reason) > 200 else f"{reason.rstrip('.')}."
    return PageError(reason if name in reason else f"{name} cannot be read: {reason}", hint)
