"""Housekeeping of a server: idle sessions end, old uploads go, and free memory goes back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable

_EVERY = 60.0
_PAUSE = 2.0


class Housekeeper:
    """A thread that tidies up every minute, and soon after it is asked to.

    Args:
        tidy: what to do before free memory is returned.
    """

    def __init__(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._asked, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="convexlift-tidy", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Memory was freed: return it soon."""
        self._asked.set()

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._asked.set()
        self._thread.join(10)

    def _work(self) -> None:
        while not self._ended.is_set():
            self._asked.wait(_EVERY)
            # A pause, so that many who leave at once are one reason to tidy up.
            if self._ended.wait(_PAUSE):
                return
            self._asked.clear()
            self._tidy()
            return_free_memory()


def return_free_memory() -> None:
    """Give memory that is no longer used back to the system.

    Each run has a thread of its own, and glibc keeps the memory that threads free in an arena for
    each: without this, hundreds of megabytes stay with the server after a few runs.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)
