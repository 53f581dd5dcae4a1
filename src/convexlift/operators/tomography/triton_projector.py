"""Ray transforms in kernels (``kernels.rays``), on GPUs with Triton."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from convexlift.kernels.availability import current, first_launch, kernel_errors, kernel_module
from convexlift.operators.tomography.fan_layout import ENTRY, fan_runs
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.ray_layout import parallel_turns, ray_blocks, ray_runs
from convexlift.operators.tomography.rays import Grid, Lines, crossings

LARGEST = 2**31
"""Places in a group of images or sinograms are numbers of 32 bits."""
FARTHEST = 2**18
"""Places in single precision are split by a shift that has room for twice as many pixels."""
ENOUGH = 2**18
"""Lanes that keep a large GPU busy; where there are fewer, they share the work further."""
MOST = 16
"""The most rays near a pixel whose loop is unrolled; more of them are found by bisection."""


@dataclass(frozen=True)
class Tiling:
    """How the work is cut into programs.

    Attributes:
        group: the most images that share weights, in bytes of their numbers at a pixel.
        rays: angles and bins of a block of rays, powers of two.
        ray_warps: the warps that work on it.
        parts: the most lanes that share the steps of a ray.
        steps: the number of steps that are unrolled.
        pixels: rows and columns of a tile of pixels, powers of two.
        pixel_warps: the warps that work on it; there may be one for each 32 pixels.
        turns: the number of angles that are unrolled.
        blocks: ``pixels`` for fans, where each lane has 2 x 2 of them.
    """

    group: int = 16
    rays: tuple[int, int] = (4, 32)
    ray_warps: int = 4
    parts: int = 4
    steps: int = 2
    pixels: tuple[int, int] = (8, 32)
    pixel_warps: int = 4
    turns: int = 2
    blocks: tuple[int, int] = (8, 16)


TILING = Tiling()


class RayKernels:
    """Products with A and its transpose on a GPU, for images in float32 or float64.

    Sums are in the same order at each call.
    """

    def __init__(
        self,
        lines: Lines,
        grid: Grid,
        device: torch.device,
        dtype: torch.dtype,
        tiling: Tiling = TILING,
    ) -> None:
        self.grid, self.tiling, self.device = grid, tiling, device
        angles, bins = lines.x.shape
        self.sinogram_shape = (angles, bins)
        self._lines = lines  # for Joseph, should kernels not work
        self._plain: Joseph | None = None
        self._launched = False
        by_rows, by_columns = crossings(lines, grid)

        def moved(values: NDArray[Any], kind: torch.dtype | None = None) -> Tensor:
            return torch.from_numpy(values).to(device, kind)

        blocks = vars(ray_blocks(by_rows, by_columns, bins, tiling.rays))
        # Positions stay in double precision; lengths multiply images.
        kinds = {"length": dtype}
        self._blocks = tuple(moved(values, kinds.get(n)) for n, values in blocks.items())
        length = np.zeros(angles * bins)
        for rays in (by_rows, by_columns):
            length[rays.ray] = rays.length
        self._length = moved(length, dtype)[:, None]
        turns = parallel_turns(lines, grid)
        self._turns = self._fans = self._runs = None
        if turns is not None and turns.most <= MOST:
            more = -angles % tiling.turns  # angles whose bins are all elsewhere
            turn = np.concatenate([turns.turn, np.full((more, 3), (0.0, 0.0, -2.0 * MOST))])
            gap = np.concatenate([turns.gap, np.ones(more)])
            self._turns = moved(turn), moved(gap, dtype), turns.most
        else:
            runs = ray_runs(by_rows, by_columns, grid, self.sinogram_shape)
            fans = fan_runs(lines, grid, runs, tiling.blocks)
            if fans is not None:
                pairs = (a.view(np.int64) for a in (fans.guess, fans.places, fans.entries))
                guess, places, entries = map(moved, pairs)
                tables = (guess, moved(fans.line), moved(fans.offsets), places, entries)
                self._fans = (*tables, moved(fans.bounds)), fans.region, fans.at_once
            else:
                self._runs = moved(runs.start), moved(runs.slope), moved(runs.runs), runs.longest

    @staticmethod
    def of(lines: Lines, grid: Grid, device: torch.device, dtype: torch.dtype) -> RayKernels | None:
        """Where the kernels apply; else None."""
        fits = max(lines.x.size, grid.height * grid.width) * TILING.group < LARGEST
        near = max(grid.height, grid.width, lines.x.shape[1]) < FARTHEST
        known = device.type == "cuda" and dtype in (torch.float32, torch.float64)
        if not (known and fits and near) or kernel_module("rays") is None:
            return None
        return RayKernels(lines, grid, device, dtype)

    def project(self, x: Tensor) -> Tensor:
        """A x: (B, H, W) -> (B, angles, bins)."""
        return self._try("project", x)

    def backproject(self, y: Tensor) -> Tensor:
        """A* y: (B, angles, bins) -> (B, H, W)."""
        return self._try("backproject", y)

    def _try(self, product: str, data: Tensor) -> Tensor:
        """By kernels, or from the first error on by ``Joseph``."""
        if self._plain is None:
            try:
                result: Tensor = getattr(self, f"_{product}")(data)
                return result
            except kernel_errors() as error:
                warnings.warn(f"no GPU kernels, the plain path is taken: {error}", stacklevel=3)
                self._plain = Joseph(self._lines, self.grid, self.device)
        plain: Tensor = getattr(self._plain, product)(data)
        return plain

    def _project(self, x: Tensor) -> Tensor:
        batch, (angles, bins), tiling = len(x), self.sinogram_shape, self.tiling
        height, width = self.grid.height, self.grid.width
        y = x.new_zeros((batch, angles, bins))
        blocks = len(self._blocks[-1])
        if not (batch and blocks):
            return y
        group = self._group(x)
        side_by_side = _grouped(x.reshape(batch, -1), group)
        groups = len(side_by_side)
        images = x.new_empty((2, groups, height * width, group))
        images[0].copy_(side_by_side)
        images[1].view(groups, width, height, group).copy_(
            images[0].view(groups, height, width, group).transpose(1, 2)
        )
        lanes, parts = self._blocks[0].numel() * groups, 1
        while parts < tiling.parts and parts * lanes < ENOUGH:
            parts *= 2
        self._launch(
            "project", (blocks, groups), images, *self._blocks, y,
            height, width, angles * bins, batch,
            GROUP=group, RAYS=tiling.rays[0] * tiling.rays[1], PARTS=parts,
            UNROLL=tiling.steps, num_warps=tiling.ray_warps * parts, num_stages=1,
        )  # fmt: skip
        return y

    def _backproject(self, y: Tensor) -> Tensor:
        batch, (angles, bins), tiling = len(y), self.sinogram_shape, self.tiling
        height, width = self.grid.height, self.grid.width
        x = y.new_empty((batch, height, width))
        if not batch:
            return x
        group = self._group(y)
        side_by_side = _grouped(y.reshape(batch, -1), group)
        values = y.new_empty(side_by_side.shape)
        torch.mul(side_by_side, self._length, out=values)
        tile = tiling.pixels if self._fans is None else tiling.blocks
        tiles = -(-height // tile[0]) * -(-width // tile[1])
        size, warps = tile[0] * tile[1], tiling.pixel_warps
        if self._fans is not None:
            warps = max(1, size // 128)
        elif tiles * len(values) * size <= 2 * ENOUGH:
            warps = max(warps, size // 32)
        options = {
            "GROUP": group, "TILE_HEIGHT": tile[0], "TILE_WIDTH": tile[1],
            "num_warps": warps, "num_stages": 1,
        }  # fmt: skip
        if self._turns is not None:
            turn, gap, most = self._turns
            self._launch(
                "backproject_parallel", (tiles, len(values)), values, turn, gap, x,
                height, width, angles, bins, batch,
                MOST=most, UNROLL=tiling.turns, **options,
            )  # fmt: skip
        elif self._fans is not None:
            tables, region, at_once = self._fans
            self._launch(
                "backproject_fans", (tiles, len(values)), values, *tables, x,
                height, width, angles * bins, batch, *region,
                ENTRY=ENTRY, AT_ONCE=at_once, **options,
            )  # fmt: skip
        else:
            assert self._runs is not None
            start, slope, runs, longest = self._runs
            self._launch(
                "backproject_runs", (tiles, len(values)), values, start, slope, runs, x,
                height, width, angles * bins, len(runs), batch,
                HALVINGS=longest.bit_length(), **options,
            )  # fmt: skip
        return x

    def _group(self, data: Tensor) -> int:
        """How many images share weights: a power of two, not many more than there are."""
        return min(self.tiling.group // data.itemsize, 1 << (len(data) - 1).bit_length())

    def _launch(
        self, name: str, programs: tuple[int, int], *arguments: object, **options: object
    ) -> None:
        with current(self.device), nullcontext() if self._launched else first_launch():
            getattr(kernel_module("rays"), name)[programs](*arguments, **options)
        self._launched = True


def _grouped(data: Tensor, group: int) -> Tensor:
    """(B, n) -> (groups, n, group), with zeros for missing images; the result may be a view."""
    missing = -len(data) % group
    filled = F.pad(data, (0, 0, 0, missing)) if missing else data
    return filled.reshape(-1, group, data.shape[1]).transpose(1, 2)
