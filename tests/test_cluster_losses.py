"""Machines of a Dask cluster that are killed, or have another version: the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from cluster_runs import (
    Killer,
    Machines,
    assert_same,
    large_problem,
    many,
    pictures,
    tiled,
    with_pictures,
)
from reconstruct_runs import QUICK

import convexlift as cl

pytest.importorskip("distributed")
pytestmark = pytest.mark.single_precision


@pytest.fixture
def machines(tmp_path):
    with closing(Machines(tmp_path / "machines")) as found:
        yield found


def command(folder, scheduler, *words):
    files = (str(folder / "in"), "-o", str(folder / "out"))
    program = (sys.executable, "-m", "convexlift", "reconstruct", "denoise")
    return [*program, *files, *QUICK, "--scheduler", scheduler, *words]


def begun(folder, machines, *words):
    return subprocess.Popen(
        command(folder, machines.address, *words),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(process, timeout=120):
    """Its exit status, and what it said."""
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def results(folder):
    return len(list((folder / "out").glob("*.json")))


def wait_for(folder, count, process):
    """Until there are so many results."""
    deadline = time.monotonic() + 120
    while results(folder) < count and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)


def settled(folder):
    """The number of results, once workers have ended what a client that is gone had asked for."""
    count, before = results(folder), -1
    while count != before:
        time.sleep(2)
        count, before = results(folder), count
    return count


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_byte(tmp_path, machines):
    count = 12
    folder = with_pictures(tmp_path, count, 48)
    with machines.connected() as (client, workers):
        result = many(folder, "out", client=client, listener=Killer(workers[0], 3))
        options = tiled(folder, 1e-2)
        large = cl.solve_tiles(large_problem(), client=client, **options)
    assert_same(large, cl.solve_tiles(large_problem(), **options))
    assert workers[0].wait() == -signal.SIGKILL
    assert len(result.records) == count
    many(folder, "here")
    assert pictures(folder / "out") == pictures(folder / "here")


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_tile(tmp_path, machines):
    problem, options = large_problem(), tiled(tmp_path, 1e-3, size=16)

    def kill(progress):
        if progress.iteration == 5:
            os.kill(workers[0].pid, signal.SIGKILL)

    with machines.connected() as (client, workers):
        found = cl.solve_tiles(problem, client=client, callback=kill, **options)
    assert workers[0].wait() == -signal.SIGKILL
    assert_same(found, cl.solve_tiles(problem, **options))


@pytest.mark.slow
def test_everything_that_can_be_killed_is_killed(tmp_path, machines):
    """The client, then all workers, then the scheduler; the run is resumed and ends the same."""
    folder = with_pictures(tmp_path, 80, 64)
    workers = [machines.worker(), machines.worker()]
    process = begun(folder, machines)
    wait_for(folder, 4, process)
    process.kill()
    process.communicate()
    known = settled(folder)

    process = begun(folder, machines, "--resume")
    wait_for(folder, known + 4, process)
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(1)
    machines.worker()
    wait_for(folder, known + 12, process)
    os.kill(machines.scheduler.pid, signal.SIGKILL)
    status, output = ended(process)
    assert status == 1, output
    assert "--resume does the others" in output

    machines.close()
    with closing(Machines(tmp_path / "again")) as others:
        others.worker()
        process = begun(folder, others, "--resume", "--json", str(folder / "all.json"))
        status, output = ended(process, 240)
    assert status == 0, output
    assert json.loads((folder / "all.json").read_text())["by_an_earlier_run"] >= known + 12
    many(folder, "here")
    assert pictures(folder / "out") == pictures(folder / "here")


@pytest.mark.slow
def test_workers_without_the_package_and_with_an_older_one_are_named(tmp_path, machines):
    for name, text in (("without", "raise ImportError('gone')"), ("old", "__version__ = '0.0.1'")):
        package = tmp_path / name / "convexlift"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        machines.worker(PYTHONPATH=str(package.parent))
    folder = with_pictures(tmp_path, 3, 16)
    status, output = ended(begun(folder, machines))
    assert status == 2, output
    assert "no worker can do the work" in output
    machines.worker()
    status, output = ended(begun(folder, machines, "--resume"))
    if status == 2:  # the good worker was not there yet
        status, output = ended(begun(folder, machines, "--resume"))
    assert status == 0, output
    assert "it cannot import convexlift (gone); install it there" in output
    assert f"it has convexlift 0.0.1, and this is {cl.__version__}" in output
    assert "3 of 3 files done" in output


@pytest.mark.slow
def test_two_processes_of_this_machine(tmp_path):
    folder = with_pictures(tmp_path, 3, 16)
    words = command(folder, "local[2]")
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 files done" in done.stdout
    assert "distributed" not in done.stderr
    many(folder, "here")
    assert pictures(folder / "out") == pictures(folder / "here")
