"""A short part of ``python -m soak.files``: damaged files of every kind that is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def soak(*arguments):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "soak.files", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="its limits of memory are those of Linux")
def test_damaged_files_are_refused_by_name(tmp_path):
    ended = soak("--mutations", 1000, "--seconds", 120, "--seed", 7, "--json", tmp_path / "a.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["mutations"] == 1000
    assert found["violations"] == []
    assert all(counts.get("refused") for counts in found["readers"].values())


def test_a_case_can_be_repeated():
    ended = soak("--seed", 7, "--case", 3)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("case 3 of seed 7: ")
