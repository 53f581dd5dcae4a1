"""``convexlift reconstruct`` after its options are parsed: checks, the run, and its output."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn

from convexlift.cli.app import (
    FAILURE,
    Failed,
    Interrupted,
    UserError,
    choose_device,
    console,
    explained,
    one_sentence_errors,
    write_json,
)
from convexlift.cli.look import describe_run
from convexlift.cli.record_words import (
    EACH_RECORD,
    STATISTICS,
    duration,
    line,
    share,
    summary_rows,
    verdict,
)
from convexlift.cli.terminal import Screen, discard, progress, table
from convexlift.models.files import ModelCard
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.claims import percent
from convexlift.reconstruction.batch import BatchListener, BatchResult, reconstruct_files
from convexlift.reconstruction.calls import RECONSTRUCTORS, find_inputs, require_targets
from convexlift.reconstruction.distribution import connected, distribute_files
from convexlift.reconstruction.reconstructor import version
from convexlift.reconstruction.results import write_table
from convexlift.reconstruction.sources import Source
from convexlift.scans.volumes import WINDOWS, Window
from convexlift.solvers.solution import Progress as Check

LISTED = 20
"""The most failures listed at the end; JSON has all."""


def read_numbers(
    text: str | None, separator: str | None, kind: type[float] | type[int] = float
) -> Any:
    """One number, or several between separators; other text is left for the library to refuse."""
    try:
        parts = [text or ""] if separator is None else (text or "").split(separator)
        values = tuple(kind(part) for part in parts)
    except ValueError:
        return text
    return values[0] if len(values) == 1 else values


def read_window(text: str) -> Window | str:
    """The name of a window, or LEVEL,WIDTH."""
    values = read_numbers(text, ",")
    if text in WINDOWS or not isinstance(values, tuple) or len(values) != 2:
        return text
    return Window(*values)


READERS: dict[str, Callable[[Any], Any]] = {
    "weight": lambda text: read_numbers(text, None),
    "batch": lambda text: read_numbers(text, None, int),
    "range": lambda text: read_numbers(text, ","),
    "tiles": lambda text: read_numbers(text, None, int),
    "rows": lambda text: read_numbers(text, ":", int),
    "slices": lambda text: read_numbers(text, ":", int),
    "window": read_window,
    "device": choose_device,
}
"""Parsers of option values, by the name of the option."""


def run_job(
    task: str, options: dict[str, Any], *, inputs: list[str], output: Path, proof: bool,
    dry_run: bool, force: bool, resume: bool, scheduler: str | None,
    table: Path | None, json_file: str | None, debug: bool,
) -> None:  # fmt: skip
    """Check everything that can be checked, then process the files."""
    with one_sentence_errors(debug), contextlib.ExitStack() as connection:
        if force and resume:
            raise UserError(
                "--resume keeps finished results and --force replaces them. Leave one of them out."
            )
        with explained():
            on_workers = {"device": options["device"].value} if scheduler else {}
            for name, read in READERS.items():
                if name in options:
                    options[name] = read(options[name])
            reconstructor = RECONSTRUCTORS[task](**options | on_workers)
            sources = find_inputs(reconstructor, inputs, output)
            if dry_run:
                for text in describe_run(reconstructor, sources, proof):
                    typer.echo(text)
                return
            require_targets(
                reconstructor, sources, replace=force or resume, proof=proof,
                summary=None if json_file in (None, "-") else Path(str(json_file)),
                tables=[] if table is None else [table],
            )  # fmt: skip
            client = None if scheduler is None else connection.enter_context(connected(scheduler))
            settings = reconstructor.settings()
            reconstructor.network  # noqa: B018 - reads the file
        command = f"convexlift {shlex.join(sys.argv[1:])}"
        screen = Screen(stderr=True) if json_file == "-" else Screen(width=console().width)
        with (
            progress(
                screen, TimeElapsedColumn(), total=len(sources), width=24, transient=True
            ) as update,
            warnings.catch_warnings(),
        ):  # fmt: skip
            network = reconstructor.network
            narrator = Narrator(
                screen, update, debug, len(sources), options["tolerance"], network,
                records=_place_of_records(sources),
            )  # fmt: skip
            narrator.announce(network.card)
            warnings.showwarning = narrator.warn
            run: dict[str, Any] = {"proof": proof, "resume": resume, "command": command}
            try:
                if client is None:
                    result = reconstruct_files(sources, reconstructor, narrator, **run)
                else:
                    with explained():
                        result = distribute_files(
                            sources, reconstructor, narrator, client=client, **run
                        )
            except KeyboardInterrupt:
                raise Interrupted("Interrupted twice; only finished files are kept.") from None
            narrator.summarise(result)
            if table is not None:
                with explained():
                    write_table(table, result.rows())
        content = {"version": version(), "command": command, "settings": settings}
        unwritten = _write_json(json_file, content | as_json(result))
        _finish(result, len(sources), unwritten or narrator.unsaid)


def _write_json(json_file: str | None, content: dict[str, Any]) -> str:
    """The reason if the file cannot be written, else an empty string."""
    try:
        if json_file == "-":
            typer.echo(json.dumps(content, indent=2))
        elif json_file is not None:
            write_json(Path(json_file), content)
    except OSError as error:
        if json_file == "-":
            discard(sys.stdout)
        where = "Standard output" if json_file == "-" else json_file
        return f"{where} cannot be written ({error.strerror or error})"
    return ""


def _finish(result: BatchResult, files: int, unwritten: str) -> None:
    """Raise the exception that sets the exit status, if any."""
    done = f"{len(result.records)} of {files} results are written"
    if result.interrupted and not result.records:
        raise Interrupted("Interrupted; nothing was written.")
    if result.interrupted:
        raise Interrupted(
            f"Interrupted; {done}, the last one with the gap reached. --resume does the others."
        )
    if result.left:
        raise Failed(f"{done}. --resume does the others.")
    if unwritten:
        raise Failed(f"{unwritten}; {done}, each with its JSON file.")
    if result.failures:
        raise typer.Exit(FAILURE)


def _place_of_records(sources: Sequence[Source]) -> str:
    """The place of the objectives and bounds of all results."""
    return str(sources[0].record) if len(sources) == 1 else EACH_RECORD


class Narrator(BatchListener):
    """Prints a line for each file, and moves the progress bar.

    Args:
        screen: the console to print on.
        update: updates the progress bar.
        debug: show tracebacks of files that failed.
        total: number of files.
        tolerance: the gap at which solves stop.
        network: the regularizer.
        records: where objectives and bounds are written.
    """

    def __init__(
        self, screen: Console, update: Callable[..., None], debug: bool, total: int,
        tolerance: float, network: InputConvexNetwork | None = None, records: str = EACH_RECORD,
    ) -> None:  # fmt: skip
        self.records = records
        self.screen, self.update = screen, update
        self.unsaid = ""  # the stream that could not be written, and the reason
        self.debug, self.total, self.tolerance = debug, total, tolerance
        self.premise = "" if network is None else network.premise
        self.adaptive = "output" in getattr(network, "reads", ())
        self.said, self.started = set[str](), time.monotonic()
        self.done = self.solved = self.kept_files = 0

    def announce(self, card: ModelCard | None) -> None:
        """Print the licence of a regularizer that restricts its use; once for all files."""
        unstated = card is None or not card.license or card.license.startswith("unknown")
        if card is not None and not unstated and not card.commercial:  # a user's own may state none
            self._print(f"{card.name}: licence {card.license}. See convexlift models {card.name}.")

    def kept(self, source: Source) -> None:
        """Count a kept file."""
        self.kept_files += 1

    def reading(self, source: Source) -> None:
        """Show the name of the file."""
        self._show(f"{source.path.name}: noise and weight", 0.0)

    def progress(self, sources: Sequence[Source], now: Check) -> None:
        """Show the gap reached, or the number of finished tiles."""
        gap = float(now.gap.max())
        name = sources[0].path.name
        if now.tiles is not None:
            sweep, done = divmod(now.iteration - 1, now.tiles)
            again = f", sweep {sweep + 1}" if sweep else ""
            left = duration(now.seconds * (now.tiles - done - 1) / now.iteration)
            text = f"{name}: tile {done + 1} of {now.tiles}{again}, {left} left"
            self._show(text, (done + 1) / now.tiles)
            return
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        so_far = f"solved to within {percent(gap)}" if gap < 1 else "nothing proved yet"
        text = f"{name}{more}: {so_far}, iteration {now.iteration}"
        self._show(text, share(gap, self.tolerance) * len(sources))

    def finished(self, source: Source, record: dict[str, Any]) -> None:
        """Print one line about the file."""
        self.done += 1
        self.solved += 1
        self._show(source.path.name, 0.0)
        self._print(line(record, self.adaptive))
        for note in record.get("notes", ()):
            self._note(note)

    def failed(self, source: Source, error: Exception) -> None:
        """Print one sentence, or the traceback."""
        self.done += 1
        self._show(source.path.name, 0.0)
        self._print(f"{source}: failed: {_sentence(source, error)}")
        if self.debug:
            self._print("".join(traceback.format_exception(error)))

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Print a warning of the library, without its source line."""
        self._note(str(message))

    def _note(self, text: str) -> None:
        """Print a note, unless it was printed for another file."""
        if text not in self.said:
            self.said.add(text)
            self._print(f"  note: {text}")

    def summarise(self, result: BatchResult) -> None:
        """Print the proven statement, the number of finished files, and the failures."""
        done = result.earlier + result.records
        if done:
            self._print(verdict(done, self.premise, self.records))
        if self.total == 1 and not result.failures and not result.earlier:
            return
        before = f" ({len(result.earlier)} by an earlier run)" if result.earlier else ""
        self._print(f"{len(done)} of {self.total} files done{before}.")
        if len(done) > 1:
            self._print(table(STATISTICS, summary_rows(done), left=STATISTICS[:1]))
        if result.failures and self.total > 1:
            self._print(f"{len(result.failures)} failed:")
            for source, _ in result.failures[:LISTED]:
                self._print(f"  {source}")
            if (more := len(result.failures) - LISTED) > 0:
                self._print(f"  and {more} more; --json FILE lists all")

    def _show(self, text: str, part: float) -> None:
        finished = self.done + self.kept_files
        where = f"[{min(finished + 1, self.total)}/{self.total}{self._left(part)}] "
        where = where if self.total > 1 else ""
        self.update(description=where + text, completed=finished + part)

    def _left(self, part: float) -> str:
        """The remaining time, from the second file on, at the pace of the files solved so far."""
        if not self.solved:
            return ""
        each = (time.monotonic() - self.started) / (self.solved + part)
        return f", {duration(each * (self.total - self.kept_files - self.done - part))} left"

    def _print(self, text: Any) -> None:
        if self.unsaid:
            return
        try:
            self.screen.print(text, highlight=False, markup=False, soft_wrap=True)
        except OSError as error:  # a full disk or a closed pipe; files are still written
            stream = "Standard error" if self.screen.stderr else "Standard output"
            self.unsaid = f"{stream} cannot be written ({error.strerror or error})"
            discard(self.screen.file)


def as_json(result: BatchResult) -> dict[str, Any]:
    """The results of a run, for other programs."""
    return {
        "interrupted": result.interrupted,
        "files": result.earlier + result.records,
        "by_an_earlier_run": len(result.earlier),
        "failed": [{"input": str(source), "error": reason} for source, reason in result.failures],
        "not_done": [str(source) for source in result.left],
    }


def _sentence(source: Source, error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for name in (f"{source.path}: ", f"{source.path} "):
        text = text.removeprefix(name)
    if not isinstance(error, ValueError | OSError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug for details)"
    return text.rstrip(".") + "."
