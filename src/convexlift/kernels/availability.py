"""Whether kernels can be built and launched here, and on which device."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from subprocess import SubprocessError
from typing import Any

import torch


@cache
def kernel_module(name: str) -> Any:
    """The module of this name in ``convexlift.kernels``, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module(f"convexlift.kernels.{name}")
    except ImportError:  # Triton is installed but broken
        return None


class KernelsUnavailable(Exception):
    """Kernels cannot be launched here, for example without a C compiler."""


def kernel_errors() -> tuple[type[Exception], ...]:
    """The exceptions raised where kernels cannot be compiled or do not fit a GPU."""
    if importlib.util.find_spec("triton") is None:
        return ()
    try:
        from triton.errors import TritonError
    except ImportError:
        return (KernelsUnavailable,)
    return (TritonError, KernelsUnavailable)


@contextlib.contextmanager
def first_launch() -> Iterator[None]:
    """Guard for the first launch, in which Triton builds its launcher with a C compiler."""
    try:
        yield
    except (RuntimeError, SubprocessError, OSError) as error:
        raise KernelsUnavailable(str(error)) from error


def current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make ``device`` current: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()  # several times as fast
    return torch.cuda.device(device)
