"""Output of ``convexlift reconstruct``: a progress bar, a line for each file, a summary."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import traceback
from collections.abc import Sequence
from typing import IO, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from convexlift.cli.app import console
from convexlift.reconstruction.batch import BatchListener, BatchResult
from convexlift.reconstruction.reconstructor import Reconstruction
from convexlift.reconstruction.sources import Source
from convexlift.solvers.solution import Progress as Check

LISTED = 20
"""Failures named at the end; JSON has all."""


class Narrator(BatchListener):
    """Prints a line for each file, and a progress bar on a terminal.

    Args:
        to_stderr: whether standard output is reserved for JSON.
        debug: show tracebacks of files that failed.
        total: number of files.
        tolerance: the gap at which solves stop.
    """

    def __init__(self, *, to_stderr: bool, debug: bool, total: int, tolerance: float) -> None:
        self.screen = _Screen(stderr=True) if to_stderr else _Screen(width=console().width)
        self.stream = "Standard error" if to_stderr else "Standard output"
        self.unsaid = ""  # which stream could not be written, and why
        self.debug, self.total, self.tolerance = debug, total, tolerance
        self.done = 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(),
            TimeRemainingColumn(), console=self.screen, transient=True,
            disable=not self.screen.is_terminal,
        )  # fmt: skip
        self.task = TaskID(0)

    def __enter__(self) -> Narrator:
        self.bar.start()
        self.task = self.bar.add_task("Starting", total=float(self.total))
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def reading(self, source: Source) -> None:
        """Show the name of the file."""
        self._show(f"{source.path.name}: noise and weight", 0.0)

    def progress(self, sources: Sequence[Source], now: Check) -> None:
        """Show objective and gap."""
        gap = float(now.gap.max())
        name = sources[0].path.name
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        text = f"{name}{more}: objective {float(now.objective.sum()):.5g}, gap {gap:.1e}"
        self._show(text, share(gap, self.tolerance) * len(sources))

    def finished(self, source: Source, result: Reconstruction) -> None:
        """Print one line about the file."""
        self.done += 1
        self._show(source.path.name, 0.0)
        self._print(line(result))
        for note in result.record.get("notes", ()):
            self._print(f"  note: {note}")

    def failed(self, source: Source, error: Exception) -> None:
        """Print one sentence, or the traceback."""
        self.done += 1
        self._show(source.path.name, 0.0)
        self._print(f"{source.path}: failed: {_sentence(source, error)}")
        if self.debug:
            self._print("".join(traceback.format_exception(error)))

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Print a warning of the library, without its place in the code."""
        self._print(f"  note: {message}")

    def summarise(self, result: BatchResult) -> None:
        """Print how many files are done, and which ones failed."""
        if self.total == 1 and not result.failures and not result.earlier:
            return
        done = result.earlier + result.records
        gaps = [record["gap"] for record in done if record["gap"] is not None]
        worst = f", largest gap {max(gaps):.1e}" if gaps else ""
        before = f" ({len(result.earlier)} by an earlier run)" if result.earlier else ""
        self._print(f"{len(done)} of {self.total} files done{before}{worst}.")
        if result.failures and self.total > 1:
            self._print(f"{len(result.failures)} failed:")
            for source, _ in result.failures[:LISTED]:
                self._print(f"  {source.path}")
            if (more := len(result.failures) - LISTED) > 0:
                self._print(f"  and {more} more; --json FILE lists all")

    def _show(self, text: str, part: float) -> None:
        where = f"[{self.done + 1}/{self.total}] " if self.total > 1 else ""
        self.bar.update(self.task, description=where + text, completed=self.done + part)

    def _print(self, text: str) -> None:
        if self.unsaid:
            return
        try:
            self.screen.print(text, highlight=False, markup=False, soft_wrap=True)
        except OSError as error:  # a full disk or a closed pipe; files are still written
            self.unsaid = f"{self.stream} cannot be written ({error.strerror or error})"
            discard(self.screen.file)


class _Screen(Console):
    """A console that raises an error for a closed pipe instead of ending the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error, in place of ``SystemExit``."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def discard(stream: IO[str]) -> None:
    """Discard the rest of a stream, which Python would otherwise try to write at exit."""
    with contextlib.suppress(OSError, ValueError):  # streams of tests have no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def share(gap: float, tolerance: float) -> float:
    """Fraction done: the logarithm of the gap, between 1 and the tolerance."""
    if not 0 < gap < 1 or not 0 < tolerance < 1:
        return 0.0
    return min(1.0, math.log(gap) / math.log(tolerance))


def line(result: Reconstruction) -> str:
    """One line about a file: noise, weight, objective, gap and time."""
    record, weight = result.record, result.weight
    parts = [f"{record['input']} -> {record['output']}:"]
    if result.noise is not None:
        parts.append(f"{result.noise};")
    scaled = "" if record["settings"]["task"] == "ct" else ", scaled to the noise"
    rule = {"card": f"of the card{scaled}", "given": "given"}.get(
        weight.rule, f"{weight.rule}, {len(weight.trials)} solves"
    )
    parts.append(f"weight {weight.value:.3g} ({rule});")
    gap = "none" if record["gap"] is None else f"{record['gap']:.1e}"
    ended = record["status"].lower().replace("_", " ")
    parts.append(
        f"objective {record['objective']:.5g}, gap {gap} ({ended}, {record['iterations']} "
        f"iterations, {record['seconds']:.1f} s)"
    )
    if record.get("psnr") is not None:
        before = record.get("psnr_before")
        from_ = "" if before is None else f"{before:.2f} -> "
        parts.append(f"; PSNR {from_}{record['psnr']:.2f} dB")
    return " ".join(parts).replace(" ;", ";")


def as_json(result: BatchResult, settings: dict[str, Any]) -> dict[str, Any]:
    """The whole run, for other programs."""
    return {
        "version": settings["version"],
        "settings": settings,
        "interrupted": result.interrupted,
        "files": result.earlier + result.records,
        "by_an_earlier_run": len(result.earlier),
        "failed": [
            {"input": str(source.path), "error": reason} for source, reason in result.failures
        ],
        "not_done": [str(source.path) for source in result.left],
    }


def print_json(content: dict[str, Any]) -> None:
    """Write the whole content to standard output."""
    typer.echo(json.dumps(content, indent=2))


def _sentence(source: Source, error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for name in (f"{source.path}: ", f"{source.path} "):
        text = text.removeprefix(name)
    if not isinstance(error, ValueError | OSError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug for details)"
    return text.rstrip(".") + "."
