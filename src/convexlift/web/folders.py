"""The folder of one server, locked while the server lives, so that leftovers can be recognised."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows nothing is locked, and leftovers stay
    fcntl = None  # type: ignore[assignment]

PREFIX = "convexlift-web-"
_LOCK = "server.lock"
_UNLOCKED_SECONDS = 86_400.0
"""A folder without a lock file is a leftover at this age: its server was killed as it started."""


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder, deleted at the end; leftovers of servers that were killed are deleted first."""
    remove_leftovers(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    # The lock file gets its name once it is locked: an unlocked one means that its server died.
    unnamed = root / f"{_LOCK}.new"
    try:
        with unnamed.open("w") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                unnamed.rename(root / _LOCK)
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def private_folder(folder: Path) -> None:
    """Make a folder for one visitor, with those above it, which may be removed meanwhile."""
    for attempt in range(5):
        try:
            folder.mkdir(parents=True, mode=0o700)
            return
        except FileNotFoundError:
            if attempt == 4:
                raise


def remove_leftovers(parent: Path) -> None:
    """Delete the folders of this user's servers that no longer run."""
    if fcntl is None:
        return
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_own_folder(folder) and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(folder: Path) -> bool:
    # The parent is writable by everyone: links and other users' folders are not followed.
    own = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
    return own and folder.is_dir() and not folder.is_symlink()


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False  # its server is alive
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS
