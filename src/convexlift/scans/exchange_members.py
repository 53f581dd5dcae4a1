"""The arrays and attributes of a Data Exchange file in HDF5, as they are stored.

``subprocess_reader`` runs this file in a process of its own: it imports only numpy, and h5py late.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

DETECTOR_PIXEL = "/measurement/instrument/detector/actual_pixel_size_x"
GEOMETRY = "convexlift_geometry"
FRAMES = {"projections": "data", "flat": "data_white", "dark": "data_dark"}


def read_members(
    path: str, rows: list[int | None], megapixels: float
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Frames (rows, frames, bins), angles and the pixel's width; and texts that say what they are.

    Args:
        path: of the file.
        rows: of the detector: start, stop and step of a slice.
        megapixels: the largest number of numbers, in millions, of all frames together.

    Raises:
        ValueError: without the name of the file.
    """
    h5py: Any = importlib.import_module("h5py")
    with contextlib.suppress(ImportError):  # filters that HDF5 itself does not have
        importlib.import_module("hdf5plugin")
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}
    some = slice(*rows)
    left = megapixels
    with h5py.File(path, "r") as file:
        exchange = file.get("/exchange")
        if not hasattr(exchange, "keys") or not _is_dataset(exchange, "data"):
            raise ValueError("it has no /exchange/data, so it is no Data Exchange file")
        for name, member in FRAMES.items():
            if _is_dataset(exchange, member) and exchange[member].size:  # empty: not measured
                arrays[name] = _read_frames(exchange[member], some, left, megapixels)
                left -= arrays[name].size / 1e6
        texts["description"] = _text(exchange["data"].attrs.get("description"))
        texts["geometry"] = _text(exchange.attrs.get(GEOMETRY))
        if _is_dataset(exchange, "theta"):
            arrays["theta"] = _read_numbers(exchange["theta"])
            texts["theta_unit"] = _text(exchange["theta"].attrs.get("units"))
        if _is_dataset(file, DETECTOR_PIXEL):
            arrays["pixel"] = _read_numbers(file[DETECTOR_PIXEL])
            texts["pixel_unit"] = _text(file[DETECTOR_PIXEL].attrs.get("units"))
    return arrays, texts


def _is_dataset(group: Any, name: str) -> bool:
    return hasattr(group.get(name), "chunks")


def _read_frames(dataset: Any, rows: slice, left: float, megapixels: float) -> NDArray[Any]:
    """(rows, frames, bins) of a dataset (frames, rows, bins), or as its attribute ``axes`` says."""
    if dataset.ndim != 3:
        raise ValueError(
            f"it has {dataset.name} of the shape {dataset.shape}; three dimensions are needed"
        )
    _require_numbers(dataset)
    axes = [axis.split("_")[0] for axis in _text(dataset.attrs.get("axes")).split(":") if axis]
    axes = axes or ["theta", "y", "x"]
    if sorted(axes) != ["theta", "x", "y"]:
        raise ValueError(f"it has {dataset.name} with axes {axes}, not theta, y and x")
    shape = [
        len(range(*rows.indices(size))) if axis == "y" else size
        for axis, size in zip(axes, dataset.shape, strict=True)
    ]
    _require_room(dataset, shape, left, megapixels)
    selection = tuple(rows if axis == "y" else slice(None) for axis in axes)
    try:
        array: NDArray[Any] = dataset[selection]
    except OSError as error:
        if "filter" not in str(error) and "plugin" not in str(error):
            raise
        raise ValueError(
            f"it has {dataset.name} compressed with a filter that is not installed, pip install "
            f"hdf5plugin: {error}"
        ) from error
    return array.transpose([axes.index(axis) for axis in ("y", "theta", "x")])


def _read_numbers(dataset: Any) -> NDArray[np.float64]:
    """A small array, flat."""
    _require_numbers(dataset)
    _require_room(dataset, dataset.shape or (), 1.0, 1.0)
    return np.asarray(dataset[()], dtype=np.float64).reshape(-1)


def _require_room(dataset: Any, shape: Any, left: float, megapixels: float) -> None:
    declared = math.prod(shape) / 1e6
    chunk = math.prod(dataset.chunks or (0,)) / 1e6
    if max(declared, chunk) > left:
        raise ValueError(
            f"its {dataset.name} declares {max(declared, chunk):.4g} megapixels, and the limit is "
            f"{megapixels:.4g}; read fewer rows (--rows), or allow more with --max-megapixels "
            f"{math.ceil(max(declared, chunk))} (max_megapixels= in Python)"
        )


def _require_numbers(dataset: Any) -> None:
    if dataset.dtype.kind not in "biuf":
        raise ValueError(f"its {dataset.name} must hold real numbers, got {dataset.dtype}")


def _text(value: Any) -> str:
    """Attributes are text, bytes, arrays of one of them, or not there."""
    if value is None or getattr(value, "shape", ()) is None:  # h5py.Empty
        return ""
    if not isinstance(value, str | bytes):
        items = np.asarray(value).reshape(-1)
        if not items.size:
            return ""
        value = items[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
