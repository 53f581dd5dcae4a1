"""More CUDA streams, whose work does not wait for what the first one is busy with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


class _Streams(threading.local):
    """Streams of a thread: one for each stream beside which it works, and for each branch.

    Memory that is freed on a side stream is used again there, which is safe since its work waits
    for the other stream first. It would not be with work of other threads or streams.
    """

    def __init__(self) -> None:
        self.of_streams: dict[torch.cuda.Stream, torch.cuda.Stream] = {}
        self.branches: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
        self.depth = 0  # of calls of ``together`` inside one another


STREAMS = _Streams()


def beside(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """In this context, work waits for everything launched before this call, and for nothing later.

    Work after the context waits for that inside.
    """
    main = torch.cuda.current_stream(device)
    if main not in STREAMS.of_streams:
        STREAMS.of_streams[main] = _stream(device)
    return _beside(main, STREAMS.of_streams[main], main.record_event())


def together(first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
    """The results of two calls that do not read each other's.

    In a CUDA graph that is being captured, they become branches, which run at the same time.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    main, depth = torch.cuda.current_stream(), STREAMS.depth
    if (main.device, depth) not in STREAMS.branches:
        STREAMS.branches[main.device, depth] = _stream(main.device)
    side = STREAMS.branches[main.device, depth]
    side.wait_stream(main)
    STREAMS.depth += 1
    try:
        with torch.cuda.stream(side):
            found = first()
        return found, second()
    finally:
        STREAMS.depth = depth
        main.wait_stream(side)


def _stream(device: torch.device) -> torch.cuda.Stream:
    # Of another priority than streams on which graphs are captured, since all streams of one
    # priority are among the same few.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


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
