"""A short part of the soak of hostile problems, and proof that it would notice a false bound."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from soak import problems
from soak.random_problems import random_case

CASES, CHUNK = 360, 10


@pytest.mark.sampled(71)
@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_no_claim_about_a_random_problem_is_false(first):
    torch.set_default_dtype(torch.float32)
    for seed in range(first, first + CHUNK):
        outcome = problems.examine(seed)
        assert not outcome.violations, f"python -m soak.problems --first {seed} --count 1"


def test_cases_are_the_same_whenever_they_are_made():
    one, other = random_case(17), random_case(17)
    assert one.words == other.words
    assert torch.equal(one.problem.fidelity.y, other.problem.fidelity.y)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda s: {"lower_bound": s.objective * (1 + 1e-6)}, "above the objective"),
        (lambda s: {"x": s.x * torch.nan}, "NaN or infinite"),
        (lambda s: {"objective": s.objective * (1 - 1e-6)}, "below that of the image"),
        (lambda s: {"status": (cl.Status.CONVERGED,), "gap": s.gap + 1}, "CONVERGED with a gap"),
    ],
)
def test_a_false_claim_would_be_noticed(change, finding, monkeypatch):
    seed = next(
        seed
        for seed in range(100)
        if (case := random_case(seed)).tame and case.problem.batch_size == 1 and seed % 20
    )
    from dataclasses import replace

    right = cl.solve(random_case(seed).problem)
    monkeypatch.setattr(problems, "_solve", lambda case: replace(right, **change(right)))
    assert finding in " ".join(problems.examine(seed).violations)
