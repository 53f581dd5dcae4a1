"""Volumes in zarr stores, a few planes at a time: arrays (..., H, W), alone or in OME-Zarr groups.

Volumes are written as OME-Zarr 0.5 with one resolution. Chunks are written atomically, and tasks
that write whole chunks do not disturb each other.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.formats import MEGAPIXELS, load_extra
from convexlift.files.pictures import Picture, PictureFormat

AXES = "tczyx"
"""The names of the last axes, if the store has none."""


@dataclass(frozen=True)
class VolumeLayout:
    """Shape, type and axes of a volume.

    Attributes:
        shape: (..., H, W).
        dtype: the type of the stored numbers.
        chunks: shape of the blocks that are stored together.
        axes: name, type and unit of each axis, as in OME-Zarr.
        scale: distance of neighbours along each axis.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    axes: tuple[dict[str, str], ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def planes(self) -> int:
        """The product of all sides except the last two."""
        return int(np.prod(self.shape[:-2]))

    @property
    def thickness(self) -> int:
        """The number of neighbouring planes in one chunk."""
        return min(self.chunks[-3], self.shape[-3])

    def resized(self, planes: int, size: Sequence[int]) -> VolumeLayout:
        """The layout (planes, H, W) of other planes; the same if neither number nor size changes.

        No chunk has planes of several stacks (Z, H, W), which are far apart.
        """
        if (planes, *size) == (self.planes, *self.shape[-2:]):
            return replace(self, chunks=(1,) * len(self.shape[:-3]) + self.chunks[-3:])
        return VolumeLayout((planes, *size), self.dtype, (self.thickness, *size))

    def edges(self, least: int) -> list[int]:
        """The first planes of slabs of whole chunks, at least ``least`` planes each, and the end.

        Only the last slab may have fewer. Each chunk is inside one stack (Z, H, W).
        """
        found, depth = [0], self.shape[-3]
        for stack in range(0, self.planes, depth):  # its last chunk may be cut off
            for plane in range(stack, stack + depth, self.thickness):
                if plane - found[-1] >= least:
                    found.append(plane)
        return [*found, self.planes]

    def attributes(self) -> dict[str, Any]:
        """The metadata of OME-Zarr 0.5."""
        names = AXES[-len(self.shape) :]
        kinds = {"t": "time", "c": "channel"}
        default = tuple({"name": n, "type": kinds.get(n, "space")} for n in names)
        scale = list(self.scale or (1.0,) * len(self.shape))
        transformations = [{"type": "scale", "scale": scale}]
        datasets = [{"path": "0", "coordinateTransformations": transformations}]
        image = {"axes": list(self.axes or default), "datasets": datasets}
        return {"ome": {"version": "0.5", "multiscales": [image]}}


class Zarr(PictureFormat):
    """A folder with the chunks of an array (..., H, W)."""

    name = "Zarr"
    suffixes = (".zarr",)
    holds_nan = True
    folder = True

    def read(self, path: Path, max_megapixels: float | None) -> Picture:
        """All planes."""
        return self.read_pages(path, slice(None), max_megapixels)

    def read_pages(self, path: Path, pages: slice, max_megapixels: float | None) -> Picture:
        """Some of the planes; the others are not decoded, except in the same chunks."""
        with _array(path) as (array, layout):
            wanted = range(layout.planes)[pages]
            numbers = len(wanted) * np.prod(layout.shape[-2:]) / 1e6
            if numbers > (limit := max_megapixels or MEGAPIXELS):
                raise ValueError(
                    f"it has {numbers:.4g} megapixels, and the limit is {limit:.4g}; write a "
                    "volume (.zarr, .h5, .tif or .npy), for which it is read slab by slab, or "
                    "allow it with --max-megapixels"
                )
            if len(layout.shape) == 3:
                stored = array[wanted.start : wanted.stop : wanted.step]
            else:
                places = (np.unravel_index(k, layout.shape[:-2]) for k in wanted)
                stored = np.stack([array[tuple(int(i) for i in place)] for place in places])
            stored = stored.reshape(-1, *layout.shape[-2:])
            shape = layout.shape if len(wanted) == layout.planes else stored.shape
            return Picture(stored, layout=shape)

    def pages(self, path: Path, max_megapixels: float | None) -> int:
        """The number of planes."""
        return self.layout(path).planes

    def layout(self, path: Path) -> VolumeLayout:
        """Shape, chunks and axes."""
        with _array(path) as (_, layout):
            return layout

    def write(self, picture: Picture, path: Path) -> None:
        """Write all planes."""
        stored = picture.stored
        shape = picture.layout if len(picture.layout) >= 3 else stored.shape
        create_volume(path, VolumeLayout(shape, stored.dtype, (1,) * len(shape[:-2]) + shape[-2:]))
        write_planes(path, 0, stored)

    def unwritable(self, picture: Picture) -> str | None:
        """The reason, for colours: their channels, last in pictures, would be planes here."""
        return "it has colours" if picture.channels > 1 or picture.alpha is not None else None


def is_zarr(path: Path) -> bool:
    """Whether the name is one of a zarr store, which is one input although it is a folder."""
    return path.suffix.lower() in Zarr.suffixes


def create_volume(path: Path, layout: VolumeLayout) -> None:
    """Create an empty volume; the folder must not exist."""
    zarr = load_extra("zarr", "zarr volumes", "zarr")
    group = zarr.open_group(path, mode="w-", zarr_format=3, attributes=layout.attributes())
    group.create_array("0", shape=layout.shape, chunks=layout.chunks, dtype=layout.dtype)


def write_planes(path: Path, first: int, values: NDArray[Any]) -> None:
    """Write planes (n, H, W) from number ``first`` on, rounded and clipped for integer types."""
    with _array(path, "r+") as (array, layout):
        planes = in_type(values, layout.dtype)
        if len(layout.shape) == 3:
            array[first : first + len(planes)] = planes
            return
        for k, plane in enumerate(planes, first):
            array[tuple(int(i) for i in np.unravel_index(k, layout.shape[:-2]))] = plane


def in_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers in another type, rounded and clipped for integers."""
    if dtype.kind == "b" and values.dtype != dtype:
        return values >= 0.5
    if dtype.kind in "iu" and values.dtype != dtype:
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)
    return values.astype(dtype)


@contextlib.contextmanager
def _array(path: Path, mode: str = "r") -> Iterator[tuple[Any, VolumeLayout]]:
    """The array, or the finest resolution of a group."""
    zarr = load_extra("zarr", f"{path}: zarr volumes", "zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown files in the folder, for example
        found = zarr.open(path, mode=mode)
        axes: tuple[dict[str, str], ...] = ()
        scale: tuple[float, ...] = ()
        if isinstance(found, zarr.Group):
            attributes = dict(found.attrs)
            image = attributes.get("ome", attributes).get("multiscales", [None])[0]
            if image is None:
                raise ValueError(
                    "it is a group without OME-Zarr metadata; give the folder of the array in it, "
                    "with a name that ends in .zarr"
                )
            level = image["datasets"][0]
            found = found[level["path"]]
            axes = tuple(dict(axis) for axis in image.get("axes", ()) if isinstance(axis, dict))
            for step in level.get("coordinateTransformations", ()):
                scale = tuple(step["scale"]) if step.get("type") == "scale" else scale
        if found.ndim < 2 or not all(found.shape):
            raise ValueError(f"it has the shape {found.shape}; write (..., H, W), none of them 0")
        shape, chunks = tuple(found.shape), tuple(found.chunks)
        if len(shape) == 2:
            raise ValueError(f"it has the shape {shape}; a volume has at least one axis more")
        fit = len(axes) == len(scale) == len(shape)
        known = (axes, scale) if fit else ((), ())
        yield found, VolumeLayout(shape, np.dtype(found.dtype), chunks, *known)
