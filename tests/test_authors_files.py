"""The authors' files where a user has them, the noise of their scripts, and the page of all."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.images import psnr, save_image
from convexlift.tasks import Inpainting
from experiments import inpainting, tomography
from experiments.__main__ import main
from experiments.authors import (
    ARRAYS,
    WEIGHTS,
    AuthorsSaltAndPepper,
    ReleasedCounts,
    ReleasedSlice,
    SeedZero,
    find_authors,
    find_weights,
)
from experiments.catalogue import HEADINGS
from experiments.common_steps import TimeToError
from experiments.document import Comparison, Document, Printed, Section, Table
from experiments.images import Images
from experiments.inpainting.report import Times, time_comparisons
from experiments.inpainting.steps import table_steps
from experiments.overview import FIGURES
from experiments.registry import EXPERIMENTS
from experiments.runner import Experiment, Part, Step, Study, Work
from experiments.tomography.steps import printed_task, released_steps


def write_slice(folder, *, by_torch):
    """Arrays of the authors' names and shapes, saved as they do or as NumPy does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, shape in ARRAYS.items():
        array = np.random.default_rng(0).random(shape, np.float32) + (60 if name == "sino" else 0)
        if by_torch:
            torch.save(torch.from_numpy(array)[None, None], folder / f"{name}.npy")
        else:
            np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("by_torch", [True, False])
def test_the_slice_is_found_and_read_in_both_forms(tmp_path, by_torch):
    write_slice(tmp_path / "clone" / "data", by_torch=by_torch)
    folder = find_authors(tmp_path / "clone", None)
    found = ReleasedSlice.of(folder)
    assert found.phantom.shape == found.fbp.shape == (1, 1, 512, 512)
    assert found.counts.shape == (1, 1, 200, 400)
    assert found.counts.dtype is torch.float32
    assert found.images.faithful
    assert find_weights(folder) is None
    assert find_authors(None, tmp_path) is None
    beside = (tmp_path / "clone" / "data").rename(tmp_path / "paper-ct")
    assert find_authors(None, tmp_path) == beside
    weights = tmp_path / "clone" / "weights" / WEIGHTS
    weights.parent.mkdir()
    weights.touch()
    assert find_authors(tmp_path / "clone", tmp_path) == tmp_path / "clone"
    assert find_weights(tmp_path / "clone") == weights
    assert ReleasedSlice.of(tmp_path / "clone") is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("nowhere", "is not a folder; name your copy of"),
        ("empty", "holds neither data/sino.npy nor weights/"),
        ("missing", "holds sino.npy, but not fbp.npy"),
        ("text", "is not a readable array"),
        ("shape", r"is not \(512, 512\) finite numbers"),
    ],
)
def test_a_wrong_folder_is_refused_in_a_sentence(tmp_path, capsys, damage, message):
    folder = tmp_path / "clone"
    if damage == "empty":
        folder.mkdir()
    elif damage != "nowhere":
        write_slice(folder, by_torch=False)
        (folder / "fbp.npy").unlink()
    if damage == "text":
        (folder / "fbp.npy").write_text("no array")
    if damage == "shape":
        np.save(folder / "fbp.npy", np.ones((4, 4)))
    with pytest.raises(SystemExit) as ended:
        main(["ct", "--authors", str(folder), "--quick"])
    assert ended.value.code == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_salt_and_pepper_of_the_script():
    """y[u < p/2] = 0 and y[u > 1 - p/2] = 1 with torch.manual_seed(0), for any generator."""
    torch.set_default_dtype(torch.float32)
    clean = torch.full((1, 1, 64, 64), 0.5)
    torch.manual_seed(0)
    drawn = torch.rand(clean.shape)
    measured = AuthorsSaltAndPepper(fraction=0.25, scale=0.02, box=None).measure(clean, [None])
    assert torch.equal(measured.picture == 0, drawn < 0.125)
    assert torch.equal(measured.picture == 1, drawn > 0.875)
    assert measured.box is None


def test_gaussian_noise_of_the_script():
    """y = (x + 0.03 n) mask."""
    torch.set_default_dtype(torch.float32)
    clean, mask = torch.rand(1, 1, 16, 16), (torch.rand(16, 16) > 0.3).float()
    task = SeedZero(Inpainting(noise=0.03, mask=mask, fill="zero", box=None))
    torch.manual_seed(0)
    expected = (clean + 0.03 * torch.randn_like(clean)) * mask
    assert torch.equal(task.measure(clean, [None]).picture, expected)


