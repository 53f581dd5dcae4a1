"""PDHG without a saturated last layer, as long as the problem stays the same.

Trained heads are often saturated: every unit of the last layer has its steepest slope s, where
h(a) = s a - h*(s). With this slope for all units,

    R(x) >= <t, z_{L-1}> + const,    t = W_{L-1}* (s W_L),

for every x (Fenchel-Young), with equality where all units are on. The right-hand side is a
network with one layer less. Its lower bounds are lower bounds for R, and if all units are on at its
minimiser, that minimiser also solves the problem with R. Nothing is assumed: certificates are
computed with R itself, with slopes s in the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from convexlift.networks.activations import scaled
from convexlift.networks.bound_network import BoundNetwork
from convexlift.problems.claims import InBoth
from convexlift.problems.lifting import Lift
from convexlift.problems.network_duals import dual_names, fitting_duals
from convexlift.problems.one_pass import regularizer_at
from convexlift.problems.pooled_layers import pooled_layers
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.attempts import usefulness
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.first_steps import first_sigma
from convexlift.solvers.iterations import RestartState
from convexlift.solvers.method import Choice, Solver, State
from convexlift.solvers.primal_dual import PDHGSolver, lifted_start
from convexlift.solvers.recordings import Mirrors, Pending
from convexlift.solvers.replays import Replays
from convexlift.tensors import Blocks, choose_images, expand_per_image


@dataclass(frozen=True, eq=False)
class SaturatedHead:
    """A problem without its last layer, and the quantities that lead back to the full problem.

    Attributes:
        problem: the problem with R replaced by <t, z_{L-1}>; its objective lacks a constant.
        p: s t_L, the dual variable of the last layer; its first dimension is 1 or the batch.
    """

    problem: VariationalProblem
    p: Tensor
    _network: BoundNetwork

    @staticmethod
    def of(problem: VariationalProblem) -> SaturatedHead | None:
        """None for one layer, or if the last layer has inputs other than the layer before it."""
        network = problem.network
        *below, last = network.layers
        h = last.activation
        if (
            not below
            or last.residual
            or set(last.operators) != {len(below)}
            or h.group != 1
            or not math.isfinite(h.slopes[1])
        ):
            return None
        on = scaled(network.output, h.slopes[1]).expand(-1, *last.shape)
        t = last.operators[len(below)].adjoint(on)
        pool = pooled_layers(network).get(len(below))
        block = 1 if pool is None else pool.pooling.pool_size
        smaller = problem.with_network(BoundNetwork(tuple(below), t, block))
        return SaturatedHead(smaller, problem.weight * on, network)

    def holds(self, x: Tensor) -> Tensor:
        """Whether all units of the last layer are on at some images, (B,)."""
        _, last = regularizer_at(self._network, x)
        assert last is not None  # large only for one layer, which has no head
        return self._network.saturated(last)

    def duals(self, v: Blocks) -> Blocks:
        """The dual variables of the full problem, from the ones without the last layer."""
        batch = next(iter(v.values())).shape[0]
        short, name, last = self._names
        parts = {name if key == short else key: part for key, part in v.items()}
        return Blocks({**parts, last: self.p.expand(batch, *self.p.shape[1:])})

    def duals_without(self, v: Blocks) -> Blocks:
        """The dual variables of the problem without the last layer, from the full ones."""
        short, name, last = self._names
        return Blocks({short if key == name else key: p for key, p in v.items() if key != last})

    @property
    def _names(self) -> tuple[str, str, str]:
        """The names of v_{L-1} without the last layer and with it, and of v_L."""
        count = len(self._network.layers)
        (short,), (last,) = dual_names(count - 1, count - 1), dual_names(count, count)
        return short, dual_names(count - 1, count)[0], last


@dataclass(frozen=True, eq=False)
class SaturatedState:
    """Which images are solved without the last layer, and the states without and with it."""

    holds: Tensor  # (B,), on the CPU wherever the images are
    head: SaturatedHead
    without: RestartState | None
    full: RestartState | None

    @property
    def x(self) -> Tensor:
        """The images, each from its own state."""
        if self.without is None or self.full is None:
            return self._only.x
        holds = expand_per_image(self.holds.to(self.full.x.device), self.full.x)
        return torch.where(holds, self.without.x, self.full.x)

    @property
    def duals(self) -> Blocks:
        """The dual variables of the full problem."""
        if self.without is None:
            return self._only.duals
        duals = self.head.duals(self.without.duals)
        return duals if self.full is None else duals.where(self.holds, self.full.duals)

    @property
    def _only(self) -> RestartState:
        only = self.without or self.full
        assert only is not None
        return only


class SaturatedPDHG(Solver[SaturatedState]):
    """PDHG without the last layer while all its units are on, image by image; else with it."""

    def __init__(
        self,
        problem: VariationalProblem,
        head: SaturatedHead,
        without: PDHGSolver[RestartState],
        make_full: Callable[[], PDHGSolver[RestartState]],
    ) -> None:
        self.problem, self.head, self.without = problem, head, without
        self._make_full = make_full
        self._start: Pending | None = None

    @property
    def block(self) -> int:
        """The block size of the solver without the last layer."""
        return self.without.block

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The omission of the last layer, then the choices for the rest."""
        head = Choice(
            "last layer",
            "left out while all its units have their steepest slope",
            "the problem is the same there, but smaller; images that leave get the layer back",
        )
        return head, *self.without.choices

    @cached_property
    def full(self) -> PDHGSolver[RestartState]:
        """The solver with the last layer; built on first use, as it may never be needed."""
        return self._make_full()

    def start(self, x: Tensor, duals: Blocks | None = None) -> SaturatedState:
        """Find the images with all units on at x; ``duals`` belong to the full problem."""
        holds = self.head.holds(x).cpu()
        below = None if duals is None else self.head.duals_without(duals)
        without = self.without.start(x, below) if bool(holds.any()) else None
        full = None if bool(holds.all()) else self.full.start(x, duals)
        return SaturatedState(holds, self.head, without, full)

    def first(self, calls: Replays) -> SaturatedState:
        """In one call, as long as all units of all images are on, which is not waited for."""
        if (found := self.without.launched_start(calls, headless=True)) is None:
            return super().first(calls)
        without, self._start = found
        return SaturatedState(
            torch.ones(len(without.x), dtype=torch.bool), self.head, without, None
        )

    def settled(self, state: SaturatedState) -> SaturatedState:
        """Another one if some units are off."""
        if self._start is None:
            return state
        launched, self._start = self._start, None
        found, (on, *useful) = launched()
        self.without.note_usefulness(*useful)
        without = state.without if found is launched.found else self.without.started(found)
        assert without is not None
        if not bool(on.all()):
            return self.start(without.x)
        return state if without is state.without else replace(state, without=without)

    def resume(self, state: State) -> SaturatedState | None:
        """Continue each image with its last solver if that still fits; else from its duals."""
        duals = fitting_duals(self.problem.network, state.x, state.duals)
        if duals is None:
            return None
        fresh = self.start(state.x, duals)
        if not isinstance(state, SaturatedState):
            return fresh
        both, neither = state.holds & fresh.holds, ~state.holds & ~fresh.holds
        without = _continued(self.without, state.without, both, fresh.without)
        full = _continued(self.full, state.full, neither, fresh.full) if fresh.full else None
        return replace(fresh, without=without, full=full)

    def step(self, state: SaturatedState) -> SaturatedState:
        """One iteration with each solver."""
        return self.advance(state, 1)

    def advance(
        self, state: SaturatedState, iterations: int, active: Tensor | None = None
    ) -> SaturatedState:
        """Several iterations with each solver that has images."""
        without, full, holds = state.without, state.full, state.holds
        active = torch.ones_like(holds) if active is None else active
        if without is not None and bool((images := active & holds).any()):
            without = self.without.advance(without, iterations, images)
        if full is not None and bool((images := active & ~holds).any()):
            full = self.full.advance(full, iterations, images)
        return replace(state, without=without, full=full)

    def provable(self, state: SaturatedState) -> list[bool]:
        """As the solver without the last layer says, as long as that suffices."""
        if state.without is None:
            return [False] * len(state.holds)
        pairs = zip(state.holds.tolist(), self.without.provable(state.without), strict=True)
        return [holds and fit for holds, fit in pairs]

    def proving(
        self, state: SaturatedState, iterations: int, images: Tensor, active: Tensor
    ) -> SaturatedState:
        """Without the last layer; images that have it, maybe since the last check, iterate."""
        holds, images = state.holds, images & state.holds
        if state.without is None or not bool(images.any()):
            return self.advance(state, iterations, active)
        without = self.without.proving(state.without, iterations, images, active & holds)
        return replace(self.advance(state, iterations, active & ~holds), without=without)

    @property
    def mirrors(self) -> Mirrors:
        """As of the solver without the last layer, which need not have made the last state."""
        return self.without.mirrors if self._start is None else self._start.mirrors

    def runs_ahead(self, state: SaturatedState) -> bool:
        """As the solver without the last layer, as long as that suffices."""
        return state.full is None and self.without.runs_ahead(state._only)

    def finished(self, state: SaturatedState) -> SaturatedState:
        """Both states without tensors that only iterations need."""
        without, full = (s and s.moved() for s in (state.without, state.full))
        return replace(state, without=without, full=full)

    def reconsider(self, state: SaturatedState, saturated: Tensor | None) -> SaturatedState:
        """Images that left the saturated region get their last layer back, permanently."""
        assert saturated is not None
        if bool(saturated.all()) or not bool((left := state.holds & ~saturated).any()):
            return state
        full = self.full.start(state.x, state.duals)
        if state.full is not None:
            full = choose_images(left, full, state.full)
        return replace(state, holds=state.holds & ~left, full=full)


