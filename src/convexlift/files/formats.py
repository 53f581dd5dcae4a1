"""File formats that register themselves, and protection from damaged and hostile files.

A header of a few bytes can declare terabytes. Declared sizes are checked before memory is allocated
for them, against ``MOST`` and against the most that a file of that length can hold.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import struct
import zlib
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self

MOST = 2**31
"""Numbers that are read from one file, over all pages and channels."""
SMALL = 2**24
"""Numbers that any file may declare: constant images compress without bound."""
EXPANSION = 1100.0
"""Largest expansion of a compressed byte; deflate reaches at most 1032."""

RAW = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mrw"),
    *(".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".sr2", ".srf", ".srw", ".x3f"),
)
"""Endings of cameras' raw files."""
EXPORTS = {
    **dict.fromkeys(
        RAW,
        "a camera's raw file, which has no colours yet; export it as 16-bit TIFF, for example with "
        "the camera's program, darktable or RawTherapee, without noise reduction",
    ),
    **dict.fromkeys((".heic", ".heif", ".avif"), "a HEIF picture; export it as JPEG or PNG"),
    **dict.fromkeys((".webp", ".gif", ".bmp"), "of a kind that is not read; save it as PNG"),
    **dict.fromkeys((".psd", ".xcf", ".kra"), "a file of a drawing program; export it as PNG"),
    **dict.fromkeys((".nii", ".mha", ".nrrd"), "a volume; save its slices as TIFF or NPY"),
}
"""Advice for files of other kinds, by their ending."""

_WRITTEN_FOR_PEOPLE = (ValueError, OSError, EOFError, SyntaxError, ImportError, NotImplementedError)
"""Errors with readable messages; all others describe the decoder's code."""


class InputError(ValueError):
    """A file, an image or an option that cannot be used; the message says how to repair it."""


class FileFormat(ABC):
    """A file format, recognised by the ending of the file name.

    A direct subclass is a family (pictures, volumes, sinograms). A class derived from a family is a
    format, and defining it registers it in that family.

    Attributes:
        name: for messages, such as "PNG".
        suffixes: endings of file names, in lower case and with the dot.
        marks: every file of the format starts with one of these; () if that does not hold.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    marks: ClassVar[tuple[bytes, ...]] = ()
    _registered: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if FileFormat in cls.__bases__:
            cls._registered = {}
        elif "suffixes" in vars(cls):  # otherwise an abstract base of several formats
            for suffix in cls.suffixes:
                other = cls._registered.get(suffix, cls)
                if other.__qualname__ != cls.__qualname__:  # equal if a notebook's cell runs again
                    raise TypeError(f"{cls.__name__}: {suffix!r} already means {other.__name__}")
                cls._registered[suffix] = cls

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The format of a file with this name, or None if its ending is unknown."""
        found = cls._registered.get(path.suffix.lower())
        return None if found is None else found()

    @classmethod
    def known_suffixes(cls) -> tuple[str, ...]:
        """The file name endings of all formats of the family."""
        return tuple(cls._registered)

    def misnamed(self, start: bytes) -> bool:
        """Whether a file starting with these bytes has another format, despite its name."""
        return bool(self.marks) and not start.startswith(self.marks)


class BoundedReader(io.BufferedReader):
    """A file opened for reading whose ``read`` allocates no more than the rest of the file.

    Decoders ask for as many bytes as a header declares, and Python allocates all of them before it
    notices that the file has fewer.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._length = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes."""
        left = max(self._length - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


_most: ContextVar[int] = ContextVar("most", default=MOST)


@contextmanager
def at_most(numbers: int) -> Iterator[None]:
    """Read no file inside that declares more numbers, for servers; ``MOST`` by default."""
    token = _most.set(numbers)
    try:
        yield
    finally:
        _most.reset(token)


def allowed_numbers(path: Path, itemsize: float, expansion: float = EXPANSION) -> int:
    """The most numbers of ``itemsize`` bytes that are read from a file of this length."""
    held = int(expansion * path.stat().st_size / itemsize)
    return min(_most.get(), max(SMALL, held))


def require_plausible(
    path: Path, shape: Sequence[int], itemsize: float, expansion: float = EXPANSION
) -> None:
    """Raise ValueError, without the name of the file, if the file declares too large a size.

    Args:
        path: the file.
        shape: the size its header declares, over all pages and channels.
        itemsize: bytes of one number.
        expansion: largest number of bytes that a stored byte can become; 1 without compression.
    """
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"its header declares the size {tuple(shape)}; copy or export it again")
    declared, limit = math.prod(shape), allowed_numbers(path, itemsize, expansion)
    if declared > limit:
        raise ValueError(
            f"its header declares {declared / 1e6:.4g} megapixels, but the limit for its "
            f"{path.stat().st_size} bytes is {limit / 1e6:.4g}; if the size is correct, save it in "
            "parts, or without compression"
        )


def reason_of(error: BaseException) -> str:
    """The reason why a file could not be decoded, in one line; decoders raise nearly every type."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "it needs more memory than is available"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if text and isinstance(error, _WRITTEN_FOR_PEOPLE) and not isinstance(error, UnicodeError):
        return text
    if isinstance(error, struct.error | zlib.error | EOFError):
        return "it is cut short or damaged"
    return f"it is damaged, or of an unsupported kind ({type(error).__name__})"


def load_extra(module: str, purpose: str, extra: str = "ct") -> Any:
    """An optional module, or an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "Pillow"}.get(module.split(".")[0], module)
        raise ImportError(f'{purpose} need {package}: pip install "convexlift[{extra}]"') from error


def pillow() -> Any:
    """The module ``PIL.Image``."""
    return load_extra("PIL.Image", "pictures", "cli")
