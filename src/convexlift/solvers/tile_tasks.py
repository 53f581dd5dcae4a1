"""The tiles of one large image as tasks that exchange results in a folder.

    tile k      solve core k and a margin of its neighbours' pixels; write x, p and weights
    share k     the part of core k in objective and bound, from the files of the tiles around it

Tiles of one sweep do not depend on each other, nor do shares: they may be computed in any order,
with the same result. A sweep reads only files of the sweep before it, never those of its own sweep.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from convexlift.files.atomic import temporary_folder
from convexlift.networks.adaptive import ConditionedNetwork
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.parts import require_at_least
from convexlift.problems.variational import VariationalProblem
from convexlift.problems.windows import DUAL, CoreSums, LargeProblem, Window, core_sums
from convexlift.solvers.loop import solve_roughly
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Status, StopWhen
from convexlift.tensors import Blocks

BLEND = 8
"""Pixels on both sides of a seam over which images are blended."""
STEPS = 2**16 - 1
"""Steps of a stored slope between the ends of its interval, which are exact."""


@dataclass(frozen=True)
class Tiles:
    """The division of a large image into tiles.

    Args:
        size: side of a core, in pixels; a multiple of 16, so that guides that work on a coarser
            grid see the grid of the whole image.
        overlap: the margin of a tile in the first sweep, a multiple of 16; it doubles with every
            sweep.
        sweeps: the largest number of sweeps.
        folder: for temporary files of some 6 bytes for each filter and pixel; by default the
            system's folder for them.
    """

    size: int = 512
    overlap: int = 32
    sweeps: int = 3
    folder: Path | None = None

    def __post_init__(self) -> None:
        require_at_least(1, sweeps=self.sweeps)
        require_at_least(16, size=self.size, overlap=self.overlap)
        if self.size % 16 or self.overlap % 16:
            raise ValueError(
                f"size and overlap of tiles are multiples of 16, got {self.size} and {self.overlap}"
            )

    def cores(self, size: tuple[int, int]) -> list[Window]:
        """A partition of an image; a narrow remainder joins the last row or column."""
        rows, columns = (self._edges(length) for length in size)
        return [
            Window(*vertical, *horizontal)
            for vertical in itertools.pairwise(rows)
            for horizontal in itertools.pairwise(columns)
        ]

    def _edges(self, length: int) -> list[int]:
        edges = list(range(0, max(1, length - self.size // 2), self.size))
        return [*edges, length]


class TileTask(NamedTuple):
    """A core, the sweep, and the stopping criteria."""

    number: int
    sweep: int
    stop: StopWhen | None = None


class TileResult(NamedTuple):
    """The status of a tile's solve; its image and dual variables are in the folder."""

    iterations: int
    status: Status


@dataclass(frozen=True, eq=False)
class _Start:
    """A state to continue from."""

    x: Tensor
    duals: Blocks


