"""Restarts on a GPU whose rules are two kernels (``kernels/restart_rules.cu``).

In ``fused_restarts``, a decision takes a hundred small operations for a few numbers of each image,
and more time than the iterations before it. Here ``counted`` decides, and ``rebalanced`` changes
the steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from convexlift.kernels import first_layer
from convexlift.solvers.coupling import SAFETY, Coupling
from convexlift.solvers.fused_kernels import Buffers, FirstLayer
from convexlift.solvers.fused_restarts import BLOCK, ROUNDS, Group
from convexlift.solvers.iterations import RestartState
from convexlift.solvers.rebalancing import LARGEST_CHANGE, WHOLE_WAY, Restarts
from convexlift.solvers.restart_rules import (
    FIRST,
    LONG,
    NECESSARY,
    RELAXATION,
    SUFFICIENT,
    TEST_EVERY,
)

PART = ROUNDS * BLOCK
"""Numbers of a program of ``moved_anchor``."""


class CompiledGroup(Group):
    """Five iterations for one primal and one dual block, with kernels for the layer."""

    decides = True

    def __init__(
        self,
        buffers: Buffers,
        layer: FirstLayer,
        iterate: Callable[[int, bool], None],
        restarts: Restarts,
    ) -> None:
        super().__init__(buffers, layer, iterate, restarts)
        x, v = buffers.u["x"], buffers.v[layer.name]
        self._norm, self._dual_weight = x.new_ones(()), x.new_ones(len(x))
        self._anchored_from = restarts.anchored_from
        self._flags = torch.zeros(len(x), dtype=torch.uint8, device=x.device)
        self._squares = [x.new_zeros((len(x), -(-p[0].numel() // PART), 2)) for p in (x, v)]

    def load(self, state: RestartState, coupling: Coupling) -> None:
        """The norm of the filters, too."""
        super().load(state, coupling)
        self._norm.fill_(coupling.weights[self._layer.name]["x"])
        weight = coupling.dual_weight
        if isinstance(weight, Tensor):
            self._dual_weight.copy_(weight)
        else:
            self._dual_weight.fill_(weight)

    def several(self, groups: int) -> None:
        """A restart costs little if no image restarts; so there is one in every group."""
        for _ in range(groups):
            self._buffers.clock.zero_()
            self._count(0, row=0)
            self._iterate(1, True)
            self._count(1, row=1)
            self._rebalance(self._flags, more=0)
            for count in (1, TEST_EVERY - 2):
                self._iterate(count, True)
                self._count(count)

    def _restart(self, images: Tensor, total: Tensor) -> None:
        """Of relaxed iterations, which are counted afterwards."""
        self._rebalance(images, more=1)

    def _count(self, count: int, row: int = TEST_EVERY) -> None:
        """Count iterations, decide, and write the coefficients of those from ``row`` on."""
        b, name = self._buffers, self._layer.name
        moved = b.moved["x"], b.moved[name]
        self._launch(
            "counted",
            [self.numbers, *moved, self.tau["x"], self.sigma[name], b.table, self._flags,
             self._active, float(self.rules.relaxed), SUFFICIENT, NECESSARY, LONG, RELAXATION,
             FIRST, TEST_EVERY, *(part.shape[1] for part in moved), b.table.shape[-1],
             count, row],
        )  # fmt: skip

    def _rebalance(self, images: Tensor, *, more: int) -> None:
        """New steps and anchors of some images."""
        b, name = self._buffers, self._layer.name
        blocks = (
            (b.u["x"], self.origin_u["x"], b.anchor_u["x"]),
            (b.v[name], self.origin_v[name], b.anchor_v[name]),
        )
        for parts, squares in zip(blocks, self._squares, strict=True):
            given = [*parts, squares, images, self.numbers, float(self._anchored_from),
                     parts[0][0].numel(), PART, more]  # fmt: skip
            self._launch("moved_anchor", given, squares.shape[1])
        begin, end = map(float, WHOLE_WAY)
        self._launch(
            "rebalanced",
            [*self._squares, self.numbers, self._norm, self._dual_weight, self.tau["x"],
             self.sigma[name], b.table, images, self._active, begin, end, LARGEST_CHANGE, SAFETY,
             int(self._recent), more, TEST_EVERY, *(part.shape[1] for part in self._squares),
             b.table.shape[-1]],
        )  # fmt: skip

    def _launch(self, name: str, given: list[object], programs: int = 1) -> None:
        assert self._layer.compiled is not None
        grid = (programs, len(self._flags), 1)
        self._layer.compiled[name](grid=grid, block=first_layer.BLOCK, args=given)
