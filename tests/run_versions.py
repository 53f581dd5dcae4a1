"""The quick tests with the lowest and the newest Python and torch: ``make test-versions``.

Environments are made in .venv-versions/, one for each pair, with everything else as pinned in
constraints.txt. A Python that is not installed here is reported and left out. Builds of torch with
CUDA take several gigabytes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-versions"
NEWEST_PYTHON = (3, 14)
CHOSEN_BY_TORCH = ("torch", "triton")


def main() -> int:
    """Test each pair, print a line for each, and fail if one failed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest_python = _lowest(project["requires-python"])
    (torch,) = (text for text in project["dependencies"] if text.startswith("torch"))
    FOLDER.mkdir(exist_ok=True)
    constraints = FOLDER / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(p for p in pinned if not p.startswith(CHOSEN_BY_TORCH)) + "\n")
    outcomes = {}
    for version in dict.fromkeys((lowest_python, NEWEST_PYTHON)):
        name = f"python{version[0]}.{version[1]}"
        program = shutil.which(name)
        for wanted in (f"torch=={torch.partition('>=')[2]}.*", "torch"):
            outcome = "not found on this machine"
            if program is not None:
                outcome = _tested(program, wanted, constraints)
            outcomes[f"{name}, {wanted}"] = outcome
    for pair, outcome in outcomes.items():
        print(f"{pair:28} {outcome}")
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


def _lowest(requirement: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", requirement)[:2]
    return int(major), int(minor)


def _tested(program: str, torch: str, constraints: Path) -> str:
    """Install into an environment of its own, and run the quick tests in it."""
    environment = (
        FOLDER / f"{Path(program).name}-{re.sub('[^0-9.]', '', torch).strip('.') or 'newest'}"
    )
    python = environment / "bin/python"
    pip = python, "-m", "pip", "install", "--quiet", "--upgrade"
    steps: list[tuple[str | Path, ...]] = [
        (program, "-m", "venv", environment),
        (*pip, torch),
        (*pip, "--upgrade-strategy", "only-if-needed", "--constraint", constraints,
         "--editable", f"{ROOT}[dev]"),
        (python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"),
    ]  # fmt: skip
    for step in steps:
        if subprocess.run(step, cwd=ROOT, check=False).returncode:
            return f"failed: {' '.join(map(str, step[1:5]))}"
    shown = (
        python,
        "-c",
        "import sys, torch; print('passed:', sys.version.split()[0], torch.__version__)",
    )
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
