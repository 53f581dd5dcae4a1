"""The best step sizes of a method, chosen on a picture that is not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import convexlift as cl
from experiments.benchmark.results import Choice
from experiments.common_steps import record_until
from experiments.measuring import Reference, Start, first_below

TUNING_TOLERANCE, TUNING_CHECKS = 1e-3, 5
"""Steps are chosen for the fewest iterations to this objective error, counted in fives."""


def choose_steps(
    problem: cl.VariationalProblem,
    candidates: Sequence[cl.Method],
    reference: Reference,
    max_iterations: int,
    seconds: float,
    tell: Callable[[int], object] = lambda i: None,
) -> tuple[cl.Method, Choice]:
    """The candidate with the fewest iterations; where none gets there, with the smallest error.

    Args:
        problem: of one image.
        candidates: the same method with different steps.
        reference: of the problem.
        max_iterations: limit of each run.
        seconds: limit of each run.
        tell: called with the number of each candidate before it is tried.
    """
    limit, scores = max_iterations, []
    for i, candidate in enumerate(candidates):
        tell(i)
        stop = cl.StopWhen(
            gap=None, max_iterations=limit, seconds=seconds, check_every=TUNING_CHECKS
        )
        optimum = reference.objective
        curve = record_until(Start(problem), candidate, stop, optimum, TUNING_TOLERANCE)
        error = curve.best_error(optimum)[:, 0]
        checks = first_below(error, TUNING_TOLERANCE)
        scores.append((checks is None, checks or 0, float(error[-1]), i))
        if checks is not None:  # slower candidates need not run to the end
            limit = min(limit, max(checks, 1) * TUNING_CHECKS)
    missed, checks, _, best = min(scores)
    return candidates[best], Choice(
        task="",
        method="",
        steps=cl.describe_steps(candidates[best]),
        candidates=len(candidates),
        iterations=None if missed else min(checks * TUNING_CHECKS, max_iterations),
        tolerance=TUNING_TOLERANCE,
        at_edge=_at_edge(candidates, best),
    )


def _at_edge(candidates: Sequence[cl.Method], best: int) -> bool:
    """Whether better steps may lie beyond the grid."""
    values = [_parameters(candidate) for candidate in candidates]
    return any(
        chosen in (min(column), max(column))
        for chosen, column in zip(values[best], zip(*values, strict=True), strict=True)
    )


def _parameters(method: cl.Method) -> tuple[float, ...]:
    if isinstance(method, cl.PDHG) and isinstance(method.steps, cl.PaperSteps):
        c = method.steps.c
        return (c[0], c[-1])
    return (float(getattr(method, "step", 0.0)),)
