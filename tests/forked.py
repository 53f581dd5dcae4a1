"""Programs in processes of their own, which fork from one that has imported torch already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["convexlift.models.store"])


def run(code: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a program prints that runs in a folder; ``environment`` has further variables."""
    output = folder / "output.txt"
    process = start(code, folder, environment or {}, output)
    process.join()
    printed = output.read_text()
    output.unlink()
    assert process.exitcode == 0, printed
    return printed.strip()


def start(code: str, folder: Path, environment: dict[str, str], output: Path) -> BaseProcess:
    """Start a program that prints into a file."""
    variables = {**os.environ, **environment}
    process = CONTEXT.Process(target=_execute, args=(code, folder, variables, output))
    process.start()
    return process


def _execute(code: str, folder: Path, environment: dict[str, str], output: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with (
        output.open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=file)
            raise
