"""``convexlift reconstruct`` ended early: Ctrl-C, full disks and closed pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from reconstruct_runs import QUICK, noisy, one_record, run

import convexlift as cl
from convexlift.images import load_image, save_image

pytestmark = pytest.mark.single_precision


@pytest.mark.slow
def test_control_c_keeps_what_is_done_and_the_best_of_the_current(tmp_path):
    for i in range(3):  # so large that rounding does not end a solve before its time
        large = torch.from_numpy(noisy(size=256, seed=i)).tile(3, 3)
        save_image(tmp_path / "in" / f"{i}.png", large)
    process = subprocess.Popen(
        [sys.executable, "-m", "convexlift", "reconstruct", "denoise", str(tmp_path / "in"),
         "-o", str(tmp_path / "out"), "--json", str(tmp_path / "all.json"), "--tolerance", "0",
         "--max-iterations", "1000000000", "--time-limit", "1.5", "--regularizer", "tv"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.time() + 60
    while not (tmp_path / "out" / "0.json").exists() and time.time() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # the second file is being solved
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "Interrupted; 2 of 3 results are written" in errors
    assert "Traceback" not in errors
    assert one_record(tmp_path / "out", "0")["status"] == "TIME_LIMIT"
    current = one_record(tmp_path / "out", "1")
    assert current["status"] == "INTERRUPTED"
    assert current["lower_bound"] <= current["objective"]
    # The bound is a proof, whenever it was found: no image is better.
    y = load_image(tmp_path / "in" / "1.png")
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(),
        weight=current["weight"]["value"], box=(0, 1),
    )  # fmt: skip
    best = cl.solve(problem, stop=cl.StopWhen(gap=1e-3))
    assert current["lower_bound"] <= float(best.objective) * (1 + 1e-6)
    assert current["objective"] >= float(best.lower_bound) * (1 - 1e-6)
    written = load_image(tmp_path / "out" / "1.png")
    objective = float(problem.evaluate(written).objective)
    assert objective == pytest.approx(current["objective"], rel=0.02)  # 8 bits
    assert written.shape == y.shape
    assert not (tmp_path / "out" / "2.png").exists()
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything["interrupted"]
    assert [Path(name).name for name in everything["not_done"]] == ["2.png"]
    assert not list((tmp_path / "out").glob(".*"))


def test_control_c_while_a_weight_is_searched(tmp_path, monkeypatch):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=32)))
    from convexlift.reconstruction import solution

    solve, calls = solution.solve, []

    def interrupted(*arguments, **options):
        calls.append(options["stop"].max_iterations)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return solve(*arguments, **options)

    monkeypatch.setattr(solution, "solve", interrupted)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--weight", "auto")
    assert result.exit_code == 130, result.output
    record = one_record(tmp_path, "x")
    assert record["status"] == "INTERRUPTED"
    assert "while the weight was searched" in record["notes"][0]
    assert record["lower_bound"] <= record["objective"]
    assert calls[-1] == 0  # the last one only evaluates
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def when_complete(monkeypatch, name, act):
    """Do something when a file is complete, just before it gets its name."""
    replace = os.replace

    def acting(part, path):
        if Path(path).name == name:
            act()
        replace(part, path)

    monkeypatch.setattr(os, "replace", acting)


def test_a_signal_while_a_file_is_written_does_not_break_it(tmp_path, monkeypatch):
    for i in range(2):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=16, seed=i)))
    when_complete(monkeypatch, "0.png", lambda: signal.raise_signal(signal.SIGINT))
    result = run("denoise", tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 130
    assert one_record(tmp_path / "out", "0")["status"] == "CONVERGED"
    assert load_image(tmp_path / "out" / "0.png").shape == (1, 1, 16, 16)
    assert not (tmp_path / "out" / "1.png").exists()


def test_two_signals_end_it_at_once(tmp_path, monkeypatch):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    twice = [signal.SIGINT] * 2
    when_complete(monkeypatch, "x.png", lambda: list(map(signal.raise_signal, twice)))
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png")
    assert result.exit_code == 130
    assert "only finished files are kept" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png"]


def full():
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", ["x.tif", "x.gap.npy", "x.json", "all.json"])
def test_the_file_for_which_there_is_no_space_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_image(Path("a.png"), torch.from_numpy(noisy(size=16)))
    when_complete(monkeypatch, name, full)
    words = ("denoise", "a.png", "-o", "x.tif", "--gap-map", "--json", "all.json")
    result = run(*words)
    assert result.exit_code == 1
    assert f"{name} cannot be written (No space left on device); " in result.output
    assert "Traceback" not in result.output
    assert not Path(name).exists()
    assert not list(tmp_path.glob(".*"))
    if name == "x.tif":
        assert "Traceback" in run(*words, "--force", "--debug").output


@pytest.mark.sampled(7)
@pytest.mark.parametrize("json_file", [None, "-"])
@pytest.mark.parametrize("reason", ["No space left on device", "Broken pipe"])
def test_files_are_finished_when_stdout_is_closed(json_file, reason, tmp_path):
    for i in range(2):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=16, seed=i)))
    if reason == "Broken pipe":
        reading, writing = os.pipe()
        os.close(reading)
    elif Path("/dev/full").is_char_device():
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        pytest.skip("no device is always full here")
    process = subprocess.run(
        [sys.executable, "-m", "convexlift", "reconstruct", "denoise", str(tmp_path / "in"),
         "-o", str(tmp_path / "out"), *QUICK, *(["--json", json_file] if json_file else [])],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(writing)
    assert process.returncode == 1
    said = f"convexlift: Standard output cannot be written ({reason}); 2 of 2 results are written"
    assert said in process.stderr
    assert "Traceback" not in process.stderr
    assert "ignored" not in process.stderr
    assert all((tmp_path / "out" / f"{i}.json").exists() for i in range(2))


def test_devices_and_pipes_are_not_replaced(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--json", pipe, "--force")
    assert result.exit_code == 2
    assert "is a device or a pipe" in result.output
    assert pipe.is_fifo()
