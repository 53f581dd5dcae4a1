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
from convexlift.reconstruction import contents

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


def test_a_signal_while_a_file_is_written_does_not_break_it(tmp_path, monkeypatch):

    for i in range(2):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=16, seed=i)))
    write = contents.write_picture

    def signalled(*arguments):
        signal.raise_signal(signal.SIGINT)
        write(*arguments)

    monkeypatch.setattr(contents, "write_picture", signalled)
    result = run("denoise", tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 130
    assert one_record(tmp_path / "out", "0")["status"] == "CONVERGED"
    assert load_image(tmp_path / "out" / "0.png").shape == (1, 1, 16, 16)
    assert not (tmp_path / "out" / "1.png").exists()


def test_two_signals_end_it_at_once(tmp_path, monkeypatch):

    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))

    def signalled(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(contents, "write_picture", signalled)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png")
    assert result.exit_code == 130
    assert "only finished files are kept" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png"]


def test_a_full_disk_is_a_failure_of_its_file(tmp_path, monkeypatch):

    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(contents, "write_picture", full)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png")
    assert result.exit_code == 1
    expected = "x.png cannot be written (No space left on device); make room there, or name another"
    assert expected in result.output
    assert "Traceback" not in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png"]
    assert (
        "Traceback"
        in run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--debug").output
    )


@pytest.mark.parametrize("name", ["write_text", "open"])
def test_what_is_beside_a_result_is_named_if_the_disk_is_full(name, tmp_path, monkeypatch):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    whole = getattr(Path, name)

    def full(path, *arguments, **options):
        if path.name.startswith(".x."):  # the temporary name
            raise OSError(28, "No space left on device")
        return whole(path, *arguments, **options)

    monkeypatch.setattr(Path, name, full)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.tif", "--gap-map")
    assert result.exit_code == 1
    which = "x.json" if name == "write_text" else "x.gap.npy"
    assert f"{which} cannot be written (No space left on device); make room" in result.output


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


def test_the_file_of_all_results_is_named_if_the_disk_is_full(tmp_path, monkeypatch):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("convexlift.cli.reconstruct_job.write_json", full)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--json", "all.json")
    assert result.exit_code == 1
    assert "all.json cannot be written (No space left on device); 1 of 1 results" in result.output
    assert (tmp_path / "x.json").exists()


def test_devices_and_pipes_are_not_replaced(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--json", pipe, "--force")
    assert result.exit_code == 2
    assert "is a device or a pipe" in result.output
    assert pipe.is_fifo()
