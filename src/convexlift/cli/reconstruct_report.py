"""What ``convexlift reconstruct`` says: a bar on a terminal, a line for each file, a summary."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from convexlift.cli.app import console
from convexlift.reconstruction.batch import BatchListener, BatchResult
from convexlift.reconstruction.reconstructor import Reconstruction
from convexlift.reconstruction.sources import Source
from convexlift.solvers.solution import Progress as Check

LISTED = 20
"""Failures that are named at the end; JSON has all."""


class Narrator(BatchListener):
    """Progress on a terminal; on a terminal and elsewhere, a line for each file.

    Args:
        to_stderr: standard output belongs to JSON.
        debug: show tracebacks of files that failed.
        total: number of files.
        tolerance: at which solves stop.
    """

    def __init__(self, *, to_stderr: bool, debug: bool, total: int, tolerance: float) -> None:
        self.screen = _Screen(stderr=True) if to_stderr else _Screen(width=console().width)
        self.stream = "Standard error" if to_stderr else "Standard output"
        self.unsaid = ""  # where and why words could not be written, if they could not
        self.debug, self.total, self.tolerance = debug, total, tolerance
        self.clock = Countdown(tolerance)
        self.done = 0
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self.bar = Progress(
            *columns, console=self.screen, transient=True, disable=not self.screen.is_terminal
        )
        self.task = TaskID(0)

    def __enter__(self) -> Narrator:
        self.bar.start()
        self.task = self.bar.add_task("Starting", total=float(self.total))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def reading(self, source: Source) -> None:
        """The name of the file."""
        self._show(f"{source.path.name}: noise and weight", 0.0)

    def solving(self, sources: Sequence[Source]) -> None:
        """A new countdown."""
        self.clock = Countdown(self.tolerance)

    def progress(self, sources: Sequence[Source], now: Check) -> None:
        """Objective, gap, and time left."""
        gap = float(now.gap.max())
        self.clock.note(now.seconds, gap)
        name = sources[0].path.name
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        left = self.clock.left()
        soon = "" if left is None else f", {_duration(left)} left"
        text = f"{name}{more}: objective {float(now.objective.sum()):.5g}, gap {gap:.1e}{soon}"
        self._show(text, self.clock.fraction(gap) * len(sources))

    def finished(self, source: Source, result: Reconstruction) -> None:
        """One line."""
        self.done += 1
        self._show(source.path.name, 0.0)
        self._print(line(result))
        for note in result.record.get("notes", ()):
            self._print(f"  note: {note}")

    def failed(self, source: Source, error: Exception) -> None:
        """One sentence, or the traceback."""
        self.done += 1
        self._show(source.path.name, 0.0)
        self._print(f"{source.path}: failed: {_sentence(source, error)}")
        if self.debug:
            self._print("".join(traceback.format_exception(error)))

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """A warning of the library, without its place in the code."""
        self._print(f"  note: {message}")

    def summarise(self, result: BatchResult) -> None:
        """How many files, and which ones failed."""
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
        except OSError as error:  # a full disk or a closed pipe: files matter more than words
            self.unsaid = f"{self.stream} cannot be written ({error.strerror or error})"
            discard(self.screen.file)


class _Screen(Console):
    """Whose errors are all the same: a pipe that was closed is no reason to end the program."""

    def on_broken_pipe(self) -> None:
        """Raise what happened, in the place of ``SystemExit``."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def discard(stream: IO[str]) -> None:
    """Let the rest of a stream go nowhere: else Python would try to write it when it ends."""
    with contextlib.suppress(OSError, ValueError):  # streams of tests have no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Countdown:
    """Time left until the gap is small enough, as if it fell by the same factor every second."""

    def __init__(self, tolerance: float) -> None:
        self.goal = math.log(max(tolerance, 1e-300))
        self.points: list[tuple[float, float]] = []

    def note(self, seconds: float, gap: float) -> None:
        """A check; gaps of 1 and more say nothing yet."""
        if 0 < gap < 1:
            self.points.append((seconds, math.log(gap)))

    def left(self) -> float | None:
        """Seconds, or None if nobody knows."""
        if len(self.points) < 3:
            return None
        (begin, first), (now, last) = self.points[len(self.points) // 2 - 1], self.points[-1]
        if not (now > begin and last < first):
            return None
        return max(0.0, (last - self.goal) * (now - begin) / (first - last))

    def fraction(self, gap: float) -> float:
        """How much is done: the logarithm of the gap, between 1 and the tolerance."""
        if not 0 < gap < 1 or self.goal >= 0:
            return 0.0
        return min(1.0, math.log(gap) / self.goal)


def line(result: Reconstruction) -> str:
    """What was done with a file."""
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
    """On standard output, whole."""
    typer.echo(json.dumps(content, indent=2))


def _sentence(source: Source, error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for name in (f"{source.path}: ", f"{source.path} "):
        text = text.removeprefix(name)
    if not isinstance(error, ValueError | OSError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug for details)"
    return text.rstrip(".") + "."


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