def test_the_data_of_the_slice_are_the_counts(tmp_path):
    torch.set_default_dtype(torch.float32)
    released = ReleasedSlice.of(write_slice(tmp_path, by_torch=False))
    quick = tomography.BASELINE_QUICK
    assert released_steps(quick, Study(), None) == []
    step, *more = released_steps(quick, Study(authors=tmp_path), None)
    assert [each.name for each in more] == ["ours-data", "ours-curve-default"]  # no network fits
    assert step.settings["task"]["counts"]["shape"] == [1, 1, 200, 400]
    scanner = cl.paper_scanner()
    task = replace(printed_task(tomography.BASELINE), box=(0.0, None))
    data = ReleasedCounts(released.counts, released.fbp, task)
    measured = data.measure(released.phantom, [None])
    assert torch.equal(measured.fidelity.y, released.counts)
    x = torch.rand(1, 1, 512, 512)
    torch.testing.assert_close(measured.operator(x), scanner(x), rtol=1e-4, atol=1e-3)
    assert float(psnr(measured.picture, released.fbp)) == np.inf


def toy(name):
    """An experiment with one number and a table that the paper has too."""
    blocks = {each for figure in FIGURES if figure.experiment == name for each in figure.blocks}

    def report(parts, settings):
        value = parts["a"].values["value"]
        tables = [Table(each, ("a", "b"), (("1", "2"),), each) for each in blocks]
        row = Comparison("Value", Printed(1.0, "Table 1"), value, None, remark="A reason.")
        slow = Comparison("Time", Printed(2.0, "Table 1"), 1.0, math.inf)  # not reached
        return Document(name, ["Text."], [row, slow], [Section("More", tables)])

    def steps(study, settings):
        return [Step("a", {}, lambda work: Part({"value": 1.2}))]

    return Experiment(*HEADINGS[name], None, None, steps, report)


def test_all_experiments_end_on_one_page(tmp_path):
    known = {name: toy(name) for name in HEADINGS}
    arguments = ["all", "--device", "cpu", "--output", str(tmp_path)]
    main(arguments, lambda: known)
    page = (tmp_path / "report.html").read_text()
    for name in HEADINGS:
        assert (tmp_path / name / "report.html").exists()
        assert HEADINGS[name].title in page
    assert page.count("not measured") >= len(HEADINGS)  # the authors' column of every number
    assert page.count("Agrees. A reason.") == len(HEADINGS)
    for figure in FIGURES:
        assert figure.title in page
    content = json.loads((tmp_path / "results.json").read_text())
    assert set(content["numbers"]) == set(HEADINGS)
    assert "Not reached." in page
    (tmp_path / "report.html").unlink()
    main([*arguments, "--draw"], lambda: known)
    assert (tmp_path / "report.html").exists()


def test_every_figure_of_the_page_exists_in_some_report():
    for figure in FIGURES:
        assert figure.experiment in EXPERIMENTS
        named = EXPERIMENTS[figure.experiment].report.__globals__["__file__"]
        text = Path(named).with_name("report.md").read_text()
        assert all(f"({block})" in text for block in figure.blocks)


def test_table_1_with_a_network_trained_as_the_authors_did(tmp_path):
    torch.set_default_dtype(torch.float32)
    for i in range(10):
        save_image(tmp_path / "faces" / "train" / f"{i:05d}.png", torch.rand(32, 32))
    images = Images(("a",), torch.rand(1, 1, 32, 32), "noise", False)
    full = inpainting.EXPERIMENT.full
    options = replace(full.recipe.options, steps=2)
    values = replace(
        full, size=32, images=1, iterations=4, recipe=replace(full.recipe, options=options),
        race=TimeToError(error=1e9, iterations=4, repeats=1),
        reference=cl.StopWhen(gap=1e-2, max_iterations=10),
    )  # fmt: skip
    assert table_steps(Study(), values, images) == []  # no faces to train on
    parts = {}
    for step in table_steps(Study(data=tmp_path), values, images):
        parts[step.name] = step.compute(Work(parts))
    assert parts["table-data"].values["weight"] == 0.1
    times = Times.of(parts, "table-")
    assert list(times.parts) == ["proposed", "sm-c-1.5", "sm-d-50", "nmapg"]
    proposed = times.parts["proposed"]
    default = replace(proposed, values={**proposed.values, "key": "default"})
    rows = time_comparisons(times, Times({**times.parts, "default": default}), values)
    assert [row.paper.value for row in rows] == [0.18, 0.27, 1.35, 0.26, 1.52, 7.5, 1.47]
    assert all(row.authors > 0 for row in rows)
