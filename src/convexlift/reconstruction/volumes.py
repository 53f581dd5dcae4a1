"""Volumes larger than the memory: read, reconstructed and written slab by slab, into zarr.

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
from typing import Any

import numpy as np
import torch

from convexlift.files.pictures import count_pages
from convexlift.files.zarr_volumes import VolumeLayout, Zarr, create_volume
from convexlift.reconstruction.contents import InputError, naming
from convexlift.reconstruction.pictures import Denoiser
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.scans import ScanReconstructor
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Slab, Source

SAMPLE = 8
"""Planes from which noise, range and weight are found."""
SLAB = 8
"""Planes of a slab, at least."""


def is_volume(sources: Sequence[Source]) -> bool:
    """Whether the result is a zarr volume; raises if there are others beside it."""
    targets = [source.target for source in sources if source.target.suffix in Zarr.suffixes]
    if targets and len(sources) > 1:
        raise InputError(f"{targets[0]} is a volume, and there are {len(sources)} results; "
                         "reconstruct volumes one by one")  # fmt: skip
    inputs = [source.path for source in sources if source.path.suffix in Zarr.suffixes]
    if inputs and not targets:
        raise InputError(f"{inputs[0]} is a zarr volume; give the result the ending .zarr, too")
    return bool(targets)


def divide(
    reconstructor: Reconstructor, source: Source, *, force: bool, resume: bool
) -> tuple[Reconstructor, list[Source]]:
    """The reconstructor with noise, range and weight of the whole volume, and its slabs.

    Makes the store, unless ``resume`` finds one of the same layout.
    """
    if not isinstance(reconstructor, Denoiser | ScanReconstructor):
        raise InputError(f"{reconstructor.task} does not write volumes; write .tif or .npy")
    given = getattr(reconstructor, reconstructor.planes_option)
    layout = Zarr().layout(source.path) if source.path.suffix in Zarr.suffixes else None
    if given is not None:
        first, end = given
    elif layout is not None:
        first, end = 0, layout.planes
    elif reconstructor.planes_option == "slices":
        first, end = 0, count_pages(source.path, max_megapixels=reconstructor.max_megapixels)
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
    _require_store(source.target, own, force=force, resume=resume)
    thick = own.thickness * -(-SLAB // own.thickness)
    edges = [*range(first, end, thick), end]
    slabs = [Slab(a, b, a - first) for a, b in pairwise(edges)]
    return fixed, [replace(source, slab=slab) for slab in slabs]


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


def _require_store(target: Path, layout: VolumeLayout, *, force: bool, resume: bool) -> None:
    """Make the store, or raise if it cannot be."""
    records = target.with_suffix(".records")
    if force:
        for place in (target, records):
            shutil.rmtree(place, ignore_errors=True)
    if target.exists() and resume:
        try:
            there = Zarr().layout(target)
        except Exception as error:
            raise InputError(f"{target} cannot be resumed: {error}") from None
        if (there.shape, there.dtype) != (layout.shape, layout.dtype):
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
        create_volume(target, layout)


def read_back(source: Source) -> Any:
    """The planes of a slab as they are stored."""
    assert source.slab is not None
    first, end, at = source.slab
    return Zarr().read_pages(source.target, slice(at, at + end - first), None).stored
