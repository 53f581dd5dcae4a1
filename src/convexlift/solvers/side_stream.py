"""A second CUDA stream, whose work does not wait for what the first one is busy with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class _Streams(threading.local):
    """One for each thread and stream beside which it works.

    Memory that is freed on a side stream is used again there, which is safe since its work waits
    for the other stream first. It would not be with work of other threads or streams.
    """

    def __init__(self) -> None:
        self.of_streams: dict[torch.cuda.Stream, torch.cuda.Stream] = {}


STREAMS = _Streams()


def beside(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """In this context, work waits for everything launched before this call, and for nothing later.

    Work after the context waits for that inside.
    """
    main = torch.cuda.current_stream(device)
    if main not in STREAMS.of_streams:
        # Of another priority than streams on which graphs are captured, since all streams of one
        # priority are among the same few.
        side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        STREAMS.of_streams[main] = side
    return _beside(main, STREAMS.of_streams[main], main.record_event())


@contextlib.contextmanager
def _beside(
    main: torch.cuda.Stream, side: torch.cuda.Stream, known: torch.cuda.Event
) -> Iterator[None]:
    side.wait_event(known)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        main.wait_stream(side)
