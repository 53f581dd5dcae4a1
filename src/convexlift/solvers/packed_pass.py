"""The pass of ``TiledIterations`` over a packed dual variable on a GPU, in two kernels.

``dual_step.cu`` reads and writes w once, and leaves K* w in tiles, which ``gathered.cu`` adds up.
The anchor and v are slopes in 16 bits, so that nothing but w is an array of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from convexlift.kernels import first_layer
from convexlift.kernels.availability import current
from convexlift.operators.convolution import BOUNDARIES
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.fused_kernels import FIXED, FirstLayer
from convexlift.solvers.method import DoesNotApply


@dataclass(frozen=True, eq=False)
class PackedPass:
    """The dual half of an iteration of a single image."""

    layer: FirstLayer

    @classmethod
    def of(cls, saddle: SaddlePointProblem) -> Self | None:
        """The kernels for a problem with one layer, or None if there are none."""
        try:
            layer = FirstLayer.of(saddle, coded=True)
        except DoesNotApply:
            return None
        return None if layer.compiled is None else cls(layer.contiguous())

    def __call__(
        self,
        x_bar: Tensor,
        w: Tensor,
        anchor: Tensor,
        v: Tensor | None,
        sigma: Tensor,
        mix: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """w <- a v + b w + e anchor, v = prox_{f*}(w + sigma K x_bar); ``x_bar`` has its margins.

        Returns K* w, and ||v - w||^2 for the old w if v is stored, as codes or as numbers. The
        anchor is read only if e is not 0.
        """
        step = sigma.flatten().to(w)
        table = torch.cat([torch.zeros_like(step), step, step, *mix])  # as ``Buffers`` has it
        return self._launched(x_bar, w, anchor, v, table, step=True)

    def pulled(self, w: Tensor) -> Tensor:
        """K* w."""
        _, _, height, width = w.shape
        rows, columns = self.layer.kernel
        unread = w.new_zeros((1, 1, height + rows - 1, width + columns - 1))
        return self._launched(unread, w, w, None, w.new_zeros(FIXED), step=False)[0]

    def _launched(
        self,
        x_bar: Tensor,
        w: Tensor,
        anchor: Tensor,
        v: Tensor | None,
        table: Tensor,
        *,
        step: bool,
    ) -> tuple[Tensor, Tensor]:
        layer, (_, _, *size) = self.layer, w.shape
        assert layer.compiled is not None
        tiles, around = layer.tiles(*size), first_layer.spill_for(layer.tile, layer.kernel)
        spill, c = w.new_empty(tiles * around), w.new_empty((1, 1, *size))
        moved, clock = w.new_zeros((1, tiles)), w.new_zeros(2, dtype=torch.int32)
        with current(w.device):
            layer.launch(
                x_bar, w, anchor, w if v is None else v, spill, moved, table, clock,
                step=step, observed=v is not None,
            )  # fmt: skip
            boundary = BOUNDARIES.index(layer.operator.boundary)
            first_layer.gather(layer.compiled["gathered"], spill, layer.tile, c, boundary)
        return c, moved.sum(1, dtype=torch.float64)
