"""``convexlift reconstruct`` without a task, dry runs, and the summary of many files."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from reconstruct_runs import bits, colours, noisy, run
from scan_files import bundled
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.cli.reconstruct_job import Narrator
from convexlift.cli.record_words import duration
from convexlift.images import save_image
from convexlift.problems.claims import CAVEAT, percent
from convexlift.reconstruction.proposals import propose


@pytest.fixture(autouse=True)
def _place(_double_precision, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def looked(*words):
    return CliRunner().invoke(app, ["reconstruct", *map(str, words)])


def painted():
    pixels = bits(colours(), np.uint8)
    pixels[3:6] = (255, 0, 255)
    Image.fromarray(pixels).save("scratched.png")
    return "scratched.png"


def with_holes():
    values = noisy()
    values[4:6, 7] = np.nan
    np.save("holes.npy", values.astype(np.float32))
    return "holes.npy"


def photograph():
    save_image(Path("noisy.png"), torch.from_numpy(noisy(size=64, sigma=0.1)))
    return "noisy.png"


def test_the_command_that_it_prints_works():
    """Whatever the file is: the printed line is run as it is."""
    for make, task in ((painted, "inpaint"), (with_holes, "inpaint"), (photograph, "denoise")):
        name = make()
        result = looked(name)
        assert result.exit_code == 0, result.output
        (line,) = re.findall(r"^  (convexlift .*)$", result.output, re.MULTILINE)
        words = shlex.split(line)
        assert words[2] == task
        assert not any(Path(each).exists() for each in words[5:6])
        done = run(*words[2:])
        assert done.exit_code == 0, done.output
        assert Path(words[words.index("-o") + 1]).exists()


@pytest.mark.parametrize("ending", ["npy", "tif"])
def test_the_command_for_a_sinogram_works_as_it_is(ending):
    name = f"my scans/a scan.{ending}"
    Path("my scans").mkdir()
    values = np.full((24, 32), 0.5, np.float32)
    np.save(name, values) if ending == "npy" else tifffile.imwrite(name, values)
    result = looked(name)
    (line,) = re.findall(r"^  (convexlift reconstruct ct .*)$", result.output, re.MULTILINE)
    words = shlex.split(line)
    assert words[3:6] == [name, "-o", "my scans/a scan-slice.tif"]
    done = run(*words[2:], "--photons", "1e4", "--weight", "1")
    assert done.exit_code == 0, done.output
    assert Path("my scans/a scan-slice.tif").exists()


def test_what_it_says_about_files():
    assert "in colour, 8 bits, painted with #ff00ff" in propose(Path(painted())).about
    Image.fromarray(np.zeros((20, 30), np.uint8)).save("wide.png")
    assert "30 x 20" in propose(Path("wide.png")).about  # the width first, as on the page
    assert "% of its numbers are NaN" in propose(Path(with_holes())).about
    about = propose(Path(photograph())).about
    sigma = float(re.search(r"sigma ([\d.]+) \(estimated\)", about)[1])
    assert about.startswith("a picture, 64 x 64, grey, 8 bits")
    assert sigma == pytest.approx(0.1, rel=0.25)
    assert "a CT slice in HU, 128 x 128" in propose(bundled("CT_small.dcm")).about
    assert "a DICOM image, 64 x 64, grey, 16 bits" in propose(bundled("MR_small.dcm")).about
    scan = cl.scans.Sinogram(
        torch.rand(1, 4, 8), cl.scans.geometry_of(cl.ParallelBeam(8, 4, 8)), "line integrals"
    )
    cl.scans.write_sinogram(scan, "scan.h5")
    assert propose(Path("scan.h5")).task == "ct"


def test_files_that_cannot_be_used_say_why():
    Path("bad.png").write_bytes(b"no picture")
    Path("photo.cr2").write_bytes(bytes(10))
    Path("notes.txt").write_text("words")
    for name, why in (("bad.png", "not a PNG file"), ("photo.cr2", "export it as 16-bit TIFF"),
                      ("notes.txt", "not a kind of file that is read")):  # fmt: skip
        result = looked(name)
        assert result.exit_code == 2
        assert why in result.output
        assert result.output.count(name) == 1
        assert propose(Path(name)).task is None
    Path("cut.tif").write_bytes(b"II*\0\x08\0\0\0")
    assert looked("cut.tif").output.count("cut.tif") == 1
    result = looked(photograph(), "bad.png")
    assert result.exit_code == 1
    assert "convexlift reconstruct denoise noisy.png" in result.output


def test_without_a_task_nothing_is_done_and_a_misspelt_one_gets_a_suggestion():
    photograph()
    result = looked("noisy.png", "-o", "clean.png")
    assert result.exit_code == 2
    assert "Nothing was done: name the task" in result.output
    assert "convexlift reconstruct denoise noisy.png -o clean.png" in result.output
    assert not Path("clean.png").exists()
    result = looked("denois", "noisy.png")
    assert result.exit_code == 2
    assert "Did you mean 'denoise'?" in result.output
    result = looked("noisy.jpg")
    assert result.exit_code == 2
    assert "noisy.jpg" in result.output
    assert "command" not in result.output


def test_a_dry_run_writes_nothing():
    photograph()
    before = set(os.listdir())
    result = run("denoise", "noisy.png", "-o", "new/clean.png", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "-> new/clean.png" in result.output
    assert "regularizer tv" in result.output
    result = looked("denoise", "noisy.png", "-o", "new/clean.png", "--dry-run")
    assert "regularizer photo-open (photo-open-colour for pictures in colour)" in result.output
    assert set(os.listdir()) == before
    assert run("denoise", "noisy.png", "-o", "x.txt", "--dry-run").exit_code == 2
    for words in (("noisy.png", "--dry-run"), ("--dry-run", "noisy.png")):
        assert "Nothing was written." in looked(*words).output
    assert set(os.listdir()) == before


def folder():
    for i in range(3):
        save_image(Path(f"in/a & {i}.png"), torch.from_numpy(noisy(size=16, seed=i)))
    Path("in/<bad>.png").write_bytes(b"no picture")


def test_many_files_end_with_a_table_and_what_is_proved():
    folder()
    result = run("denoise", "in", "-o", "out", "--truth", "in")
    assert result.exit_code == 1
    for word in ("smallest", "median", "largest", "noise level", "PSNR, dB"):
        assert word in result.output
    worst = max(json.loads(path.read_text())["gap"] for path in Path("out").glob("a*.json"))
    better = "no picture fits this model better by more than that."
    assert f"Solved to within {percent(worst)}: {better} {CAVEAT}" in result.output


def test_one_file_has_no_table():
    photograph()
    result = run("denoise", "noisy.png", "-o", "clean.png")
    assert result.exit_code == 0
    assert result.output.count(CAVEAT) == 1
    assert "lower bound and gap: clean.json" in result.output
    assert {"clean.png", "clean.json"} == set(os.listdir()) - {"noisy.png"}


def test_the_time_left_is_told_from_the_first_tile_on():
    """Five seconds for one of four tiles: fifteen are left."""
    shown = []
    narrator = Narrator(None, lambda **change: shown.append(change), False, 1, 1e-3)
    source = SimpleNamespace(path=Path("large.png"))
    unknown = torch.tensor([math.inf])
    narrator.progress([source], SimpleNamespace(tiles=4, iteration=1, seconds=5.0, gap=unknown))
    assert shown[-1]["description"] == "large.png: tile 1 of 4, 15 s left"
    assert shown[-1]["completed"] == 0.25
    narrator.progress([source], SimpleNamespace(tiles=4, iteration=6, seconds=30.0, gap=unknown))
    assert shown[-1]["description"] == "large.png: tile 2 of 4, sweep 2, 10 s left"


def test_durations():
    assert [duration(s) for s in (0.2, 59, 60, 200, 4800)] == [
        "1 s", "59 s", "1 min", "3 min", "1 h 20 min",
    ]  # fmt: skip


def test_a_restricted_licence_is_told_once_and_a_free_one_never():
    for i in range(2):
        save_image(Path(f"in/{i}.png"), torch.from_numpy(noisy(size=16, seed=i)))
    quick = ("--tolerance", "0.1", "--max-iterations", "5")
    result = looked("denoise", "in", "-o", "a", "--regularizer", "photo-any-size", *quick)
    assert result.output.count("non-commercial research only") == 1
    assert "licence" not in looked("denoise", "in", "-o", "b", *quick).output.lower()
    assert "CC0" not in looked("denoise", "in", "-o", "c", *quick).output
