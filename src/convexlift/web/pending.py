"""Uploads that arrived and wait to be read: who sent them, and where they are."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import BinaryIO

from convexlift.web.folders import private_folder
from convexlift.web.limits import Limits

MOST_EACH = 8
"""Pending uploads of one visitor: the brush sends a picture, a composite and layers at once."""
_AGE = 300.0


class PendingUploads:
    """Files of visitors, each in a folder with a random name inside the visitor's own.

    Args:
        root: the folder of the server.
        limits: the most visitors; twice as many files are kept, the newest ones.
    """

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._owners: dict[Path, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def add(self, visitor: str, name: str, content: BinaryIO) -> Path:
        """Keep a file; the visitor's oldest one goes where there are too many."""
        folder = self.root / visitor / "uploads" / secrets.token_hex(8)
        private_folder(folder)
        path = folder / _safe_name(name)
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self._lock:
            self._owners[path] = (visitor, time.monotonic())
            mine = [p for p, (owner, _) in self._owners.items() if owner == visitor]
            surplus = [*mine[:-MOST_EACH], *list(self._owners)[: -2 * self.limits.sessions]]
        self.drop(*surplus)
        return path

    def holds(self, visitor: str, path: Path) -> bool:
        """Whether the visitor uploaded this file, and it is still here."""
        owner, _ = self._owners.get(path, ("", 0.0))
        return owner == visitor and path.is_file() and not path.is_symlink()

    def drop(self, *paths: Path) -> None:
        """Delete files."""
        for path in paths:
            with self._lock:
                known = self._owners.pop(path, None)
            if known is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
                # The folders above are for this visitor only; they go with the last file.
                with contextlib.suppress(OSError):
                    path.parent.parent.rmdir()
                    path.parent.parent.parent.rmdir()

    def drop_all(self, visitor: str) -> None:
        """Delete the files of a visitor who left."""
        with self._lock:
            paths = [path for path, (owner, _) in self._owners.items() if owner == visitor]
        self.drop(*paths)

    def sweep(self) -> None:
        """Delete files for which no event came."""
        oldest = time.monotonic() - _AGE
        with self._lock:
            paths = [path for path, (_, since) in self._owners.items() if since < oldest]
        self.drop(*paths)


def _safe_name(name: str) -> str:
    """The last part of a name, short and without separators, links to folders and control codes."""
    last = re.sub(r"[^\w .()+-]", "_", re.split(r"[/\\]", name)[-1]).strip(" .") or "upload"
    stem, dot, ending = last.rpartition(".")
    return f"{stem[:50]}.{ending[:9]}" if dot else last[:50]
