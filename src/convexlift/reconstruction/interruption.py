"""Ctrl-C while files are reconstructed: solves end at once, files are never left half-written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class Interruption:
    """Whether Ctrl-C came.

    While a solve runs, the signal raises KeyboardInterrupt, which ``solve`` turns into its best
    iterate. At all other times it is only noted, so that a file that is being written is finished.
    A second one is raised wherever it comes.
    """

    asked = False
    _in_a_solve = False

    @contextlib.contextmanager
    def during_a_solve(self) -> Iterator[None]:
        """Let the signal end what is inside."""
        self._in_a_solve = True
        try:
            yield
        finally:
            self._in_a_solve = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[Interruption]:
        """Take the signal over inside; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _note(self, kind: int, frame: object) -> None:
        again, self.asked = self.asked, True
        if again or self._in_a_solve:
            raise KeyboardInterrupt
