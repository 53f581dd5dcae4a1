"""Ctrl-C while the command line is still being imported: one line, and the status 130.

Imports take seconds, most of them torch's, and run before any command could catch the signal:
``python -m convexlift`` and the script import the package before they reach ``main``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

INTERRUPTED = 130


def is_the_command_line() -> bool:
    """Whether this process is ``python -m convexlift`` or the script, and no program of a user.

    Words for the program come last, and ``sys.argv`` is one longer than they are: what stands
    before them is the module or the script.
    """
    started = sys.orig_argv[-len(sys.argv) :][:1]
    return [Path(word).name for word in started] in (["convexlift"], ["convexlift.exe"])


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, until ``raise_on_interrupt``.

    Only in place of Python's own handler: jobs in the background of a shell ignore the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """KeyboardInterrupt again, which commands know how to end by."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(kind: int, frame: FrameType | None) -> None:
    # An exception would not do: some imports swallow it, and Python ends by the signal, whatever
    # is caught, where one passes through `exec` of a string. Nothing is open yet that needs care.
    os.write(2, b"convexlift: Interrupted.\n")
    os._exit(INTERRUPTED)
