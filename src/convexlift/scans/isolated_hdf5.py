"""HDF5 files of CT and MRI scanners, read in a process with time and memory limits.

A file of a few kilobytes can make the HDF5 library loop forever or allocate gigabytes; neither can
be stopped from inside Python. The child process runs this file as a script, so that it starts
without the rest of the package: it imports only numpy, and h5py late.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DETECTOR_PIXEL = "/measurement/instrument/detector/actual_pixel_size_x"
GEOMETRY = "convexlift_geometry"
FRAMES = {"projections": "data", "flat": "data_white", "dark": "data_dark"}

NOT_IMAGES = sum(1 << (bit - 1) for bit in (19, 20, 22, 23, 24, 26, 27, 28, 29))
"""Flags of ISMRMRD: noise, calibration, reversed, navigation, corrections, feedback, dummies."""

Members = tuple[dict[str, Any], dict[str, str]]
"""Arrays and texts, by name."""

_RESULT = "result.json"


class IsolatedError(ValueError):
    """The reader refused the file, or was stopped; the message has no file name."""


def run_isolated(
    module: Path, function: str, arguments: Mapping[str, Any], *, seconds: float, extra_bytes: int
) -> Members:
    """Run ``function(**arguments)`` of the Python file ``module`` in a child process.

    Args:
        module: a file that imports neither this package nor anything slow.
        function: the reader in it.
        arguments: JSON values.
        seconds: time limit, after which the child is killed.
        extra_bytes: memory the child may use in addition to its memory at the start.

    Raises:
        IsolatedError: with the reader's own message, or the limit that was exceeded.
    """
    with tempfile.TemporaryDirectory(prefix="convexlift-") as name:
        folder = Path(name)
        task = {
            "module": str(module), "function": function, "arguments": dict(arguments),
            "folder": name, "seconds": seconds, "bytes": extra_bytes,
        }  # fmt: skip
        # The child has the parent's import path; a single thread starts faster.
        python_path = os.pathsep.join(filter(None, sys.path))
        environment = {"PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"}
        too_slow = -getattr(signal, "SIGXCPU", math.inf)  # not every system has this signal
        try:
            status: float = subprocess.run(
                [sys.executable, "-P", __file__],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                timeout=seconds,
                env={**os.environ, **environment},
                start_new_session=True,  # the parent handles Ctrl-C
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = too_slow
        if status == too_slow:
            raise IsolatedError(
                f"it was not read within {seconds:g} seconds, which is typical of damaged files; "
                f"if it is only large, allow more with --read-seconds {10 * seconds:g} "
                "(read_seconds= in Python)"
            )
        if not (folder / _RESULT).exists():
            raise IsolatedError(
                f"its reader crashed (status {status}), as happens with damaged files; copy it "
                "again"
            )
        result = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
        if "error" in result:
            raise IsolatedError(result["error"])
        arrays = {
            key: np.load(folder / file, allow_pickle=False)
            for key, file in result["arrays"].items()
        }
        return arrays, result["texts"]


# In the child ------------------------------------------------------------------------------------


def _main() -> None:
    task = json.loads(sys.stdin.read())
    folder = Path(task["folder"])
    spec = importlib.util.spec_from_file_location("isolated_reader", task["module"])
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    _limit(task["seconds"], task["bytes"])
    try:
        arrays, texts = getattr(reader, task["function"])(**task["arguments"])
        files = {name: f"{number}.npy" for number, name in enumerate(arrays)}
        for name, file in files.items():
            np.save(folder / file, arrays[name], allow_pickle=False)
        result: dict[str, Any] = {"arrays": files, "texts": texts}
    except Exception as error:
        result = {"error": _sentence(error)}
    # Renamed when complete: a killed child leaves no result.
    part = folder / f"{_RESULT}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(folder / _RESULT)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "memory allocation failed" in text:
        return "it needs more memory than a file of its length should; copy or export it again"
    if isinstance(error, OSError) and ("filter" in text or "plugin" in text):
        return f"it needs a filter that is not installed, pip install hdf5plugin: {text}"
    if text and isinstance(error, ValueError | OSError):
        return text
    return f"it is damaged ({type(error).__name__})"


def _limit(seconds: float, extra_bytes: int) -> None:
    """Limit this process where the system can; the parent limits the time in any case."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + extra_bytes
    # The CPU limit also ends a child whose parent was killed.
    for kind, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, int(seconds) + 1)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already set
            resource.setrlimit(kind, (value, value))


