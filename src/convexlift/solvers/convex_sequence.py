"""Weakly convex problems by a sequence of convex ones.

The concave part of the objective, -1/2 <x, M x>, lies below its tangents: with the tangent at x^k,

    x^{k+1} = argmin_u  D(A u) - <M x^k, u> + weight N(u) + damping/2 |u - x^k|^2

is a convex problem, above the objective and tight at x^k, so that objectives never increase (the
method of differences of convex functions). In denoising only its data differ; otherwise it is
pulled towards x^k + M x^k / damping. Its dual variables prove bounds for the weakly convex problem
itself (``problems.weakly_convex``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convexlift.functionals.data_terms import SquaredL2, WeightedL2
from convexlift.problems.variational import VariationalProblem
from convexlift.problems.weakly_convex import WeakClaim, WeaklyConvexProblem, weak_claim
from convexlift.proofs import Proof
from convexlift.solvers.pulled import duals_of_data, pull_towards
from convexlift.solvers.solution import History, Progress, Record, Solution, Status, StopWhen
from convexlift.tensors import Blocks, choose_images
from convexlift.tf32 import full_precision

DAMPING, PULL = 0.05, 0.1
"""Damping of problems with missing data, relative to the largest weight; and of problems other than
denoising, relative to about the largest eigenvalue of M."""
SHARPER, SHARPEST = 0.1, 1e-9
"""The gap of a convex problem, relative to the last change of the objective; and its minimum."""
SETTLED = 1e-12
"""The relative change of the objective at which a sequence ends."""

Solve = Callable[..., Solution]


@dataclass
class _Record:
    """The best claims so far, and the history."""

    problem: WeaklyConvexProblem
    stop: StopWhen
    clock: float = field(default_factory=time.perf_counter)
    history: History = field(default_factory=History)
    best: WeakClaim | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.clock

    def take(self, x: Tensor, duals: Blocks, iteration: int) -> Progress:
        """Claim x; keep the better of both claims for each image."""
        claimed = weak_claim(self.problem, x, duals, self.stop.gap or 0.0)
        if self.best is None or bool((claimed.gap <= self.best.gap).all()):
            self.best = claimed
        elif claimed.kappa == self.best.kappa:  # if both say the same, image by image
            better = claimed.gap <= self.best.gap
            both = zip(claimed.guarantee, self.best.guarantee, better.tolist(), strict=True)
            kinds = [one if yes else other for one, other, yes in both]
            chosen = choose_images(better, _plain(claimed), _plain(self.best))
            self.best = replace(chosen, guarantee=tuple(kinds))
        network = self.problem.regularizer
        regularizer = network(x).double()
        record = Record(
            iteration, self.seconds, claimed.objective,
            claimed.objective - self.problem.weight * regularizer, regularizer,
            self.best.lower_bound, self.best.gap,
        )  # fmt: skip
        self.history.records.append(record)
        return Progress(**vars(record), x=x)


def surrogate(problem: WeaklyConvexProblem, x: Tensor, damping: float) -> VariationalProblem:
    """D(A u) - <M x, u> + damping/2 |u - x|^2 + weight N(u), up to a constant."""
    if not problem.quadratic:
        return pull_towards(problem.convex, x + problem.pull(x) / damping, damping)
    known = torch.as_tensor(problem.fidelity.weights).to(x)
    w = known + damping
    data = (known * problem.fidelity.y + problem.pull(x) + damping * x) / w
    plain = isinstance(problem.fidelity, SquaredL2) and not damping
    fidelity = SquaredL2(data) if plain else WeightedL2(data, w.expand_as(data).contiguous())
    # The network that is already bound, whose norms are known.
    return problem.convex.with_network(problem.network).with_data(fidelity)


def _damping(problem: WeaklyConvexProblem) -> float:
    if not problem.quadratic:  # the bound on the eigenvalue may be far too large
        norm = problem.filters.norm(problem.image_shape)
        return PULL * min(problem.steepest, float(problem.concavity.max()) * norm**2) or 1.0
    seen = torch.as_tensor(problem.fidelity.weights)
    return 0.0 if float(seen.min()) > 0 else DAMPING * float(seen.max())


def _inner_stop(stop: StopWhen, gap: float, iterations: int, seconds: float) -> StopWhen:
    """The criteria of the next convex problem: its gap, and the rest of the limits."""
    left = None if stop.seconds is None else max(stop.seconds - seconds, 1e-3)
    return StopWhen(gap=gap, max_iterations=max(1, stop.max_iterations - iterations), seconds=left)


def _plain(claimed: WeakClaim) -> WeakClaim:
    """The claim without its guarantees, which ``choose_images`` cannot mix."""
    return replace(claimed, guarantee=())


@torch.no_grad()
@full_precision()
def solve_sequence(
    problem: WeaklyConvexProblem,
    solve: Solve,
    stop: StopWhen,
    start: Tensor | None = None,
    callback: Callable[[Progress], object] | None = None,
) -> Solution:
    """Solve convex problems with ``solve`` until the claim is good enough."""
    damping = _damping(problem)
    x = problem.convex.initial_image() if start is None else start.to(problem.fidelity.y)
    x = problem.bounds.project(x)
    record, iterations, state, status = _Record(problem, stop), 0, None, Status.ITERATION_LIMIT
    tolerance = 1e-2 if stop.gap is None else max(stop.gap, SHARPEST)
    objective = problem.objective(x)
    while iterations < max(stop.max_iterations, 1):
        try:
            inner = solve(
                surrogate(problem, x, damping), start=x if state is None else state,
                stop=_inner_stop(stop, max(0.1 * tolerance, SHARPEST), iterations, record.seconds),
            )  # fmt: skip
            iterations += max(1, int(inner.iterations.max()))
            x, state = inner.x, inner.state
            duals = inner.duals if problem.quadratic else duals_of_data(problem.convex, inner.duals)
            progress = record.take(x, duals, iterations)
            assert record.best is not None
            if stop.gap is not None and bool((record.best.gap <= stop.gap).all()):
                status = Status.CONVERGED
                break
            if Status.INTERRUPTED in inner.status:
                raise KeyboardInterrupt
            if callback is not None and callback(progress) is True:
                status = Status.STOPPED
                break
        except KeyboardInterrupt:
            if record.best is None:  # nothing to return
                raise
            status = Status.INTERRUPTED
            break
        if stop.seconds is not None and record.seconds >= stop.seconds:
            status = Status.TIME_LIMIT
            break
        last, objective = objective, problem.objective(x)
        change = float(((last - objective) / objective.abs().clamp_min(1e-300)).abs().max())
        if change <= SETTLED:
            status = Status.STATIONARY
            break
        tolerance = min(tolerance, max(SHARPER * change, SHARPEST))
    best = record.best
    assert best is not None
    proof = Proof(problem, best)  # type: ignore[arg-type]  # it has the parts that files describe
    done = [stop.gap is not None and float(gap) <= stop.gap for gap in best.gap]
    return Solution(
        best.x, best.objective, best.lower_bound, best.gap,
        tuple(Status.CONVERGED if each else status for each in done), best.guarantee,
        torch.full((len(best.x),), iterations, device=best.x.device),
        record.seconds, record.history, state, best.duals,
        proof, None,
    )  # fmt: skip
