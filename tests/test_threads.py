"""Threads on the processor: their number, how they wait, and ``--threads``."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from convexlift import threads
from convexlift.cli.app import COMMANDS, app, load

REPORT = """
import os, sys
sys.argv = ["convexlift", "doctor", "--help"]
from convexlift.__main__ import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
print(*(os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")))
"""


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


def commands(command, path=()):
    """All commands without commands of their own, with their names."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, each in inner.items():
        if not each.hidden:
            yield from commands(each, (*path, name))


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


@pytest.mark.parametrize(("given", "cores"), [("150000", 1.5), ("-1", math.inf)])
def test_quotas_of_the_first_control_groups_are_read(tmp_path, given, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{given}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.quota(tmp_path) == cores


def test_without_a_load_average_all_available_cores_are_free(machine, monkeypatch):
    machine(affinity=3)
    monkeypatch.delattr(os, "getloadavg")
    assert threads.free_cores() == 3


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "PASSIVE 1000 0"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None None"),
        ({"GOMP_SPINCOUNT": "7"}, "None 7 None"),
    ],
)
def test_threads_of_the_command_line_wait_asleep_unless_told_otherwise(own, expected):
    clean = {name: text for name, text in os.environ.items() if name not in threads.WAITING}
    run = subprocess.run(
        [sys.executable, "-c", REPORT], env=clean | own, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == expected


def test_every_command_that_computes_has_the_option():
    for name in COMMANDS:
        for path, command in commands(load(name), (name,)):
            found = any("--threads" in option.opts for option in command.params)
            assert found == (name != "models"), path


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["verify", "a.proof"],
        ["reconstruct", "denoise", "a.png", "-o", "b.png"],
        ["train", "bilevel", "photos"],
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


def test_the_page_refuses_impossible_numbers_of_threads():
    result = CliRunner().invoke(app, ["serve", "--threads", "100000", "--no-open"])
    assert result.exit_code == 2
    assert "100000 threads on a machine" in result.output


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
