"""Launches on fixed buffers as CUDA graphs, which cost the host a few microseconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch


class Replayed:
    """Launches on fixed buffers, captured as a CUDA graph after the first call."""

    def __init__(self, launch: Callable[[], None]) -> None:
        self._launch = launch
        self._called = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Launch, capture or replay."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._called or not torch.cuda.is_available():
            self._launch()  # kernels are compiled by their first launch, which cannot be captured
            self._called = True
        else:
            self._graph = _captured(self._launch)
            self._graph.replay()


def _captured(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the first error is the one to tell
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
