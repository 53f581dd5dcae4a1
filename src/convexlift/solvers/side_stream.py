"""A second CUDA stream, whose work does not wait for what the first one is busy with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class _Streams(threading.local):
    """One for each thread and device.

    Memory that is freed on a side stream is used again there, which is safe since its work waits
    for the other stream first. With work of other threads it would not be.
    """

    def __init__(self) -> None:
        self.of_devices: dict[torch.device, torch.cuda.Stream] = {}


STREAMS = _Streams()


def beside(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """In this context, work waits for everything launched before this call, and for nothing later.

    Work after the context waits for that inside.
    """
    main = torch.cuda.current_stream(device)
    if device not in STREAMS.of_devices:
        STREAMS.of_devices[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _beside(main, STREAMS.of_devices[device], main.record_event())


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
