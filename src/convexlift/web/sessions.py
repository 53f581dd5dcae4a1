"""Visitors, one by one: each has a folder with a name nobody can guess, and nobody else's files."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from convexlift.web.jobs import Job
from convexlift.web.limits import Limits
from convexlift.web.running import Run
from convexlift.web.uploads import Picture


class Session:
    """What is kept of one visitor, in memory and in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uploads: dict[str, Picture] = {}
        self.job: Job | None = None  # the last one that was started
        self.bound = -math.inf  # what it proved, once it is done
        self._stop: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._results = 0
        self._canvas: Path | None = None
        self.used = time.monotonic()

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

    def close(self) -> None:
        """Stop, and delete every file."""
        self.stop()
        self.uploads.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Sessions:
    """All visitors, by the keys their browsers draw at random."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._known: dict[str, Session] = {}
        self._lock = threading.Lock()

    def of(self, key: str) -> Session:
        """The visitor's session, made on the first call."""
        now = time.monotonic()
        with self._lock:
            session = self._known.get(key)
            if session is None:
                # The key comes from outside; the name of the folder does not.
                folder = self.root / secrets.token_hex(16)
                folder.mkdir(parents=True, mode=0o700)
                session = self._known[key] = Session(folder)
            session.used = now
            ended = self._outdated(now, key)
        for other in ended:
            other.close()
        self._sweep()
        return session

    def close(self, key: str) -> None:
        """Forget a visitor."""
        with self._lock:
            session = self._known.pop(key, None)
        if session is not None:
            session.close()

    def close_all(self) -> None:
        """At the end of the server."""
        with self._lock:
            sessions, self._known = list(self._known.values()), {}
        for session in sessions:
            session.close()

    def _sweep(self) -> None:
        """Delete what is left of uploads that were cut off on their way."""
        oldest = time.time() - self.limits.idle_seconds
        for path in self.root.glob("tmp*"):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime < oldest:
                    path.unlink()

    def _outdated(self, now: float, mine: str) -> list[Session]:
        by_age = sorted((s.used, key) for key, s in self._known.items() if key != mine)
        surplus = max(0, len(self._known) - self.limits.sessions)
        old = [
            key
            for i, (used, key) in enumerate(by_age)
            if i < surplus or now - used > self.limits.idle_seconds
        ]
        return [self._known.pop(key) for key in old]
