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
    """Streams of a thread: one for each stream beside which it works, and one for branches.

    Memory that is freed on a side stream is used again there, which is safe since its work waits
    for the other stream first. It would not be with work of other threads or streams.
    """

    def __init__(self) -> None:
        self.of_streams: dict[torch.cuda.Stream, torch.cuda.Stream] = {}
        self.branches: dict[torch.device, torch.cuda.Stream] = {}


STREAMS = _Streams()
BESIDE, BRANCH = -1, -2
"""Priorities of streams; those on which graphs are captured have 0.

All streams of one priority are among the same few of a device, and work that is launched on a
stream of another thread's capture would become a part of that graph.
"""


def beside(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """In this context, work waits for everything launched before this call, and for nothing later.

    Work after the context waits for that inside.
    """
    main = torch.cuda.current_stream(device)
    if main not in STREAMS.of_streams:
        STREAMS.of_streams[main] = _stream(device, BESIDE)
    return _beside(main, STREAMS.of_streams[main], main.record_event())


def together(first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
    """The results of two calls.

    In a CUDA graph that is being captured, they become branches, which run at the same time: none
    may read what the other computes, nor a tensor that the other caches, nor branch again.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    main = torch.cuda.current_stream()
    if main.device not in STREAMS.branches:
        STREAMS.branches[main.device] = _stream(main.device, BRANCH)
    side = STREAMS.branches[main.device]
    side.wait_stream(main)
    try:
        with torch.cuda.stream(side):
            found = first()
        return found, second()
    finally:
        main.wait_stream(side)


def _stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


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
