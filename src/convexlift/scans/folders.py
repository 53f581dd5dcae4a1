"""Folders of slices: their files in order, and new folders that are whole or not there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convexlift.files.atomic import remove_leftovers
from convexlift.scans.errors import ScanFileError


def files_in(folder: Path) -> list[Path]:
    """The files of a folder in the order people count: ``slice2`` comes before ``slice10``."""
    files = (path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    return sorted(files, key=_counted)


def _counted(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def slice_names(count: int, suffix: str) -> list[str]:
    """``0001.dcm``, ``0002.dcm``, ..."""
    digits = max(4, len(str(count)))
    return [f"{number:0{digits}d}{suffix}" for number in range(1, count + 1)]


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that becomes it when the block ends well.

    Slices of an interrupted run would look like a shorter series; and slices that are already in a
    folder would be mixed with the new ones, so it must be new or empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ScanFileError(f"{path}: already there; write to a new or an empty folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers([path])
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        yield part
        if path.exists():
            path.rmdir()  # empty; not every system lets a folder replace one
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
