"""A clock that can be paused."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """A clock that starts when it is made and can be paused."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds until now, without the pauses."""
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock inside the block."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before
