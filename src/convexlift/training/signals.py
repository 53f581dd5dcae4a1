"""Ctrl-C and SIGTERM during a training: the step is finished, then the run ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopSignals:
    """What has come so far.

    Attributes:
        wanted: whether the run shall end after the present step.
        abandoned: whether a second Ctrl-C came, which ends it at once. A solver that runs at
            that moment ends by it, with an image that is no solution: its step must not count.
    """

    wanted = False
    abandoned = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the present step was broken off."""
        if self.abandoned:
            raise KeyboardInterrupt

    def note(self, kind: int, _: object) -> None:
        """The handler of both signals."""
        if self.wanted and kind == signal.SIGINT:
            self.abandoned = True
            raise KeyboardInterrupt
        self.wanted = True


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Watch for both signals inside; only the main thread can."""
    seen = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {kind: signal.signal(kind, seen.note) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)
