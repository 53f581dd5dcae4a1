"""Double precision where a device has it, and single precision without TF32.

Apple's GPUs (MPS) have no double precision: the CPU computes for them. TF32 rounds the operands of
products to three digits, so that certificates would be meaningless.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
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


class _Precision:
    """The settings of all threads, with the number of those that need full precision."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, ("", "")

    def raise_(self) -> None:
        """Disable TF32; the first user saves the settings."""
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
        with self.lock:
            if not self.users:
                self.before = matmul.fp32_precision, convolution.fp32_precision
                matmul.fp32_precision = convolution.fp32_precision = "ieee"
            self.users += 1

    def restore(self) -> None:
        """The last user restores the settings."""
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
        with self.lock:
            self.users -= 1
            if not self.users:
                matmul.fp32_precision, convolution.fp32_precision = self.before


_PRECISION = _Precision()


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 and autocast: with three digits, certificates would be meaningless.

    TF32 is off in all threads until the last of them leaves.
    """
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        _PRECISION.raise_()
        stack.callback(_PRECISION.restore)
        yield
