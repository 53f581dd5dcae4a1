"""Proof files: their description and tensors, checked for damage, and fields read with limits."""

from __future__ import annotations

import hashlib
import json
import math
from os import PathLike
from typing import Any, NoReturn

import numpy as np
from safetensors import safe_open

from .balls import Array, U, require
from .maps import Shape

FORMAT = 1
MOST_WORK = 2**42
"""Sums and products in all maps together: larger problems, or hostile files, are refused."""
MOST_MAPS = 1000
"""Maps and operators in a problem."""
HEADER = "format made_by problem claims radius sha256 network_sha256 digest"
CHANGED = "was changed after the proof was written"
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("format", "channels", "kernel_size", "stride", "size"), (1, 2**40)),
    **dict.fromkeys(("smoothing", "delta", "sharpness", "scale", "weight"), (1e-100, 1e100)),
    **dict.fromkeys(("radius", "source_distance"), (1e-100, 1e100)),
    **dict.fromkeys(("objective", "lower_bound", "gap", "factor"), (-1e300, 1e300)),
    "slope": (0.0, 1 - U),
    "alpha": (1e-100, 1.0),
    "detector_distance": (0.0, 1e100),
}
"""Of numbers in the description, by their names; whole numbers where the limits are."""
PARTS = {
    "ReLU": "",
    "LeakyReLU": "slope",
    "Abs": "",
    "HalfSquare": "",
    "Huber": "delta",
    "SmoothedReLU": "slope smoothing",
    "SmoothedLeakyReLU": "slope smoothing",
    "Softplus": "sharpness",
    "ELU": "alpha",
    "GroupNorm": "size profile",
    "Convolution": "in_channels out_channels kernel_size stride padding",
    "Dense": "in_features out_features",
    "AveragePool": "size",
    "ForwardDifferences": "",
    "Chain": "maps",
    "Identity": "",
    "Diagonal": "values",
    "Blur": "kernel boundary",
    "Scaled": "factor operator",
    "Composition": "factors",
    "Sum": "terms",
    "ParallelBeam": "image_size pixel_size angles bins",
    "FanBeam": "image_size pixel_size angles bins source_distance detector_distance detector",
    "SquaredL2": "",
    "WeightedL2": "",
    "L1": "scale",
    "KullbackLeibler": "",
}
"""The parts that a description may name, and their fields."""


def fields(value: Any, place: str, names: str) -> list[Any]:
    """The values of exactly these fields, with their numbers inside the limits."""
    known = isinstance(value, dict) and set(value) == set(names.split())
    require(known, f"{place} must have these fields and no others: {names or 'none'}")
    for name in set(value) & set(LIMITS):
        low, high = LIMITS[name]
        kinds = (int,) if isinstance(low, int) else (int, float)
        fits = type(value[name]) in kinds and low <= value[name] <= high
        shown = repr(value[name])[:40]
        require(fits, f"{place}.{name} must be a number in [{low:g}, {high:g}], not {shown}")
    return [value[name] for name in names.split()]


def part(value: Any, place: str, *kinds: str) -> tuple[str, list[Any]]:
    """{"NAME": {...}}: the name, which must be one of ``kinds``, and the values of its fields."""
    named = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in kinds
    require(named, f"{place} must be one of {', '.join(kinds)}, not {repr(value)[:40]}")
    ((kind, content),) = value.items()
    return kind, fields(content, f"{place}.{kind}", PARTS[kind])


class ProofFile:
    """A proof file whose digests fit.

    Attributes:
        problem: as it is described.
        claims: for each image.
        radius: of local guarantees.
        made_by: programs with their versions.
        network_sha256: identifies the regularizer.
        batch: the number of images.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("convexlift_proof")
            require(text, "it is not a proof file of convexlift")
            self._arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = json.loads(str(text), parse_constant=_refuse_constant)
        fields(head, "the description", HEADER)
        digest = head.pop("digest")
        canonical = json.dumps(head, sort_keys=True, separators=(",", ":"))
        require(_sha256(canonical.encode()) == digest, f"the description {CHANGED}")
        require(head["format"] == FORMAT, f"its format is {head['format']}, not {FORMAT}")
        self._check_tensors(head["sha256"])
        sums = head["sha256"]
        of_network = "".join(sums[name] for name in sorted(sums) if name.startswith("network."))
        fits = _sha256(of_network.encode()) == head["network_sha256"]
        require(fits, "network_sha256 is not that of the tensors of the network")
        makers = head["made_by"]
        named = isinstance(makers, dict) and all(isinstance(m, str) for m in makers.values())
        require(named, "made_by must hold names and versions")
        self.made_by: dict[str, str] = makers
        self.problem, self.claims = head["problem"], head["claims"]
        self.radius, self.network_sha256 = float(head["radius"]), str(head["network_sha256"])
        self._unused, self._work, self._maps = set(self._arrays), 0, 0
        self.batch = len(self.tensor("x"))

    def _check_tensors(self, sums: Any) -> None:
        require(isinstance(sums, dict), "sha256 must hold a digest for each tensor")
        if different := set(self._arrays) ^ set(sums):
            require(
                False, f"the tensor {min(different)!r} is in the file or in sha256, not in both"
            )
        for name, array in self._arrays.items():
            described = f"{array.dtype} {list(array.shape)} ".encode() + array.tobytes()
            require(_sha256(described) == sums[name], f"the tensor {name!r} {CHANGED}")
            known = array.dtype in (np.float32, np.float64) and array.size > 0
            require(known, f"the tensor {name!r} must hold float32 or float64 numbers")
            require(
                np.isfinite(array).all(), f"the tensor {name!r} has entries that are not finite"
            )

    def tensor(self, name: Any, shape: Shape | None = None, fits: Shape | None = None) -> Array:
        """A tensor in float64, of this shape, or of one that is expanded to ``fits``."""
        require(isinstance(name, str) and name in self._arrays, f"the tensor {name!r} is missing")
        array = self._arrays[name]
        self._unused.discard(name)
        wrong = (
            f"the tensor {name!r} has the shape {array.shape}, which does not fit {shape or fits}"
        )
        require(shape is None or array.shape == shape, wrong)
        if fits is not None:
            padded = (1,) * (len(fits) - array.ndim) + array.shape
            require(len(padded) == len(fits), wrong)
            require(all(n in (1, m) for n, m in zip(padded, fits, strict=True)), wrong)
        return np.asarray(array, dtype=np.float64)

    def spend(self, work: int, shape: Shape) -> None:
        """Account for a map before it is made; hostile descriptions make many, or huge ones."""
        self._maps += 1
        self._work += self.batch * (work + 64 * math.prod(shape))
        stored = sum(array.size for array in self._arrays.values())
        small = self.batch * math.prod(shape) <= 256 * stored + 2**20
        small = small and self._work <= MOST_WORK and self._maps <= MOST_MAPS
        require(small, "its problem is too large to be checked")

    def finish(self) -> None:
        """Refuse tensors that the problem does not use."""
        require(not self._unused, f"the tensor {min(self._unused, default='')!r} has no meaning")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
