"""Volumes larger than the memory: read, reconstructed and written slab by slab.

Noise, range and weight are found once, from planes spread over the whole volume, so that slabs do
not differ in them. A slab is as thick as a chunk of the store, or a few of them: no two tasks write
to the same chunk.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from convexlift.files.formats import MEGAPIXELS
from convexlift.files.pictures import count_pages, read_picture
from convexlift.files.volume_stores import HDF5, STORES, create_store, store_layout
from convexlift.files.zarr_volumes import VolumeLayout, Zarr
from convexlift.reconstruction.contents import InputError, naming
from convexlift.reconstruction.pictures import Denoiser
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.scans import ScanReconstructor
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Slab, Source, resolved
from convexlift.scans.dicom_reading import series_headers
from convexlift.scans.volume_sources import count_planes, is_series, is_source

SAMPLE = 8
"""Planes from which noise, range and weight are found."""
SLAB = 8
"""Planes of a slab, at least."""
SMALLEST = 2**18
"""Bytes of a file that may hold more numbers than are read at once."""
MILLIMETRES = tuple({"name": name, "type": "space", "unit": "millimeter"} for name in "zyx")
"""The axes of a series."""


def is_volume(sources: Sequence[Source]) -> bool:
    """Whether the result is written slab by slab; raises if there are others beside it.

    So are zarr and HDF5 files, whatever is read from such files or a folder of slices, and stacks
    with more numbers than are read at once.
    """
    volumes = [source for source in sources if _in_slabs(source)]
    if volumes and len(sources) > 1:
        raise InputError(f"{volumes[0].target} is a volume, and there are {len(sources)} results; "
                         "reconstruct volumes one by one")  # fmt: skip
    return bool(volumes)


def _in_slabs(source: Source) -> bool:
    kind = source.target.suffix.lower()
    if kind in (*Zarr.suffixes, *HDF5):
        return True
    if source.path.suffix in Zarr.suffixes or source.volume:
        if kind not in STORES:
            raise InputError(
                f"{source.path} is a volume; give the result one of the endings {', '.join(STORES)}"
            )
        return True
    both = kind in STORES and source.path.suffix.lower() in STORES and source.path.is_file()
    return both and source.path.stat().st_size > SMALLEST and _numbers(source.path) > MEGAPIXELS


def _numbers(path: Path) -> float:
    """Millions of numbers in a stack of grey pages; 0 for other files."""
    try:
        return count_pages(path) * read_picture(path, pages=slice(0, 1)).stored.size / 1e6
    except (ValueError, ImportError):
        return 0.0


def divide(
    reconstructor: Reconstructor, source: Source, *, force: bool, resume: bool
) -> tuple[Reconstructor, list[Source]]:
    """The reconstructor with noise, range and weight of the whole volume, and its slabs.

    Makes the store, unless ``resume`` finds one of the same layout.
    """
    if not isinstance(reconstructor, Denoiser | ScanReconstructor):
        raise InputError(f"{reconstructor.task} does not write volumes; write .tif or .npy")
    _require_apart(source)
    given = getattr(reconstructor, reconstructor.planes_option)
    layout = Zarr().layout(source.path) if source.path.suffix in Zarr.suffixes else None
    if given is not None:
        first, end = given
    elif layout is not None:
        first, end = 0, layout.planes
    elif reconstructor.planes_option == "slices":
        count = count_planes if is_source(source.path) else count_pages
        first, end = 0, count(source.path)
    else:
        raise InputError("--rows FIRST:END is needed for a volume, 0:2048 for example")
    sample = _sample(reconstructor, source.path, first, end)
    if sample.about.get("unit") not in (None, "HU"):
        raise InputError(
            f"{source.path} does not say how large its pixels are, and slabs would be scaled "
            "differently; state the unit mm in its geometry"
        )
    fixed = reconstructor.fixed(sample)
    shown = sample.restored(torch.zeros(len(sample.data), *sample.data.image_shape))
    kind = np.dtype(sample.about.get("dtype", "float32"))
    size = tuple(shown.shape[-2:])
    own = layout or VolumeLayout((end - first, *size), kind, (1, *size))
    own = replace(own.resized(end - first, size), dtype=kind)
    if is_series(source.path):
        own = replace(own, axes=MILLIMETRES, scale=_spacing(source.path))
    _require_store(source.target, own, force=force, resume=resume)
    thick = own.thickness * -(-SLAB // own.thickness)
    edges = [*range(first, end, thick), end]
    slabs = [Slab(a, b, a - first) for a, b in pairwise(edges)]
    return fixed, [replace(source, slab=slab) for slab in slabs]


def shared(reconstructor: Reconstructor, inputs: Sequence[str]) -> Reconstructor:
    """With noise, range and weight of all slices in a folder, each of which has its own result."""
    folder = Path(inputs[0])
    if not isinstance(reconstructor, Denoiser) or len(inputs) > 1 or not folder.is_dir():
        raise InputError("--volume is for denoise and inpaint, and takes one folder of slices")
    return reconstructor.fixed(_sample(reconstructor, folder, 0, count_planes(folder)))


def _sample(reconstructor: Reconstructor, path: Path, first: int, end: int) -> PreparedImage:
    """Planes spread over the volume; a single one of them if others are damaged."""
    step = max(1, (end - first) // SAMPLE)
    spread = range(first + step // 2, end, step)
    try:
        return part_of(reconstructor, (spread.start, end, step)).prepare(path)
    except Exception:
        for plane in spread:
            with contextlib.suppress(Exception):
                return part_of(reconstructor, (plane, plane + 1)).prepare(path)
        raise


def part_of(reconstructor: Reconstructor, planes: tuple[int, ...]) -> Reconstructor:
    """The reconstructor for some planes of a file, with the same network in memory."""
    part = replace(reconstructor, **{reconstructor.planes_option: planes})  # type: ignore[arg-type]
    for name in ("network", "colour", "place", "sha256"):
        vars(part)[name] = getattr(reconstructor, name)
    return part


def prepare(reconstructor: Reconstructor, source: Source, solver: PiecewiseSolver) -> PreparedImage:
    """The file of a source, or its slab, ready to be solved."""
    if source.slab is None:
        return reconstructor.prepare(source.path, solver, source.target)
    return part_of(reconstructor, source.slab[:2]).prepare(source.path, solver)


def _require_apart(source: Source) -> None:
    """Raise if making the result could harm the input."""
    place, target = resolved(source.path), resolved(source.target)
    if place == target or place in target.parents or target in place.parents:
        raise InputError(f"{source.target} and the input {source.path} are the same, or one is in "
                         "the other; name another output")  # fmt: skip


def _require_store(target: Path, layout: VolumeLayout, *, force: bool, resume: bool) -> None:
    """Make the store, or raise if it cannot be."""
    records = target.with_suffix(".records")
    if force:
        target.unlink() if target.is_file() else shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(records, ignore_errors=True)
    if target.exists() and resume:
        try:
            there = store_layout(target)
        except Exception as error:
            raise InputError(f"{target} cannot be resumed: {error}") from None
        if (there.planes, *there.shape[-2:], there.dtype) != (
            layout.planes, *layout.shape[-2:], layout.dtype
        ):  # fmt: skip
            raise InputError(
                f"{target} has the shape {there.shape} and {there.dtype}, not {layout.shape} and "
                f"{layout.dtype}; use --force, or name another output"
            )
        return
    for place in (target, records):
        if place.exists():
            raise InputError(f"{place} exists; name another output, or add --force (or --resume, "
                             "which keeps finished results)")  # fmt: skip
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        create_store(target, layout)


def _spacing(series: Path) -> tuple[float, float, float]:
    """Distances of slices, rows and columns, in mm."""
    headers = series_headers(series)
    count = max(1, len(headers) - 1)
    return (headers[-1].height - headers[0].height) / count or 1.0, *headers[0].spacing
