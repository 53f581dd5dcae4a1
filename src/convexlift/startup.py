"""Ctrl-C while the command line is still being imported: one line and exit status 130.

Importing torch takes seconds, and no command is loaded yet to catch the signal.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

INTERRUPTED = 130


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, until ``raise_on_interrupt``.

    Replaces only Python's own handler, since background jobs of a shell ignore the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, which commands handle."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(kind: int, frame: FrameType | None) -> None:
    # An exception would not work: some imports swallow it, and where it passes through `exec` of a
    # string, Python ends by the signal even if it is caught. No file is open yet.
    os.write(2, b"convexlift: Interrupted.\n")
    os._exit(INTERRUPTED)
