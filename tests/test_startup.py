"""The command line before a command runs: Ctrl-C during imports, and the name it goes by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


# torch is imported with the package, typer by the command line.
@pytest.mark.parametrize("module", ["torch", "typer"])
@pytest.mark.parametrize("form", ["module", "script"])
def test_control_c_during_imports_is_one_line_and_130(form, module, script, tmp_path):
    start = ["-m", "convexlift"] if form == "module" else [str(script)]
    found = interrupted([*start, "reconstruct", "denoise", "a.png"], module, tmp_path)
    assert found == (130, "convexlift: Interrupted.\n")


def test_control_c_is_left_to_programs_that_import_the_package(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("try:\n    import convexlift\nexcept KeyboardInterrupt:\n    exit(7)\n")
    assert interrupted([str(program), "convexlift"], "torch", tmp_path) == (7, "")
