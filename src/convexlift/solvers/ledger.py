"""The ledger of a solve: best images, best bounds, confirmed claims, statuses, history."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from convexlift.problems.certificate import judged
from convexlift.problems.claims import Claim, Guarantee, last_digit, stated, unpacked
from convexlift.problems.data_bound import Scopes
from convexlift.problems.domains import moved_inside, places_inside
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.network_duals import feasible_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.proofs import Proof
from convexlift.solvers.best import Best, Mask, Numbers, chosen
from convexlift.solvers.confirmations import claimed, confirmed
from convexlift.solvers.forecast import Forecast
from convexlift.solvers.method import State
from convexlift.solvers.recordings import Mirrors, Pending
from convexlift.solvers.replays import Replays, on_the_host
from convexlift.solvers.solution import History, Progress, Record, Solution, Status, StopWhen
from convexlift.solvers.stopwatch import Stopwatch
from convexlift.tensors import (
    Blocks,
    join_images,
    select_images,
    sum_per_image,
)

Callback = Callable[[Progress], object]
"""Called at every check; return ``True`` to stop."""
HOPELESS = 3
"""Refused claims after which an image ends if rounding dominates a gap that hardly shrinks."""


class Ledger:
    """The record of every image: best iterate, best bound, status, history.

    Checks are made in the precision of the problem. When one reports that an image has converged,
    its claim is recomputed in double precision with rounding accounted for (``problems.claims``),
    and only this ends the image.

    Per-image numbers are kept on the host (``best``).
    """

    def __init__(
        self,
        replays: Replays,
        state: State,
        stop: StopWhen,
        callback: Callback | None,
        *,
        rigorous: bool,
    ) -> None:
        problem: VariationalProblem = replays.both.problem
        size = problem.batch_size
        self.problem, self.rigorous = problem, rigorous
        self.tolerance, self.steepest = stop.gap, stop.gradient
        self._limit = stop.max_iterations
        self._wanted = (self.tolerance or 0.0, self.steepest is not None)  # of ``judged``
        # Published bilevel learning checks the gradient often and does not read bounds.
        self._bounds_unread = not rigorous and stop.gap is None and callback is None
        self.active = torch.ones(size, dtype=torch.bool)
        self.iterations = torch.zeros(size, dtype=torch.long)
        self.status = [Status.RUNNING] * size
        self.history = History()
        self.forecast = Forecast(size, stop.gap, several=len(problem.network.layers) > 1)
        self.trying: Tensor | None = None  # images that try for a proof in the next round
        self.saturated: Tensor | None = None  # of the last check: see ``Solver.reconsider``
        self.claims: list[tuple[Claim, int] | None] = [None] * size  # and the row in it
        self._claimed: list[tuple[float, float]] = [(-math.inf, math.inf)] * size  # bound and gap
        self._refusals = [0] * size
        self._next_claim = [0] * size  # the check at which the next claim is worth trying
        self._callback = callback
        self.clock = Stopwatch()
        self._replays, self._both = replays, replays.both
        self._mirrors: Mirrors = ()  # of the state that is being judged
        self._early: tuple[Tensor, Blocks, bool, Pending] | None = None  # launched early
        self.begin(state)

    def begin(self, state: State) -> None:
        """At the first state; again if it turns out to be another one."""
        self.state = state  # the last finite one
        self.start = self._judged = state.x  # and the images that are being judged
        self._best = Best(self.problem, state.x, self.tolerance or 0.0)

    def judging(self, iteration: int, state: State, mirrors: Mirrors = ()) -> Pending | None:
        """Launch what ``check`` will read; None if that is decided there.

        Bounds are left out if nothing reads them and no image ends here.
        """
        self._judged, self._early, self._mirrors = state.x, None, mirrors
        if self._bounds_unread and 0 < iteration < self._limit:
            return None
        given = self._judged, state.duals, *self._wanted
        return self._replays.launched(judged, *given, mirrors=mirrors)

    def claim_early(self, judging: Pending | None, *, converged: bool) -> None:
        """Launch the claim that follows if all images have ``converged``, or if none has."""
        whole = self.rigorous and self._best.everywhere and bool(self.active.all())
        if judging is None or not whole or not self._replays.replays:
            return
        x, witness = self._judged, judging.found[1].everywhere
        given = x, witness, self.tolerance or 0.0, converged
        mirrors = *self._mirrors, *judging.mirrors
        launched = self._replays.launched(claimed, *given, mirrors=mirrors)
        self._early = x, witness, converged, launched

    def plan(self, provable: Callable[[], Mask]) -> None:
        """Choose the images that try for a proof after the check that comes next.

        Those that are ``provable`` at all are not asked for in vain: a GPU would be waited for.
        """
        wanted = self.forecast.worth_trying(self.running)
        if any(wanted):
            wanted = [one and fit for one, fit in zip(wanted, provable(), strict=True)]
        self.forecast.announce(wanted)
        self.trying = torch.tensor(wanted) if any(wanted) else None

    @property
    def running(self) -> Mask:
        """A mask of the active images."""
        return [status is Status.RUNNING for status in self.status]

    def check(
        self,
        iteration: int,
        state: State,
        judging: Pending | None = None,
        *,
        silent: bool = False,
    ) -> bool:
        """Evaluate, certify, record; False if the callback, called unless silent, asks to stop.

        ``judging`` was launched for this state, if it was.
        """
        x, flat, witnesses, numbers = self._judge(iteration, state, judging)
        self._mirrors = ()  # they may be large
        self.saturated = numbers[7] > 0 if len(numbers) > 7 else None
        is_finite, objective, _, _, *gaps = (each.tolist() for each in numbers[:6])
        pairs = zip(is_finite, objective, strict=True)
        finite = [ok > 0 and not math.isnan(value) for ok, value in pairs]
        self.state = chosen(finite, state, self.state)
        values = zip(finite, objective, self._best.objective, strict=True)
        better = [ok and value < lowest for ok, value, lowest in values]
        if flat is not None:
            flat = [all(each) for each in zip(self.running, finite, flat, strict=True)]
            better = [any(each) for each in zip(better, flat, strict=True)]
        self._best.take(better, x, objective)
        self.forecast.note(objective, list(map(min, *gaps)), numbers[6].tolist())
        if witnesses is not None:
            self._best.take_bounds(x, objective, finite, flat, witnesses, *gaps)
        self.end(Status.NOT_FINITE, [not ok for ok in finite])
        if flat is not None:
            self.end(Status.STATIONARY, flat)
        lower, gap = self._numbers()
        if self.tolerance is not None and self._confirm(gap):
            lower, gap = self._numbers()
        bounds = torch.tensor([lower, gap], dtype=torch.float64)
        record = Record(iteration, self.clock.seconds(), *numbers[1:4], *bounds)
        self.history.records.append(record)
        if silent or self._callback is None:
            return True
        with self.clock.paused():
            return self._callback(Progress(**vars(record), x=state.x)) is not True

    def _judge(
        self, iteration: int, state: State, judging: Pending | None
    ) -> tuple[Tensor, Mask | None, Scopes[Blocks] | None, tuple[Tensor, ...]]:
        """Images, flat images, witnesses and numbers (``judged``, without bounds if unread)."""
        judging = judging or self.judging(iteration, state)
        x = self._judged
        if judging is None:
            evaluation = self.problem.evaluate(x)
            flat = self._flat(evaluation, iteration)
            if flat is None or not any(map(all, zip(self.running, flat, strict=True))):
                unknown = torch.full_like(evaluation.objective, math.inf)
                return x, flat, None, on_the_host(*evaluation.numbers(*[unknown] * 3))
        judging = judging or self._replays.launched(judged, x, state.duals, *self._wanted)
        (found, witnesses), numbers = judging()
        if math.inf in numbers[1].tolist():
            x = moved_inside(self.problem, self.problem.evaluate(x), self._places)
            (found, witnesses), others = self._replays(judged, x, state.duals, *self._wanted)
            numbers = numbers[0], *others[1:]
        return x, self._flat(found, iteration), witnesses, numbers

    def _flat(self, evaluation: Evaluation | None, iteration: int) -> Mask | None:
        """A mask of the images, except the start, whose gradient norm is below the tolerance."""
        if self.steepest is None or evaluation is None or iteration == 0:
            return None
        evaluation = evaluation.on(self.problem.network)
        squares = sum_per_image(self.problem.subgradient(evaluation) ** 2)
        found: Mask = (squares < self.steepest**2).tolist()
        return found

    @property
    def x(self) -> Tensor:
        """The best images so far."""
        return self._best.x

    def end(self, status: Status, images: Mask | None = None) -> None:
        """Give the active images (among ``images``) their final status."""
        for i, running in enumerate(self.running):
            if running and (images is None or images[i]):
                self._end(i, status)

    def _end(self, i: int, status: Status) -> None:
        self.status[i] = status
        self.active[i] = False
        if status is Status.STATIONARY:
            self.claims[i] = None  # return this image, not an earlier claimed one

    def solution(self) -> Solution:
        """The result, once all images have ended."""
        self._settle()
        whole = unpacked(self.problem, self._whole())
        last = self.history.records[-1]
        numbers = torch.tensor(self._claimed, dtype=torch.float64).unbind(1)
        self.history.records[-1] = replace(last, lower_bound=numbers[0], gap=numbers[1])
        return Solution(
            whole.x,
            whole.objective,
            whole.lower_bound,
            whole.gap,
            tuple(self.status),
            whole.guarantee,
            self.iterations.to(whole.x.device),
            self.clock.seconds(),
            self.history,
            self.state,
            whole.duals,
            Proof(self.problem, whole),
            self.problem.regularizer.weight_map,
        )

    def _whole(self) -> Claim:
        """All claims as one, without a copy if they were made together."""
        found = [each for each in self.claims if each is not None]
        first = found[0][0]
        together = len(first.x) == len(found)
        if together and all(each == (first, i) for i, each in enumerate(found)):
            return first
        return join_images([select_images(each, slice(row, row + 1)) for each, row in found])

    def _confirm(self, rough: Numbers) -> bool:
        """End the images whose rigorous claim confirms the rough gap; whether any was claimed."""
        assert self.tolerance is not None
        checks = len(self.history)
        due = [on and checks >= at for on, at in zip(self.running, self._next_claim, strict=True)]
        images = [i for i, gap in enumerate(rough) if due[i] and gap <= self.tolerance]
        if not images:
            return False
        if not self.rigorous and self._best.everywhere:
            self._best.improve(images)
        for i, found, numbers in self._claim(images, *self._some(images), confirm=True):
            gap, before = numbers[1], self._claimed[i][1]
            if gap <= before:
                self.claims[i], self._claimed[i] = found, numbers
            if gap <= self.tolerance:
                self._end(i, Status.CONVERGED)
                continue
            self._refusals[i] += 1
            self._next_claim[i] = checks + 2 ** self._refusals[i]  # claims are expensive
            rounding = rough[i] < gap / 2  # rounding is the larger part of the gap
            if self._refusals[i] >= HOPELESS and rounding and gap > before / 2:
                self._end(i, Status.PRECISION_LIMIT)
        return True

    def _some(self, images: list[int]) -> tuple[Replays, Tensor | slice]:
        """Calls about some images, or about all if they cannot be separated; and their rows."""
        if len(images) < len(self.active):
            rows = torch.tensor(images, device=self.start.device)
            if (some := self._both.select(rows)) is not None:
                return Replays(some), rows
        return self._replays, slice(None)  # not copied: dual variables are large

    def _settle(self) -> None:
        """Claim the remaining images, and set the statuses that follow."""
        images = [i for i, s in enumerate(self.status) if s is not Status.CONVERGED]
        if not images:
            return
        if self.rigorous and self.problem.bounds.is_one_sided:
            self._repair()
        for i, found, numbers in self._claim(images, *self._some(images)):
            # "not <", so that a claim replaces one whose gap is NaN.
            if self.claims[i] is None or not self._claimed[i][1] < numbers[1]:
                self.claims[i], self._claimed[i] = found, numbers
            if self.tolerance is not None and self._claimed[i][1] <= self.tolerance:
                self.status[i] = Status.CONVERGED
        if self.tolerance is None or Status.ITERATION_LIMIT not in self.status or not self.rigorous:
            return
        rough, coarse = self._numbers()[1], last_digit(self._both.double, self._best.x)
        for i, status in enumerate(self.status):
            spoiled = rough[i] <= self.tolerance or float(coarse[i]) > self.tolerance
            if status is Status.ITERATION_LIMIT and spoiled:
                self.status[i] = Status.PRECISION_LIMIT

    def _repair(self) -> None:
        """Better dual variables for the best images, whose bounds a one-sided box weakens.

        From those of the best bound, and from the last ones: while no bound holds everywhere, the
        best one may be as old as the first check.
        """
        x = self._best.x
        for duals in (self._best.witness, self.state.duals):
            if duals is not None:
                (_, witnesses), numbers = self._replays(judged, x, duals, math.inf)
                _, objective, _, _, *gaps = (each.tolist() for each in numbers[:6])
                usable = list(map(math.isfinite, objective))
                self._best.take_bounds(x, objective, usable, None, witnesses, *gaps)

    def _claim(
        self,
        images: list[int],
        replays: Replays,
        rows: Tensor | slice,
        *,
        confirm: bool = False,
    ) -> Iterator[tuple[int, tuple[Claim, int], tuple[float, float]]]:
        """Rigorous claims about the best of these images so far, with their bounds and gaps.

        To ``confirm`` that they have converged, better images that go with the bounds are taken.
        """
        best, witness = self._best.images(), self._best.witness
        assert witness is not None
        if not self.rigorous:
            yield from self._rough_claim(best, images)
            return
        early, self._early, tolerance = self._early, None, self.tolerance or 0.0
        improve = confirm and self._best.everywhere
        if early is None or not (best is early[0] and witness is early[1] and improve == early[2]):
            early = None  # about others
        wanted = list(range(len(images))) if isinstance(rows, Tensor) else images
        best, witness = best[rows], Blocks({n: p[rows] for n, p in witness.items()})
        if early is not None and replays is self._replays:
            pending = early[3]
        else:
            pending = replays.launched(claimed, best, witness, tolerance, improve)
        (x, found), numbers = pending()

        def places() -> tuple[Tensor, ...]:
            return tuple(place[rows] for place in self._places)

        x, found, numbers = confirmed(replays, (x, found, numbers), witness, tolerance, places)
        made = stated(x, found, numbers)
        if replays is not self._replays:
            replays.release()
        lower, gap = numbers[1].tolist(), numbers[2].tolist()
        for i, row in zip(images, wanted, strict=True):
            yield i, (made, row), (lower[row], gap[row])

    def _rough_claim(
        self, x: Tensor, images: list[int]
    ) -> Iterator[tuple[int, tuple[Claim, int], tuple[float, float]]]:
        """Claims from the checks in working precision; they guarantee nothing."""
        assert self._best.witness is not None
        objective = self._best.numbers()[0]
        lower, gap = self._numbers()
        duals = feasible_duals(self.problem.network, self.problem.weight, x, self._best.witness)
        none, theta = (Guarantee.NONE,) * len(x), x.new_zeros(len(x))
        numbers = torch.tensor([objective, lower, gap], dtype=torch.float64, device=x.device)
        J, bound, left = numbers
        whole = Claim(x, J, bound, left, none, 0.0, duals, theta, None)
        for i in images:
            yield i, (whole, i), (lower[i], gap[i])

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        return places_inside(self.problem, self.start)

    def _numbers(self) -> tuple[Numbers, Numbers]:
        """Lower bounds and relative gaps: rigorous where claimed, else in the working precision."""
        _, lower, gap = self._best.numbers()
        for i, running in enumerate(self.running):
            if self.claims[i] is not None and not running:
                lower[i], gap[i] = self._claimed[i]
        return lower, gap
