"""Finished parts of an experiment in files, so that an interrupted run goes on where it was.

A part is plain values and arrays: NAME.json, and NAME.npz if there are arrays. The JSON file is
written last and names the SHA-256 of the other, so that a part is either whole or not there. It
also holds a digest of all settings the part depends on: with other settings it is not there.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.images import atomic_path

FORMAT = 1
"""Changes when files of parts, or what is computed for them, no longer mean the same."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Part:
    """What one step of an experiment found.

    Attributes:
        values: what JSON can say; infinity and NaN as they are.
        arrays: curves and pictures.
        about: where and how long it was computed; filled in by whoever runs the step.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartStore:
    """The folder of the parts."""

    folder: Path

    def read(self, name: str, digest: str) -> Part | None:
        """A part, or None if it is not there, not whole, or of other settings."""
        try:
            content = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            if (content["format"], content["digest"]) != (FORMAT, digest):
                return None
            arrays = self._read_arrays(name, content["sha256"])
            return Part(_unpacked(content["values"]), arrays, content["about"])
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            return None

    def write(self, name: str, digest: str, part: Part) -> None:
        """Both files, each whole or not at all; the JSON file last."""
        sha256 = None
        if part.arrays:
            data = BytesIO()
            # Unlike savez_compressed, which is slow on noise and saves little on pictures of it.
            np.savez(data, allow_pickle=False, **part.arrays)
            sha256 = hashlib.sha256(data.getvalue()).hexdigest()
            with atomic_path(self.folder / f"{name}.npz") as file:
                file.write_bytes(data.getvalue())
        content = {
            "format": FORMAT,
            "digest": digest,
            "sha256": sha256,
            "about": dict(part.about),
            "values": _packed(part.values),
        }
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        with atomic_path(self.folder / f"{name}.json") as file:
            file.write_text(text, encoding="utf-8")

    def _read_arrays(self, name: str, sha256: str | None) -> dict[str, Array]:
        if sha256 is None:
            return {}
        data = (self.folder / f"{name}.npz").read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"{name}.npz is not the file that {name}.json describes")
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}


def _packed(value: Any) -> Any:
    """JSON has neither infinity nor NaN: {"float": "inf"}."""
    if isinstance(value, Mapping):
        return {str(key): _packed(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: _unpacked(each) for key, each in value.items()}
    return [_unpacked(each) for each in value] if isinstance(value, list) else value
