"""A short part of ``python -m soak.files``: damaged files of every kind that is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from marks import slow

ROOT = Path(__file__).parents[1]


def run(*arguments):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def soak(*arguments):
    return run("-m", "soak.files", *arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="its limits of memory are those of Linux")
@pytest.mark.parametrize("mutations", [1000, slow(4000)])
@pytest.mark.slow
def test_damaged_files_are_refused_by_name(mutations, tmp_path):
    options = ("--mutations", mutations, "--seconds", 120, "--seed", 7)
    ended = soak(*options, "--json", tmp_path / "a.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["mutations"] == mutations
    assert found["violations"] == []
    assert all(counts.get("refused") for counts in found["readers"].values())


@pytest.mark.slow
def test_a_case_can_be_repeated():
    ended = soak("--seed", 7, "--case", 3)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("case 3 of seed 7: ")


MISBEHAVIOUR = """
import os, time
import numpy as np
import soak.files as files
from soak.samples import Reader

SAMPLE = bytes(range(100))

def reader(name, misbehave, **options):
    def read(path):
        if path.read_bytes() != SAMPLE:
            misbehave(path)
    return Reader(name, ".x", lambda path: path.write_bytes(SAMPLE), (read,), **options)

def raises(error):
    def read(path):
        raise error
    return read

def refuse(path):
    raise ValueError(f"{path} is damaged")

def swallow(path):
    try:
        np.ones(10**9)
    except MemoryError:
        raise ValueError(f"{path} is large") from None

files.READERS = (
    reader("good", refuse),
    reader("hang", lambda path: time.sleep(100)),
    reader("crash", lambda path: os.abort()),
    reader("nameless", raises(ValueError("it is damaged"))),
    reader("bare", raises(KeyError("x"))),
    reader("memory", swallow),
    reader("contained", lambda path: os.abort(), contained=True),
)
files.HANG = 0.5
run = files.Soak(seed=0, mutations=35, seconds=60)
run.run()
print(sorted({each["reader"] for each in run.violations}))
print(dict(run.counts["good"]).keys() <= {"refused", "accepted"})
print("contained" in run.counts["contained"], sum(sum(c.values()) for c in run.counts.values()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="its limits of memory are those of Linux")
def test_misbehaviour_is_found():
    ended = run("-c", MISBEHAVIOUR)
    assert ended.stdout.splitlines() == [
        "['bare', 'crash', 'hang', 'memory', 'nameless']", "True", "True 35",
    ], ended.stderr  # fmt: skip
