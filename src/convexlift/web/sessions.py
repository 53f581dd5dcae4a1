"""Sessions of visitors: each has a folder with a random name inside that of its visitor."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convexlift.web.folders import private_folder
from convexlift.web.jobs import Job
from convexlift.web.limits import Limits, PageError
from convexlift.web.pending import PendingUploads
from convexlift.web.running import Run
from convexlift.web.uploads import Picture
from convexlift.web.visitors import visitor_in

MOST_LAYERS = 4
_MOST_DRAWINGS = 2
"""The page sends a drawing after each stroke, and asks for the last one only."""

_MOST_LEFT = 1000


class Session:
    """What is kept of one visitor, in memory and in a folder."""

    def __init__(self, folder: Path, visitor: str = "") -> None:
        self.folder, self.visitor = folder, visitor
        self.drawings: dict[str, dict[int, NDArray[np.uint8]]] = {}
        self.uploads: dict[str, Picture] = {}
        self.job: Job | None = None  # the last one that was started
        self.bound = -math.inf  # what it proved, once it is done
        self._stop: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._results = 0
        self._canvas: Path | None = None
        self.used = time.monotonic()
        self._closed = False

    def begin(self, stop: Callable[[], None]) -> None:
        """Something runs from now on, and this ends it; what ran before is stopped."""
        with self._lock:
            previous, self._stop = self._stop, stop
        if previous is not None:
            previous()

    def stop(self) -> bool:
        """Stop what runs; whether anything did."""
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        return stop is not None

    def start(self, run: Run) -> Run:
        """Begin a run, and remember its job."""
        self.job, self.bound = run.job, -math.inf
        self.begin(run.stop)
        return run.start()

    def new_folder(self) -> Path:
        """For the files of one result; those of the result before the last are deleted."""
        with self._lock:
            if self._closed:
                raise PageError("The page was closed.", "Reload it.")
            self._results += 1
            number = self._results
        shutil.rmtree(self.folder / f"result-{number - 2}", ignore_errors=True)
        place = self.folder / f"result-{number}"
        place.mkdir(parents=True, mode=0o700)
        return place

    def new_canvas(self) -> Path:
        """For the picture under the brush, in the place of the last; browsers know it by name."""
        with self._lock:
            previous, self._canvas = self._canvas, self.folder / f"{secrets.token_hex(8)}.png"
            canvas = self._canvas
        if previous is not None:
            previous.unlink(missing_ok=True)
        return canvas

    def keep_drawing(self, name: str, layer: int, opacity: NDArray[np.uint8]) -> None:
        """Keep a layer that was painted, until the run that it is for; older drawings go."""
        with self._lock:
            self.drawings.setdefault(name, {})[layer] = opacity
            for old in list(self.drawings)[:-_MOST_DRAWINGS]:
                del self.drawings[old]

    def close(self) -> None:
        """Stop, and delete every file."""
        with self._lock:
            self._closed = True
        self.stop()
        self.uploads.clear()
        self.drawings.clear()
        self.job = None
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another session's files, or uploads, are there
            self.folder.parent.rmdir()


class Sessions:
    """All sessions, by keys that begin with their visitor.

    Attributes:
        pending: uploads that were not read yet.
        on_close: called with the key of a session that ended, after its files are deleted.
    """

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self.pending = PendingUploads(root, limits)
        self.on_close: Callable[[str], None] = lambda key: None
        self._known: dict[str, Session] = {}
        self._open: Counter[str] = Counter()
        self._left: dict[str, None] = {}  # keys in the order in which they went
        self._lock = threading.Lock()

    def folder_of(self, visitor: str) -> Path:
        """Where all files of a visitor are."""
        return self.root / visitor

    def arrived(self, key: str) -> None:
        """A page is open, perhaps again after its connection was lost."""
        with self._lock:
            self._open[key] += 1
            self._left.pop(key, None)

    def departed(self, key: str) -> bool:
        """Whether the last connection of a page ended."""
        with self._lock:
            self._open[key] -= 1
            last = self._open[key] <= 0
            if last:
                del self._open[key]
        return last

    def of(self, key: str) -> Session:
        """The session, made on the first call.

        Raises:
            PageError: the page was closed, and an event of it comes late.
        """
        now = time.monotonic()
        with self._lock:
            session = self._known.get(key)
            if session is None and key in self._left:
                raise PageError("The page was closed.", "Reload it.")
            if session is None:
                visitor = visitor_in(key)
                folder = self.folder_of(visitor) / secrets.token_hex(16)
                private_folder(folder)
                session = self._known[key] = Session(folder, visitor)
            session.used = now
            ended = self._outdated(now, key)
        self._end(ended)
        return session

    def close(self, key: str) -> None:
        """Forget a session, and the visitor's uploads with the last one."""
        with self._lock:
            session = self._known.pop(key, None)
            visitor = visitor_in(key)
            others = any(visitor_in(other) == visitor for other in self._known)
            self._left[key] = None
            for old in list(self._left)[:-_MOST_LEFT]:
                del self._left[old]
        if not others:
            self.pending.drop_all(visitor)
        self._end({} if session is None else {key: session})

    def close_all(self) -> None:
        """At the end of the server."""
        with self._lock:
            sessions, self._known = self._known, {}
        self._end(sessions)

    def sweep(self) -> None:
        """Forget who was idle for too long, and uploads that no event followed."""
        with self._lock:
            ended = self._outdated(time.monotonic(), "")
        self._end(ended)
        self.pending.sweep()

    def _end(self, sessions: dict[str, Session]) -> None:
        for key, session in sessions.items():
            session.close()
            self.on_close(key)

    def _outdated(self, now: float, mine: str) -> dict[str, Session]:
        # Those whose page is not open go first.
        by_age = sorted(
            (key in self._open, s.used, key) for key, s in self._known.items() if key != mine
        )
        surplus = max(0, len(self._known) - self.limits.sessions)
        old = [
            key
            for i, (_, used, key) in enumerate(by_age)
            if i < surplus or now - used > self.limits.idle_seconds
        ]
        return {key: self._known.pop(key) for key in old}
