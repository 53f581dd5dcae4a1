"""Processes that train one network together (torchrun), and the signals that stop them.

All functions also work in a single process, where nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Process:
    """The rank of this process, counted from 0, and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0


def this_process() -> Process:
    """Rank and world of this process; (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return Process(dist.get_rank(), dist.get_world_size())
    return Process()


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[Process]:
    """Join the group that torchrun announces in the environment, if any; leave it afterwards."""
    announced = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not announced or dist.is_initialized():
        yield this_process()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # "cuda" now means this one
    # Adam imports torch._dynamo, which keeps the group if there is one by then (torch 2.13): Gloo's
    # threads would outlive it, and one that releases a tensor while Python ends aborts, or hangs.
    importlib.import_module("torch._dynamo")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield this_process()
    finally:
        dist.destroy_process_group()


def gather(values: Tensor) -> Tensor:
    """The tensors of all processes, one after the other along the first dimension."""
    here = this_process()
    if here.world == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(here.world)]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)


def means(values: Sequence[Tensor]) -> list[float]:
    """Means over processes of several numbers, fetched from the device in one transfer."""
    device = values[0].device
    total = torch.stack([value.detach().to(device, torch.float64) for value in values])
    if (world := this_process().world) > 1:
        dist.all_reduce(total)
        total /= world
    means: list[float] = total.tolist()
    return means


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    if this_process().world == 1:
        return flag
    value = torch.tensor(int(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value)


class StopSignals:
    """Ctrl-C and SIGTERM received so far: the first one ends the run after the current step.

    Attributes:
        wanted: whether the run ends after the current step.
        abandoned: whether a second Ctrl-C ended it at once. A running solver then returns an image
            that is not a solution, so its step must not count.
    """

    wanted = False
    abandoned = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the current step was interrupted."""
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
    """Catch both signals; outside the main thread, which alone can, do nothing."""
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
