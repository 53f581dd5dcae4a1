"""``convexlift reconstruct --resume``: finished results stay, and only what is missing is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from reconstruct_runs import QUICK, noisy, run

import convexlift as cl
from convexlift.files.atomic import leftovers, remove_leftovers
from convexlift.images import load_image, save_image

FILES = 4
pytestmark = pytest.mark.single_precision


@pytest.fixture
def folder(tmp_path):
    for i in range(FILES):
        save_image(tmp_path / "in" / f"{i}.png", torch.from_numpy(noisy(size=16, seed=i)))
    return tmp_path


def denoise(folder, *options, inputs=None):
    return run("denoise", inputs or folder / "in", "-o", folder / "out", *options)


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}


def changed(before, after):
    return {Path(name).stem for name in after if after[name] != before.get(name)}


def test_a_run_killed_at_any_time_is_resumed(folder):
    command = [sys.executable, "-m", "convexlift", "reconstruct", "denoise", str(folder / "in"),
               "-o", str(folder / "out"), *QUICK]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "out" / "0.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before = times(folder)
    assert "0.json" in before
    assert denoise(folder, "--resume").exit_code == 0
    assert "0" not in changed(before, times(folder))
    for i in range(FILES):
        record = json.loads((folder / "out" / f"{i}.json").read_text())
        assert record["status"] == "CONVERGED"
        assert load_image(folder / "out" / f"{i}.png").shape == (1, 1, 16, 16)


def test_what_is_finished_is_not_done_again(folder):
    assert denoise(folder).exit_code == 0
    before = times(folder)
    for path in (folder / "in").iterdir():
        os.utime(path)  # the content counts
    result = denoise(folder, "--resume", "--json", folder / "all.json")
    assert result.exit_code == 0
    assert "4 of 4 files done (4 by an earlier run)" in result.output
    assert times(folder) == before
    everything = json.loads((folder / "all.json").read_text())
    assert len(everything["files"]) == everything["by_an_earlier_run"] == FILES


def cut_the_record(folder):
    path = folder / "out" / "1.json"
    path.write_text(path.read_text()[:100])


def remove_the_record(folder):
    (folder / "out" / "1.json").unlink()


def remove_the_image(folder):
    (folder / "out" / "1.png").unlink()


def change_the_image(folder):
    save_image(folder / "out" / "1.png", torch.zeros(16, 16))


def cut_the_image(folder):
    path = folder / "out" / "1.png"
    path.write_bytes(path.read_bytes()[:50])


def change_the_input(folder):
    """Even if its modification time stays."""
    path = folder / "in" / "1.png"
    before = path.stat()
    save_image(path, torch.from_numpy(noisy(size=16, seed=9)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_the_record(**changes):
    def change(folder):
        path = folder / "out" / "1.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        remove_the_record, cut_the_record, remove_the_image, change_the_image, cut_the_image,
        change_the_input, change_the_record(status="INTERRUPTED"),
        change_the_record(version="0.0.1"), change_the_record(settings={"task": "denoise"}),
        change_the_record(digest=None), lambda folder: (folder / "out/1.json").write_text("[]"),
    ],
)  # fmt: skip
def test_what_is_not_finished_is_done_again(folder, damage):
    assert denoise(folder).exit_code == 0
    damage(folder)
    before = times(folder)
    result = denoise(folder, "--resume")
    assert result.exit_code == 0, result.output
    assert "(3 by an earlier run)" in result.output
    assert changed(before, times(folder)) == {"1"}


@pytest.mark.parametrize(
    "options", [["--sigma", "0.1"], ["--weight", "0.3"], ["--range", "0,200"], ["--gap-map"]]
)
def test_other_options_make_other_results(folder, options):
    assert denoise(folder).exit_code == 0
    before = times(folder)
    assert denoise(folder, "--resume", *options).exit_code == 0
    assert {"0", "1", "2", "3"} <= changed(before, times(folder))


def test_other_masks_make_other_results(folder):
    mask = np.ones((16, 16))
    mask[4:6] = 0
    save_image(folder / "mask.png", torch.from_numpy(mask))
    words = ["inpaint", folder / "in", "-o", folder / "out", "--mask", folder / "mask.png"]
    assert run(*words).exit_code == 0
    before = times(folder)
    assert run(*words, "--resume").exit_code == 0
    assert times(folder) == before
    mask[8] = 0
    save_image(folder / "mask.png", torch.from_numpy(mask))
    assert run(*words, "--resume").exit_code == 0
    assert changed(before, times(folder)) == {"0", "1", "2", "3"}


def test_other_weights_in_the_files_of_a_regularizer_make_other_results(folder):
    words = ["denoise", folder / "in", "-o", folder / "out", "--resume", "--tolerance", 0.1,
             "--regularizer", folder / "own", "--weight", 1]  # fmt: skip
    before = {}
    for seed in range(2):
        torch.manual_seed(seed)
        cl.save(cl.networks.ridge(channels=2, kernel=3), folder / "own")
        result = run(*words, quick=False)
        assert result.exit_code == 0, result.output
        assert changed(before, times(folder)) == {"0", "1", "2", "3"}
        before = times(folder)
        assert "(4 by an earlier run)" in run(*words, quick=False).output


def test_other_arrays_and_networks_make_other_results(folder):
    def filled(mask, scale):
        network = cl.networks.ridge(channels=2, kernel=3)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(scale)
        result = cl.reconstruct_many(
            folder / "in", folder / "out", "inpaint", mask=mask, regularizer=network, weight=1.0,
            sigma=0.1, resume=True, tolerance=0.1,
        )  # fmt: skip
        assert not result.failures
        return len(result.earlier)

    one, other = np.ones((16, 16)), np.ones((16, 16))
    one[3], other[5] = 0, 0
    assert [filled(one, 0.1), filled(one, 0.1)] == [0, FILES]
    assert [filled(other, 0.1), filled(other, 0.1)] == [0, FILES]
    assert filled(other, 0.2) == 0


def test_resume_and_force_exclude_each_other(folder):
    result = denoise(folder, "--resume", "--force")
    assert result.exit_code == 2
    assert "Leave one of them out" in result.output


# Temporary files ---------------------------------------------------------------------------------


def test_temporary_files_of_killed_runs_are_removed(folder):
    out = folder / "out"
    out.mkdir()
    mine = [".0.png.99999999.part", ".0.json.1234567890.part", ".1.gap.npy.99999999.part"]
    others = [".other.png.99999999.part", "0.png.99999999.part", ".0.png.part", ".0.png.x.part"]
    for name in mine + others:
        (out / name).write_text("half")
    assert denoise(folder).exit_code == 0
    left = {path.name for path in out.iterdir()}
    assert not left & set(mine)
    assert set(others) <= left


def test_temporary_files_of_a_running_process_stay(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        child.stdout.readline()
        part = tmp_path / f".a.png.{child.pid}.part"
        part.write_text("half")
        assert list(leftovers([tmp_path / "a.png"])) == []
        os.utime(part, (0, 0))  # its number was given to another process long ago
        assert list(leftovers([tmp_path / "a.png"])) == [part]
    finally:
        child.kill()
        child.communicate()
    os.utime(part)
    remove_leftovers([tmp_path / "a.png"])
    assert not part.exists()


def test_temporary_folders_of_killed_runs_are_removed(tmp_path):
    (tmp_path / ".series.99999999.part").mkdir()
    (tmp_path / ".series.99999999.part" / "0001.dcm").write_text("half")
    volume = cl.scans.Volume.stacked(torch.zeros(2, 8, 8), (1.0, 1.0))
    cl.scans.write_volume(volume, tmp_path / "series")
    assert [path.name for path in tmp_path.iterdir()] == ["series"]
