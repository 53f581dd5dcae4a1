"""How much of the package a reader walks through: files and functions called by one operation.

    python benchmarks/walk.py solve|reconstruct|train [--list]

Counts distinct functions under ``src/convexlift`` that are called, without the code of modules,
classes and comprehensions; ``--list`` prints them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import convexlift as cl
from convexlift.cli import app
from convexlift.images import gaussian_noise, load_example, save_image

ROOT = str(Path(cl.__file__).parent)


def solve(folder: Path) -> Callable[[], object]:
    """``cl.solve`` of a small denoising problem."""
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(noisy()), regularizer=cl.load("photo-any-size"), weight=1.0
    )
    return lambda: cl.solve(problem)


def reconstruct(folder: Path) -> Callable[[], object]:
    """``convexlift reconstruct denoise a.png -o b.png``."""
    save_image(folder / "a.png", noisy())
    return lambda: run("reconstruct", "denoise", f"{folder}/a.png", "-o", f"{folder}/b.png")


def train(folder: Path) -> Callable[[], object]:
    """``convexlift train bilevel`` for two steps on three pictures."""
    for i in range(3):
        save_image(folder / "in" / f"{i}.png", noisy(i))
    return lambda: run(
        "train", "bilevel", f"{folder}/in", "--output", f"{folder}/out", "--steps", "2",
        "--crop", "32", "--batch-size", "1", "--held-out", "1",
    )  # fmt: skip


def noisy(seed: int = 0) -> torch.Tensor:
    """A small picture with noise."""
    clean = load_example("camera")[..., 64:128, 64:128]
    return gaussian_noise(clean, 0.1, torch.Generator().manual_seed(seed))


def run(*words: str) -> None:
    """The command line."""
    try:
        app(list(words))
    except SystemExit as ended:
        if ended.code:
            raise


def walked(operation: Callable[[], object]) -> set[tuple[str, str, int]]:
    """(file, function, line) of everything of the package that it calls."""
    found: set[tuple[str, str, int]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name[0] != "<":
            found.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    """Print the counts."""
    operations = {each.__name__: each for each in (solve, reconstruct, train)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operation", choices=operations)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = walked(operations[arguments.operation](Path(folder)))
    if arguments.list:
        for file, name, line in sorted(found):
            print(f"{Path(file).relative_to(ROOT)}:{line} {name}")
    files = {file for file, _, _ in found}
    print(f"{arguments.operation}: {len(files)} files, {len(found)} functions")


if __name__ == "__main__":
    main()
