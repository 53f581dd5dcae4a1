"""PDHG as a method: with the paper's fixed steps, or with steps that need no tuning.

Automatic steps are rebalanced, iterations relaxed or reflected, and restarted. The rules come from
the linear-programming codes PDLP and cuPDLPx; with an L1 fidelity and (leaky) ReLUs the problem
*is* a linear program.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from convexlift.kernels.availability import kernel_errors
from convexlift.problems.claims import InSinglePrecision, in_double
from convexlift.problems.lifting import Lift, SaddlePointProblem, lift
from convexlift.problems.network_duals import BOX_DUAL
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.attempts import ATTEMPTS, attempted, candidates
from convexlift.solvers.channel_steps import ChannelCoupling
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.extrapolated_iterations import ExtrapolatedIterations
from convexlift.solvers.first_steps import first_sigma
from convexlift.solvers.fused_iterations import fastest_iterations
from convexlift.solvers.iterations import Iterations, RestartState
from convexlift.solvers.matrix_steps import MatrixCoupling, require_few_pixels
from convexlift.solvers.method import Choice, DoesNotApply, Method, Solver
from convexlift.solvers.primal_dual import (
    AdaptiveSteps,
    FixedStepPDHG,
    PaperSteps,
    PDHGSolver,
    PDHGState,
    lift_choice,
    lifted_start,
    pdhg_update,
)
from convexlift.solvers.rebalancing import Restarts, lateness, only_recent, rebalance
from convexlift.solvers.recordings import Mirrors, Pending
from convexlift.solvers.replays import Replays
from convexlift.solvers.restart_rules import RestartMemory, RestartRules
from convexlift.solvers.saturated_head import SaturatedHead, SaturatedPDHG, started
from convexlift.solvers.spectral_steps import FourierCoupling
from convexlift.solvers.weighted_rays import WeightedRays
from convexlift.tensors import Blocks, choose_images

T = TypeVar("T")
LARGEST_IN_DOUBLE = 2**24
"""The most dual variables, in numbers, of problems that may continue in double precision."""
ROUNDING = 0.025
"""Iterations change to double precision if rounding is more than this part of a step (measured)."""


@dataclass(frozen=True)
class PDHG(Method):
    """PDHG with the paper's fixed steps, or with steps that need no tuning (the default).

    Args:
        steps: ``PaperSteps(c)`` or ``AdaptiveSteps()``.
        dualise_fidelity: see ``lift``.
    """

    steps: PaperSteps | AdaptiveSteps = field(default_factory=AdaptiveSteps)
    dualise_fidelity: bool | None = None

    @property
    def tuned(self) -> str:
        """The paper's numbers c, if they are used."""
        return self.steps.tuned

    def solver(self, problem: VariationalProblem) -> Solver[Any]:
        """Lift the problem, without its last layer if that can be left out, and find the norms."""
        if isinstance(self.steps, PaperSteps):  # use the paper's lift as well
            saddle = lift(problem, dualise_fidelity=self.dualise_fidelity, pooled=False)
            return FixedStepPDHG(problem, saddle, self.steps)
        head = SaturatedHead.of(problem)
        if head is None:
            return self._adaptive(problem)
        without = self._adaptive(head.problem)
        return SaturatedPDHG(problem, head, without, lambda: self._adaptive(problem))

    def _adaptive(self, problem: VariationalProblem) -> RestartedPDHG:
        if self.dualise_fidelity is not False:
            with contextlib.suppress(DoesNotApply):
                return self._with_matrix(problem)
        if self.dualise_fidelity is not False and FourierCoupling.applies(problem):
            y, kappa_squared = problem.fidelity.y, WeightedRays.scale(problem)
            lifted = Lift(dualise_box=True)
            if kappa_squared is None:
                return _in_either(problem, lifted, lambda saddle: FourierCoupling(saddle, y))
            return _in_either(
                problem, lifted, lambda saddle: WeightedRays(saddle, problem, kappa_squared)
            )
        lifted = Lift(dualise_fidelity=self.dualise_fidelity)
        factors = ChannelCoupling.factors_of(problem)
        if factors is None:
            return _in_either(problem, lifted, Coupling)
        return _in_either(problem, lifted, lambda saddle: ChannelCoupling(saddle, factors))

    @staticmethod
    def _with_matrix(problem: VariationalProblem) -> RestartedPDHG:
        """A solver in double precision, which costs little here: T amplifies rounding errors."""
        require_few_pixels(problem)
        double = in_double(problem)
        saddle = lift(double, dualise_box=True)
        coupling = MatrixCoupling(saddle, double)
        return RestartedPDHG(double, saddle, coupling, problem.fidelity.y.dtype)


