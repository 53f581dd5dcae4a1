"""The command line before a command runs: imports, Ctrl-C meanwhile, and the name it goes by."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from convexlift.__main__ import main
from convexlift.cli.app import COMMANDS, app, load

SCRIPT = "import sys\nfrom convexlift.__main__ import main\nsys.exit(main())\n"
"""What installers make of an entry point."""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "bin" / "convexlift"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def interrupted(words: list[str], module: str, folder: Path) -> tuple[int, str]:
    """Status and errors of Python that gets Ctrl-C while it imports the module."""
    hung = folder / "hung"
    (folder / f"{module}.py").write_text(
        f"import pathlib, time\npathlib.Path({str(hung)!r}).touch()\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        deadline = time.time() + 60
        while not hung.exists() and process.poll() is None and time.time() < deadline:
            time.sleep(0.02)
        assert hung.exists()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, errors


# typer is imported by the command line, torch by most commands.
@pytest.mark.parametrize("module", ["torch", "typer"])
@pytest.mark.parametrize(
    "words",
    ["SCRIPT reconstruct denoise a.png -o b.png",
     *(f"-m convexlift {c}" for c in ("demo", "train bilevel pictures", "serve"))],
)  # fmt: skip
def test_control_c_during_imports_is_one_line_and_130(words, module, script, tmp_path):
    found = interrupted(words.replace("SCRIPT", str(script)).split(), module, tmp_path)
    assert found == (130, "convexlift: Interrupted.\n")


def test_control_c_is_left_to_programs_that_import_the_package(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "try:\n    from convexlift import solve\nexcept KeyboardInterrupt:\n    exit(7)\n"
    )
    assert interrupted([str(program), "convexlift"], "torch", tmp_path) == (7, "")


HEAVY = {"torch", "numpy", "scipy", "matplotlib", "PIL", "gradio", "safetensors"}
"""Packages that take long to import."""


def imported(program: str) -> set[str]:
    """The heavy packages that a program in one line imports, also if it ends by SystemExit."""
    report = f"import sys; print('\\nheavy:', *({HEAVY!r} & sys.modules.keys()))"
    code = f"try:\n    {program}\nfinally:\n    {report}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["models"], ["models", "photo-open"],
     *([name, "--help"] for name in COMMANDS),
     *(["reconstruct", task, "--help"] for task in ("denoise", "inpaint", "ct")),
     ["train", "adversarial", "--help"], ["train", "bilevel", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_commands_that_compute_nothing_import_nothing_heavy(words):
    start = f"import sys; sys.argv[1:] = {words!r}; from convexlift.__main__ import main; main()"
    assert imported(start) == set()


def test_importing_the_package_starts_and_changes_nothing():
    program = (
        "import logging, signal, sys, threading; "
        "state = lambda: ([signal.getsignal(s) for s in signal.valid_signals()], "
        "threading.enumerate(), dict(logging.root.manager.loggerDict), sys.excepthook); "
        "before = state(); import convexlift; assert state() == before"
    )
    assert imported(program) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_the_first_line_of_each_command(name):
    assert load(name).help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_program_by_its_name(shell, monkeypatch, capsys):
    # else Typer asks for the shell that this process was started by
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(sys, "argv", ["convexlift/__main__.py", "--show-completion", shell])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(r"^(#compdef|complete .*) convexlift\b", printed, re.MULTILINE)
    assert set(re.findall(r"(\S*)=complete_", printed)) == {"_CONVEXLIFT_COMPLETE"}
    assert "python" not in printed


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", {"reconstruct", "train", "doctor"}),
        ("train ", {"adversarial", "bilevel"}),
        ("reconstruct denoise --reg", {"--regularizer"}),
        ("reconstruct denoise x --regularizer photo-o", {"photo-open", "photo-open-colour"}),
        ("models photo-o", {"photo-open", "photo-open-colour"}),
        ("train bilevel x --preset paper", {"paper-bilevel", "paper-bilevel-nmapg"}),
    ],
)
def test_shells_complete_commands_options_and_names(typed, offered):
    """What the script in a shell asks for, and nothing heavy is imported for it."""
    words = f"convexlift {typed}"
    environment = {
        "_CONVEXLIFT_COMPLETE": "complete_bash", "COMP_WORDS": words,
        "COMP_CWORD": str(len(f"{words}.".split()) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "convexlift"], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    found = set(done.stdout.split())
    assert offered == found if typed else offered <= found
    imports = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not HEAVY & imports


def test_the_module_goes_by_the_name_of_the_script():
    printed = subprocess.run(
        [sys.executable, "-m", "convexlift", "models", "--help"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "Usage: convexlift models" in printed


def test_a_misspelt_command_gets_a_suggestion():
    result = CliRunner().invoke(app, ["dem"])
    assert result.exit_code == 2
    assert "No such command 'dem'. Did you mean 'demo'?" in result.output