@dataclass(frozen=True, eq=False)
class TileJob:
    """The problem, its cores, and the folder of the tiles' results, one file each."""

    large: LargeProblem
    tiles: Tiles
    method: Method | None
    folder: Path

    @cached_property
    def cores(self) -> list[Window]:
        """The partition of the image."""
        return self.tiles.cores(self.large.size)

    @cached_property
    def example(self) -> VariationalProblem:
        """The problem of the first core, whose network has all parts that pixels share."""
        return self.large.window(self.cores[0])

    # Tasks -------------------------------------------------------------------------------------

    def solve(self, task: TileTask) -> TileResult:
        """Solve a tile, with the margin of its sweep, from the results of the last sweep."""
        core = self.cores[task.number]
        outer = core.grown(self.tiles.overlap * 2**task.sweep, self.large.size)
        problem, start = self.large.window(outer), None
        if task.sweep:
            before = task.sweep - 1
            x = self.image(outer, before).to(problem.fidelity.y)
            start = _Start(x, Blocks({DUAL: self._duals(problem, outer, before).to(x)}))
        solution = solve_roughly(problem, method=self.method, stop=task.stop, start=start)
        self._save(task, problem, core.within(outer), solution.duals[DUAL])
        blended = core.grown(BLEND, self.large.size)
        self._write("x", task, blended.within(outer).of(solution.x))
        return TileResult(int(solution.iterations.max()), solution.status[0])

    def share(self, task: TileTask) -> CoreSums:
        """The part of a core in objective and bound."""
        core = self.cores[task.number]
        outer = core.grown(2 * self.large.radius, self.large.size)
        problem = self.large.window(outer, self._regularizer(outer, task.sweep))
        p = self._duals(problem, outer, task.sweep)
        x = self.image(outer, task.sweep).to(problem.fidelity.y)
        return core_sums(self.large, problem, core, outer, x, p)

    # Results -----------------------------------------------------------------------------------

    def image(self, window: Window, sweep: int) -> Tensor:
        """The part of the image in a window, blended from all tiles that reach it, in the box."""
        y = self.large.fidelity.y
        x = torch.zeros((1, y.shape[1], *window.shape), dtype=y.dtype)
        for number in range(len(self.cores)):
            self.add_to(x, window, TileTask(number, sweep))
        return self.large.bounds.project(x)

    def add_to(self, x: Tensor, window: Window, task: TileTask) -> None:
        """Add the contribution of a tile to the image in a window."""
        core = self.cores[task.number]
        blended = core.grown(BLEND, self.large.size)
        if (both := blended.meet(window)) is not None:
            here = both.within(blended)
            ramps = here.of(_ramps(core, blended, self.large.size).to(x))
            kept = here.of(torch.from_numpy(self._read("x", task.number, task.sweep)))
            both.within(window).of(x).add_(kept.to(x) * ramps)

    def weight_map(self, sweep: int) -> Tensor | None:
        """The map of weights that guides read, if any."""
        if not self._path("map", 0, sweep).exists():
            return None
        height, width = self.large.size
        return torch.from_numpy(self._gather("map", Window(0, height, 0, width), sweep))

    def forget(self, sweep: int) -> None:
        """Remove the files of a sweep."""
        for path in self.folder.glob(f"{sweep}-*.npy"):
            path.unlink()

    # Files -------------------------------------------------------------------------------------

    def _save(self, task: TileTask, problem: VariationalProblem, inside: Window, p: Tensor) -> None:
        """Store the part of a tile's dual variables in its core, as slopes p / t, and readings."""
        (layer,) = problem.network.layers
        h = layer.activation
        t = h.spread(problem.weight * problem.network.output)
        s = inside.of(torch.where(t > 0, p / t, 0.0))
        low, high = h.slopes
        if math.isfinite(high - low):
            s = ((s - low) / (high - low)).clamp(0, 1).mul(STEPS).round()
            s = (s - 2**15).to(torch.int16)  # torch computes with signed integers only
        self._write("slopes", task, s)
        network = problem.regularizer
        if isinstance(network, ConditionedNetwork) and self.large.regularizer.reads_data:
            for name, read in network.readings.items():
                if read.shape[-2:] != (1, 1):
                    self._write(name, task, inside.of(read))
        if (weights := network.weight_map) is not None:
            self._write("map", task, inside.of(weights))

    def _regularizer(self, outer: Window, sweep: int) -> InputConvexNetwork | None:
        """The network of a window, with the readings of all cores that it meets, if any."""
        if not self.large.regularizer.reads_data:
            return None
        network = self.example.regularizer
        assert isinstance(network, ConditionedNetwork)

        def gathered(name: str, read: Tensor) -> Tensor:
            if read.shape[-2:] == (1, 1):
                return read
            return torch.from_numpy(self._gather(name, outer, sweep)).to(read)

        return network.with_readings(gathered)

    def _duals(self, problem: VariationalProblem, outer: Window, sweep: int) -> Tensor:
        """p = s t in a window."""
        (layer,) = problem.network.layers
        h, low = layer.activation, layer.activation.slopes[0]
        t = h.spread(problem.weight * problem.network.output)
        kept = self._gather("slopes", outer, sweep)
        s = torch.from_numpy(kept).to(t.device).double()  # 16 bits travel to the device
        if kept.dtype == np.int16:
            s = low + (h.slopes[1] - low) * ((s + 2**15) / STEPS)
        return s * t.double()

    def _gather(self, name: str, outer: Window, sweep: int) -> np.ndarray:
        whole: np.ndarray | None = None
        for number, core in enumerate(self.cores):
            if (both := core.meet(outer)) is None:
                continue
            kept = self._read(name, number, sweep)
            if whole is None:
                whole = np.empty((*kept.shape[:-2], *outer.shape), kept.dtype)
            there, here = both.within(outer), both.within(core)
            whole[..., there.top : there.bottom, there.left : there.right] = kept[
                ..., here.top : here.bottom, here.left : here.right
            ]
        assert whole is not None
        return whole

    def _read(self, name: str, number: int, sweep: int) -> np.ndarray:
        # "c": copied on write. torch asks for writable pages, but nothing writes to them.
        kept: np.ndarray = np.load(self._path(name, number, sweep), mmap_mode="c")
        return kept

    def _write(self, name: str, task: TileTask, values: Tensor | np.ndarray) -> None:
        if isinstance(values, Tensor):
            values = values.detach().cpu().numpy()
        np.save(self._path(name, task.number, task.sweep), np.ascontiguousarray(values))

    def _path(self, name: str, number: int, sweep: int) -> Path:
        return self.folder / f"{sweep}-{name}-{number}.npy"


@contextmanager
def tile_job(large: LargeProblem, tiles: Tiles, method: Method | None) -> Iterator[TileJob]:
    """A job in a folder that is removed at the end; OSError at once if the folder is too small."""
    with temporary_folder(tiles.folder) as place:
        needed, free = _needed(large), shutil.disk_usage(place).free
        if needed > 0.95 * free:
            raise OSError(
                f"the dual variables of this image take {needed / 1e9:.1f} GB on disk, and "
                f"{place.parent} has {free / 1e9:.1f} GB; name another folder with "
                "Tiles(folder=...) or the variable TMPDIR, or take a regularizer with fewer filters"
            )
        yield TileJob(large, tiles, method, place)


def _needed(large: LargeProblem) -> int:
    """Bytes on disk of one sweep: slopes, readings and the image."""
    (layer,) = large.regularizer.layers
    filters = layer.channels * layer.activation.group
    numbers = filters * (2 + 4 * large.regularizer.reads_data) + 4 * large.fidelity.y.shape[1]
    return numbers * math.prod(large.size)


def _ramps(core: Window, outer: Window, size: tuple[int, int]) -> Tensor:
    """The shares of a tile in the pixels around it, (H, W); over all tiles they sum to 1."""

    def ramp(begin: int, end: int, first: int, last: int, length: int) -> Tensor:
        middles = torch.arange(first, last) + 0.5
        share = torch.ones(last - first)
        if begin > 0:
            share = share.minimum((middles - (begin - BLEND)) / (2 * BLEND))
        if end < length:
            share = share.minimum(((end + BLEND) - middles) / (2 * BLEND))
        return share.clamp(0, 1)

    rows = ramp(core.top, core.bottom, outer.top, outer.bottom, size[0])
    columns = ramp(core.left, core.right, outer.left, outer.right, size[1])
    return rows[:, None] * columns
