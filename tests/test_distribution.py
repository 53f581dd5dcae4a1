"""The wheel and the source distribution work in an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import convexlift as cl

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed, without this environment's paths."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel, and a source distribution, built in isolation."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an empty environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    return folder / "bin"


def test_both_install_and_run_the_demo(distributions, empty, tmp_path):
    wheel, source = distributions
    constraints = ("--quiet", "--constraint", ROOT / "constraints.txt")
    pip = empty / "python", "-m", "pip", "install"
    run(*pip, *constraints, "torch", cwd=tmp_path)  # alone, as the Makefile does
    run(*pip, *constraints, f"{wheel}[cli]", cwd=tmp_path)
    for name, again in (
        ("wheel", ()),
        ("source", (*pip, "--force-reinstall", "--no-deps", source)),
    ):
        if again:
            run(*again, cwd=tmp_path)
        assert run(empty / "convexlift", "--version", cwd=tmp_path).strip().endswith(cl.__version__)
        output = tmp_path / name
        run(empty / "convexlift", "demo", "--output", output, cwd=tmp_path)
        proofs = sorted(output.glob("*.proof"))
        assert len(proofs) == 3
        run(empty / "convexlift", "verify", *proofs, cwd=tmp_path)
        assert (output / "report.html").is_file()
