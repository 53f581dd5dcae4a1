"""Visitors: a random cookie, from which folders and session keys are derived, and their sessions.

The folder and the keys are functions of the cookie, so a request reaches only the files and the
sessions of its own cookie, whatever its other content.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from starlette.requests import cookie_parser

from convexlift.web.limits import Limits, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.run import Run

COOKIE = "convexlift-visitor"
MOST_UPLOADS = 8
"""Unread uploads of one visitor: the brush sends a picture, a composite and layers at once."""
MOST_LAYERS = 4
_MOST_DRAWINGS = 2  # the page sends a drawing after each stroke, and uses only the last one
_MOST_CLOSED = 1000
_UPLOAD_SECONDS = 300.0
_TOKEN = re.compile(r"[0-9a-f]{32}")  # cookies, and names of visitors
_SESSION = re.compile(r"[0-9A-Za-z_]{1,64}")


def new_cookie(root_path: str, secure: bool) -> str:
    """The header of a new session cookie."""
    rest = f"Path={root_path or '/'}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
    return f"{COOKIE}={secrets.token_hex(16)}; {rest}"


def visitor_of(cookies: str) -> str | None:
    """The visitor's public name, for folders and keys; None without a valid cookie."""
    token = cookie_parser(cookies).get(COOKIE, "")
    # The names of folders appear in URLs of results; the cookie cannot be computed from them.
    return _digest(token) if _TOKEN.fullmatch(token) else None


def session_key(visitor: str, session: object) -> str | None:
    """The key of a visitor's session from the name chosen by the browser; None for a bad one."""
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        return None
    return f"{visitor}-{session}"


