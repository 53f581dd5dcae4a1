"""The demo, in its quick version, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.core import TyperGroup
from typer.testing import CliRunner

import convexlift as cl
from convexlift import demo as demo_module
from convexlift.cli.app import app, load
from convexlift.images import load_image
from convexlift.networks.adaptive import PREMISE
from convexlift.problems.claims import CAVEAT

pytestmark = pytest.mark.single_precision
WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    torch.set_default_dtype(torch.float32)
    result = CliRunner().invoke(
        app, ["demo", "--quick", "--output", str(folder), "--json", str(folder / "extra.json")]
    )
    return folder, result


def test_it_succeeds_quietly(finished):
    folder, result = finished
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "Regularizer: photo-open, shipped with the package. Licence: CC0" in said
    assert "━" not in result.output  # no progress bar in a pipe
    for task in ("denoising", "inpainting", "deblurring"):
        for kind in ("clean", "degraded", "reconstructed", "weights"):
            assert load_image(folder / f"{task}-{kind}.png").shape == (1, 1, 64, 64)
    for name in ("overview", "convergence"):
        assert load_image(folder / f"{name}.png").shape[-1] > 500
    assert not list(folder.glob(".*"))
    assert str(folder / "report.html") in result.output.replace("\n", "")


def test_the_next_commands(finished):
    folder, result = finished
    page = (folder / "report.html").read_text()
    _, _, following = result.output.partition("Next, try\n")
    lines = following.strip().splitlines()
    assert len(lines) == len(demo_module.NEXT) == 2
    for line, (command, purpose) in zip(lines, demo_module.NEXT, strict=True):
        assert f"convexlift {command} " in line
        assert line.endswith(f"# {purpose}")
        assert f"convexlift {command}</code>: {purpose}" in page
        words = [word for word in command.split() if word.islower() and word[0] != "-"]
        found = load(words.pop(0))
        while isinstance(found, TyperGroup):  # the command is there, and has these options
            found = found.commands[words.pop(0)]
        known = {name for parameter in found.params for name in parameter.opts}
        assert {word for word in command.split() if word.startswith("-")} <= known


def test_the_numbers(finished):
    folder, _ = finished
    results = json.loads((folder / "results.json").read_text())
    assert json.loads((folder / "extra.json").read_text()) == results
    assert results["version"] == cl.__version__
    assert {task["regularizer"] for task in results["tasks"]} == {"photo-open"}
    for task in results["tasks"]:
        assert task["status"] == "CONVERGED"
        assert task["guarantee"] == "GLOBAL"
        assert task["lower_bound"] <= task["objective"]
        assert task["gap"] <= results["tolerance"]
        assert task["psnr_after"] > task["psnr_before"] + 1


def test_the_proofs(finished):
    """The checker confirms what the report says."""
    folder, demo = finished
    assert f"verify {folder}/*.proof" in demo.output
    tasks = json.loads((folder / "results.json").read_text())["tasks"]
    files = [str(folder / f"{task['task']}.proof") for task in tasks]
    checked = CliRunner().invoke(app, ["verify", *files, "--json", str(folder / "checked.json")])
    assert checked.exit_code == 0, checked.output
    assert checked.output.count("confirmed: ") == 3
    found = json.loads((folder / "checked.json").read_text())["files"]
    for task, file in zip(tasks, found, strict=True):
        (image,) = file["images"]
        assert image["gap"] == pytest.approx(task["gap"], rel=1e-3)
        assert image["guarantee"] == "GLOBAL"


def test_the_page_is_self_contained_and_honest(finished):
    folder, _ = finished
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3 * (3 + 1 + 1)  # pictures, plots and weights
    text = " ".join(page.split())
    said = re.findall(r"<b>Solved to within ([\d.]+) %: (.*?)</b>", text)
    assert [words for _, words in said] == [
        f"{PREMISE}no picture fits this model better by more than that. {CAVEAT}"
    ] * 3
    tasks = json.loads((folder / "results.json").read_text())["tasks"]
    for (percent, _), task in zip(said, tasks, strict=True):
        assert 100 * task["gap"] <= float(percent) <= 111 * task["gap"] + 1e-3
    assert text.count(f"{PREMISE}no image in the box has an objective below the lower bound") == 3
    assert page.count("<img") == page.count(" alt=")
    assert "<code>convexlift models photo-open</code>" in page
    assert "no conditions" in page
    assert "http" not in page
    assert "| denoising" in (folder / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--device", "cuda"], "Use --device cpu or --device auto", marks=WITHOUT_CUDA),
        (["--output", "FILE"], "cannot be used as a folder"),
        (["--json", "FOLDER"], "is a folder. Name a file in it"),
    ],
)
def test_bad_arguments_fail_before_any_work(arguments, message, tmp_path):
    (tmp_path / "file").write_text("")
    places = {"FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    arguments = [places.get(a, a) for a in arguments]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.slow
def test_control_c_exits_with_130_and_leaves_nothing_behind(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "convexlift", "demo", "--output", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    deadline = time.time() + 60
    while not (tmp_path / "out").exists() and time.time() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    # If the signal hits Python inside `exec` of a string (dataclasses and torch do that), it ends
    # by SIGINT itself after our handling; a shell calls both 130.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.strip() == "convexlift: Interrupted; nothing was written."
    assert not list((tmp_path / "out").iterdir())
