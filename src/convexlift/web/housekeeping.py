"""Housekeeping of a server: idle sessions end, old uploads go, and free memory goes back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable

_EVERY = 60.0
_PAUSE = 2.0
_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


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


def share_memory_among_threads() -> None:
    """Let all threads take memory from one place, so that ``return_free_memory`` can return it.

    Each run has a thread of its own. glibc gives threads arenas of their own, and keeps up to 64 MB
    at the end of each, which no call returns: hundreds of megabytes after a few runs.
    """
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Give memory that is no longer used back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