def visitor_in(key: str) -> str:
    """The visitor to whom a session key belongs."""
    visitor = key.partition("-")[0]
    return visitor if _TOKEN.fullmatch(visitor) else _digest(key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Uploads:
    """Uploaded files not yet read, each in a random folder inside its visitor's folder.

    Args:
        root: the folder of the server.
        limits: the newest files are kept, on average two for each session.
    """

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._owners: dict[Path, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def add(self, visitor: str, name: str, content: BinaryIO) -> Path:
        """Keep a file, and delete the oldest ones if there are too many."""
        folder = self.root / visitor / "uploads" / secrets.token_hex(8)
        _make_private(folder)
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
            surplus = {*mine[:-MOST_UPLOADS], *list(self._owners)[: -2 * self.limits.sessions]}
        self._delete(lambda path, owner, since: path in surplus)
        return path

    def holds(self, visitor: str, path: Path) -> bool:
        """Whether the visitor uploaded this file, and it still exists."""
        owner, _ = self._owners.get(path, ("", 0.0))
        return owner == visitor and path.is_file() and not path.is_symlink()

    def drop(self, visitor: str, *paths: Path) -> None:
        """Delete some of a visitor's files."""
        self._delete(lambda path, owner, since: owner == visitor and path in paths)

    def drop_all(self, visitor: str) -> None:
        """Delete all files of a visitor."""
        self._delete(lambda path, owner, since: owner == visitor)

    def sweep(self) -> None:
        """Delete files that no event has requested."""
        oldest = time.monotonic() - _UPLOAD_SECONDS
        self._delete(lambda path, owner, since: since < oldest)

    def _delete(self, condition: Callable[[Path, str, float], bool]) -> None:
        with self._lock:
            paths = [path for path, found in self._owners.items() if condition(path, *found)]
            for path in paths:
                del self._owners[path]
        for path in paths:  # outside the lock: no request waits for the disk
            shutil.rmtree(path.parent, ignore_errors=True)
            with contextlib.suppress(OSError):  # the visitor's folder is deleted with the last file
                path.parent.parent.rmdir()
                path.parent.parent.parent.rmdir()


class Session:
    """One open page of a visitor: pictures in memory, and a folder with results."""

    def __init__(self, folder: Path, visitor: str) -> None:
        self.folder, self.visitor = folder, visitor
        self.pictures: dict[str, InputPicture] = {}
        self.drawings: dict[str, dict[int, NDArray[np.uint8]]] = {}
        self.used = time.monotonic()
        self._running: Run | None = None
        self._lock = threading.Lock()
        self._results: dict[str, int] = {}  # number of results by tab
        self._canvas: Path | None = None
        self._closed = False

    def start(self, run: Run) -> None:
        """Start a run; the previous one is stopped.

        Raises:
            PageError: the page was closed.
        """
        with self._lock:
            self._require_open()
            previous, self._running = self._running, run
        if previous is not None:
            previous.stop()
        run.start()

    def release(self, run: Run) -> None:
        """Forget a run that has ended, whose solution may take gigabytes."""
        with self._lock:
            if self._running is run:
                self._running = None

    def stop(self) -> bool:
        """Stop the current run; returns whether there was one."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()
        return running is not None

    def new_folder(self, tab: str) -> Path:
        """A folder for the files of one result; the last two results of each tab are kept."""
        with self._lock:
            self._require_open()
            number = self._results[tab] = self._results.get(tab, 0) + 1
        shutil.rmtree(self.folder / f"{tab}-{number - 2}", ignore_errors=True)
        folder = self.folder / f"{tab}-{number}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def new_canvas(self) -> Path:
        """A file for the picture under the brush; a new name, since browsers cache the old one."""
        with self._lock:
            previous, self._canvas = self._canvas, self.folder / f"{secrets.token_hex(8)}.png"
            canvas = self._canvas
        if previous is not None:
            previous.unlink(missing_ok=True)
        return canvas

    def keep_drawing(self, name: str, layer: int, opacity: NDArray[np.uint8]) -> None:
        """Keep a painted layer until its run starts; older drawings are dropped."""
        with self._lock:
            self.drawings.setdefault(name, {})[layer] = opacity
            for old in list(self.drawings)[:-_MOST_DRAWINGS]:
                del self.drawings[old]

    def _require_open(self) -> None:
        if self._closed:
            raise PageError("The page was closed.", "Reload it.")

    def close(self) -> None:
        """Stop, and delete every file."""
        with self._lock:
            self._closed = True
        self.stop()
        self.pictures.clear()
        self.drawings.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # files of another session, or uploads, are there
            self.folder.parent.rmdir()


class Sessions:
    """All sessions, by keys that begin with the name of their visitor.

    Gradio's own session state does not suffice: it is lost when a connection breaks, recreated by
    late events, and inaccessible to the routes of uploads.

    Attributes:
        uploads: files not yet read.
        is_busy: whether a session has events that wait or run; it is kept until they have ended.
        on_close: called with the key of a session that has ended and whose files are deleted.
    """

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self.uploads = Uploads(root, limits)
        self.is_busy: Callable[[str], bool] = lambda key: False
        self.on_close: Callable[[str], None] = lambda key: None
        self._known: dict[str, Session] = {}
        self._open: Counter[str] = Counter()  # connections of each page
        self._closed: dict[str, None] = {}  # keys in the order in which they were closed
        self._lock = threading.Lock()

    def folder_of(self, visitor: str) -> Path:
        """The folder with all files of a visitor."""
        return self.root / visitor

    def arrived(self, key: str) -> None:
        """Count a connection of a page, possibly a new one after the network failed."""
        with self._lock:
            self._open[key] += 1
            self._closed.pop(key, None)

    def departed(self, key: str) -> bool:
        """Whether the connection that ended was the last one of its page."""
        with self._lock:
            self._open[key] -= 1
            last = self._open[key] <= 0
            if last:
                del self._open[key]
        return last

    def of(self, key: str) -> Session:
        """The session, created by the first call.

        Raises:
            PageError: the page was closed before this event came.
        """
        now = time.monotonic()
        with self._lock:
            session = self._known.get(key)
            if session is None and key in self._closed:
                raise PageError("The page was closed.", "Reload it.")
            if session is None:
                visitor = visitor_in(key)
                folder = self.folder_of(visitor) / secrets.token_hex(16)
                _make_private(folder)
                session = self._known[key] = Session(folder, visitor)
            session.used = now
            ended = self._outdated(now, key)
        self._end(ended)  # outside the lock: it deletes files
        return session

    def close(self, key: str) -> None:
        """Forget a session; with the visitor's last one, also the unread uploads."""
        visitor = visitor_in(key)
        with self._lock:
            session = self._known.pop(key, None)
            others = any(visitor_in(other) == visitor for other in self._known)
            self._closed[key] = None
            for old in list(self._closed)[:-_MOST_CLOSED]:
                del self._closed[old]
        if not others:
            self.uploads.drop_all(visitor)
        self._end({} if session is None else {key: session})

    def close_all(self) -> None:
        """Forget all sessions, at the end of the server."""
        with self._lock:
            sessions, self._known = self._known, {}
        self._end(sessions)

    def sweep(self) -> None:
        """Forget sessions that were idle for too long, and uploads that no event has requested."""
        with self._lock:
            ended = self._outdated(time.monotonic(), "")
        self._end(ended)
        self.uploads.sweep()

    def _end(self, sessions: dict[str, Session]) -> None:
        for key, session in sessions.items():
            session.close()
            self.on_close(key)

    def _outdated(self, now: float, mine: str) -> dict[str, Session]:
        # The order in which sessions are dropped: those without an open page first, then by age.
        by_age = sorted(
            (key in self._open, s.used, key)
            for key, s in self._known.items()
            if key != mine and not self.is_busy(key)
        )
        surplus = max(0, len(self._known) - self.limits.sessions)
        old = [
            key
            for i, (_, used, key) in enumerate(by_age)
            if i < surplus or now - used > self.limits.idle_seconds
        ]
        return {key: self._known.pop(key) for key in old}


def _make_private(folder: Path) -> None:
    """Create a folder for one visitor, with its parents, which another thread may be removing."""
    for attempt in range(5):
        try:
            folder.mkdir(parents=True, mode=0o700)
            return
        except FileNotFoundError:
            if attempt == 4:
                raise


def _safe_name(name: str) -> str:
    """The last part of a file name, short, without separators and control characters."""
    last = re.sub(r"[^\w .()+-]", "_", re.split(r"[/\\]", name)[-1]).strip(" .") or "upload"
    stem, dot, ending = last.rpartition(".")
    return f"{stem[:50]}.{ending[:9]}" if dot else last[:50]
