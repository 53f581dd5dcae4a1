"""The dual half of fused iterations (``FirstLayer``) with its data, and the buffers of both halves.

The primal half is in ``primal_half``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import DiagonalFidelityTerm, LastLayerTerm, PooledEpigraphTerm
from convexlift.kernels import first_layer
from convexlift.kernels.availability import kernel_module
from convexlift.operators.convolution import ConvolutionOperator
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.method import DoesNotApply
from convexlift.tensors import Blocks

TILE, SMALL_TILE = (8, 16), (8, 8)
"""Rows and columns of a tile, for small and for large filters (measured)."""
LARGE_FILTER = 32
"""Largest number of taps of a small filter."""
POOLED_TILES = (16, 8)
"""Sides a tile can have where tiles must coincide with pooling blocks."""
MOST_TAPS = 128
"""Largest number of taps of any filter: 11 x 11 fits."""
ROWS = 64
"""Iterations that fit into a table of coefficients."""
FIXED = 6
"""Columns of the table that the kernels read: tau, sigma, sigma_mean, a, b, e."""
TF32_BITS = -(2**13)
"""Mask of the bits of a float32 that matrix units read (TF32)."""


def kernels() -> Any:
    """The module of kernels, or None without Triton."""
    return kernel_module("iteration")


class Buffers:
    """The tensors that the kernels read and write."""

    def __init__(self, u: Blocks, v: Blocks, layer: FirstLayer) -> None:
        def empty(parts: Blocks, like: Callable[..., Tensor] = torch.empty_like) -> Blocks:
            return Blocks({n: like(p, memory_format=torch.contiguous_format)
                           for n, p in parts.items()})  # fmt: skip

        self.w_u, self.u, self.w_v, self.v = empty(u), empty(u), empty(v), empty(v)
        # Not copied where nobody reads them: whatever they hold should be finite.
        self.anchor_u, self.anchor_v = empty(u, torch.zeros_like), empty(v, torch.zeros_like)
        x = u["x"]
        batch, _, height, width = x.shape
        tiles = layer.tiles(height, width)
        rows, columns = layer.kernel
        tile_rows, tile_columns = layer.tile
        self.x_bar = x.new_zeros((batch, 1, height + rows - 1, width + columns - 1))
        around = (tile_rows + rows - 1) * (tile_columns + columns - 1)
        self.spill = x.new_empty((batch, tiles, around))
        taps = 0 if layer.compiled else rows * columns  # which sums in registers
        self.scratch = x.new_empty((batch, tiles, taps, tile_rows * tile_columns))
        programs = {"x": tiles, layer.name: tiles}
        self.moved = Blocks({n: x.new_zeros((batch, programs.get(n, 1))) for n in (*u, *v)})
        self.table = x.new_zeros((ROWS, batch, FIXED + len(u) + len(v) - 2))
        self.clock = torch.zeros(2, dtype=torch.int32, device=x.device)
        # For the rest of the problem: its part of the gradient, its u_bar and the means.
        self.more = torch.zeros_like(x)
        self.u_bar = Blocks({**empty(u), "x": layer.inner(self.x_bar)})
        self.mean = self.multipliers = x
        if layer.mean_name is not None:
            self.mean, self.multipliers = (v[layer.mean_name].new_zeros(v[layer.mean_name].shape)
                                           for _ in range(2))  # fmt: skip

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all buffers together."""
        held = [
            each.values() if isinstance(each, Blocks) else [each] for each in vars(self).values()
        ]
        return sum(tensor.nbytes for tensors in held for tensor in tensors)

    def fill_table(self, rows: Tensor) -> None:
        """Set new coefficients and rewind to the first row."""
        self.table[: len(rows), :, : rows.shape[-1]].copy_(rows, non_blocking=True)
        self.clock.zero_()


def own_copy(tensor: Tensor) -> Tensor:
    """A contiguous copy that may be overwritten."""
    return tensor.clone(memory_format=torch.contiguous_format)


