"""Whole problems end as recorded: overlapping intervals, the same pictures and iterations."""

from __future__ import annotations

import json

import pytest
import recorded_problems

RECORDS = json.loads(recorded_problems.RECORDS.read_text(encoding="utf-8"))
PROBLEMS = recorded_problems.problems()

pytestmark = [pytest.mark.slow, pytest.mark.single_precision]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_ends_as_recorded(name):
    """Two true intervals around one optimum cannot be apart."""
    was, now = RECORDS[name], recorded_problems.solved(*PROBLEMS[name])
    for low, high, lower, upper in zip(*was["interval"], *now["interval"], strict=True):
        assert lower <= high, "a lower bound exceeds the optimum"
        assert upper >= low, "an objective is below the optimum"
    assert now["endings"] == was["endings"]
    assert now["iterations"] <= 1.2 * was["iterations"] + 10
    assert now["psnr"] == pytest.approx(was["psnr"], abs=0.05)


@pytest.mark.parametrize("name", ["file, noise", "file, tiles", "file, impulses"])
def test_a_file_ends_as_recorded(name, tmp_path):
    was, now = (
        RECORDS[name],
        recorded_problems.reconstructed(*recorded_problems.files(tmp_path)[name]),
    )
    assert now["psnr"] == pytest.approx(was["psnr"], abs=0.1)
    assert now["noise"] == pytest.approx(was["noise"], rel=0.03)
