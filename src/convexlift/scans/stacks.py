"""Slices in PNG and TIFF files, read as HU = slope * stored + intercept."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convexlift.files.planes import open_picture
from convexlift.files.tiff import open_tiff
from convexlift.scans.errors import PathLike, ScanFileError, existing, load_extra, reading
from convexlift.scans.folders import files_in
from convexlift.scans.slice_metadata import Places
from convexlift.scans.volumes import Volume

TIFF = (".tif", ".tiff")
PNG = (".png",)

_CENTIMETRES = 3  # of the TIFF tag ResolutionUnit


@dataclass(frozen=True)
class _Pages:
    """The numbers of one file, (slices, H, W), and what it says about them."""

    path: Path
    stored: NDArray[Any]
    places: Places | None
    spacing: tuple[float, float] | None


def read_stack(
    path: PathLike,
    *,
    spacing: tuple[float, float] | None = None,
    slice_spacing: float = 1.0,
    slope: float | None = None,
    intercept: float | None = None,
    max_megapixels: float | None = None,
) -> Volume:
    """Slices of a TIFF file with one or more pages, a PNG file, or a folder of one of these.

    Files in a folder are taken in the order people count. What was written here says itself where
    slices are and what numbers mean. Of other files, floats and signed integers are HU, and
    unsigned integers need ``slope`` and ``intercept``.

    Args:
        path: a file or folder.
        spacing: (dy, dx) in mm, for files that do not say it in centimetres.
        slice_spacing: the distance of slices in mm, for files that do not say where they are.
        slope: HU = slope * stored + intercept.
        intercept: see ``slope``.
        max_megapixels: replaces the limits on the size that the header of a file may declare.

    Raises:
        ScanFileError: naming the file, and what to do.
    """
    place = existing(path)
    files = _pictures_in(place) if place.is_dir() else [place]
    pages = [_reader(file)(file, max_megapixels) for file in files]
    for page in pages:
        if page.stored.shape[1:] != pages[0].stored.shape[1:]:
            raise ScanFileError(
                f"{page.path} has slices of {page.stored.shape[1:]} pixels and {pages[0].path} of "
                f"{pages[0].stored.shape[1:]}; a volume needs one size"
            )
    values = np.concatenate([_hounsfield(page, slope, intercept) for page in pages])
    with reading(place, "slices"):
        return _placed(place, torch.from_numpy(values), pages, spacing, slice_spacing)


def _placed(
    place: Path,
    values: torch.Tensor,
    pages: list[_Pages],
    spacing: tuple[float, float] | None,
    slice_spacing: float,
) -> Volume:
    known = [page.places for page in pages if page.places is not None]
    if len(known) == len(pages) and spacing is None:
        first = known[0]
        for page, places in zip(pages, known, strict=True):
            if (places.spacing, places.orientation) != (first.spacing, first.orientation):
                raise ScanFileError(
                    f"{page.path} and {pages[0].path} have other pixel spacings or orientations; "
                    "a volume needs one grid"
                )
        return Volume(
            values,
            first.spacing,
            tuple(position for places in known for position in places.positions),
            first.orientation,
            first.thickness,
        )
    spacing = spacing or pages[0].spacing
    if spacing is None:
        raise ScanFileError(
            f"{pages[0].path} does not say how large its pixels are; write "
            "read_stack(path, spacing=(dy, dx)) in mm"
        )
    return Volume.stacked(values, spacing, slice_spacing)


def _hounsfield(page: _Pages, slope: float | None, intercept: float | None) -> NDArray[np.float32]:
    places = page.places
    if slope is None and intercept is None and places is not None:
        if places.clipped:
            raise ScanFileError(
                f"{page.path} was written with a window that clipped {places.clipped} pixels: "
                "their CT numbers are lost; read what it was made from"
            )
        slope, intercept = places.slope, places.intercept
    if slope is None and intercept is None and page.stored.dtype.kind == "u":
        raise ScanFileError(
            f"{page.path} holds {page.stored.dtype}, and CT numbers are negative too; write "
            "read_stack(path, slope=..., intercept=...) for HU = slope * stored + intercept"
        )
    factor, offset = 1.0 if slope is None else slope, 0.0 if intercept is None else intercept
    if not (math.isfinite(factor) and factor != 0 and math.isfinite(offset)):
        raise ValueError(f"slope and intercept must be finite, got {factor} and {offset}")
    values = np.empty(page.stored.shape, dtype=np.float32)
    with np.errstate(over="ignore"):  # what overflows is found below
        for target, stored in zip(values, page.stored, strict=True):
            target[:] = factor * stored.astype(np.float64) + offset
    if not np.isfinite(values).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ScanFileError(f"{page.path} is {values[index]} HU at (slice, row, column) {index}")
    return values


def _pictures_in(folder: Path) -> list[Path]:
    files = [file for file in files_in(folder) if file.suffix.lower() in TIFF + PNG]
    kinds = {file.suffix.lower() in PNG for file in files}
    if len(kinds) != 1:
        what = "both PNG and TIFF files" if files else "no PNG or TIFF files"
        raise ScanFileError(f"{folder} holds {what}; give a folder with slices of one kind")
    return files


def _reader(path: Path) -> Callable[[Path, float | None], _Pages]:
    suffix = path.suffix.lower()
    if suffix in TIFF:
        return _read_tiff
    if suffix in PNG:
        return _read_png
    raise ScanFileError(f"{path} is no stack of slices: its name ends in none of {TIFF + PNG}")


def _read_png(path: Path, max_megapixels: float | None) -> _Pages:
    load_extra("PIL.Image", "PNG files")
    with reading(path, "PNG"), open_picture(path, max_megapixels) as picture:
        if picture.format != "PNG":
            raise ScanFileError(f"{path} is a {picture.format} file, despite its name; rename it")
        if picture.mode != "L" and not picture.mode.startswith("I"):
            raise ScanFileError(
                f"{path} is a picture of mode {picture.mode}; slices are grey, of 8 or 16 bits"
            )
        picture.load()
        kind = np.uint8 if picture.mode == "L" else np.uint16
        return _Pages(
            path,
            np.asarray(picture).astype(kind)[None],
            Places.from_text(picture.text.get("Description")),
            None,  # the resolution inside PNG files is rounded, and mostly that of a screen
        )


def _read_tiff(path: Path, max_megapixels: float | None) -> _Pages:
    load_extra("tifffile", "TIFF files")
    with reading(path, "TIFF"), open_tiff(path, max_megapixels) as file:
        _require_whole(path, file)
        first = file.pages.first
        if first.samplesperpixel != 1 or first.photometric != 1:
            raise ScanFileError(
                f"{path} is {first.photometric.name} with {first.samplesperpixel} sample(s) for "
                "each pixel; slices are grey, with 0 for black"
            )
        # Pages of other sizes are further series, or "levels" of what is taken for a pyramid.
        shapes = [level.shape for series in file.series for level in series.levels]
        if len(shapes) != 1 or len(shapes[0]) not in (2, 3):
            raise ScanFileError(
                f"{path} has images of the shapes {shapes}; it must have one stack of slices of "
                "one size"
            )
        try:
            stored = np.asarray(file.series[0].asarray())
        except ValueError as error:
            if "imagecodecs" not in str(error):
                raise
            raise ScanFileError(
                f"{path} is compressed as {first.compression.name} and needs a codec, "
                "pip install imagecodecs"
            ) from error
        places = Places.from_text(first.description)
        stored = stored.reshape(-1, *stored.shape[-2:])
        if places is not None and len(places.positions) != len(stored):
            raise ScanFileError(
                f"{path} holds {len(stored)} of {len(places.positions)} slices; copy it again"
            )
        if stored.dtype.kind not in "iuf":
            raise ScanFileError(f"{path} holds {stored.dtype}; slices are real numbers")
        return _Pages(path, stored, places, _spacing(first.tags))


def _require_whole(path: Path, file: Any) -> None:
    """Pages form a chain that ends in 0; in a file cut short it points behind the end.

    The reader would stop there without a word, and slices be missing.
    """
    file.filehandle.seek(file.pages.next_page_offset)
    end = file.filehandle.read(file.tiff.offsetsize)
    if len(end) < file.tiff.offsetsize or struct.unpack(file.tiff.offsetformat, end)[0]:
        raise ScanFileError(f"{path} is cut short after {len(file.pages)} page(s); copy it again")


def _spacing(tags: Any) -> tuple[float, float] | None:
    """(dy, dx) in mm from pixels per centimetre; 72 per inch is what programs write by default."""
    unit, across, down = (tags.get(name) for name in (296, 282, 283))
    if unit is None or across is None or down is None or unit.value != _CENTIMETRES:
        return None
    (x, of_x), (y, of_y) = across.value, down.value
    return (10 * of_y / y, 10 * of_x / x) if x and y and of_x and of_y else None
