"""Where models are: pairs of files, at a path or inside the package under a name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from convexlift.models.values import listed

WEIGHTS, SHEET = ".safetensors", ".json"
SHIPPED = resources.files("convexlift") / "models" / "weights"
"""The folder of the models inside the package."""

PathLike = str | os.PathLike[str]


def names() -> tuple[str, ...]:
    """The models inside the package, which ``load`` takes by name."""
    if not SHIPPED.is_dir():
        return ()
    files = {entry.name for entry in SHIPPED.iterdir()}
    return tuple(
        sorted(
            name.removesuffix(SHEET)
            for name in files
            if name.endswith(SHEET) and name.removesuffix(SHEET) + WEIGHTS in files
        )
    )


def pair(path: PathLike) -> tuple[Path, Path]:
    """The files of weights and of all else, for a path with or without either ending."""
    whole = Path(path)
    stem = whole.name
    for ending in (WEIGHTS, SHEET):
        stem = stem.removesuffix(ending) if whole.name.endswith(ending) else stem
    if stem in ("", ".", ".."):
        raise ValueError(f"{str(path)!r} names no file; write a path such as folder/model")
    return whole.with_name(stem + WEIGHTS), whole.with_name(stem + SHEET)


@contextlib.contextmanager
def find(name_or_path: PathLike) -> Iterator[tuple[Path, Path]]:
    """The two files of a model, which exist."""
    weights, sheet_file = pair(name_or_path)
    if not _is_path(name_or_path) and name_or_path in names():
        with find_shipped(str(name_or_path)) as both:
            yield both
        return
    missing = [file for file in (weights, sheet_file) if not file.is_file()]
    if len(missing) == 1:
        (present,) = {weights, sheet_file} - set(missing)
        raise ValueError(
            f"{missing[0]} is missing beside {present.name}; a model is a pair of files"
        )
    if missing:
        raise ValueError(_nothing_there(name_or_path, weights, sheet_file))
    yield weights, sheet_file


@contextlib.contextmanager
def find_shipped(name: str) -> Iterator[tuple[Path, Path]]:
    """The two files of a model inside the package, whatever other files are around."""
    with (
        resources.as_file(SHIPPED / f"{name}{WEIGHTS}") as weights,
        resources.as_file(SHIPPED / f"{name}{SHEET}") as sheet_file,
    ):
        yield weights, sheet_file


def _nothing_there(name_or_path: PathLike, weights: Path, sheet_file: Path) -> str:
    path = Path(name_or_path)
    if not _is_path(name_or_path) and not path.is_dir():
        if not names():
            return f"there is no model {str(path)!r}: none are shipped, and no {weights} is here"
        return f"there is no model {str(path)!r}; the models shipped are {listed(names())}"
    if path.is_dir():
        inside = sorted(file.stem for file in path.glob(f"*{SHEET}"))
        return f"{path} is a folder; name a model in it (there: {listed(inside)})"
    if path.is_file() and path not in (weights, sheet_file):
        return (
            f"{path} is no model: a model is a pair of files NAME{WEIGHTS} and NAME{SHEET}, "
            "written by convexlift.save"
        )
    return f"there is no model {path}: neither {weights.name} nor {sheet_file.name} exists there"


def _is_path(name_or_path: PathLike) -> bool:
    """Whether this means a file: a Path, a separator, an ending, or such a file is there."""
    if not isinstance(name_or_path, str):
        return True
    separated = any(s in name_or_path for s in (os.sep, os.altsep) if s)
    return (
        separated
        or Path(name_or_path).suffix != ""
        or any(file.is_file() for file in pair(name_or_path))
    )
