"""Errors of the disk while a training writes, with the file they are about."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or the user's share of it."""


class WriteError(OSError):
    """A file that could not be written: one sentence, and the number of the cause."""

    def __init__(self, path: Path, cause: OSError) -> None:
        reason = cause.strerror or " ".join(str(cause).split())
        advice = "make room there" if cause.errno in FULL else "check the disk and its permissions"
        super().__init__(f"{path} cannot be written ({reason}); {advice}")
        self.errno = cause.errno


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk inside into ``WriteError``."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(path, error) from error
