"""What can be wrong with files of scanners: a missing package, or the file itself."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convexlift.files.decoding_errors import reason_of

PathLike = str | os.PathLike[str]


class ScanFileError(ValueError):
    """A file that cannot be read or written as asked; the message opens with its name."""


def load_extra(module: str, purpose: str) -> Any:
    """The module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "Pillow"}.get(module.split(".")[0], module)
        raise ImportError(f'{purpose} need {package}: pip install "convexlift[ct]"') from error


def existing(path: PathLike) -> Path:
    """The path, which must be there."""
    found = Path(path)
    if not found.exists():
        raise ScanFileError(f"{found}: there is no such file or folder")
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Errors inside say which file they are about: decoders of damaged files raise nearly all."""
    try:
        yield
    except (ImportError, ScanFileError):
        raise
    except Exception as error:
        raise ScanFileError(f"{path} cannot be read as {kind}: {reason_of(error)}") from error
