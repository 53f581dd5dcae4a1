"""Slices in TIFF and PNG files: HU = slope * stored + intercept, with positions as JSON text."""

from __future__ import annotations

import json
import math
import struct
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.files.pictures import Picture, write_picture
from convexlift.files.png_jpeg import Png
from convexlift.files.tiff import Tiff, colours_of, decoded, open_tiff
from convexlift.json_values import construct
from convexlift.scans.files import (
    PathLike,
    ScanFileError,
    VolumeFormat,
    existing,
    files_in,
    reading,
    write_slices,
)
from convexlift.scans.volumes import Orientation, Vector, Volume, Window
from convexlift.tensors import first_non_finite

FORMAT = "convexlift CT slices"
_CENTIMETRES = 3  # a value of the TIFF tag ResolutionUnit


@dataclass(frozen=True)
class SliceMetadata:
    """The JSON text in a file of slices: a ``Volume`` without its values, and their scale.

    HU = slope * stored + intercept; ``clipped`` pixels were outside the display window.
    """

    spacing: tuple[float, float]
    positions: tuple[Vector, ...]
    orientation: Orientation
    thickness: float | None
    slope: float
    intercept: float
    clipped: int

    @classmethod
    def of(
        cls, volume: Volume, slices: Iterable[int],
        slope: float = 1.0, intercept: float = 0.0, clipped: int = 0,
    ) -> SliceMetadata:  # fmt: skip
        """The metadata of some slices of a volume."""
        place = (volume.spacing, tuple(volume.positions[k] for k in slices), volume.orientation)
        return cls(*place, volume.thickness, slope, intercept, clipped)

    def to_text(self) -> str:
        """JSON in ASCII."""
        return json.dumps({"format": FORMAT, **vars(self)})

    @classmethod
    def from_text(cls, text: str | bytes | None) -> SliceMetadata | None:
        """The metadata in text written by this module, or None for text of another program."""
        try:
            record = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            return None
        return construct(cls, record, "its description of the slices")


@dataclass(frozen=True, eq=False)
class StackFile:
    """The numbers of one file, (slices, H, W), with our metadata or a spacing (dy, dx) in mm."""

    path: Path
    stored: NDArray[Any]
    metadata: SliceMetadata | None
    spacing: tuple[float, float] | None = None

    def hounsfield(self, slope: float | None, intercept: float | None) -> NDArray[np.float32]:
        """slope * stored + intercept; by default with the file's own values, or 1 and 0."""
        if slope is None and intercept is None:
            if self.metadata is not None:
                slope, intercept = self.metadata.slope, self.metadata.intercept
                if clipped := self.metadata.clipped:
                    raise ScanFileError(
                        f"{self.path} was written with a window that clipped {clipped} pixels: "
                        "their CT numbers are lost; read the original files"
                    )
            elif self.stored.dtype.kind == "u":
                raise ScanFileError(
                    f"{self.path} holds {self.stored.dtype}, but CT numbers can be negative; write "
                    "read_stack(path, slope=..., intercept=...) for HU = slope * stored + intercept"
                )
        factor, offset = 1.0 if slope is None else slope, 0.0 if intercept is None else intercept
        if not (math.isfinite(factor) and factor != 0 and math.isfinite(offset)):
            raise ValueError(f"slope and intercept must be finite, got {factor} and {offset}")
        values = np.empty(self.stored.shape, dtype=np.float32)
        with np.errstate(over="ignore"):  # overflow is reported below
            # Slice by slice: a double-precision copy of a large volume may not fit the memory.
            for target, stored in zip(values, self.stored, strict=True):
                target[:] = factor * stored.astype(np.float64) + offset
        if not np.isfinite(values).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ScanFileError(
                f"{self.path} is {values[index]} HU at (slice, row, column) {index}"
            )
        return values


class StackFormat(VolumeFormat):
    """A format whose files hold one or more slices, and whose folders hold a volume."""

    pictures = True

    @abstractmethod
    def read_slices(self, path: Path) -> StackFile:
        """The slices of one file."""

    def read(self, place: Path) -> Volume:
        """Read all files with ``read_stack``."""
        return read_stack(place)


