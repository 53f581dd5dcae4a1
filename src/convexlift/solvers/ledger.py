"""The ledger of a solve: best images, best bounds, confirmed claims, statuses, history."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from convexlift.problems.certificate import Bound, judge, lower_bound
from convexlift.problems.claims import (
    Claim,
    Guarantee,
    claim,
    in_double,
    last_digit,
    prefer_near,
    relative_gap,
)
from convexlift.problems.data_bound import Scopes
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.lifting import feasible_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.proofs import Proof
from convexlift.solvers.method import State
from convexlift.solvers.solution import History, Progress, Record, Solution, Status, StopWhen
from convexlift.tensors import (
    Blocks,
    choose_images,
    expand_per_image,
    join_images,
    select_images,
    sum_per_image,
)

Callback = Callable[[Progress], object]
"""Called at every check; return ``True`` to stop."""
INWARDS = (1e-12, 1e-6, 1e-3, 1.0)
"""Fractions of a move to a simpler image, tried if rounding puts an image outside the domain."""
SHARES = tuple(4.0**-k for k in range(24))
"""Fractions of the way to an image inside the domain, down to 1e-14."""
HOPELESS = 3
"""Refused claims after which an image ends if rounding dominates a gap that hardly shrinks."""


class Ledger:
    """The record of every image: best iterate, best bound, status, history.

    Checks are made in the precision of the problem. When one reports that an image has converged,
    its claim is recomputed in double precision with rounding accounted for (``problems.claims``),
    and only this ends the image.

    Per-image numbers are kept on the host, wherever the images are: there are many small operations
    on them, and each would cost a GPU as much as a large one.
    """

    def __init__(
        self,
        problem: VariationalProblem,
        state: State,
        stop: StopWhen,
        callback: Callback | None,
        *,
        rigorous: bool,
    ) -> None:
        size = problem.batch_size
        infinite = torch.full((size,), math.inf, dtype=torch.float64)
        self.problem, self.rigorous = problem, rigorous
        self.tolerance, self.steepest = stop.gap, stop.gradient
        self._limit = stop.max_iterations
        # Published bilevel learning checks the gradient often and does not read bounds.
        self._bounds_unread = not rigorous and stop.gap is None and callback is None
        self.state = state  # the last finite one
        self.start = state.x
        self.active = torch.ones(size, dtype=torch.bool)
        self.iterations = torch.zeros(size, dtype=torch.long)
        self.status = [Status.RUNNING] * size
        self.history = History()
        self._evaluation: Evaluation | None = None
        # The best image, and the best bound that holds everywhere.
        self.x, self.objective, self.lower_bound = state.x, infinite, -infinite
        self.witness: Blocks | None = None  # the dual variables of the best bound
        # The best image with a local bound, which is valid for that image only.
        self.local_x, self.local_objective, self.local_gap = state.x, infinite, infinite
        self.claims: list[Claim | None] = [None] * size
        self._refusals = [0] * size
        self._next_claim = [0] * size  # the check at which the next claim is worth trying
        self._callback = callback
        self.clock = Stopwatch()

    def check(self, iteration: int, state: State, *, silent: bool = False) -> bool:
        """Evaluate, certify, record; False if the callback, called unless silent, asks to stop."""
        evaluation, flat, bounds = self._judge(iteration, state)
        self._evaluation, x = evaluation, evaluation.x
        values = evaluation.objective, evaluation.data_term, evaluation.regularizer
        of_bounds = () if bounds is None else (bounds.everywhere.gap, bounds.near.gap)
        finite, objective, data_term, regularizer, *gaps = _on_the_host(
            torch.isfinite(state.x).flatten(1).all(1), *values, *of_bounds
        )
        finite = (finite > 0) & ~objective.isnan()
        self.state = choose_images(finite, state, self.state)
        flat = self.active & finite & flat
        better = finite & (objective < self.objective) | flat
        self.x = choose_images(better, x, self.x)
        self.objective = torch.where(better, objective, self.objective)
        if bounds is not None:
            self._keep_best_bounds(x, objective, finite, flat, bounds, *gaps)
        self.end(Status.NOT_FINITE, ~finite)
        self.end(Status.STATIONARY, flat)
        if self.tolerance is not None:
            rough = self._numbers()[1]
            self._confirm(self.active & (rough <= self.tolerance), rough)
        lower, gap = self._numbers()
        seconds = self.clock.seconds()
        record = Record(iteration, seconds, objective, data_term, regularizer, lower, gap)
        self.history.records.append(record)
        if silent or self._callback is None:
            return True
        with self.clock.paused():
            return self._callback(Progress(**vars(record), x=state.x)) is not True

    def _judge(
        self, iteration: int, state: State
    ) -> tuple[Evaluation, Tensor, Scopes[Bound] | None]:
        """Objective, flat images, and bounds unless nothing reads them and no image ends here."""
        if self._bounds_unread and 0 < iteration < self._limit:
            evaluation = self.problem.evaluate(state.x)
            flat = self._flat(evaluation, iteration)
            if not (self.active & flat).any():
                return evaluation, flat, None
        tolerance = self.tolerance or 0.0
        evaluation, bounds = judge(self.problem, state.x, state.duals, tolerance)
        if bool((evaluation.objective == math.inf).any()):
            inside = moved_inside(self.problem, evaluation, self._places())
            evaluation, bounds = judge(self.problem, inside, state.duals, tolerance)
        return evaluation, self._flat(evaluation, iteration), bounds

    def _flat(self, evaluation: Evaluation, iteration: int) -> Tensor:
        """A mask of the images, except the start, whose gradient norm is below the tolerance."""
        if self.steepest is None or iteration == 0:
            return torch.zeros_like(self.active)
        squares = sum_per_image(self.problem.subgradient(evaluation) ** 2)
        return (squares < self.steepest**2).cpu()

    def take_evaluation(self) -> Evaluation:
        """Hand over the evaluation of the last check and drop it here, since it is large."""
        assert self._evaluation is not None
        evaluation, self._evaluation = self._evaluation, None
        return evaluation

    def end(self, status: Status, images: Tensor | None = None) -> None:
        """Give the active images (among ``images``) their final status."""
        ending = self.active if images is None else self.active & images
        for i in ending.nonzero().flatten().tolist():
            self._end(i, status)

    def _end(self, i: int, status: Status) -> None:
        self.status[i] = status
        self.active[i] = False
        if status is Status.STATIONARY:
            self.claims[i] = None  # return this image, not an earlier claimed one

    def solution(self) -> Solution:
        """The result, once all images have ended."""
        self._settle()
        whole = join_images([each for each in self.claims if each is not None])
        last = self.history.records[-1]
        numbers = _on_the_host(whole.lower_bound, whole.gap)
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

    def _confirm(self, done: Tensor, rough: Tensor) -> None:
        """End the images marked ``done`` whose rigorous claim confirms it."""
        assert self.tolerance is not None
        checks = len(self.history)
        images = [i for i in done.nonzero().flatten().tolist() if checks >= self._next_claim[i]]
        if not images:
            return
        for i, claimed in zip(images, self._claim(images), strict=True):
            gap, last = float(claimed.gap), self.claims[i]
            before = math.inf if last is None else float(last.gap)
            self.claims[i] = claimed if gap <= before else last
            if gap <= self.tolerance:
                self._end(i, Status.CONVERGED)
                continue
            self._refusals[i] += 1
            self._next_claim[i] = checks + 2 ** self._refusals[i]  # claims are expensive
            rounding = float(rough[i]) < gap / 2  # rounding is the larger part of the gap
            if self._refusals[i] >= HOPELESS and rounding and gap > before / 2:
                self._end(i, Status.PRECISION_LIMIT)

    def _settle(self) -> None:
        """Claim the remaining images, and set the statuses that follow."""
        images = [i for i, s in enumerate(self.status) if s is not Status.CONVERGED]
        if not images:
            return
        if self.rigorous and self.problem.bounds.is_one_sided:
            self._repair()
        for i, claimed in zip(images, self._claim(images), strict=True):
            last = self.claims[i]
            # "not <", so that a claim replaces one whose gap is NaN.
            best = claimed if last is None or not last.gap < claimed.gap else last
            self.claims[i] = best
            if self.tolerance is not None and float(best.gap) <= self.tolerance:
                self.status[i] = Status.CONVERGED
        if self.tolerance is None or Status.ITERATION_LIMIT not in self.status or not self.rigorous:
            return
        rough, coarse = self._numbers()[1], last_digit(self._double, self.x)
        for i, status in enumerate(self.status):
            spoiled = float(rough[i]) <= self.tolerance or float(coarse[i]) > self.tolerance
            if status is Status.ITERATION_LIMIT and spoiled:
                self.status[i] = Status.PRECISION_LIMIT

    def _repair(self) -> None:
        """Better dual variables for the best images, whose bounds a one-sided box weakens."""
        evaluation, bounds = judge(self.problem, self.x, self.witness, math.inf)
        objective, *gaps = _on_the_host(
            evaluation.objective, bounds.everywhere.gap, bounds.near.gap
        )
        finite = objective.isfinite()
        self._keep_best_bounds(self.x, objective, finite, torch.zeros_like(finite), bounds, *gaps)

    def _claim(self, images: list[int]) -> list[Claim]:
        """Rigorous claims about the best of these images so far.

        Count data have a domain. Rounding may put an image on its boundary outside, where the
        objective is infinite; a slight move towards another image brings it back inside.
        """
        assert self.witness is not None
        x = choose_images(self._prefer_local(), self.local_x, self.x)
        if not self.rigorous:
            return self._rough_claim(x, images)
        rows = torch.tensor(images, device=x.device)
        problem, double = self.problem, self._double
        some, some_double = problem.select(rows), double.select(rows)
        if some is None or some_double is None:  # an operator that works on the whole batch only
            rows = torch.arange(len(x), device=x.device)
            some, some_double = problem, double
        whole = len(rows) == len(x)  # not copied: dual variables are large
        witness = Blocks({n: p if whole else p[rows] for n, p in self.witness.items()})
        best, tolerance = x[rows], self.tolerance or 0.0
        claimed = claim(some, some_double, best, witness, tolerance=tolerance)
        fine = claimed.objective.isfinite()
        moves = () if bool(fine.all()) else itertools.product(INWARDS, self._places())
        for share, place in moves:
            moved = some.bounds.project(best + share * (place[rows] - best))
            inside = choose_images(fine, claimed.x, moved)
            claimed = claim(some, some_double, inside, witness, tolerance=tolerance)
            if bool((fine := claimed.objective.isfinite()).all()):
                break
        wanted = images if len(rows) > len(images) else range(len(rows))
        return [select_images(claimed, slice(i, i + 1)) for i in wanted]

    def _places(self) -> tuple[Tensor, ...]:
        """Images that may lie inside the domain of the data term; two of them are constant."""
        start, problem = self.start, self.problem
        d, push = problem.upward
        level = sum_per_image(d * problem.fidelity.y) / sum_per_image(push)  # fits <d, y>
        largest = start.abs().flatten(1).amax(1)
        level = torch.maximum(largest, level.nan_to_num(1.0, 1.0, 1.0).to(start))
        constant = problem.bounds.project(expand_per_image(level, start).expand_as(start))
        return start, torch.zeros_like(start), constant

    def _rough_claim(self, x: Tensor, images: list[int]) -> list[Claim]:
        """Claims from the checks in working precision; they guarantee nothing."""
        assert self.witness is not None
        objective = torch.where(self._prefer_local(), self.local_objective, self.objective)
        lower, gap = (number.to(x.device) for number in self._numbers())
        duals = feasible_duals(self.problem.network, self.problem.weight, x, self.witness)
        none = (Guarantee.NONE,) * len(x)
        unused = x.new_zeros(len(x))
        whole = Claim(x, objective.to(x.device), lower, gap, none, 0.0, duals, unused, None)
        return [select_images(whole, slice(i, i + 1)) for i in images]

    @cached_property
    def _double(self) -> VariationalProblem:
        return in_double(self.problem)

    def _keep_best_bounds(
        self,
        x: Tensor,
        objective: Tensor,
        finite: Tensor,
        flat: Tensor,
        bounds: Scopes[Bound],
        everywhere: Tensor,
        near: Tensor,
    ) -> None:
        """Update from the absolute gaps of the global and the local bound."""
        usable = finite & torch.isfinite(objective)
        below = lower_bound(objective, everywhere, x.dtype)
        lower = torch.where(usable, below, -math.inf)
        raised = lower > self.lower_bound  # False for NaN
        self.lower_bound = torch.where(raised, lower, self.lower_bound)
        nearer = usable & ((near < self.local_gap) | flat)
        if self.witness is None:
            self.witness = bounds.near.witness
        self.witness = choose_images(raised, bounds.everywhere.witness, self.witness)
        self.local_x = choose_images(nearer, x, self.local_x)
        self.local_objective = torch.where(nearer, objective, self.local_objective)
        self.local_gap = torch.where(nearer, near, self.local_gap)
        local = nearer & self._prefer_local()
        self.witness = choose_images(local, bounds.near.witness, self.witness)

    def _prefer_local(self) -> Tensor:
        everywhere = relative_gap(self.objective, self.lower_bound)
        near = relative_gap(self.local_objective, self._local_bound())
        return prefer_near(self.problem, everywhere, near, self.tolerance or 0.0)

    def _local_bound(self) -> Tensor:
        return lower_bound(self.local_objective, self.local_gap, self.x.dtype)

    def _numbers(self) -> tuple[Tensor, Tensor]:
        """Lower bounds and relative gaps: rigorous where claimed, else in the working precision."""
        use_local = self._prefer_local()
        objective = torch.where(use_local, self.local_objective, self.objective)
        lower = torch.where(use_local, self._local_bound(), self.lower_bound)
        lower = torch.minimum(lower, objective)  # they may differ by rounding
        gap = relative_gap(objective, lower)
        for i, claimed in enumerate(self.claims):
            if claimed is not None and not self.active[i]:
                lower[i], gap[i] = float(claimed.lower_bound), float(claimed.gap)
        return lower, gap


def moved_inside(
    problem: VariationalProblem, outside: Evaluation, places: tuple[Tensor, ...]
) -> Tensor:
    """x + s (place - x) with the least s at which the data term is finite; x if none is.

    Count data without background have a domain, A x >= 0. Iterates come closer and closer to it,
    but an image with A x = 0 somewhere is approached from outside, where the objective is infinite.
    """
    w, best = outside.prediction, outside.x
    missing = ~torch.isfinite(outside.data_term)
    for place in places:
        ahead = problem.operator(place) - w
        least = torch.full_like(outside.data_term, math.inf)
        for share in SHARES:
            fine = torch.isfinite(problem.fidelity.value(w + share * ahead))
            least = torch.where(fine, share, least)
        found = missing & torch.isfinite(least)
        way = expand_per_image(torch.where(found, least, 0.0).to(best), best) * (place - best)
        best = choose_images(found, problem.bounds.project(best + way), best)
        missing = missing & ~found
    return best


def _on_the_host(*numbers: Tensor) -> tuple[Tensor, ...]:
    """Several (B,) tensors in double precision, in one transfer."""
    return torch.stack([number.to(torch.float64) for number in numbers]).cpu().unbind()


class Stopwatch:
    """A clock that starts when it is made and can be paused."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds until now, without the pauses."""
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock inside the block."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before