def _in_either(
    problem: VariationalProblem,
    lifted: Lift,
    coupling_of: Callable[[SaddlePointProblem], Coupling],
) -> RestartedPDHG:
    """A solver in the problem's precision, which may continue in double if the problem is small."""
    saddle, dtype = lifted(problem), problem.fidelity.y.dtype
    coupling = coupling_of(saddle)

    def precise() -> RestartedPDHG | None:
        double = in_double(problem)
        if isinstance(double.operator, InSinglePrecision):  # its rounding would remain
            return None
        return RestartedPDHG(double, lifted(double), coupling.in_double(), dtype)

    duals = sum(map(math.prod, saddle.K.row_shapes().values()))
    large = problem.batch_size * duals > LARGEST_IN_DOUBLE
    made_precise = None if large or dtype is torch.float64 else precise
    return RestartedPDHG(problem, saddle, coupling, precise=made_precise, lifted=lifted)


class RestartedPDHG(PDHGSolver[RestartState]):
    """PDHG with rebalanced steps, and relaxation or reflected Halpern steps, image by image.

    w <- a P(w) + b w + e anchor, with the coefficients of ``RestartRules``.
    """

    def __init__(
        self,
        problem: VariationalProblem,
        saddle: SaddlePointProblem,
        coupling: Coupling | None = None,
        dtype: torch.dtype | None = None,
        precise: Callable[[], RestartedPDHG | None] | None = None,
        lifted: Lift | None = None,
    ) -> None:
        """``precise`` makes the solver in double precision, ``lifted`` the saddle-point problem."""
        coupling = Coupling(saddle) if coupling is None else coupling
        super().__init__(problem, saddle, coupling)
        self._make_precise, self._look_again, self._lifted = precise, 0, lifted
        self._needs_w = False  # of the next state, to look for rounding
        self._start: Pending | None = None
        self.dtype = dtype  # the precision of the images, if it differs from the problem's
        self.box = problem.bounds if BOX_DUAL in saddle.K.rows else None
        self.iterations, self._why = fastest_iterations(saddle, coupling)
        extrapolated = isinstance(self.iterations, ExtrapolatedIterations)
        self.rules = RestartRules(
            problem, relaxed=coupling.relaxed, extrapolated=extrapolated, growth=coupling.growth
        )
        self.iterations.anchored = self.rules.relaxed < math.inf

    @cached_property
    def _precise(self) -> RestartedPDHG | None:
        """The same solver in double precision, if any; built on first use, as rarely needed."""
        assert self._make_precise is not None
        return self._make_precise()

    @cached_property
    def _restarts(self) -> Restarts:
        recent = only_recent(self.problem, self.coupling, extrapolated=self.rules.extrapolated)
        return Restarts(self.rules, self.coupling, recent)

    @property
    def block(self) -> int:
        """The block size of the chosen implementation."""
        return self.iterations.block

    @property
    def wary(self) -> bool:
        """Whether the coupling is, or v is packed."""
        return self.coupling.wary or self.iterations.packs_v

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The lift, the steps, the restart rule, attempts at a proof, and the implementation."""
        return (
            lift_choice(self.problem, self.saddle),
            self.coupling.choice,
            self.rules.choice,
            *((ATTEMPTS,) if any(self._candidates) else ()),
            Choice("iterations", self.iterations.name, self._why),
        )

    def start(self, x: Tensor, duals: Blocks | None = None) -> RestartState:
        """Steps balanced for the size of the first duals and a small move of the images."""
        if self.dtype is not None:
            x = x.to(self.problem.fidelity.y)
            duals = None if duals is None else duals.to_dtype(x.dtype)
        packed = self.iterations.packs(x)
        u, v = lifted_start(self.problem, self.saddle, x, duals, packed=packed)
        v = self.iterations.packed(v) if packed else v
        return self._from(u, v, first_sigma(self.saddle, self.coupling, u, v))

    def first(self, calls: Replays) -> RestartState:
        """In one call, where it may be replayed; not waited for."""
        if (found := self.launched_start(calls)) is None:
            return super().first(calls)
        state, self._start = found
        return state

    def settled(self, state: RestartState) -> RestartState:
        """Another one if decisions turned out to be others than those of the recording."""
        if self._start is None:
            return state
        launched, self._start = self._start, None
        found, useful = launched()
        self.note_usefulness(*useful)
        return state if found is launched.found else self.started(found)

    def launched_start(
        self, calls: Replays, *, headless: bool = False
    ) -> tuple[RestartState, Pending] | None:
        """As ``start`` at the initial image."""
        too_large = self.iterations.packs(self.problem.fidelity.y)
        if self._lifted is None or not calls.replays or too_large:
            return None
        pending = calls.first(started, self._lifted, self.coupling.about(None), headless)
        return self.started(pending.found), pending

    def started(self, found: Any) -> RestartState:
        """With the weight of dual distances, too."""
        u, v, tau, sigma, self.coupling.dual_weight = found
        return self._from(u, v, sigma, tau)

    def _known(self, v: Blocks, x: Tensor) -> Blocks:
        if self.iterations.packs(x):
            return self.iterations.packed(v)
        return super()._known(v, x)

    @property
    def mirrors(self) -> Mirrors:
        """Of the call that made the first state, then of the iterations."""
        return self.iterations.mirrors if self._start is None else self._start.mirrors

    def runs_ahead(self, state: RestartState) -> bool:
        """On a GPU, if no host reads which images restart, and nobody waits for w."""
        return not self._needs_w and self.iterations.only_launches(state, self.rules.relaxed)

    def finished(self, state: RestartState) -> RestartState:
        """w and the anchors are not needed to resume."""
        return state.moved()

    def more_precise(self, state: RestartState) -> tuple[RestartedPDHG, RestartState] | None:
        """The same iteration in double precision, if rounding is a large part of a step.

        All images of a batch change together. Packed dual variables are unpacked instead.
        """
        if self.iterations.packs(state.u["x"]):
            return (self, state) if self.iterations.unpack() else None
        total = int(state.memory.total.max())
        if self._make_precise is None or total < self._look_again:
            return None
        self._needs_w = not self.iterations.continues(state)
        if self._needs_w:
            return None
        self._look_again = total + max(20, total // 8)  # a look costs a few iterations
        if (solver := self._precise) is None:
            return None
        there = solver._converted(state)
        u, v = (each.to_dtype(torch.float64) for each in self._stepped(state))
        exact_u, exact_v = solver._stepped(there)
        length, steps = solver.coupling.length, (there.tau, there.sigma)
        rounding = length(exact_u - u, exact_v - v, *steps)
        step = length(exact_u - there.w_u, exact_v - there.w_v, *steps)
        return (solver, there) if bool((rounding > ROUNDING * step).any()) else None

    def _converted(self, state: RestartState) -> RestartState:
        """A state of the same solver in another precision."""
        dtype = self.problem.fidelity.y.dtype
        parts = {name: part for name, part in vars(state).items() if isinstance(part, Blocks)}
        parts = {name: part.to_dtype(dtype) for name, part in parts.items() if name != "tau"}
        parts["tau"] = self.coupling.tau(parts["sigma"])
        return RestartState(**{**vars(state), **parts, "dtype": self.dtype, "past": None})

    def _stepped(self, state: RestartState) -> tuple[Blocks, Blocks]:
        """P(w)."""
        steps = self.coupling.dual_steps(state.sigma)
        return pdhg_update(self.saddle, state.w_u, state.w_v, state.tau, steps)

    def _restarted(self, state: PDHGState) -> RestartState:
        return self._from(state.u, state.v, state.sigma)  # keeps the steps found so far

    def _from(self, u: Blocks, v: Blocks, sigma: Blocks, tau: Blocks | None = None) -> RestartState:
        # The same tensors several times: iterations never write into the tensors of a state.
        return RestartState(
            u, v, self.coupling.tau(sigma) if tau is None else tau, sigma,
            w_u=u, w_v=v, anchor_u=u, anchor_v=v, origin_u=u, origin_v=v,
            memory=RestartMemory.at_start(len(u["x"])), box=self.box,
            dtype=self.dtype,
        )  # fmt: skip

    def step(self, state: RestartState) -> RestartState:
        """P(w), then the extrapolation or a restart."""
        return self.advance(state, 1)

    def advance(
        self, state: RestartState, iterations: int, active: Tensor | None = None
    ) -> RestartState:
        """Several iterations, on plain tensors if the kernels fail here."""
        if active is None:
            active = torch.ones_like(state.memory.restart_next)
        elif not bool(active.any()):
            return state
        return self._or_plainly(lambda: self._advance(state, iterations, active))

    def _or_plainly(self, call: Callable[[], T]) -> T:
        """The same with plain iterations, from now on, if GPU kernels fail."""
        try:
            return call()
        except kernel_errors() as error:
            self._why = f"GPU kernels do not run here: {error}"
            warnings.warn(f"no GPU kernels, the plain path is taken: {error}", stacklevel=3)
            self.iterations = Iterations(self.saddle, self.coupling)
            return call()

    def provable(self, state: RestartState) -> list[bool]:
        """Extrapolated iterations find dual variables as fast by themselves (measured)."""
        large = len(self._candidates) > 1 and not self.iterations.spares(state)
        return [False] * len(self._candidates) if large else self._candidates

    @cached_property
    def _candidates(self) -> list[bool]:
        batch = self.problem.batch_size
        return [False] * batch if self.rules.extrapolated else candidates(self.saddle, batch)

    def note_usefulness(self, *useful: Tensor) -> None:
        """Take over the images for which attempts are useful, if the start computed them."""
        if useful and not self.rules.extrapolated:
            self._candidates = (useful[0] > 0).tolist()

    def proving(
        self, state: RestartState, iterations: int, images: Tensor, active: Tensor
    ) -> RestartState:
        """The attempt replaces v only, which iterations do not read if w is set aside.

        If there is no room for that, they continue with a restart from (u, v).
        """
        others = active & ~images
        after = self.advance(state, iterations, others) if bool(others.any()) else state
        after = self.iterations.set_aside(after)
        v = self._or_plainly(lambda: attempted(self.iterations, state, iterations, images))
        if not self.iterations.continues(after):
            after = after.restarted()
        return replace(after, v=choose_images(images, v, after.v))

    def _advance(self, state: RestartState, iterations: int, active: Tensor) -> RestartState:
        """Iterate to the next decision of the rules, decide, and repeat.

        A restart takes two steps: the rules call for it, and the next iteration moves to P(w)
        itself; then steps and anchor change.
        """
        running, home = self.iterations, state.sigma.device
        restarts = self._restarts
        if not running.continues(state):
            state = state.restarted()
        if (after := running.restarted(state, iterations, active, restarts)) is not None:
            return after
        memory = state.memory.following(active)
        tau, sigma = running.steps(state)
        running.load(state, active)
        while iterations:
            count = self.rules.until_decision(memory, iterations)
            measured = self.rules.measured(memory, count)
            running.iterate(tau, sigma, self.rules.mix(memory, count), measure=measured)
            r = running.residual(tau, sigma) if measured else None
            restarted = memory.restart_next & active
            memory = self.rules.counted(memory, r, count)
            if bool(restarted.any()):  # they moved to P(w), and get steps for the displacement
                late = lateness(memory.total, recent=restarts.recent)
                ways = [
                    running.displacement(state, whole=whole)
                    for whole, counts in ((True, late < 1), (False, late > 0))
                    if bool(counts.any())
                ]
                late = late.to(sigma.device)
                target = rebalance(self.coupling, sigma, ways[0], ways[-1], late)
                sigma = target.where(restarted, sigma)
                tau = self.coupling.tau(sigma)
                running.move_anchor(restarted)
            iterations -= count
        memory = choose_images(active, memory, state.memory)
        after = replace(state, tau=tau.to(home), sigma=sigma.to(home), memory=memory)
        after = running.store(after, tau, sigma)
        return after if running.skips else choose_images(active, after, state)