class TiffStack(StackFormat):
    """Pages of one size, in any number type."""

    name = "TIFF"
    suffixes = Tiff.suffixes

    def read_slices(self, path: Path) -> StackFile:
        """All pages; the spacing follows from pixels per centimetre."""
        load_extra("tifffile", "TIFF files")
        with reading(path, "TIFF"), open_tiff(path) as file:
            _require_whole(path, file)
            first = file.pages.first
            if first.samplesperpixel != 1 or first.photometric != 1:
                raise ScanFileError(
                    f"{path} is {colours_of(first)} with {first.samplesperpixel} sample(s) "
                    "per pixel; slices must be grey, with 0 for black"
                )
            # Pages of other sizes appear as further series, or as "levels" of a supposed pyramid.
            shapes = [level.shape for series in file.series for level in series.levels]
            if len(shapes) != 1 or len(shapes[0]) not in (2, 3):
                raise ScanFileError(
                    f"{path} has images of the shapes {shapes}; it must have one stack of slices "
                    "of one size"
                )
            picture = decoded(file)
            if picture.stored.dtype.kind not in "iuf":
                raise ScanFileError(
                    f"{path} holds {picture.stored.dtype}; slices need real numbers"
                )
            metadata = SliceMetadata.from_text(picture.metadata.get("description"))
        if metadata is not None and len(metadata.positions) != len(picture.stored):
            raise ScanFileError(
                f"{path} holds {len(picture.stored)} of {len(metadata.positions)} slices; "
                "copy it again"
            )
        return StackFile(path, picture.stored, metadata, _spacing(picture.metadata))

    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write with ``write_tiff``."""
        return (write_tiff(volume, place),)


class PngStack(StackFormat):
    """A grey slice of 8 or 16 bits."""

    name = "PNG"
    suffixes = Png.suffixes

    def read_slices(self, path: Path) -> StackFile:
        """The slice, without a spacing: resolutions in PNG files are rounded, or of a screen."""
        load_extra("PIL.Image", "PNG files")
        with reading(path, "PNG"):
            with path.open("rb") as file:
                if Png().misnamed(file.read(8)):
                    raise ValueError("it is not a PNG file, despite its name; rename it")
            picture = Png().read(path)
            if picture.channels > 1 or picture.alpha is not None or picture.stored.dtype == bool:
                raise ScanFileError(
                    f"{path} has {picture.channels} channel(s), or alpha, or 1 bit; slices must be "
                    "grey, with 8 or 16 bits"
                )
            text = picture.metadata.get("tEXt", {}).get("Description")
            return StackFile(path, picture.stored, SliceMetadata.from_text(text))

    def write(self, volume: Volume, place: Path, description: str) -> tuple[Path, ...]:
        """Write one slice with 16 bits; see ``write_png``."""
        return write_png(volume, place, bits=16)


def read_stack(
    path: PathLike,
    *,
    spacing: tuple[float, float] | None = None,
    slice_spacing: float = 1.0,
    slope: float | None = None,
    intercept: float | None = None,
) -> Volume:
    """Slices of a TIFF file with one or more pages, a PNG file, or a folder of one of these.

    Files in a folder are read in natural order. Our own files contain the positions of slices and
    the meaning of numbers. In other files, floats and signed integers are HU, and unsigned integers
    need ``slope`` and ``intercept``.

    Args:
        path: a file or folder.
        spacing: (dy, dx) in mm, for files that do not give it per centimetre.
        slice_spacing: distance between slices in mm, for files without positions.
        slope: HU = slope * stored + intercept.
        intercept: see ``slope``.

    Raises:
        ScanFileError: naming the file, the fault and a remedy.
    """
    place = existing(path)
    stacks = _read_files(place)
    first = stacks[0]
    for each in stacks:
        if each.stored.shape[1:] != first.stored.shape[1:]:
            raise ScanFileError(
                f"{each.path} has slices of {each.stored.shape[1:]} pixels and {first.path} of "
                f"{first.stored.shape[1:]}; a volume needs one size"
            )
    values = torch.from_numpy(np.concatenate([s.hounsfield(slope, intercept) for s in stacks]))
    with reading(place, "slices"):
        known = [each.metadata for each in stacks if each.metadata is not None]
        if spacing is None and len(known) == len(stacks):
            grid = known[0]
            for stack, own in zip(stacks, known, strict=True):
                if (own.spacing, own.orientation) != (grid.spacing, grid.orientation):
                    raise ScanFileError(
                        f"{stack.path} and {first.path} differ in pixel spacing or orientation; "
                        "a volume needs one grid"
                    )
            positions = tuple(position for own in known for position in own.positions)
            return Volume(values, grid.spacing, positions, grid.orientation, grid.thickness)
        if (spacing := spacing or first.spacing) is None:
            raise ScanFileError(
                f"{first.path} does not give its pixel size; write "
                "read_stack(path, spacing=(dy, dx)) in mm"
            )
        return Volume.stacked(values, spacing, slice_spacing)


def _read_files(place: Path) -> list[StackFile]:
    files = files_in(place) if place.is_dir() else [place]
    formats = [(file, VolumeFormat.of(file)) for file in files]
    known = [(file, kind) for file, kind in formats if isinstance(kind, StackFormat)]
    if not known and not place.is_dir():
        raise ScanFileError(f"{place} is not a stack of slices; its name must end in .tif or .png")
    names = sorted({kind.name for _, kind in known})
    if len(names) != 1:
        found = f"both {' and '.join(names)} files" if names else "no PNG or TIFF files"
        raise ScanFileError(f"{place} holds {found}; give a folder with slices of one kind")
    return [kind.read_slices(file) for file, kind in known]


def _require_whole(path: Path, file: Any) -> None:
    """Raise if the chain of pages, which ends in 0, points beyond the end: the file is cut short.

    The reader would stop there without an error, and slices would be missing.
    """
    file.filehandle.seek(file.pages.next_page_offset)
    end = file.filehandle.read(file.tiff.offsetsize)
    if len(end) < file.tiff.offsetsize or struct.unpack(file.tiff.offsetformat, end)[0]:
        raise ScanFileError(f"{path} is cut short after {len(file.pages)} page(s); copy it again")


def _spacing(metadata: dict[str, Any]) -> tuple[float, float] | None:
    """(dy, dx) in mm from pixels per centimetre only: programs write 72 per inch by default."""
    if metadata.get("resolutionunit") != _CENTIMETRES:
        return None
    (x, of_x), (y, of_y) = metadata["resolution"]
    return (10 * of_y / y, 10 * of_x / x)


def write_tiff(volume: Volume, path: PathLike) -> Path:
    """HU in float32, a page per slice, with pixels per centimetre and slice positions."""
    load_extra("tifffile", "TIFF files")
    place = Path(path)
    if place.suffix.lower() not in Tiff.suffixes:
        raise ScanFileError(f"{place} does not name a TIFF file; use the ending .tif")
    values = volume.values.detach().cpu().float().numpy()
    dy, dx = volume.spacing
    metadata = {
        "resolution": (10 / dx, 10 / dy),
        "resolutionunit": "CENTIMETER",
        "description": SliceMetadata.of(volume, range(len(values))).to_text(),
    }
    write_picture(Picture(values, layout=values.shape, metadata=metadata), place)
    return place


def write_png(
    image: Volume | Tensor,
    path: PathLike,
    *,
    window: Window | str | None = None,
    bits: Literal[8, 16] = 8,
) -> tuple[Path, ...]:
    """Pictures of CT numbers, black at the lower end of the window and white at the upper one.

    A name ending in ``.png`` takes one slice; any other is a new or empty folder.

    Args:
        image: a volume, or values in HU of the shape (H, W), (slices, H, W) or (slices, 1, H, W).
        path: the file or folder.
        window: a ``Window``, or the name of one in ``WINDOWS``; the default covers all values.
        bits: 8, or 16 for pictures that ``read_volume`` can convert back to HU.

    Returns:
        The files, in the order of the slices.
    """
    load_extra("PIL.Image", "PNG files")
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")
    values = _slice_values(image)
    chosen = Window.covering(values) if window is None else Window.named(window)
    levels = 2**bits - 1

    def save(target: Path, k: int) -> None:
        pixels = (levels * chosen.apply(values[k].double())).round().numpy()
        metadata: dict[str, Any] = {}
        if isinstance(image, Volume):
            about = SliceMetadata.of(
                image, [k], slope=chosen.width / levels, intercept=chosen.low,
                clipped=chosen.clipped(values[k]),
            )  # fmt: skip
            dy, dx = image.spacing
            text = {"Description": about.to_text()}
            metadata = {"tEXt": text, "dpi": (25.4 / dx, 25.4 / dy)}
        stored = pixels.astype(np.uint8 if bits == 8 else np.uint16)[None]
        Png().write(Picture(stored, metadata=metadata), target)

    return write_slices(Path(path), len(values), Png.suffixes, save)


def _slice_values(image: Volume | Tensor) -> Tensor:
    values = (image.values if isinstance(image, Volume) else image).detach().cpu()
    shape = tuple(values.shape)
    if values.ndim == 4 and shape[1] == 1:
        values = values[:, 0]
    elif values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or 0 in shape:
        raise ValueError(f"write_png takes (H, W), (slices, H, W) or a Volume, got {shape}")
    if (place := first_non_finite(values)) is not None:
        raise ValueError(f"cannot write pictures: {float(values[place])} at {place}")
    return values
