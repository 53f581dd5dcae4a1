"""Restarts on a GPU: the rules of ``restart_rules`` inside the graphs of iterations.

A test for a restart comes after every fifth iteration, and the restart itself is the iteration
after it. So iterations come in groups of five,

    w <- P(w), new steps and anchors        for images that restart; others iterate as usual
    w <- a P(w) + b w + e anchor            four times; then the residual, and a decision

and the graph of one group serves all of them. The host reads nothing but which images restart
next, and not even that in relaxed iterations, which restart at fixed times, and where kernels
decide (``compiled_restarts``): several groups of those are one graph. A restart reads all dual
variables several times: relaxed groups without restarts have graphs of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from convexlift.kernels.availability import kernel_module
from convexlift.solvers.copies import copy_blocks
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.fused_kernels import Buffers, FirstLayer
from convexlift.solvers.iterations import RestartState
from convexlift.solvers.primal_dual import halpern
from convexlift.solvers.rebalancing import Restarts, lateness, rebalance
from convexlift.solvers.restart_rules import RELAXATION, TEST_EVERY, ArrivingMemory, RestartMemory
from convexlift.tensors import Blocks, choose_images

STEPS, MIX = slice(0, 3), slice(3, 6)
"""Columns of the table: tau, sigma and the sigma of means; a, b and e."""
RESTART, RELAXED = (1.0, 0.0, 0.0), (RELAXATION, 1 - RELAXATION, 0.0)
"""(a, b, e) of an iteration."""
Launch = Callable[[], None]
ROUNDS, BLOCK = 8, 1024
"""Numbers that a program of a restart handles: rounds, and numbers in each."""


class Groups:
    """Graphs of groups of iterations, and the decisions of the host between them."""

    def __init__(self, group: Group, replayed: Callable[[Launch], Launch]) -> None:
        """``replayed`` captures a launch."""
        self.group, self._replayed = group, replayed
        self._graphs: dict[tuple[Any, ...], Launch] = {}

    def parts(self, memory: RestartMemory, active: Tensor) -> list[Tensor]:
        """Active images that iterate together; none if groups do not fit their counters.

        Counters of relaxed images must be alike. Those that tried for a proof lag behind.
        """
        images, total = active.tolist(), memory.total.tolist()
        iterating = list(itertools.compress(total, images))
        if any(count % TEST_EVERY for count in iterating):
            return []
        limit = self.group.rules.relaxed
        if min(iterating) >= limit:  # it may be on its way whether restarts are due
            return [active]
        due = memory.restart_next.tolist()
        kinds = [(n, d) if n < limit else None for n, d in zip(total, due, strict=True)]
        found = dict.fromkeys(itertools.compress(kinds, images))
        if len(found) == 1:
            return [active]
        return [active & torch.tensor([each == kind for each in kinds]) for kind in found]

    def begin(self, memory: RestartMemory, images: Tensor) -> None:
        """Take over counters, and which images iterate."""
        fresh = not any(memory.total.tolist())
        if not fresh:
            self.group.take(memory)
        self.choose(images, fresh=fresh)

    def choose(self, images: Tensor, *, fresh: bool = False) -> None:
        """Take over which images iterate: not others than before, whose counters are unknown.

        ``fresh``: they have not iterated so far.
        """
        self._active, self._images = images, images.numpy()
        self.group.choose(images)
        self._launch(self.group.begin, fresh)

    def run(self, iterations: int, before: RestartMemory) -> RestartMemory:
        """Iterate; the counters after that, those of other images as they were."""
        group, images, memory = self.group, self._images, before
        one = int(images.argmax())  # of those that iterate: relaxed ones are alike
        plan: list[bool] = []
        total = int(memory.total[one])
        if total < group.rules.relaxed:
            due = bool(memory.restart_next[one])
            plan, due = group.rules.relaxed_plan(total, due, iterations)
            self._launch(group.relaxed, *plan)
            # The same for all images, and known without their residuals.
            memory = group.rules.relaxed_on(memory, plan, due)
        left = iterations // TEST_EVERY - len(plan)
        if left and (memory.total.numpy()[images] == group.rules.relaxed).any():
            if plan:
                self._launch(group.end_relaxed, int(memory.inner[one]), due)
            else:
                group.take(memory)
        if left and group.decides:
            self._launch(group.several, left)
            return self._arriving(memory.total + TEST_EVERY * left, before)
        for _ in range(left):
            due = bool(memory.restart_next.numpy()[images].any())
            first = not due and bool((memory.inner.numpy()[images] == 0).any())
            self._launch(group.halpern, due, first)
            memory = RestartMemory.unpacked(group.numbers.cpu())
        chosen: RestartMemory = choose_images(self._active, memory, before)
        return chosen

    def attempt(self, iterations: int, shorter: float, images: Tensor) -> None:
        """An attempt at a proof (``Iterations.attempt``) from the u and v of the last iteration."""
        if not torch.equal(images, self._active):
            self.choose(images)
        self._launch(self.group.attempt, iterations, shorter)

    def _arriving(self, total: Tensor, before: RestartMemory) -> RestartMemory:
        numbers = self.group.numbers.clone()
        if self._images.all():
            return ArrivingMemory(total, numbers.cpu)
        kept, active = before.packed(), self._active
        return ArrivingMemory(
            torch.where(active, total, before.total),
            lambda: torch.where(active, numbers.cpu(), kept),
        )

    def _launch(self, function: Callable[..., None], *given: float) -> None:
        key = function.__name__, *given
        if key not in self._graphs:
            self._graphs[key] = self._replayed(partial(function, *given))
        self._graphs[key]()


class Group:
    """Five iterations on the buffers of a machine; all other numbers they need are here.

    Attributes:
        decides: whether groups of Halpern iterations follow one another without the host.
    """

    decides = False

    def __init__(
        self,
        buffers: Buffers,
        layer: FirstLayer,
        iterate: Callable[[int, bool], None],
        restarts: Restarts,
    ) -> None:
        """``iterate(count, observed)`` launches iterations."""
        x = buffers.u["x"]
        batch = len(x)
        self._buffers, self._layer, self._iterate = buffers, layer, iterate
        self.rules, self._recent = restarts.rules, restarts.recent
        # With tensors in place of numbers, so that graphs serve other networks, too.
        self._coupling = restarts.coupling.about(None)
        self._coupling.weights = {
            v: {name: x.new_ones(()) for name in row}
            for v, row in restarts.coupling.weights.items()
        }
        if isinstance(restarts.coupling.dual_weight, Tensor):
            self._coupling.dual_weight = x.new_ones(batch)
        self.origin_u, self.origin_v = (
            Blocks({name: torch.empty_like(part) for name, part in parts.items()})
            for parts in (buffers.u, buffers.v)
        )
        self.tau = Blocks({name: x.new_ones(batch) for name in buffers.u})
        self.sigma = Blocks({name: x.new_ones(batch) for name in buffers.v})
        self._active = torch.ones(batch, dtype=torch.bool, device=x.device)
        self._at_start = RestartMemory.at_start(batch).packed().to(x.device)
        self.numbers = self._at_start.clone()
        self._total = self.numbers[1]
        self._mixes = x.new_tensor([RESTART, RELAXED])

    @property
    def nbytes(self) -> int:
        """Bytes of the large tensors."""
        return sum(p.nbytes for parts in (self.origin_u, self.origin_v) for p in parts.values())

    def load(self, state: RestartState, coupling: Coupling) -> None:
        """Everything but w, anchors and counters."""
        pairs = [(self.tau, state.tau), (self.sigma, state.sigma)]
        if state.origin_v is not self.origin_v:  # lent by this group
            pairs += [(self.origin_u, state.origin_u), (self.origin_v, state.origin_v)]
        held, given = zip(*pairs, strict=True)
        copy_blocks(held, given)
        for v, row in self._coupling.weights.items():
            for name, norm in row.items():
                torch.as_tensor(norm).fill_(coupling.weights[v][name])
        if isinstance(self._coupling.dual_weight, Tensor):
            self._coupling.dual_weight.copy_(torch.as_tensor(coupling.dual_weight))

    def choose(self, active: Tensor) -> None:
        """Take over which images iterate."""
        if bool(active.all()):
            self._active.fill_(True)
        else:
            self._active.copy_(active, non_blocking=True)

    def begin(self, fresh: bool) -> None:
        """Write the steps of the images that iterate; and counters, if they are ``fresh``."""
        if fresh:
            self.numbers.copy_(self._at_start)
        self._write_steps(self.tau, self.sigma)
        self._buffers.table[:TEST_EVERY, :, MIX] = self._mixes[1]

    def take(self, memory: RestartMemory) -> None:
        """Take over counters."""
        self.numbers.copy_(memory.packed(), non_blocking=True)

    def relaxed(self, *plan: bool) -> None:
        """Groups of five relaxed iterations, some with a restart of all images in the first one."""
        first = self._buffers.table[0, :, MIX]
        for left, restart in zip(range(len(plan), 0, -1), plan, strict=True):
            self._buffers.clock.zero_()
            if restart:
                first.copy_(self._mixes[0])
                self._iterate(1, True)
                self._restart(self._active, self._total + 1)
                first.copy_(self._mixes[1])
            self._iterate(TEST_EVERY - restart, left == 1)
            self._total.add_(TEST_EVERY)

    def end_relaxed(self, inner: int, restart: bool) -> None:
        """The counters of images that have just taken their last relaxed iteration."""
        for row, number in enumerate((inner, self.rules.relaxed, restart)):
            self.numbers[row] = number
        self.numbers[3:] = math.inf

    def halpern(self, restart: bool, first: bool) -> None:
        """Five reflected Halpern iterations; ``restart``: of some images, in the first one.

        The first iteration after a restart, and the ``first`` of all, are measured.
        """
        rules, table = self.rules, self._buffers.table
        self._buffers.clock.zero_()
        memory = RestartMemory.unpacked(self.numbers)
        table[:TEST_EVERY, :, MIX] = self._mixed(memory, TEST_EVERY)
        done = 0
        if restart:
            restarted = memory.restart_next & self._active
            table[0, :, MIX] = torch.where(restarted[:, None], self._mixes[0], table[0, :, MIX])
            self._iterate(1, True)
            memory = rules.counted_there(memory, None, 1)
            self._restart(restarted, memory.total)
            table[1:TEST_EVERY, :, MIX] = self._mixed(memory, TEST_EVERY - 1)
            done = 1
        if restart or first:
            self._iterate(1, True)
            memory, done = rules.counted_there(memory, self._residual(), 1), done + 1
        self._iterate(TEST_EVERY - done, True)
        memory = rules.counted_there(memory, self._residual(), TEST_EVERY - done)
        self.take(memory)

    def several(self, groups: int) -> None:
        """Groups of five reflected Halpern iterations, if the group ``decides``."""
        raise NotImplementedError

    def attempt(self, iterations: int, shorter: float) -> None:
        """Halpern iterations from (u, v), whose dual steps are that many times shorter."""
        b = self._buffers
        copy_blocks((b.w_u, b.w_v, b.anchor_u, b.anchor_v), (b.u, b.v, b.u, b.v))
        self._layer(b, step=False, observed=False)
        sigma = self.sigma * (1 / shorter)
        self._write_steps(self._coupling.tau(sigma), sigma, iterations)
        k = torch.arange(iterations, device=b.table.device)[:, None].expand(-1, len(b.u["x"]))
        b.table[:iterations, :, MIX] = torch.stack(halpern(k), dim=-1).to(b.table)
        b.clock.zero_()
        self._iterate(iterations, True)

    def _mixed(self, memory: RestartMemory, count: int) -> Tensor:
        mixed = self.rules.coefficients(memory.inner, memory.total, count)
        return torch.stack(mixed, dim=-1).to(self._mixes)

    def _residual(self) -> Tensor:
        """||P(w) - w|| of the last iteration in the metric of the steps, (B,)."""
        moved = self._buffers.moved
        sums = Blocks({name: part.sum(1, dtype=torch.float64) for name, part in moved.items()})
        return (sums / Blocks({**self.tau, **self.sigma})).total().sqrt()

    def _restart(self, images: Tensor, total: Tensor) -> None:
        """New steps and anchors after the ``total``-th iteration, which moved images to P(w)."""
        b, coupling = self._buffers, self._coupling
        flags = images.to(torch.uint8)
        far_u, near_u = self._move_anchor(b.u, self.origin_u, b.anchor_u, flags)
        far_v, near_v = self._move_anchor(b.v, self.origin_v, b.anchor_v, flags)
        whole, recent = (coupling.reach(far_u), far_v), (coupling.reach(near_u), near_v)
        late = lateness(total, recent=self._recent)
        target = rebalance(coupling, self.sigma, whole, recent, late)
        sigma = target.where(images, self.sigma)
        copy_blocks((self.sigma, self.tau), (sigma, coupling.tau(sigma)))
        self._write_steps(self.tau, self.sigma)

    def _move_anchor(
        self, new: Blocks, origin: Blocks, anchor: Blocks, flags: Tensor
    ) -> tuple[Blocks, Blocks]:
        """Move the anchors of flagged images; distances from the origin and the old anchor."""
        far, near = {}, {}
        for name, part in new.items():
            size, given = part[0].numel(), (part, origin[name], anchor[name])
            programs = -(-size // (ROUNDS * BLOCK))
            squares = part.new_zeros((len(part), programs, 2))
            kernel_module("restart").moved_anchor[(programs, len(part))](
                *given, squares, flags, size, ROUNDS=ROUNDS, BLOCK=BLOCK
            )
            lengths = squares.sum(1, dtype=torch.float64).sqrt().to(part.dtype)
            far[name], near[name] = lengths.unbind(1)
        return Blocks(far), Blocks(near)

    def _write_steps(self, tau: Blocks, sigma: Blocks, rows: int = TEST_EVERY) -> None:
        """Zero for images that have ended: the kernels skip them."""
        layer, table = self._layer, self._buffers.table
        steps = tau["x"], sigma[layer.name], sigma[layer.mean_name or layer.name]
        table[:rows, :, STEPS] = torch.stack(steps, dim=-1) * self._active[:, None]