def _continued(
    solver: PDHGSolver[RestartState],
    last: RestartState | None,
    images: Tensor,
    fresh: RestartState | None,
) -> RestartState | None:
    """The fresh state, except that ``images`` continue from their last one."""
    if fresh is None or last is None:
        return fresh
    resumed = solver.resume(last)
    if resumed is None:
        return fresh
    chosen: RestartState = choose_images(images, resumed, fresh)
    return chosen


def started(
    both: InBoth, lifted: Lift, coupling: Coupling, headless: bool
) -> tuple[tuple[Blocks, Blocks, Blocks, Blocks, float | Tensor], tuple[Tensor, ...]]:
    """u, v, tau, sigma and ``dual_weight`` of a start, of a problem that is checked again here.

    Numbers: whether all units are on if ``headless``, and where attempts at a proof are of use.
    """
    both.problem.require_sound_numbers()  # weights may have changed since the last check
    problem, x = both.problem, both.problem.initial_image()
    numbers: tuple[Tensor, ...] = ()
    if headless and (head := SaturatedHead.of(problem)) is not None:
        numbers, problem = (head.holds(x),), head.problem
    saddle = lifted(problem)
    useful = usefulness(saddle)
    if isinstance(useful, Tensor):
        numbers = *numbers, useful
    coupling = coupling.about(saddle)
    u, v = lifted_start(problem, saddle, x)
    sigma = first_sigma(saddle, coupling, u, v)
    return (u, v, coupling.tau(sigma), sigma, coupling.dual_weight), numbers