class FirstLayer:
    """The dual half of an iteration for a convolutional layer; launched on copies of its filters.

    Attributes:
        name: the name of the layer's dual variable.
        mean_name: the name for its block means, if these are bounded (``PooledEpigraphTerm``).
        compiled: the kernels of ``first_layer.cu`` for this layer by name, or None for Triton's.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        term: LastLayerTerm | PooledEpigraphTerm,
        operator: ConvolutionOperator,
        coarse: int,
        multipliers: Tensor | None,
        tile: tuple[int, int],
        compiled: dict[str, Any] | None = None,
    ) -> None:
        weight = operator.weight.detach()
        channels, _, *kernel = weight.shape
        assert term.activation.ramp is not None
        self.name, self.mean_name = names[0], names[1] if len(names) > 1 else None
        self.operator, self.ramp = operator, term.activation.ramp
        self.coarse, self.multipliers, self.tile = coarse, multipliers, tile
        self.compiled = compiled
        self.channels, self.kernel = channels, (kernel[0], kernel[1])
        self.chunk = 32 if channels % 32 == 0 else 16
        self.taps = max(16, _power_of_two(kernel[0] * kernel[1]))
        self.filters = weight if compiled else self._halves(weight.flatten(1))
        bias = weight.new_zeros(channels) if term.bias is None else term.bias.detach()
        # One for each channel, or (B or 1, C, H, W).
        self.biased = bias.numel() > channels
        self.bias = bias if self.biased else bias.flatten().expand(channels)

    def _halves(self, filters: Tensor) -> Tensor:
        """What TF32 matrix units read of the filters, and the rest, padded with zeros."""
        channels, taps = filters.shape
        room = -(-channels // self.chunk) * self.chunk
        filled = F.pad(filters, (0, self.taps - taps, 0, room - channels))
        high = (filled.view(torch.int32) & TF32_BITS).view(torch.float32)
        return torch.stack((high, filled - high))

    @property
    def kind_of(self) -> tuple[Any, ...]:
        """Everything a captured launch depends on, besides the contents of ``data``."""
        shape = None if self.multipliers is None else self.multipliers.shape
        return (self.name, self.mean_name, self.ramp, self.coarse, shape, self.tile,
                self.channels, self.kernel, self.bias.shape, self.compiled is not None)  # fmt: skip

    @property
    def data(self) -> tuple[Tensor, ...]:
        """The tensors of this layer."""
        multipliers = () if self.multipliers is None else (self.multipliers,)
        return self.filters, self.bias, *multipliers

    def copied(self) -> Self:
        """The same on contiguous copies of the data, which may be overwritten."""
        return self._on(map(own_copy, self.data))

    def contiguous(self) -> Self:
        """The same on contiguous data, copied only where they are not."""
        return self._on(each.contiguous() for each in self.data)

    def _on(self, data: Iterable[Tensor]) -> Self:
        other = copy.copy(self)
        other.filters, other.bias, *multipliers = data
        other.multipliers = multipliers[0] if multipliers else None
        return other

    @staticmethod
    def of(saddle: SaddlePointProblem, *, coded: bool = False) -> FirstLayer:
        """The dual half for a one-channel float32 convolution of stride 1 with a ramp.

        ``coded``: v and the anchor are slopes in 16 bits (``problems.packed_slopes``).
        """
        reason = "no layer is a convolution of the image alone, of stride 1"
        for names, term in saddle.f:
            row = saddle.K.rows[names[0]]
            operator = row["x"].convolution if "x" in row else None
            if not isinstance(term, LastLayerTerm | PooledEpigraphTerm) or len(row) != 1:
                continue
            if operator is not None:
                reason = _misfit(operator, term)
                if not reason:
                    data = saddle.g.get("x")
                    images = len(data.fidelity.y) if isinstance(data, DiagonalFidelityTerm) else 1
                    return FirstLayer._with_tiles(names, term, operator, images, coded=coded)
        raise DoesNotApply(reason)

    @staticmethod
    def _with_tiles(
        names: tuple[str, ...],
        term: LastLayerTerm | PooledEpigraphTerm,
        operator: ConvolutionOperator,
        images: int,
        *,
        coded: bool,
    ) -> FirstLayer:
        """Choose tiles; for pooling, the blocks themselves."""
        assert operator.input_shape is not None
        if isinstance(term, PooledEpigraphTerm):
            if term.size not in POOLED_TILES:
                raise DoesNotApply(f"pooling by {term.size}; the kernels have {POOLED_TILES}")
            coarse, multipliers, tile = term.size, None, (term.size, term.size)
            compiled: dict[str, Any] | None = None
        else:
            coarse, multipliers = _blockwise(term, operator.input_shape[-2:])
            weight, bias = operator.weight, term.bias
            tile = first_layer.tile_for(operator.input_shape[-2:], images)
            biased = bias is not None and bias.numel() > len(weight)
            found = {
                name: first_layer.compiled(
                    name, weight.device, weight.shape, tile=tile, coarse=coarse, biased=biased,
                    aligned=operator.input_shape[-1] % 4 == 0, coded=coded,
                )
                for name in (*first_layer.ITERATION, "gathered")
            }  # fmt: skip
            compiled = None if None in found.values() else found
            if compiled is None:
                tile = TILE if weight[0].numel() <= LARGE_FILTER else SMALL_TILE
        if any(k > side + 1 for k, side in zip(operator.weight.shape[-2:], tile, strict=True)):
            raise DoesNotApply("filters larger than a tile")
        return FirstLayer(names, term, operator, coarse, multipliers, tile, compiled)

    def tiles(self, height: int, width: int) -> int:
        """Number of tiles of an image."""
        return -(-height // self.tile[0]) * -(-width // self.tile[1])

    def inner(self, padded: Tensor) -> Tensor:
        """The image inside its margins."""
        rows, columns = self.operator.margin
        height, width = padded.shape[-2:]
        return padded[..., rows : height - rows, columns : width - columns]

    def __call__(self, buffers: Buffers, *, step: bool, observed: bool) -> None:
        """Launch ``dual_step``."""
        ramp, (rows, columns), table = self.ramp, self.tile, buffers.table
        batch, _, height, width = buffers.w_u["x"].shape
        grid = self.tiles(height, width), batch
        multipliers = buffers.multipliers if self.multipliers is None else self.multipliers
        w, anchor, v, moved = (
            part[self.name] for part in (buffers.w_v, buffers.anchor_v, buffers.v, buffers.moved)
        )
        if self.compiled is not None:
            self.launch(
                buffers.x_bar, w, anchor, v, buffers.spill, moved, table, buffers.clock,
                step=step, observed=observed,
            )  # fmt: skip
            return
        fixed = self.filters, self.bias, multipliers, table, buffers.clock
        sizes = *self._apart(multipliers, batch), height, width
        around = (rows + self.kernel[0] - 1) * (columns + self.kernel[1] - 1)
        kernels().dual_step[grid](
            buffers.x_bar, w, anchor, v, buffers.spill, buffers.scratch, moved, buffers.mean,
            *fixed, ramp.low, ramp.high, ramp.left, ramp.width, ramp.offset, *sizes,
            STEP=step, BIASED=self.biased, POOLED=self.mean_name is not None, COARSE=self.coarse,
            OBSERVED=observed,
            FULL=not (height % rows or width % columns or self.channels % self.chunk),
            COLUMNS=table.shape[-1],
            KERNEL_HEIGHT=self.kernel[0], KERNEL_WIDTH=self.kernel[1],
            CHANNELS=self.channels, CHUNK=self.chunk, ROOM=self.filters.shape[1],
            TAPS=self.taps,
            TILE_HEIGHT=rows, TILE_WIDTH=columns, SPILL=_power_of_two(around),
            num_warps=rows * columns // 16, num_stages=1,
        )  # fmt: skip

    def launch(
        self,
        x_bar: Tensor,
        w: Tensor,
        anchor: Tensor,
        v: Tensor,
        spill: Tensor,
        moved: Tensor,
        table: Tensor,
        clock: Tensor,
        *,
        step: bool,
        observed: bool,
    ) -> None:
        """Launch the compiled ``dual_step``; if it has codes, v may be of numbers all the same."""
        assert self.compiled is not None
        assert self.multipliers is not None
        ramp, (batch, _, height, width) = self.ramp, w.shape
        v_numbers = v if v.is_floating_point() else v.new_empty(0)  # a null pointer
        self.compiled["dual_step"](
            grid=(self.tiles(height, width), batch, 1), block=first_layer.BLOCK,
            args=[x_bar, w, anchor, v, v_numbers, spill, moved, self.filters, self.bias,
                  self.multipliers, table, clock, ramp.low, ramp.high, ramp.left, ramp.width,
                  *self._apart(self.multipliers, batch), height, width,
                  table.shape[-1], int(step), int(observed)],
        )  # fmt: skip

    def _apart(self, multipliers: Tensor, batch: int) -> tuple[int, int]:
        """Distances of the multipliers and of the biases of two images."""
        return (
            multipliers[0].numel() if self.coarse == 1 and len(multipliers) == batch else 0,
            self.bias[0].numel() if self.biased and len(self.bias) == batch else 0,
        )


def _misfit(operator: ConvolutionOperator, term: LastLayerTerm | PooledEpigraphTerm) -> str:
    """Why the kernels cannot run a convolution; empty if they can."""
    weight = operator.weight
    numbers = torch.Size(operator.output_shape(operator._resolve(None))).numel()
    reasons = {
        f"{weight.dtype}, not float32": weight.dtype != torch.float32,
        "a convolution of several channels": weight.shape[1] != 1,
        f"filters of more than {MOST_TAPS} taps": weight[0].numel() > MOST_TAPS,
        "more dual variables than 32-bit indices reach": numbers >= first_layer.LARGEST,
        f"the derivative of {term.activation} is not a ramp": term.activation.ramp is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _blockwise(term: LastLayerTerm, size: tuple[int, ...]) -> tuple[int, Tensor]:
    """The side of the blocks on which multipliers (B or 1, C, H, W) are constant, and their values.

    The side is 0 if they are constant everywhere, and 1 if they differ between pixels or images.
    Behind a pooling they are constant on blocks of ``max(TILE)`` pixels.
    """
    t, side = term.weights, max(TILE)
    if len(t) == 1 and t.shape[-2:] == (1, 1):
        return 0, t.flatten()
    if len(t) == 1 and term.block % side == 0:
        return side, t[0, :, ::side, ::side]
    return 1, t.expand(-1, -1, *size)
