"""``convexlift reconstruct`` on many files: bad ones, names, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reconstruct_runs import QUICK, noisy, run

import convexlift as cl
from convexlift.images import load_image, save_image
from convexlift.reconstruction.contents import PICTURES
from convexlift.reconstruction.sources import SINOGRAMS, find_sources

pytestmark = pytest.mark.single_precision


def test_bad_files_are_listed_and_the_others_done(tmp_path):
    folder = tmp_path / "in"
    for i in range(12):
        save_image(folder / f"{i}.png", torch.from_numpy(noisy(size=16, seed=i)))
    (folder / "bad1.png").write_bytes(b"this is no picture")
    (folder / "bad2.tif").write_bytes(b"")
    good = (folder / "3.png").read_bytes()
    (folder / "bad3.png").write_bytes(good[: len(good) // 2])
    (folder / "notes.txt").write_text("left alone")
    result = run("denoise", folder, "-o", tmp_path / "out", "--json", tmp_path / "all.json")
    assert result.exit_code == 1
    assert "12 of 15 files done" in result.output
    assert "3 failed:" in result.output
    assert "Traceback" not in result.output
    everything = json.loads((tmp_path / "all.json").read_text())
    assert len(everything["files"]) == 12
    failed = {Path(each["input"]).name: each["error"] for each in everything["failed"]}
    assert set(failed) == {"bad1.png", "bad2.tif", "bad3.png"}
    assert "not a PNG file" in failed["bad1.png"]
    assert "empty" in failed["bad2.tif"]
    assert len(list((tmp_path / "out").glob("*.png"))) == 12
    assert not list((tmp_path / "out").glob(".*"))


def test_no_file_of_a_folder_is_skipped(tmp_path):
    for name in ("a.png", "a.flat.png", "b.dark.npy", "b.npy"):
        (tmp_path / name).touch()
    (tmp_path / "link.png").symlink_to(tmp_path / "a.png")

    def found(suffixes, *more):
        inputs = [str(tmp_path), *map(str, more)]
        return {source.path.name for source in find_sources(inputs, tmp_path / "out", suffixes)}

    names = {"a.png", "a.flat.png", "b.dark.npy", "b.npy", "link.png"}
    assert found(PICTURES) == names
    assert found(PICTURES, tmp_path / "a.png") == names  # once, though it is named again
    assert found(SINOGRAMS) == {"b.npy"}


def test_links_that_lead_nowhere_are_failures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_image(Path("in/a.png"), torch.from_numpy(noisy(size=16)))
    Path("in/gone.png").symlink_to("nowhere.png")
    Path("in/loop.png").symlink_to("loop.png")
    Path("in/other.txt").symlink_to("nowhere.txt")
    for number, inputs in enumerate((["in"], ["in/*.png"], ["in/a.png", "in/gone.png"])):
        result = run("denoise", *inputs, "-o", f"out{number}")
        assert result.exit_code == 1, result.output
        assert "gone.png: failed: it is a link that leads to no file." in result.output
        assert ("loop.png: failed" in result.output) == (number < 2)
        assert "other" not in result.output
        assert Path(f"out{number}/a.png").exists()
    single = run("denoise", "in/gone.png", "-o", "x.png")
    assert single.exit_code == 1
    assert "in/gone.png: failed: it is a link that leads to no file." in single.output


def test_globs_and_json_on_standard_output(tmp_path):
    for name in ("a1.png", "a2.png", "b1.png"):
        save_image(tmp_path / name, torch.from_numpy(noisy(size=16)))
    process = subprocess.run(
        [sys.executable, "-m", "convexlift", "reconstruct", "denoise", str(tmp_path / "a*.png"),
         "-o", str(tmp_path / "out"), "--json", "-", *QUICK],
        capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    content = json.loads(process.stdout)
    assert [Path(each["input"]).name for each in content["files"]] == ["a1.png", "a2.png"]
    assert "2 of 2 files done" in process.stderr


def test_nothing_is_overwritten(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    (tmp_path / "x.png").write_text("precious")
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "exists; name another output, or add --force" in result.output
    assert (tmp_path / "x.png").read_text() == "precious"
    assert run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", "--force").exit_code == 0
    assert load_image(tmp_path / "x.png").shape == (1, 1, 16, 16)
    # An input is never replaced.
    before = (tmp_path / "a.png").read_bytes()
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path, "--force")
    assert result.exit_code == 2
    assert "is an input" in result.output
    assert (tmp_path / "a.png").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out", "--json", "a.png", "--force"], "a.png is an input"),
        (["-o", "out", "--json", "out/a.json"], "out/a.json is the name of a result"),
        (["-o", "out", "--json", "old.json"], "old.json exists"),
        (["-o", "m.png", "--mask", "m.png", "--force"], "m.png is an input"),
        (["-o", "truths", "--truth", "truths/a.png", "--force"], "truths/a.png is an input"),
        (["-o", "truths", "--truth", "truths", "--force"], "truths/a.png is an input"),
        (["-o", "model.png", "--regularizer", "./model", "--force"], "model.json is an input"),
    ],
)
def test_nothing_that_is_read_is_overwritten(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "m.png", "truths/a.png"):
        save_image(Path(name), torch.from_numpy(noisy(size=16)))
    Path("old.json").write_text("{}")
    cl.save(cl.networks.ridge(channels=2, kernel=3), "model")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    task = "inpaint" if "--mask" in arguments else "denoise"
    result = run(task, "a.png", *arguments, quick=False)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert {path: path.read_bytes() for path in before} == before


def test_folders_are_tried_before_any_work(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=16)))
    locked = tmp_path / "a.png" / "results"  # in a file
    for options in (["-o", locked], ["-o", tmp_path / "out", "--json", locked / "all.json"]):
        result = run("denoise", tmp_path / "a.png", *options)
        assert result.exit_code == 2, result.output
        assert "; name another folder" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.png"], "there is no file or folder missing.png"),
        (["a.txt"], "a.txt has none of the endings .npy, .png"),
        (["empty"], "the folder empty has no file with one of the endings"),
        (["a.png", "--weight", "much"], "--weight is card, auto or a number"),
        (["a.png", "--sigma", "25"], "25 of 255 is 0.098"),
        (["a.png", "--range", "5,1"], "--range needs LOW < HIGH"),
        (["a.png", "--max-iterations", "-1"], "--max-iterations is a whole number from 0 on"),
        (["a.png", "--truth", "nowhere"], "there is no truth nowhere"),
        (["a.png", "b/a.png"], "would both be written to"),
        (["a.png", "--json", "empty"], "is a folder"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_image(Path("a.png"), torch.from_numpy(noisy(size=16)))
    save_image(Path("b/a.png"), torch.from_numpy(noisy(size=16)))
    Path("a.txt").write_text("")
    Path("empty").mkdir()
    result = run("denoise", *arguments, "-o", "out", quick=False)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not Path("out").exists() or not list(Path("out").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["denoise", "a.png", "-o", "new/q.xyz"], "q.xyz does not name a picture; use one of"),
        (["ct", "a.npy", "-o", "new/q.xyz"], "q.xyz does not name a slice; use one of the endings"),
        (["inpaint", "a.png", "-o", "new/x.png"], "no pixel of a.png is missing; give --mask"),
        (["inpaint", "a.png", "b.jpg", "-o", "new"], "no pixel of a.png is missing; give --mask"),
        (["inpaint", "a.npy", "-o", "new/x.npy"], "no pixel of a.npy is missing; give --mask"),
        (["inpaint", "a.png", "-o", "new/x.png", "--mask", "small.png"], "small.png is 8 x 8"),
        (["inpaint", "a.png", "-o", "new", "--mask-colour", "1"], "no pixel of the mask colour"),
        (["inpaint", "a.png", "-o", "new", "--mask-colour", "purple"], "is not a colour"),
        (["inpaint", "a.png", "-o", "new", "--mask", "nowhere.png"], "there is no mask"),
        (["inpaint", "a.png", "-o", "new", "--invert-mask"], "--invert-mask needs --mask"),
        (["denoise", "a.png", "-o", "new/x.png", "--truth", "small.png"], "small.png is 8 x 8"),
        (["denoise", "a.png", "-o", "new/x.png", "--truth", "bad.png"], "bad.png cannot be read"),
        (["denoise", "a.npy", "-o", "new/x.png"], "float32 cannot be written as PNG"),
    ],
)
def test_what_does_not_fit_is_found_before_any_work(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.jpg"):
        save_image(Path(name), torch.from_numpy(noisy(size=16)))
    save_image(Path("small.png"), torch.zeros(8, 8))
    np.save("a.npy", noisy(size=16).astype(np.float32))
    Path("bad.png").write_bytes(b"")
    result = run(*arguments, quick=False)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert not Path("new").exists()


def test_of_several_files_one_that_does_not_fit_fails_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, size in (("a", 16), ("b", 24)):
        save_image(Path(f"in/{name}.png"), torch.from_numpy(noisy(size=size)))
    mask = torch.ones(16, 16)
    mask[4:6] = 0
    save_image(Path("mask.png"), mask)
    result = run("inpaint", "in", "-o", "out", "--mask", "mask.png", "--sigma", 0.05)
    assert result.exit_code == 1, result.output
    assert "in/b.png: failed: the mask mask.png is 16 x 16, but" in result.output
    assert Path("out/a.png").exists()
    Path("bad.png").write_bytes(Path("in/a.png").read_bytes()[:60])
    assert run("denoise", "bad.png", "-o", "x.png").exit_code == 1  # broken, and listed


def test_a_regularizer_for_one_size_says_so(tmp_path):
    save_image(tmp_path / "a.png", torch.from_numpy(noisy(size=32)))
    result = run(
        "denoise", tmp_path / "a.png", "-o", tmp_path / "x.png",
        "--regularizer", "faces-denoising", "--noise", "salt-and-pepper", quick=False,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "256" in result.output


def test_slices_in_dicom_stay_dicom(tmp_path):
    hu = -900 + 1000 * torch.from_numpy(noisy(size=24))[None]
    hu[:, :5] = -1024.0  # padding
    cl.scans.write_volume(cl.scans.Volume.stacked(hu, (2.0, 2.0)), tmp_path / "a.dcm")
    result = run("denoise", tmp_path / "a.dcm", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Gaussian noise" in result.output
    written = cl.scans.read_volume(tmp_path / "out" / "a.dcm")
    assert written.spacing == (2.0, 2.0)
    assert 5 < float((written.values - hu).abs().mean()) < 100
    assert float((written.values[:, :4] + 1024).abs().max()) < 20
    # Some scanners write other endings.
    (tmp_path / "b.ima").write_bytes((tmp_path / "a.dcm").read_bytes())
    result = run("denoise", tmp_path / "b.ima", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "b.ima").read_bytes()[128:132] == b"DICM"
