"""Lines of code are counted, and no room exceeds its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools import size

TEXT = '''"""Documentation is free."""

# So are comments,

def f(x):  # and blank lines.
    """One line of code above, two below; the last is three wide."""
    text = """a string that
is no documentation"""
    return x, text, "%s"
'''


def test_code_is_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    module, kernel = tmp_path / "a.py", tmp_path / "a.cu"
    module.write_text(TEXT % ("x" * 200))
    kernel.write_text("// a comment\n\n__global__ void f() {\n}\n")
    assert size.code_lines(module) == 1 + 2 + 3
    assert size.code_lines(kernel) == 2


def test_a_room_that_grows_fails_and_records_only_go_down(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/size.py", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    def write(lines: int) -> None:
        package.joinpath("layer.py").write_text("x = 1\n" * lines)

    package, records = tmp_path / "src" / "p" / "networks", tmp_path / "tools" / "size.json"
    package.mkdir(parents=True)
    records.parent.mkdir()
    (records.parent / "size.py").write_text(Path(size.__file__).read_text())
    records.write_text(json.dumps({"networks": {"budget": 3, "reached": 10}}))
    write(11)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert run().returncode == 1
    assert run("--lower").returncode == 1
    assert json.loads(records.read_text())["networks"]["reached"] == 10
    write(4)
    assert run().returncode == 0
    assert json.loads(records.read_text())["networks"]["reached"] == 10
    assert run("--lower").returncode == 0
    write(5)
    assert "networks" in run().stdout.splitlines()[-1]
    assert run().returncode == 1
