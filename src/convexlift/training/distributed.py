"""Several processes that train one network (torchrun), or a single one that need not know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """This process among all: rank counts from 0."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0


def place() -> Place:
    """Where this process stands; (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size())
    return Place()


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[Place]:
    """Join the group that torchrun announced in the environment, if it did; leave it after."""
    announced = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not announced or dist.is_initialized():
        yield place()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # "cuda" now means this one
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield place()
    finally:
        dist.destroy_process_group()


def gather(values: Tensor) -> Tensor:
    """The tensors of all processes, one after the other along the first dimension."""
    here = place()
    if here.world == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(here.world)]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)


def means(values: Sequence[Tensor]) -> list[float]:
    """The means over processes of a few numbers each, fetched from the device all at once."""
    device = values[0].device
    total = torch.stack([value.detach().to(device, torch.float64) for value in values])
    if (world := place().world) > 1:
        dist.all_reduce(total)
        total /= world
    means: list[float] = total.tolist()
    return means


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in some process."""
    if place().world == 1:
        return flag
    value = torch.tensor(int(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value)
