"""Threads on the processor: their number, how they wait, and ``--threads``."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from typer.testing import CliRunner

from convexlift import threads
from convexlift.cli.app import app


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that sets cores, affinity, load and quota of this machine."""

    def describe(cores=8, affinity=8, load=0.0, quota=None):
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr(threads, "CGROUPS", tmp_path)
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota)

    return describe


@pytest.mark.parametrize(
    ("described", "free"),
    [
        ({}, 8),
        ({"load": 3.2}, 5),
        ({"load": 30.0}, 1),
        ({"affinity": 4}, 4),
        ({"affinity": 4, "load": 3.0}, 4),  # others may use the other four
        ({"affinity": 4, "load": 6.0}, 2),
        ({"quota": "250000 100000\n"}, 2),
        ({"quota": "50000 100000\n"}, 1),
        ({"quota": "max 100000\n"}, 8),
        ({"quota": "250000 100000\n", "load": 5.0}, 2),
        ({"quota": "nonsense"}, 8),
    ],
)
def test_free_cores_follow_from_affinity_quota_and_load(machine, described, free):
    machine(**described)
    assert threads.free_cores() == free


@pytest.mark.parametrize(
    "command",
    [
        ["reconstruct", "denoise", "a.png", "-o", "b.png"],
        ["verify", "a.proof"],
    ],
)
@pytest.mark.parametrize("count", ["0", "-1", "100000"])
def test_impossible_numbers_of_threads_are_refused(command, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*command, "--threads", count])
    assert result.exit_code == 2
    expected = f"convexlift: --threads: {count} threads on a machine with {os.cpu_count()} cores; "
    assert result.output.startswith(expected)
    assert len(result.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_number_of_threads_reaches_torch_and_child_processes(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv(threads.COUNT, "1")
    threads.use(3)
    assert torch.get_num_threads() == 3
    assert os.environ[threads.COUNT] == "3"


def test_without_a_number_the_environment_decides_or_the_free_cores(machine, monkeypatch):
    machine(load=2.0)
    monkeypatch.setenv(threads.COUNT, "4")
    threads.use(None)
    assert os.environ[threads.COUNT] == "4"
    monkeypatch.delenv(threads.COUNT)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        threads.use(None)
    assert os.environ[threads.COUNT] == "6"
