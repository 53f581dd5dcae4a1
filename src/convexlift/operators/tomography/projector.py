"""How products with a ray transform are computed, on each device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.rays import Grid, Lines
from convexlift.operators.tomography.sparse_projector import tables
from convexlift.operators.tomography.triton_projector import RayKernels

TABLE_BYTES = 2**29
"""Tables of weights may take so much memory; beyond, weights are computed at each product."""


class Projector(Protocol):
    """Products with A and its exact transpose."""

    def project(self, x: Tensor) -> Tensor:
        """A x: (B, H, W) -> (B, angles, bins)."""
        ...

    def backproject(self, y: Tensor) -> Tensor:
        """A* y: (B, angles, bins) -> (B, H, W)."""
        ...


def projector(lines: Lines, grid: Grid, device: torch.device, dtype: torch.dtype) -> Projector:
    """Small enough tables on a CPU, where torch has MKL's sparse products; kernels on a GPU.

    Else ``Joseph``.
    """
    sparse = device.type == "cpu" and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    if sparse and dtype in (torch.float32, torch.float64):
        found = tables(lines, grid, dtype, TABLE_BYTES)
        if found is not None:
            return found
    return RayKernels.of(lines, grid, device, dtype) or Joseph(lines, grid, device)
