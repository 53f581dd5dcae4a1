"""Claims as the independent checker sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

import convexlift as cl


def confirm(problem: cl.VariationalProblem, claim, path: Path, within: float = 1e-6) -> None:
    """Write a proof and have it checked: about the same is proved, with the same guarantee.

    There is nothing to check where there is no bound, or where a part is a test's own.
    """
    if cl.Guarantee.NONE in claim.guarantee:
        return
    try:
        cl.Proof(problem, claim).save(path)
    except ValueError as error:
        if "not the library's own" in str(error):
            return
        raise
    verdicts = cl.verify(path)
    assert len(verdicts) == problem.batch_size
    for i, verdict in enumerate(verdicts):
        objective, bound = float(claim.objective[i]), float(claim.lower_bound[i])
        room = within * (0.1 * (objective - bound) + abs(objective))
        assert verdict.objective == pytest.approx(objective, rel=0, abs=room)
        assert verdict.lower_bound == pytest.approx(bound, rel=1e-9, abs=room)
        assert verdict.guarantee == claim.guarantee[i].name
