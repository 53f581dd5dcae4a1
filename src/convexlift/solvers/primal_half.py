"""The primal half of fused iterations, with its data: the kernel ``primal_step``."""

from __future__ import annotations

import copy
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import DiagonalFidelityTerm
from convexlift.kernels import first_layer
from convexlift.operators.convolution import Boundary, Padding
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.fused_kernels import Buffers, FirstLayer, kernels, own_copy
from convexlift.solvers.method import DoesNotApply

KINDS = {"squared": 1, "absolute": 2, "poisson": 3}
"""Codes of the fidelities in the kernel."""


class Pixels:
    """The primal half of an iteration behind a diagonal A; launched on copies of the data."""

    def __init__(self, saddle: SaddlePointProblem, layer: FirstLayer) -> None:
        term, operator = saddle.g.get("x"), layer.operator
        kernel = term.fidelity.kernel if isinstance(term, DiagonalFidelityTerm) else None
        if not isinstance(term, DiagonalFidelityTerm) or kernel is None:
            raise DoesNotApply("a data term that the kernels do not support")
        self.y = self.target = self.background = term.fidelity.y
        # As floats: a CUDA kernel takes the bits as they are.
        self.kind, self.pull, self.scale = (
            KINDS[kernel.kind],
            float(kernel.pull),
            float(kernel.scale),
        )
        if kernel.target is not None:
            self.target = kernel.target
        if kernel.background is not None:
            self.background = kernel.background.expand_as(self.y)
        self.diagonal = term.diagonal.expand_as(self.y)
        self.lower, self.upper = term.box.rounded_inward(self.y.dtype)
        self.layer = layer
        self.more = any("x" in row for name, row in saddle.K.rows.items() if name != layer.name)
        assert operator.input_shape is not None
        places = operator.input_shape[-2:], operator.margin, operator.boundary
        self.rows, self.columns = _positions(*places, self.y.device)
        self.copies = len(self.rows)

    @property
    def kind_of(self) -> tuple[Any, ...]:
        """Everything a captured launch depends on, besides the contents of ``data``."""
        operator, y = self.layer.operator, self.y
        return (
            self.kind, self.pull, self.scale, self.lower, self.upper, self.more,
            tuple(y.shape), y.device, operator.boundary, operator.margin,
            self.background is y, self.target is y,
        )  # fmt: skip

    @property
    def data(self) -> tuple[Tensor, ...]:
        """The tensors of this problem, each of them once."""
        others = (each for each in (self.background, self.target) if each is not self.y)
        return self.y, self.diagonal, *others

    def copied(self, layer: FirstLayer) -> Pixels:
        """The same on contiguous copies of the data, which may be overwritten."""
        other, copies = copy.copy(self), {id(each): own_copy(each) for each in self.data}
        other.y, other.diagonal, other.background, other.target = (
            copies[id(each)] for each in (self.y, self.diagonal, self.background, self.target)
        )
        other.layer = layer
        return other

    def __call__(self, buffers: Buffers, *, observed: bool) -> None:
        """Launch ``primal_step``."""
        layer = self.layer
        batch, _, height, width = buffers.w_u["x"].shape
        grid, columns = (layer.tiles(height, width), batch), buffers.table.shape[-1]
        given = (
            buffers.spill, buffers.more,
            buffers.w_u["x"], buffers.anchor_u["x"], buffers.u["x"], buffers.x_bar,
            buffers.moved["x"],
            self.y, self.diagonal, self.background, self.target, self.rows, self.columns,
            buffers.table, buffers.clock,
            self.scale, self.pull, self.lower, self.upper,
            height, width,
        )  # fmt: skip
        if layer.compiled is not None:
            flags = columns, self.kind, int(self.more), self.copies, int(observed)
            kernel = layer.compiled["primal_step"]
            kernel(grid=(*grid, 1), block=first_layer.BLOCK, args=[*given, *flags])
            return
        kernels().primal_step[grid](
            *given,
            FIDELITY=self.kind, PULLED=self.pull > 0, MORE=self.more, OBSERVED=observed,
            COLUMNS=columns, KERNEL_HEIGHT=layer.kernel[0], KERNEL_WIDTH=layer.kernel[1],
            COPIES=self.copies, TILE_HEIGHT=layer.tile[0], TILE_WIDTH=layer.tile[1],
            num_warps=4,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _positions(
    sizes: tuple[int, ...], margins: tuple[int, ...], boundary: Boundary, device: torch.device
) -> tuple[Tensor, Tensor]:
    """``_copies`` of the rows and of the columns on a device, as many of both."""
    lines = [_copies(*side, boundary) for side in zip(sizes, margins, strict=True)]
    most = max(map(len, lines))
    rows, columns = (
        F.pad(line, (0, 0, 0, most - len(line)), value=-1).to(device) for line in lines
    )
    return rows, columns


@cache
def _copies(size: int, margin: int, boundary: Boundary) -> Tensor:
    """Positions of each of ``size`` pixels in the padded line, (copies, size).

    The first is the pixel itself, the others lie in the margins; -1 marks none.
    """
    line = torch.arange(1.0, size + 1)[None, None, None]
    padded = Padding((1, 1, size), (0, margin), boundary)(line)[0, 0, 0].long() - 1
    found = [[pixel + margin] for pixel in range(size)]
    for place, pixel in enumerate(padded.tolist()):
        if pixel >= 0 and place != pixel + margin:
            found[pixel].append(place)
    longest = max(map(len, found))
    filled = [places + [-1] * (longest - len(places)) for places in found]
    return torch.tensor(filled, dtype=torch.int32).T.contiguous()
