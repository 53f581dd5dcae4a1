"""CUDA graphs: launches that are captured once and then replayed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch

from convexlift.side_streams import beside

TRIES = 3
"""Captures that failed, or whose decisions changed, after which no more are made."""


class CudaGraphs:
    """Captures launches; not again after a few captures that failed, which may leave traces."""

    def __init__(self) -> None:
        self.failures = 0

    def room(self, device: torch.device) -> int:
        """Bytes of memory, 0 where nothing can be captured."""
        if (
            self.failures >= TRIES
            or device.type != "cuda"
            or torch.cuda.is_current_stream_capturing()
        ):
            return 0
        return int(torch.cuda.get_device_properties(device).total_memory)

    def stream(self, device: torch.device) -> Hashable:
        """The stream on which calls must follow one another."""
        return torch.cuda.current_stream(device).cuda_stream

    def beside(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """A context for work that does not wait for launches after this call."""
        return beside(device)

    def capture(self, launch: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """The results of launches, and a function that computes them anew, in place."""
        try:
            graph, results = captured(launch)
        except BaseException:
            self.failures += 1
            raise
        return results, graph.replay


def captured(launch: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of launches, and what ``launch`` returned."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Other threads may use CUDA during the capture.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = launch()
        except BaseException:
            # Report the first error, not another one, nor a warning that the graph is empty.
            with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, results
