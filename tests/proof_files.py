"""Proof files in parts: the description and the tensors, and how both are sealed and stored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

Arrays = dict[str, np.ndarray]


def digest(content: Any) -> str:
    """Of bytes, or of the canonical text of a value."""
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def sealed(head: dict[str, Any]) -> dict[str, Any]:
    """The description with its digest."""
    rest = {name: value for name, value in head.items() if name != "digest"}
    return {**rest, "digest": digest(rest)}


def complete(head: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The description with all its digests, made anew."""
    sums = {
        name: digest(f"{a.dtype} {list(a.shape)} ".encode() + a.tobytes())
        for name, a in arrays.items()
    }
    tensors = {name: sums[name] for name in sums if name.startswith("network.")}
    of_network = digest([head["problem"]["network"], tensors])
    return sealed({**head, "sha256": sums, "network_sha256": of_network})


def store(path: Path, head: Any, arrays: Arrays) -> Path:
    """Write the file, whatever is in it."""
    text = head if isinstance(head, str) else json.dumps(head)
    contiguous = {name: np.array(a, order="C") for name, a in arrays.items()}
    save_file(contiguous, path, metadata={"convexlift_proof": text})
    return path


def opened(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The description and the tensors of a file."""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["convexlift_proof"]), arrays
