"""The best step sizes of a method, chosen on a picture that is not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.named_methods import describe
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.step_sizes import PaperSteps
from experiments.benchmark.measure import Limits, Reference, first_below, record_curve
from experiments.benchmark.results import Choice

TUNING_TOLERANCE, TUNING_CHECKS = 1e-3, 5
"""Steps are chosen for the fewest iterations to this objective error, counted in fives."""


def choose_steps(
    problem: VariationalProblem,
    candidates: Sequence[Method],
    reference: Reference,
    limits: Limits,
    tell: Callable[[int], object] = lambda i: None,
) -> tuple[Method, Choice]:
    """The candidate with the fewest iterations; where none gets there, with the smallest error.

    Args:
        problem: of one image.
        candidates: the same method with different steps.
        reference: of the problem.
        limits: of each run.
        tell: called with the number of each candidate before it is tried.
    """
    limit, scores = limits.max_iterations, []
    for i, candidate in enumerate(candidates):
        tell(i)
        curve = record_curve(
            problem,
            None,
            candidate,
            reference.objective,
            Limits(limit, limits.seconds),
            error=TUNING_TOLERANCE,
            check_every=TUNING_CHECKS,
        )
        checks = first_below(curve.error, TUNING_TOLERANCE)
        scores.append((checks is None, checks or 0, curve.error[-1], i))
        if checks is not None:  # who is slower need not be followed to the end
            limit = min(limit, max(checks, 1) * TUNING_CHECKS)
    missed, checks, _, best = min(scores)
    return candidates[best], Choice(
        task="",
        method="",
        steps=describe(candidates[best]),
        candidates=len(candidates),
        iterations=None if missed else min(checks * TUNING_CHECKS, limits.max_iterations),
        tolerance=TUNING_TOLERANCE,
        at_edge=_at_edge(candidates, best),
    )


def _at_edge(candidates: Sequence[Method], best: int) -> bool:
    """Whether better steps may lie beyond the grid."""
    values = [_parameters(candidate) for candidate in candidates]
    return any(
        chosen in (min(column), max(column))
        for chosen, column in zip(values[best], zip(*values, strict=True), strict=True)
    )


def _parameters(method: Method) -> tuple[float, ...]:
    if isinstance(method, PDHG) and isinstance(method.steps, PaperSteps):
        c = method.steps.c
        return (c[0], c[-1])
    return (float(getattr(method, "step", 0.0)),)
