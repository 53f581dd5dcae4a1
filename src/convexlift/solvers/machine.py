"""The launches of fused iterations, their data and buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from convexlift.solvers.compiled_restarts import CompiledGroup
from convexlift.solvers.copies import copy_all
from convexlift.solvers.cuda_graphs import captured
from convexlift.solvers.fused_kernels import ROWS, Buffers, FirstLayer
from convexlift.solvers.fused_layers import RestOfProblem
from convexlift.solvers.fused_restarts import Group, Groups
from convexlift.solvers.primal_half import Pixels
from convexlift.solvers.rebalancing import Restarts
from convexlift.tensors import Blocks

GRAPHED = 5
"""Iterations captured in one graph."""


class Replayed:
    """Launches on fixed buffers, captured as a CUDA graph after the first call."""

    def __init__(self, launch: Callable[[], None]) -> None:
        self._launch = launch
        self._called = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Launch, capture or replay."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._called or not torch.cuda.is_available():
            self._launch()  # kernels are compiled by their first launch, which cannot be captured
            self._called = True
        else:
            self._graph, _ = captured(self._launch)
            self._graph.replay()


class Machine:
    """The launches of an iteration, their data and buffers; reusable for problems of one kind."""

    def __init__(
        self, u: Blocks, v: Blocks, layer: FirstLayer, pixels: Pixels, rest: RestOfProblem | None
    ) -> None:
        self.buffers, self.rest = Buffers(u, v, layer), rest
        self.layer = layer.copied()
        self.pixels = pixels.copied(self.layer)
        # Without self: reference cycles are freed late.
        parts = self.buffers, self.layer, self.pixels, rest
        self.spread = Replayed(partial(self.layer, self.buffers, step=False, observed=False))
        self.plain = Replayed(partial(_launch, *parts, 1, False))
        self.several = Replayed(partial(_launch, *parts, GRAPHED, False))
        self.observed = Replayed(partial(_launch, *parts, 1, True))
        self.several_observed = Replayed(partial(_launch, *parts, GRAPHED, True))
        self._groups: dict[object, Groups] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers together."""
        return self.buffers.nbytes + sum(each.group.nbytes for each in self._groups.values())

    def groups(self, restarts: Restarts) -> Groups:
        """Groups of iterations with restarts of this kind."""
        if (kind := restarts.kind_of) not in self._groups:
            parts = self.buffers, self.layer, self.pixels, self.rest
            kind_of_group = Group if self.layer.compiled is None else CompiledGroup
            group = kind_of_group(self.buffers, self.layer, partial(_launch, *parts), restarts)
            self._groups = {kind: Groups(group, Replayed)}  # in place of others, which are large
        return self._groups[kind]

    def take(self, layer: FirstLayer, pixels: Pixels) -> None:
        """Copy in the data of another problem of the same kind; in one launch if contiguous."""
        given = [each.contiguous() for each in (*layer.data, *pixels.data)]
        copy_all((*self.layer.data, *self.pixels.data), given)

    def run(self, table: Tensor) -> None:
        """One iteration for each row of coefficients; only the last one is observed."""
        for first in range(0, len(table), ROWS):
            rows = table[first : first + ROWS]
            self.buffers.fill_table(rows)
            last, (groups, plain) = first + ROWS >= len(table), divmod(len(rows), GRAPHED)
            for left in range(groups, 0, -1):
                ends = last and left == 1 and not plain
                self.several_observed() if ends else self.several()
            for left in range(plain, 0, -1):
                self.observed() if last and left == 1 else self.plain()


def _launch(
    buffers: Buffers,
    layer: FirstLayer,
    pixels: Pixels,
    rest: RestOfProblem | None,
    count: int,
    observed: bool,
) -> None:
    """``count`` iterations, of which the last may be observed."""
    for left in range(count, 0, -1):
        seen = observed and left == 1
        if rest is not None:
            rest.primal(buffers, observed=seen)
        pixels(buffers, observed=seen)
        if rest is not None:
            rest.mean(buffers)
        layer(buffers, step=True, observed=seen)
        if rest is not None:
            rest.dual(buffers, observed=seen)
