"""Devices with double precision; for Apple's GPUs (MPS), which have none, the CPU computes."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def has_double(device: str) -> bool:
    """Whether tensors on devices of this type can have double precision."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def near_double(tensor: Tensor) -> Tensor:
    """The tensor, on the CPU if its device has no double precision."""
    return tensor if has_double(tensor.device.type) else tensor.cpu()


def as_double(tensor: Tensor) -> Tensor:
    """The tensor in double precision, on the CPU if its device has none."""
    return near_double(tensor).double()
