"""PDHG iterations on a GPU in two fused kernels, for a convolutional first layer.

The kernels (``kernels.iteration``) work on fixed buffers, so that an iteration can be captured as a
CUDA graph and replayed: a launch then costs a few microseconds, and the host waits only when it
reads a result. Further layers are small after a pooling; they run as plain tensor operations inside
the same graph (``RestOfProblem``). Other problems, precisions and devices, and machines without
Triton, use ``Iterations`` or ``TiledIterations``.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

import torch
from torch import Tensor

from convexlift.kernels.availability import current, first_launch
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.copies import clone_blocks, copy_blocks
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.extrapolated_iterations import ExtrapolatedIterations
from convexlift.solvers.fused_kernels import ROWS, Buffers, FirstLayer, kernels
from convexlift.solvers.fused_layers import RestOfProblem
from convexlift.solvers.fused_restarts import Group, Groups
from convexlift.solvers.iterations import Displacement, Iterations, RestartState
from convexlift.solvers.machine import Machine
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.primal_half import Pixels
from convexlift.solvers.rebalancing import Restarts
from convexlift.solvers.recordings import Mirrors
from convexlift.solvers.restart_rules import TEST_EVERY, Array, RestartMemory
from convexlift.solvers.tiled_iterations import TiledIterations
from convexlift.tensors import Blocks, expand_per_image

KEPT = 32
"""Idle machines, kept for later problems of the same kind, take at most this part of the memory."""
LARGE = 2**28
"""Bytes of w from which it is not set aside during an attempt at a proof."""


class IdleMachines(dict[object, Machine]):
    """Machines to reuse, by kind: capturing a graph costs as much as a hundred iterations."""

    def put(self, kind: object, machine: Machine) -> None:
        """Keep a machine for later; the oldest ones are dropped beyond ``most_kept`` bytes."""
        self[kind], most = machine, most_kept(machine.buffers.table.device)
        # On a copy: finalizers put machines from other threads, at any time.
        while sum(kept.nbytes for kept in list(self.values())) > most:
            self.pop(next(iter(self)), None)


def most_kept(device: torch.device) -> int:
    """Bytes of idle machines on a device."""
    if device.type != "cuda":
        return 2**29
    return int(torch.cuda.get_device_properties(device).total_memory) // KEPT


IDLE = IdleMachines()
"""``IDLE.clear()`` frees the memory of all machines."""


class FusedIterations(Iterations):
    """Fused iterations of one problem; the buffers hold its current iterate."""

    name = "fused"
    advantage = "a convolutional first layer on a GPU: two kernels, replayed as a graph"
    block = 10

    def __init__(
        self, saddle: SaddlePointProblem, coupling: Coupling, *, interpreted: bool = False
    ) -> None:
        """``interpreted``: run the kernels on the CPU in Triton's interpreter, for tests."""
        if not interpreted and not any(tensor.is_cuda for tensor in saddle.tensors()):
            raise DoesNotApply("not on a GPU")
        if not coupling.scalar:
            raise DoesNotApply("steps by frequency or channel")
        layer = FirstLayer.of(saddle)
        if layer.compiled is None and kernels() is None:
            raise DoesNotApply("Triton is not installed")
        pixels = Pixels(saddle, layer)
        rest = RestOfProblem.of(saddle, layer.name, layer.mean_name)
        if rest is not None and not rest.stays_on_the_device:
            raise DoesNotApply("projections that need the host to decide when to stop")
        super().__init__(saddle, coupling)
        self._layer, self._pixels, self._rest = layer, pixels, rest
        self.skips = rest is None  # whose tensor operations are for all images
        self._machine: Machine | None = None
        self._holds: RestartState | None = None  # the state whose iterate is in the buffers
        self._steps: tuple[Blocks, Blocks] | None = None  # of that state, on the host
        self._grouped: RestartState | None = (
            None  # the state whose counters and steps are in the groups
        )
        self._groups: Groups | None = None  # those of ``_grouped``
        self._iterating = torch.empty(0)
        self._anchored_from = 0  # the first restart whose anchor is read
        self._mirrors: list[tuple[Blocks, Blocks]] = []  # copies, and the buffers they are of

    @property
    def mirrors(self) -> Mirrors:
        """The buffers, if they serve later problems, too."""
        if self._rest is not None:
            return ()
        return [(copy[n], part) for copy, held in self._mirrors for n, part in held.items()]

    def restarted(
        self, state: RestartState, iterations: int, active: Tensor, restarts: Restarts
    ) -> RestartState | None:
        """In groups of iterations, if they fit (``fused_restarts``)."""
        if self._rest is not None or iterations % TEST_EVERY:
            return None
        self._anchored_from = restarts.anchored_from
        self.load(state, active)
        self._mirrors = []
        assert self._machine is not None
        groups, known = self._machine.groups(restarts), state is self._grouped
        self._groups = groups
        with current(self._device):
            if not known:
                groups.group.load(state, self.coupling)
            memory, parts = state.memory, groups.parts(state.memory, active)
            if not parts:
                return None
            for images in parts:
                if not known or len(parts) > 1 or bool((images & ~self._iterating).any()):
                    groups.begin(memory, images)
                elif not torch.equal(images, self._iterating):
                    groups.choose(images)  # without waiting for counters
                self._iterating = images
                memory = groups.run(iterations, memory)
            self._steps, self._holds = None, self._lent(state, groups.group, memory)
            self._grouped = self._holds
        return self._holds

    def _lent(self, state: RestartState, group: Group, memory: RestartMemory) -> RestartState:
        """A state with copies of what others may read; w and the anchors are the buffers."""
        b = self._held
        u, v, tau, sigma = clone_blocks(b.u, b.v, group.tau, group.sigma)
        self._anchor_u, self._anchor_v = b.anchor_u, b.anchor_v
        self._mirrors = [(u, b.u), (v, b.v)]
        reads = self._reads_anchors(memory)
        return replace(
            state, u=u, v=v, tau=tau, sigma=sigma, memory=memory, w_u=b.w_u, w_v=b.w_v,
            anchor_u=b.anchor_u if reads else u, anchor_v=b.anchor_v if reads else v,
            origin_u=group.origin_u, origin_v=group.origin_v,
        )  # fmt: skip

    def continues(self, state: RestartState) -> bool:
        """Not if the buffers were its w, and hold another one by now."""
        return state is self._holds or self._machine is None or state.w_v is not self._held.w_v

    def spares(self, state: RestartState) -> bool:
        """If w is not large."""
        return sum(part.nbytes for part in state.w_v.values()) <= LARGE

    def set_aside(self, state: RestartState) -> RestartState:
        """With copies of the buffers; anchors are copied only if they will be read."""
        if state is not self._holds or not self.spares(state):
            return state
        u, v, reads = state.u, state.v, self._reads_anchors(state.memory)
        anchors = (state.anchor_u, state.anchor_v) if reads else ()
        w_u, w_v, *copied = clone_blocks(state.w_u, state.w_v, *anchors)
        anchor_u, anchor_v = copied or (u, v)
        return replace(state, w_u=w_u, w_v=w_v, anchor_u=anchor_u, anchor_v=anchor_v)

    def _reads_anchors(self, memory: RestartMemory) -> bool:
        """Whether some image is past the first restart whose anchor is read.

        Before that, the anchors in the buffers are arbitrary, and states have u and v instead.
        """
        return bool(max(memory.total.tolist()) >= self._anchored_from)

    def only_launches(self, state: RestartState, relaxed: float) -> bool:
        """On a GPU, where kernels decide about restarts, or before there are decisions."""
        if self._rest is not None or state.w_u.device.type != "cuda":
            return False
        return self._layer.compiled is not None or max(state.memory.total.tolist()) < relaxed

    def steps(self, state: RestartState) -> tuple[Blocks, Blocks]:
        """On the host, which writes the table; fetching them would wait for the device."""
        if state is self._holds and self._steps is not None:
            return self._steps
        host = torch.device("cpu")
        return state.tau.to(host), state.sigma.to(host)

    def load(self, state: RestartState, active: Tensor) -> None:
        """Copy w and the anchor into the buffers, unless they already hold them."""
        self.active = active
        if state is self._holds:
            return
        self._holds, self._mirrors = None, []
        self._device = state.w_u["x"].device
        if self._machine is None:
            self._machine = self._made(state.w_u, state.w_v)
        b = self._machine.buffers
        copy_blocks((b.w_u, b.w_v), (state.w_u, state.w_v))
        if self._reads_anchors(state.memory):
            copy_blocks((b.anchor_u, b.anchor_v), (state.anchor_u, state.anchor_v))
        with current(self._device), first_launch():
            self._machine.spread()
        self._anchor_u, self._anchor_v = state.anchor_u, state.anchor_v

    def _made(self, u: Blocks, v: Blocks) -> Machine:
        layer, pixels = self._layer, self._pixels
        if self._rest is not None:  # tied to this problem, so the machine cannot be reused
            return Machine(u, v, layer, pixels, self._rest)
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        kind = (layer.kind_of, pixels.kind_of, stream)
        machine = IDLE.pop(kind, None)  # now owned by this problem
        if machine is None:
            machine = Machine(u, v, layer, pixels, None)
        else:
            machine.take(layer, pixels)
        weakref.finalize(self, IDLE.put, kind, machine).atexit = False
        return machine

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """One row of the table for each iteration; the last one is always observed.

        The table is made where the steps are: on the device, nothing is waited for.
        """
        assert self._machine is not None, "load comes first"
        self._holds, self._mirrors = None, []
        layer, home = self._layer, sigma.device
        a, b, e = torch.from_numpy(mix).to(home, torch.float32, non_blocking=True)
        steps = [tau["x"], sigma[layer.name], sigma[layer.mean_name or layer.name]]
        if self.skips:  # 0: the kernels skip the image
            active = self.active.to(home, non_blocking=True)
            steps = [step * active for step in steps]
        others = [] if self._rest is None else self._rest.steps(tau, sigma)
        columns = [*(s.expand_as(a) for s in steps), a, b, e, *(s.expand_as(a) for s in others)]
        with current(self._device):
            self._machine.run(torch.stack([c.to(torch.float32) for c in columns], dim=-1))

    def residual(self, tau: Blocks, sigma: Blocks) -> Tensor:
        """The kernels' sums over tiles, fetched in one transfer."""
        parts = self._held.moved
        sums = torch.stack([p.sum(1, dtype=torch.float64) for p in parts.values()]).cpu()
        squares = Blocks(dict(zip(parts, sums, strict=True)))
        return (squares / Blocks({**tau, **sigma})).total().sqrt()

    def displacement(self, state: RestartState, *, whole: bool) -> Displacement:
        """Norms computed on the device, fetched in one transfer."""
        b = self._held
        u, v = (state.origin_u, state.origin_v) if whole else (b.anchor_u, b.anchor_v)
        ways = b.u.distances(u), b.v.distances(v)
        hosted = iter(torch.stack([norm for way in ways for norm in way.values()]).cpu())
        far_u, far_v = (Blocks({name: next(hosted) for name in way}) for way in ways)
        return self.coupling.reach(far_u), far_v

    def move_anchor(self, images: Tensor) -> None:
        """Move the anchor in the buffers, and keep a copy for later states."""
        b = self._held
        for anchor, new in ((b.anchor_u, b.u), (b.anchor_v, b.v)):
            for name, part in anchor.items():
                if bool(images.all()):
                    part.copy_(new[name])
                else:
                    here = expand_per_image(images.to(part.device), part)
                    part.copy_(torch.where(here, new[name], part))
        self._anchor_u, self._anchor_v = clone_blocks(b.anchor_u, b.anchor_v)

    def attempt(
        self, state: RestartState, iterations: int, images: Tensor, shorter: float
    ) -> Blocks:
        """In one launch, if the buffers and steps are those of the state."""
        known = state is self._holds and state is self._grouped
        if self._groups is None or not known or iterations > ROWS:
            self._anchored_from = 0  # an attempt reads them
            return super().attempt(state, iterations, images, shorter)
        self._holds = self._grouped = None
        with current(self._device):
            self._groups.attempt(iterations, shorter, images)
        return self.duals()

    def duals(self) -> Blocks:
        """A copy."""
        (v,) = clone_blocks(self._held.v)
        self._mirrors = [(v, self._held.v)]
        return v

    def store(self, state: RestartState, tau: Blocks, sigma: Blocks) -> RestartState:
        """A state of copies, since the buffers will be overwritten."""
        b, self._steps = self._held, (tau, sigma)
        u, v, w_u, w_v = clone_blocks(b.u, b.v, b.w_u, b.w_v)
        self._mirrors = [(u, b.u), (v, b.v)]
        if self._anchor_v is b.anchor_v:
            reads = self._reads_anchors(state.memory)
            self._anchor_u, self._anchor_v = (
                clone_blocks(b.anchor_u, b.anchor_v) if reads else (u, v)
            )
        self._holds = replace(
            state, u=u, v=v, w_u=w_u, w_v=w_v, anchor_u=self._anchor_u, anchor_v=self._anchor_v
        )  # fmt: skip
        return self._holds

    @property
    def _held(self) -> Buffers:
        assert self._machine is not None, "load comes first"
        return self._machine.buffers


def fastest_iterations(saddle: SaddlePointProblem, coupling: Coupling) -> tuple[Iterations, str]:
    """The implementation for a problem, and why: the only place where this is decided."""
    reasons = []
    kinds: tuple[type[Iterations], ...]
    kinds = TiledIterations, FusedIterations, ExtrapolatedIterations
    for kind in kinds:
        try:
            return kind(saddle, coupling), kind.advantage
        except DoesNotApply as reason:
            reasons.append(f"not {kind.name}: {reason}")
    return Iterations(saddle, coupling), "; ".join(reasons)
