"""Finished parts of a study in files, so that an interrupted run resumes where it stopped.

A part is plain values and arrays: NAME.json, and NAME.npz if there are arrays. The JSON file is
written last and names the SHA-256 of the other, so that a part is either complete or absent. It
also holds a digest of all settings that the part depends on: a part of other settings is absent.

A study is a list of steps, each of which makes one part from the parts it needs.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import convexlift as cl
from convexlift.images import atomic_path
from convexlift.training import plain_settings

FORMAT = 1
"""Changes when the files, or their values, no longer mean the same."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Part:
    """The result of one step."""

    values: Mapping[str, Any]  # plain values that JSON can represent; infinity and NaN are allowed
    arrays: Mapping[str, Array] = field(default_factory=dict)  # curves and pictures
    # environment and seconds of the computation; the runner fills it in
    about: Mapping[str, Any] = field(default_factory=dict)


Parts = Mapping[str, Part]


@dataclass(frozen=True)
class PartStore:
    """The folder of the parts."""

    folder: Path

    def read(self, name: str, digest: str) -> Part | None:
        """A part, or None if it is absent, damaged, or of other settings."""
        try:
            content = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            if (content["format"], content["digest"]) != (FORMAT, digest):
                return None
            arrays = self._read_arrays(name, content["sha256"])
            return Part(_unpacked(content["values"]), arrays, content["about"])
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            return None

    def write(self, name: str, digest: str, part: Part) -> None:
        """Both files, each atomically; the JSON file last."""
        sha256 = None
        if part.arrays:
            data = BytesIO()
            # Not savez_compressed, which is slow and saves little on noisy pictures.
            np.savez(data, allow_pickle=False, **part.arrays)
            sha256 = hashlib.sha256(data.getvalue()).hexdigest()
            with atomic_path(self.folder / f"{name}.npz") as file:
                file.write_bytes(data.getvalue())
        content = {
            "format": FORMAT, "digest": digest, "sha256": sha256, "about": dict(part.about),
            "values": _packed(part.values),
        }  # fmt: skip
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


def finite(value: Any) -> Any:
    """Plain data in which infinity and NaN are None, as JSON has neither."""
    return _mapped(value, lambda number: None)


def _packed(value: Any) -> Any:
    """Plain data in which infinity and NaN are kept, as {"float": "inf"}."""
    return _mapped(value, lambda number: {"float": str(number)})


def _mapped(value: Any, replace: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _mapped(each, replace) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(each, replace) for each in value]
    return replace(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: _unpacked(each) for key, each in value.items()}
    return [_unpacked(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Work:
    """The input of a step."""

    parts: Parts  # the finished parts named in ``Step.needs``
    # called with the fraction of this step that is done
    tell: Callable[[float], None] = lambda fraction: None


@dataclass(frozen=True, eq=False)
class Step:
    """One part and how to compute it."""

    name: str  # of the part and of its files
    # all that the result depends on, as records and plain values: a change computes it again
    settings: Mapping[str, Any]
    compute: Callable[[Work], Part]  # makes the part
    # names of earlier steps whose parts it uses; it also depends on their settings
    needs: tuple[str, ...] = ()
    # seconds it may take on two cores; only proportions matter, for the time left
    cost: float = 1.0
    title: str = ""  # shown while it is computed
    alone: bool = False  # whether it measures times, which other work would spoil


Listener = Callable[[str, float, float], object]
"""Called with the title of the present step, the cost of all that is done, and the total cost.

Parts that were finished before this run count in neither.
"""


@dataclass(eq=False)
class Plan:
    """Steps in their order, their digests, and the parts that are finished."""

    steps: Sequence[Step]
    store: PartStore
    digests: dict[str, str] = field(default_factory=dict, init=False)
    finished: dict[str, Part] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for step in self.steps:
            unknown = set(step.needs) - set(self.digests)
            if step.name in self.digests or unknown:
                raise ValueError(f"step {step.name!r} is named twice, or needs later {unknown}")
            content = {
                "version": cl.__version__,
                "settings": plain_settings(step.settings),
                "needs": [self.digests[name] for name in step.needs],
            }
            text = json.dumps(content, sort_keys=True)
            digest = self.digests[step.name] = hashlib.sha256(text.encode()).hexdigest()
            if (part := self.store.read(step.name, digest)) is not None:
                self.finished[step.name] = part

    @property
    def missing(self) -> list[Step]:
        """Steps whose parts are absent."""
        return [step for step in self.steps if step.name not in self.finished]

    def run(
        self, about: Mapping[str, Any], listener: Listener = lambda title, done, total: None
    ) -> None:
        """Compute and keep the missing parts; Ctrl-C loses only the step that it interrupts."""
        todo = self.missing
        total, done = sum(step.cost for step in todo), 0.0
        for step in todo:

            def tell(fraction: float, step: Step = step, before: float = done) -> None:
                cost = step.cost * min(max(fraction, 0.0), 1.0)
                listener(step.title or step.name, before + cost, total)

            tell(0.0)
            self.compute(step, about, tell)
            done += step.cost
        listener("done", total, total)

    def compute(
        self,
        step: Step,
        about: Mapping[str, Any],
        tell: Callable[[float], None] = lambda fraction: None,
    ) -> None:
        """Compute and keep one part, whose needs are finished."""
        began = time.perf_counter()
        part = step.compute(Work({name: self.finished[name] for name in step.needs}, tell))
        seconds = time.perf_counter() - began
        part = replace(part, about={**about, **part.about, "seconds": seconds})
        self.store.write(step.name, self.digests[step.name], part)
        self.finished[step.name] = part
