"""Volumes larger than the memory: read, reconstructed and written slab by slab.

Noise, range and weight are found once, from planes spread over the whole volume, so that slabs
share them. A slab consists of whole chunks of the result: no two tasks write to the same chunk.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from convexlift.files.volume_stores import HDF5, STORES, create_store, storable, store_layout
from convexlift.files.zarr_volumes import VolumeLayout, Zarr, is_zarr
from convexlift.reconstruction.contents import InputError, count_in, naming
from convexlift.reconstruction.pictures import Denoiser
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.scans import ScanReconstructor
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Origin, Slab, Source, resolved, sides
from convexlift.scans.dicom_reading import series_headers
from convexlift.scans.volume_sources import count_planes, is_series

SAMPLE = 8
"""Planes from which noise, range and weight are found."""
SLAB = 8
"""The least number of planes in a slab."""
MILLIMETRES = tuple({"name": name, "type": "space", "unit": "millimeter"} for name in "zyx")
"""The axes of a series."""


def is_volume(sources: Sequence[Source]) -> bool:
    """Whether the result is written slab by slab; raises if there are other results beside it.

    Also true for zarr and HDF5 targets, and for inputs that are volumes.
    """
    volumes = [source for source in sources if _in_slabs(source)]
    if volumes and len(sources) > 1:
        raise InputError(f"{volumes[0].target} is a volume, and there are {len(sources)} results; "
                         "reconstruct volumes one by one")  # fmt: skip
    return bool(volumes)


def _in_slabs(source: Source) -> bool:
    kind = source.target.suffix.lower()
    volume = source.volume or is_zarr(source.path)
    if volume and kind not in STORES:
        raise InputError(
            f"{source.path} is a volume; give the result one of the endings {', '.join(STORES)}"
        )
    return volume or kind in (*Zarr.suffixes, *HDF5)


def require_apart(
    source: Source, also_read: Sequence[Path], also_written: Sequence[Path] = ()
) -> None:
    """Raise if the volume or its records could replace an input or another result."""
    for target in (source.target, source.records):
        for path in (source.path, *sides(source.path), *also_read):
            if _overlap(path, target):
                raise InputError(f"{target} and the input {path} are the same, or one is in the "
                                 "other; name another output")  # fmt: skip
        for path in also_written:
            if _overlap(path, target):
                raise InputError(f"{path} is the name of a result; name another file for all")


def _overlap(one: Path, other: Path) -> bool:
    """Whether two paths are the same, or one contains the other."""
    one, other = resolved(one), resolved(other)
    return one == other or one in other.parents or other in one.parents


def require_planes(reconstructor: Reconstructor, source: Source) -> tuple[int, int]:
    """The first plane of a volume to reconstruct, and the end; wrong options are errors."""
    path = source.path
    simulated = isinstance(reconstructor, ScanReconstructor) and reconstructor.simulate
    if simulated or not isinstance(reconstructor, Denoiser | ScanReconstructor):
        raise InputError(f"{reconstructor.task} does not write volumes; write .tif or .npy")
    given: tuple[int, ...] | None = getattr(reconstructor, reconstructor.planes_option)
    if isinstance(reconstructor, ScanReconstructor):
        if given is None:
            raise InputError("--rows FIRST:END is needed for a volume, 0:2048 for example")
        first, end = given
        try:
            part_of(reconstructor, (end - 1, end)).read_scan(path)  # type: ignore[attr-defined]
        except ValueError as error:
            raise InputError(f"row {end - 1} (--rows) cannot be read: {error}") from None
        if (truth := reconstructor.truth) is not None and (slices := count_in(truth)) < end:
            raise InputError(f"the truth has {slices} slices, and there are rows up to {end}; give "
                             "a slice for each row of the detector")  # fmt: skip
        return first, end
    planes = count_planes(path, reconstructor.max_megapixels)
    first, end, *step = (0, planes) if given is None else given
    if step or end > planes:
        text = ":".join(str(number) for number in given or ())
        raise InputError(f"{path} has {planes} planes; --slices is FIRST:END within 0:{planes}, "
                         f"got {text}")  # fmt: skip
    reconstructor.require_pages(path, planes)
    return first, end


def divide(
    reconstructor: Reconstructor, source: Source, *, force: bool, resume: bool
) -> tuple[Reconstructor, list[Source]]:
    """The reconstructor with noise, range and weight of the whole volume, and its slabs.

    Creates the store, unless ``resume`` finds one of the same layout.
    """
    first, end = require_planes(reconstructor, source)
    layout = Zarr().layout(source.path) if is_zarr(source.path) else None
    sample = _sample(reconstructor, source.path, first, end)
    if sample.about.get("unit") not in (None, "HU"):
        raise InputError(
            f"{source.path} does not say how large its pixels are, and slabs would be scaled "
            "differently; state the unit mm in its geometry"
        )
    fixed, origin = _fixed(reconstructor, sample)
    shown = sample.restored(torch.zeros(len(sample.data), *sample.data.image_shape))
    kind = np.dtype(sample.about.get("dtype", "float32"))
    size = tuple(shown.shape[-2:])
    own = layout or VolumeLayout((end - first, *size), kind, (1, *size))
    own = replace(own.resized(end - first, size), dtype=kind)
    if is_series(source.path):
        own = replace(own, axes=MILLIMETRES, scale=_spacing(source.path))
    _require_store(source, storable(source.target, own), force=force, resume=resume)
    slabs = [Slab(first + a, first + b, a) for a, b in pairwise(own.edges(SLAB))]
    return fixed, [replace(source, slab=slab, origin=origin) for slab in slabs]


def shared(
    reconstructor: Reconstructor, sources: Sequence[Source], inputs: Sequence[str]
) -> tuple[Reconstructor, list[Source]]:
    """The reconstructor with shared noise, range and weight for a folder of separate slices."""
    folder, planes = require_slices(reconstructor, inputs)
    fixed, origin = _fixed(reconstructor, _sample(reconstructor, folder, 0, planes))
    return fixed, [replace(source, origin=origin) for source in sources]


def require_slices(reconstructor: Reconstructor, inputs: Sequence[str]) -> tuple[Path, int]:
    """The folder of slices that share noise and weight, and their number."""
    folder = Path(inputs[0])
    if not isinstance(reconstructor, Denoiser) or len(inputs) > 1 or not folder.is_dir():
        raise InputError("--volume is for denoise and inpaint, and takes one folder of slices")
    return folder, count_planes(folder)


def _fixed(reconstructor: Reconstructor, sample: PreparedImage) -> tuple[Reconstructor, Origin]:
    """The reconstructor with the noise, range and weight of sample planes, and their origin."""
    assert isinstance(reconstructor, Denoiser | ScanReconstructor)
    estimated = sample.noise is not None and sample.noise.estimated
    origin = Origin(estimated, sample.weight.rule, sample.weight.trials)
    return reconstructor.fixed(sample), origin


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
    """The reconstructor for some planes of a file."""
    return altered(reconstructor, **{reconstructor.planes_option: planes})


def altered(reconstructor: Reconstructor, **options: Any) -> Reconstructor:
    """The reconstructor with other options and the same network in memory."""
    part = replace(reconstructor, **options)
    for name in ("network", "colour", "place", "sha256"):
        vars(part)[name] = getattr(reconstructor, name)
    return part


def prepare(reconstructor: Reconstructor, source: Source, solver: PiecewiseSolver) -> PreparedImage:
    """The file of a source, or its slab, ready to be solved."""
    if source.slab is None:
        image = reconstructor.prepare(source.path, solver, source.target)
    else:
        image = part_of(reconstructor, source.slab[:2]).prepare(source.path, solver)
    if (origin := source.origin) is None:
        return image
    noise = image.noise
    return replace(
        image, noise=noise and replace(noise, estimated=origin.estimated),
        weight=replace(image.weight, rule=cast(Any, origin.rule), trials=origin.trials),
    )  # fmt: skip


def _require_store(source: Source, layout: VolumeLayout, *, force: bool, resume: bool) -> None:
    """Create the store, or raise if that is impossible."""
    target, records = source.target, source.records
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
        if is_zarr(target) and there.chunks != layout.chunks:
            raise InputError(
                f"{target} has the chunks {there.chunks}, not {layout.chunks}, and slabs would "
                "share them; use --force, or name another output"
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
    """Distances of slices, rows and columns in mm."""
    headers = series_headers(series)
    count = max(1, len(headers) - 1)
    return (headers[-1].height - headers[0].height) / count or 1.0, *headers[0].spacing