# HDF5 --------------------------------------------------------------------------------------------


def read_members(path: str, rows: list[int | None], megapixels: float) -> Members:
    """Frames (rows, frames, bins), angles and pixel width; descriptions and units as strings.

    Args:
        path: the file.
        rows: start, stop and step of a slice of the detector rows.
        megapixels: the limit for all frames together, in millions of numbers.

    Raises:
        ValueError: without the name of the file.
    """
    h5py = _h5py()
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}
    some = slice(*rows)
    left = megapixels
    with h5py.File(path, "r") as file:
        exchange = file.get("/exchange")
        if not hasattr(exchange, "keys") or not _is_dataset(exchange, "data"):
            raise ValueError("it has no /exchange/data, so it is not a Data Exchange file")
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


def _h5py() -> Any:
    with contextlib.suppress(ImportError):  # compression filters that HDF5 itself lacks
        importlib.import_module("hdf5plugin")
    return importlib.import_module("h5py")


def _is_dataset(group: Any, name: str) -> bool:
    return hasattr(group.get(name), "chunks")


def _read_frames(dataset: Any, rows: slice, left: float, megapixels: float) -> NDArray[Any]:
    """(rows, frames, bins) of a dataset (frames, rows, bins), or in the order of its ``axes``."""
    if dataset.ndim != 3:
        raise ValueError(
            f"its {dataset.name} has the shape {dataset.shape}; three dimensions are needed"
        )
    _require_numbers(dataset)
    axes = [axis.split("_")[0] for axis in _text(dataset.attrs.get("axes")).split(":") if axis]
    axes = axes or ["theta", "y", "x"]
    if sorted(axes) != ["theta", "x", "y"]:
        raise ValueError(f"its {dataset.name} has the axes {axes}, not theta, y and x")
    shape = [
        len(range(*rows.indices(size))) if axis == "y" else size
        for axis, size in zip(axes, dataset.shape, strict=True)
    ]
    _require_room(dataset, shape, left, megapixels)
    selection = tuple(rows if axis == "y" else slice(None) for axis in axes)
    array: NDArray[Any] = dataset[selection]
    return array.transpose([axes.index(axis) for axis in ("y", "theta", "x")])


def _read_numbers(dataset: Any) -> NDArray[np.float64]:
    """A small array, flat."""
    _require_numbers(dataset)
    _require_room(dataset, dataset.shape or (), 1.0, 1.0)
    return np.asarray(dataset[()], dtype=np.float64).reshape(-1)


def _require_room(
    dataset: Any, shape: Any, left: float, megapixels: float, fewer: str = "rows (--rows)"
) -> None:
    declared = math.prod(shape) / 1e6
    chunk = math.prod(dataset.chunks or (0,)) / 1e6
    if max(declared, chunk) > left:
        raise ValueError(
            f"its {dataset.name} declares {max(declared, chunk):.4g} megapixels, but the limit is "
            f"{megapixels:.4g}; read fewer {fewer}, or allow more with --max-megapixels "
            f"{math.ceil(max(declared, chunk))} (max_megapixels= in Python)"
        )


def _require_numbers(dataset: Any) -> None:
    if dataset.dtype.kind not in "biuf":
        raise ValueError(f"its {dataset.name} must hold real numbers, got {dataset.dtype}")


def _text(value: Any) -> str:
    """The string in an attribute: text, bytes, an array of one of them, or missing."""
    if value is None or getattr(value, "shape", ()) is None:  # h5py.Empty
        return ""
    if not isinstance(value, str | bytes):
        items = np.asarray(value).reshape(-1)
        if not items.size:
            return ""
        value = items[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    _main()
