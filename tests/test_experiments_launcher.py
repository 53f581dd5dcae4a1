"""`convexlift reproduce` and `convexlift benchmark` in a checkout, and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import convexlift
from convexlift.cli import app, experiments
from convexlift.cli.app import UserError

ROOT = Path(__file__).parent.parent
FAKE = """
import typer
from typing import Annotated

class BadInput(Exception):
    pass

def reproduce(name: str, times: int = 1, debug: bool = False) -> None:
    "Say a name."
    if times < 1:
        raise BadInput("Say it at least once.")
    if times > 9:
        raise KeyboardInterrupt("Interrupted; nine were said.")
    typer.echo(name * times)

benchmark = reproduce
"""


@pytest.fixture
def installed(tmp_path):
    """The package as a wheel installs it, away from the repository: how to call it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "convexlift").symlink_to(Path(convexlift.__file__).parent)
    start = "import sys; from convexlift.__main__ import main; sys.exit(main())"

    def call(*arguments, cwd=tmp_path):
        # Modules of a linked folder keep the path they are found under.
        return subprocess.run(
            [sys.executable, "-P", "-c", start, *arguments], cwd=cwd, capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": str(site)},
        )  # fmt: skip

    return call


@pytest.mark.parametrize("name", ["reproduce", "benchmark"])
def test_a_wheel_says_where_the_experiments_are(installed, name):
    done = installed(name, "--quick", "denoising")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Clone the repository of convexlift and run this command in its folder" in done.stderr


@pytest.mark.slow
def test_a_wheel_runs_the_experiments_of_the_current_folder(installed, tmp_path):
    folder = tmp_path / "checkout"
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments" / "__init__.py").touch()
    (folder / "experiments" / "commands.py").write_text(FAKE)
    assert installed("reproduce", "ab", "--times", "2", cwd=folder).stdout == "abab\n"
    assert "Say a name." in installed("reproduce", "--help", cwd=folder).stdout
    bad = installed("reproduce", "ab", "--times", "0", cwd=folder)
    assert (bad.returncode, bad.stderr) == (2, "convexlift: Say it at least once.\n")
    ended = installed("benchmark", "ab", "--times", "10", cwd=folder)
    assert (ended.returncode, ended.stderr) == (130, "convexlift: Interrupted; nine were said.\n")


def test_other_commands_do_not_run_code_of_the_current_folder(installed, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "commands.py").write_text("raise SystemExit('was run')")
    done = installed("--version")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_checkout_has_the_commands_with_their_options():
    for name in ("reproduce", "benchmark"):
        command = typer.main.get_command(app).commands[name]
        assert {"quick", "output", "device", "json_file"} <= {each.name for each in command.params}
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0
        assert "Exit status: 0 done; 1 started, but some of it failed" in shown.output


def test_a_folder_without_experiments_is_refused(tmp_path):
    with pytest.raises(UserError, match="not part of the installed package"):
        experiments.load_commands(tmp_path)
    assert str(tmp_path) not in sys.path
