"""Datasets of HDF5 files, read by a child process that is killed when it takes too long.

A file of a few kilobytes can make the HDF5 library loop forever or allocate gigabytes; neither can
be stopped from inside Python. The child runs this file as a script, so that it starts without the
rest of the package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GEOMETRY = "convexlift_geometry"
ATTRIBUTES = ("axes", "units", "description", GEOMETRY)
FIRST_SECONDS, BYTES_A_SECOND = 20, 1_000_000
SPARE_BYTES = 2**29
"""Memory for the library, besides the numbers that are read."""


@dataclass(frozen=True)
class Item:
    """``ATTRIBUTES`` as text, and the numbers of a dataset; none for a group."""

    attributes: dict[str, str]
    numbers: NDArray[Any]


def read_hdf5(
    path: Path, names: Sequence[str], rows: slice, most: int, seconds: float | None = None
) -> dict[str, Item]:
    """Those groups and datasets that are in the file, by name.

    Args:
        path: the file.
        names: of the groups and datasets, with the path to each.
        rows: to read of datasets with three dimensions, along y.
        most: the most numbers to read, in all datasets together.
        seconds: time limit; by default 20, and 1 for every megabyte.

    Raises:
        ValueError: without the name of the file.
    """
    seconds = seconds or FIRST_SECONDS + path.stat().st_size / BYTES_A_SECOND
    some = rows.start, rows.stop, rows.step
    request = json.dumps([str(path.absolute()), list(names), some, most, math.ceil(seconds)])
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        answer = subprocess.run(
            [sys.executable, "-P", __file__], input=request.encode(), capture_output=True,
            timeout=seconds, env=os.environ | environment, check=False,
            start_new_session=True,  # Ctrl-C comes to this process, which kills the child
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"it was not read within {seconds:.0f} seconds, as happens with damaged files; copy or "
            "export it again"
        ) from None
    head, _, _ = answer.partition(b"\n")
    found = json.loads(head or '{"error": "its reader crashed, so it is damaged; copy it again"}')
    if "error" in found:
        raise ValueError(found["error"])
    items, place = {}, len(head) + 1
    for name, (attributes, dtype, shape) in found.items():
        numbers = np.frombuffer(answer, dtype, math.prod(shape), place).reshape(shape)
        place += numbers.nbytes
        items[name] = Item(attributes, numbers)
    return items


# In the child ------------------------------------------------------------------------------------


def _answer(path: str, names: list[str], rows: Any, most: int, seconds: int) -> list[bytes]:
    getattr(signal, "alarm", int)(seconds)  # ends a child whose parent was killed; not on Windows
    with contextlib.suppress(ImportError):  # compression filters that HDF5 itself lacks
        importlib.import_module("hdf5plugin")
    h5py = importlib.import_module("h5py")
    _limit_memory(0)
    found, blocks = {}, []
    with h5py.File(path, "r") as file:
        for name in names:
            if (item := _find(file, name)) is not None:
                numbers = _read(item, rows, most) if hasattr(item, "chunks") else np.empty(0)
                most -= numbers.size
                texts = {key: _text(item.attrs.get(key)) for key in ATTRIBUTES}
                found[name] = texts, numbers.dtype.str, numbers.shape
                blocks.append(numbers.tobytes())
    return [json.dumps(found).encode(), b"\n", *blocks]


def _find(file: Any, name: str) -> Any:
    """The group or dataset, or None if there is none of this name."""
    item = file
    for step in name.strip("/").split("/"):
        if not hasattr(item, "keys") or item.get(step, getlink=True) is None:
            return None
        item = item.get(step)
        elsewhere = getattr(item, "is_virtual", False) or getattr(item, "external", None)
        if elsewhere or item is None or item.file.filename != file.filename:
            raise ValueError(f"{name!r} reads other files (virtual, external, or a link); copy it")
    return item


def _read(item: Any, rows: list[int | None], most: int) -> NDArray[Any]:
    if item.dtype.kind not in "biuf":
        raise ValueError(f"its {item.name} must hold real numbers, got {item.dtype}")
    axes = _text(item.attrs.get("axes")).split(":")
    y = next((k for k, axis in enumerate(axes) if axis.startswith("y")), 1)
    part = [slice(*rows) if item.ndim == 3 and k == y else slice(None) for k in range(item.ndim)]
    sizes = [len(range(*s.indices(n))) for s, n in zip(part, item.shape, strict=True)]
    if (declared := max(math.prod(sizes), math.prod(item.chunks or (0,)))) > most:
        raise ValueError(f"its {item.name} declares {declared:.4g} numbers; choose fewer (--rows)")
    _limit_memory(2 * declared * item.dtype.itemsize)
    return np.asarray(item[tuple(part)])


def _limit_memory(more: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # no limits here, or a lower one
        resource = importlib.import_module("resource")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES + more, -1))  # no hard limit


def _text(value: Any) -> str:
    """The string in an attribute: text, bytes, an array of one of them, or missing."""
    value = next(iter(np.asarray("" if value is None else value).reshape(-1)), "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "memory allocation failed" in text:
        return "it needs more memory than a file of its length should; copy or export it again"
    if isinstance(error, OSError) and ("filter" in text or "plugin" in text):
        return f"it needs a filter that is not installed, pip install hdf5plugin: {text}"
    known = text and isinstance(error, ValueError | OSError)
    return text if known else f"it is damaged ({type(error).__name__})"


if __name__ == "__main__":
    try:
        answered = _answer(*json.load(sys.stdin))
    except Exception as fault:  # the library raises nearly every type
        answered = [json.dumps({"error": _sentence(fault)}).encode()]
    sys.stdout.buffer.writelines(answered)
