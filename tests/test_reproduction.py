"""Machinery of reproductions: parts, resuming, data, and what the command refuses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import convexlift
from convexlift.images import save_image
from experiments.__main__ import main
from experiments.comparing import Column, psnr_comparisons
from experiments.document import Comparison, Document, Printed, Section, templates
from experiments.images import VARIABLE, find_data, load_faces
from experiments.registry import registered
from experiments.runner import Experiment, Part, Step, Study
from experiments.runner.parts import PartStore, Plan
from experiments.runner.run import OtherRun, compute, finished_parts
from experiments.tomography.slices import SliceCounts, load_slices


def made(value):
    return Part({"value": value}, {"array": np.full(3, value)})


def chain(calls, *, first=1, interrupt=False):
    """Three steps: b and c need a; c may be interrupted."""

    def a(work):
        calls.append("a")
        return made(first)

    def b(work):
        calls.append("b")
        work.tell(0.5)
        return made(10 * work.parts["a"].values["value"])

    def c(work):
        if interrupt:
            raise KeyboardInterrupt
        calls.append("c")
        return made(-1)

    return [
        Step("a", {"first": first}, a, cost=1.0),
        Step("b", {}, b, ("a",), cost=2.0),
        Step("c", {"fixed": torch.ones(2)}, c, cost=1.0),
    ]


def test_a_part_comes_back_as_it_was(tmp_path):
    store = PartStore(tmp_path)
    values = {"a": [1.5, math.inf, -math.inf], "b": None, "c": {"d": "text"}, "e": math.nan}
    store.write("part", "digest", Part(values, {"x": np.eye(2)}, {"seconds": 1.0}))
    read = store.read("part", "digest")
    assert repr(read.values) == repr(values)
    assert np.array_equal(read.arrays["x"], np.eye(2))
    assert read.about == {"seconds": 1.0}
    assert store.read("part", "of other settings") is store.read("absent", "digest") is None


@pytest.mark.parametrize("damage", ["npz", "json", "missing", "another's"])
def test_a_damaged_part_is_not_there(tmp_path, damage):
    store, other = PartStore(tmp_path), PartStore(tmp_path / "other")
    store.write("part", "digest", made(1))
    other.write("part", "digest", made(2))
    file = tmp_path / ("part.json" if damage == "json" else "part.npz")
    if damage == "another's":  # as after a crash between the two files
        (tmp_path / "other" / "part.npz").replace(file)
    elif damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-20])
    assert store.read("part", "digest") is None


def test_steps_have_different_names_and_need_earlier_ones(tmp_path):
    steps = chain([])
    for wrong in ([*steps, steps[0]], steps[::-1]):
        with pytest.raises(ValueError, match="named twice, or needs later"):
            Plan(wrong, PartStore(tmp_path))


def experiment(calls, name="chain", **options):
    def report(parts, settings):
        comparison = Comparison("Value", Printed(9.0, "Table 1"), parts["b"].values["value"])
        return Document("Chain", ["Text."], [comparison], [Section("More", ["`code` & text"])])

    def steps(study, settings):
        return chain(calls, **options)

    return Experiment(name, "A chain", "1", None, None, steps, report)


def test_an_interrupted_run_goes_on(tmp_path):
    calls, seen = [], []
    with pytest.raises(KeyboardInterrupt):
        compute(experiment(calls, interrupt=True), Study(), tmp_path)
    assert calls == ["a", "b"]
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["finished"], run["complete"]) == (2, False)
    with pytest.raises(OtherRun, match=r"2 finished parts .* another device\. Use another"):
        compute(experiment([]), Study(device=torch.device("meta")), tmp_path)  # none to draw
    compute(experiment(calls), Study(), tmp_path)
    assert calls == ["a", "b", "c"]
    with pytest.raises(OtherRun, match=r"3 finished parts .* other images or settings"):
        compute(experiment(calls, first=2), Study(), tmp_path)
    assert calls == ["a", "b", "c"]
    later = experiment(calls, first=2)
    compute(later, Study(), tmp_path, lambda *progress: seen.append(progress[1:]), force=True)
    assert seen == sorted(seen)
    assert seen[-1] == (3.0, 3.0)  # of a and b, which needs it
    assert calls == ["a", "b", "c", "a", "b"]
    found, run = finished_parts(experiment(calls), tmp_path)
    assert found["b"].values["value"] == 20
    assert found["b"].about["seconds"] >= 0
    assert set(found) == {"a", "b", "c"}
    assert run["complete"]


ROOT = Path(__file__).parent.parent


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("study", "version", "message"),
    [
        (Study(seed=1), None, "another seed. Use another"),
        (Study(quick=True), None, "another length"),
        (Study(device=torch.device("meta")), None, "another device. Use --draw"),
        (Study(data=Path()), None, "another source of images"),
        (Study(seed=1, data=Path()), None, "another seed and source"),
        (Study(authors=Path()), None, "another set of authors' files"),
        (Study(), "0", "another version"),
    ],
)
def test_a_run_with_other_options_leaves_parts_alone(tmp_path, study, version, message):
    calls = []
    compute(experiment(calls), Study(), tmp_path)
    if version is not None:
        text = (tmp_path / "run.json").read_text()
        (tmp_path / "run.json").write_text(text.replace(convexlift.__version__, version))
    before = contents(tmp_path)
    with pytest.raises(OtherRun, match=message) as refused:
        compute(experiment(calls), study, tmp_path)
    assert "another --output, or --force" in str(refused.value)
    assert contents(tmp_path) == before
    assert calls == ["a", "b", "c"]
    compute(experiment(calls), study, tmp_path, force=True)
    compute(experiment(calls), study, tmp_path)  # the run of this folder is now that one


def test_options_of_a_run_without_finished_parts_may_change(tmp_path):
    compute(experiment([]), Study(), tmp_path)
    for part in (tmp_path / "parts").iterdir():
        part.unlink()
    assert len(compute(experiment([]), Study(seed=1), tmp_path)) == 3


def refused(capsys, arguments, load=registered):
    """The sentence of a command that ends before any work."""
    with pytest.raises(SystemExit) as ended:
        main(arguments, load)
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_command_keeps_parts_on_ctrl_c_and_resumes(tmp_path, capsys):
    calls = []
    interrupted = {"denoising": experiment(calls, interrupt=True)}
    options = ["denoising", "--output", str(tmp_path / "out"), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main(options, lambda: interrupted)
    assert ended.value.code == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert "1 of the 3 parts" in refused(capsys, [*options, "--draw"], lambda: interrupted)
    known = {"denoising": experiment(calls), "ct": experiment(calls, name="ct")}
    main([*options, "--compute"], lambda: known)
    assert not (tmp_path / "out" / "report.html").exists()
    for more in ([], ["--draw"]):
        text = refused(capsys, ["ct", *options[1:], *more], lambda: known)
        assert "the experiment chain, not ct. " in text
        assert "another --output, or " in text
    main(options, lambda: known)
    assert calls == ["a", "b", "c"]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["comparisons"][0]["difference"] == 1.0
    assert content["machine"]["torch"] == torch.__version__
    assert content["date"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<code>code</code> &amp; text" in page
    assert "Higher" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    assert (tmp_path / "out" / "tables" / "comparison.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing"),
        (["denoising", "--data", "nowhere"], "nowhere is not a folder"),
        (["denoising", "--data", "."], "holds neither faces/test nor ct/test"),
        (["denoising", "--draw", "--output", "empty"], "holds no finished run"),
        (["denoising", "--draw", "--compute"], "not allowed with"),
        (["denoising", "--seed", "-1"], "seed"),
        (["denoising", "--jobs", "0"], "--jobs is at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, arguments)


def faces(folder, count=20, size=256, name="{:05d}.png"):
    for i in range(count):
        path = folder / "faces" / "test" / name.format(i)
        save_image(path, torch.full((size, size), 0.05 * i))
    save_image(folder / "faces" / "mask.png", torch.eye(size))
    return folder


def test_where_data_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    there, named = faces(tmp_path / "there"), faces(tmp_path / "named")
    assert find_data(None) is None
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_data(None) == named
    assert find_data(there) == there


def test_faces_and_what_stands_in_for_them(tmp_path):
    found = load_faces(faces(tmp_path), 5)
    assert found.clean.shape == (5, 1, 256, 256)
    assert found.faithful
    assert found.source == "test faces of the paper (FFHQ)"
    assert float(found.mask.sum()) == 256
    examples = load_faces(None, 3)
    assert examples.clean.shape == (3, 1, 256, 256)
    assert not examples.faithful
    assert examples.mask is None
    smaller = load_faces(tmp_path, 2, 64)
    assert smaller.source == found.source
    assert not smaller.faithful


def sentence(name, *arguments):
    return getattr(templates().get_template("sentences.md").module, name)(*arguments)


@pytest.mark.parametrize(
    "options", [{"count": 2}, {"size": 40}, {"name": "{}.png"}, {"name": "a{}.png", "count": 1}]
)
def test_other_images_in_the_folder_of_faces_are_not_called_the_papers(tmp_path, options):
    found = load_faces(faces(tmp_path, **options), 2)
    assert not found.faithful
    assert found.source == f"images in {tmp_path / 'faces' / 'test'}"
    data = Part({"psnr": [11.0], "names": found.names[:1], "source": found.source,
                 "faithful": found.faithful})  # fmt: skip
    rows = psnr_comparisons(Printed(10.9, "Figure"), {}, (1, 2), None, Column(None, data, {}))
    assert rows[0].cells[-1] == "Other data."
    assert "of the paper" not in sentence("images_used", data.values)


def test_slices_for_training_and_test_are_not_called_the_papers(tmp_path):
    """Nor do they become so where the slice of its figure is in the folder."""
    (tmp_path / "paper-ct").mkdir()
    np.save(tmp_path / "paper-ct" / "phantom.npy", np.ones((512, 512), np.float32))
    for name in ("train/NLST-101287_1.png", "train/A_1.png", "test/TCGA-17-Z011_011.png"):
        save_image(tmp_path / "ct" / name, torch.rand(512, 512))
    slices = load_slices(tmp_path, 512, SliceCounts(1, 1, 1))
    assert slices.source == "CT slices of chest and abdomen (TCIA)"
    assert not slices.shown.faithful
    save_image(tmp_path / "ct" / "test" / "mine.png", torch.rand(512, 512))
    others = load_slices(tmp_path, 64, SliceCounts(1, 1, 1))
    assert others.source == f"images in {tmp_path / 'ct'}"
    assert not others.shown.faithful


def test_computing_needs_neither_matplotlib_nor_typer():
    code = (
        "import sys, experiments.__main__; "
        "heavy = {'matplotlib', 'typer', 'rich', 'PIL', 'jinja2'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
