"""``convexlift doctor`` and the help texts of all commands."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from convexlift.cli import app, doctor
from convexlift.cli.app import COMMANDS, load
from convexlift.cli.help_text import STATUSES, entry

pytestmark = pytest.mark.single_precision
ROOT = Path(__file__).parents[1]


def test_the_doctor_reports_and_its_test_passes(tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--json", str(tmp_path / "report.json")])
    assert result.exit_code == 0, result.output
    assert "the checker confirms the proof" in result.output
    content = json.loads((tmp_path / "report.json").read_text())
    assert torch.__version__ in content["facts"]["torch"]
    assert {f"extra {name}" for name in doctor.EXTRAS} <= set(content["facts"])
    assert content["tests"]["cpu"]["passed"]


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "h5py" else find(n))
    shown = CliRunner().invoke(app, ["doctor"]).output
    assert "not installed (h5py): pip install 'convexlift[ct]'" in shown


def test_all_extras_for_users_are_reported():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(doctor.EXTRAS) == set(extras["optional-dependencies"]) - {"docs", "dev"}


def test_a_test_that_fails_makes_the_status_1(monkeypatch):
    def broken(device):
        raise RuntimeError("no luck")

    monkeypatch.setattr(doctor, "self_test", broken)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "failed: RuntimeError: no luck" in result.output


def commands():
    """Every command with its name on the command line."""
    for name in COMMANDS:
        command = load(name)
        inner = getattr(command, "commands", {})
        yield name, command
        for each, below in inner.items():
            if not below.hidden:
                yield f"{name} {each}", below


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["", *(name for name, _ in commands())])
def test_help_fits_the_terminal_with_examples_and_exit_codes(name, width):
    result = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= width
    assert "<bool>" not in result.output
    assert "\nExamples:\n" in result.output
    assert f"\n  convexlift {name.split()[0] if name else ''}" in result.output
    assert " ".join(STATUSES.split()) in " ".join(result.output.split())
    # no line is broken early: the first word of the next line would not have fitted
    paragraphs = re.findall(r"(?m)^(\w.*)\n(\w.*)$", result.output)
    for line, following in paragraphs:
        if not line.endswith(":"):
            assert len(line) + 1 + len(following.split()[0]) > width, line


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda v: str(v)[:20])
def test_examples_can_be_pasted_and_options_are_described(name, command):
    result = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "60"})
    shown = re.sub(r" \\\n +", " ", result.output)  # as a shell joins the lines
    examples = re.findall(r"(?m)^ *(convexlift .*)$", command.epilog)
    assert examples
    assert all(f"\n  {example}\n" in shown for example in examples)
    context = command.context_class(command, info_name=name)
    for parameter in command.get_params(context):
        found = entry(parameter, context)
        assert found is None or found.text, parameter.name
        if getattr(parameter, "is_flag", False) and found is not None:
            assert not re.search(r" [A-Z]+$", found.names)


@pytest.mark.parametrize("words", [[], ["reconstruct"], ["train"]])
def test_without_arguments_the_help_is_printed(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.output == CliRunner().invoke(app, [*words, "--help"]).output
