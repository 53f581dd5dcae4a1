"""Many files, one after the other or in batches; a bad one does not stop the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from convexlift.reconstruction.engine import Engine, Solved
from convexlift.reconstruction.input_files import InputError, Source, glance, sides
from convexlift.reconstruction.noise_models import Statement
from convexlift.reconstruction.photographs import Case
from convexlift.reconstruction.records import record_of, write_result
from convexlift.reconstruction.resume import (
    Fingerprint,
    earlier_record,
    fingerprint,
)
from convexlift.solvers.solution import Progress


class Preparation(Protocol):
    """How a file becomes a case."""

    def reads(self, sources: Sequence[Source]) -> list[Path]:
        """Files besides the sources that are read for them."""

    def check(self, sources: Sequence[Source]) -> None:
        """Raise ``InputError`` for what is wrong with the whole run, as far as it is cheap to see.

        Files that are broken are none of that: they fail on their own.
        """

    def case(self, source: Source, engine: Engine) -> Case:
        """Read the file and choose a weight; an error is about this file only."""


class Report:
    """Told what happens; this one keeps it to itself."""

    def reading(self, source: Source, done: int, total: int) -> None:
        """A file is read, and its noise and weight are found."""

    def solving(self, cases: Sequence[Case]) -> None:
        """A batch of files is about to be solved."""

    def progress(self, cases: Sequence[Case], now: Progress) -> None:
        """A check of the solver."""

    def finished(self, case: Case, record: dict[str, Any]) -> None:
        """A file is written."""

    def failed(self, source: Source, error: Exception) -> None:
        """A file could not be read, solved or written."""


@dataclass
class Outcome:
    """What became of the files.

    Attributes:
        records: of those that are written, as in their JSON files.
        failures: (file, reason) of those that are not.
        left: files that were not begun, or not ended, when Ctrl-C came.
        earlier: records of results that an earlier run had finished.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[Source, str]] = field(default_factory=list)
    left: list[Source] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False


def reconstruct(
    sources: Sequence[Source],
    preparation: Preparation,
    engine: Engine,
    settings: dict[str, Any],
    report: Report | None = None,
    *,
    resume: bool = False,
) -> Outcome:
    """Reconstruct all files, and write each result as soon as it is there.

    Files of one size, with one weight, are solved together if they fit. An error is noted and the
    next file is taken; Ctrl-C ends the present solve, whose images are written with the gap they
    have, and the run.

    Args:
        sources: files and targets.
        preparation: what is to be done.
        engine: how it is solved.
        settings: facts about the run that each record repeats.
        report: told about the progress.
        resume: leave out files whose results an earlier run finished, from the same inputs and with
            the same settings.
    """
    run = _Run(engine, settings, report or Report(), Outcome())
    good = []
    for source in sources:  # before any work: what the first bytes of files say
        beside = [*sides(source.path), *preparation.reads([source])]
        run.inputs[source] = fingerprint(source, beside)
        if resume and (record := run.earlier(source)) is not None:
            run.outcome.earlier.append(record)
        elif (wrong := glance(source.path)) is None:
            good.append(source)
        else:
            run.fail(source, InputError(wrong))
    sources = good
    with engine.interruption.watching() as interruption:
        for number, source in enumerate(sources):
            if interruption.asked:
                run.outcome.left += sources[number:]
                break
            run.report.reading(source, number, len(sources))
            try:
                case = preparation.case(source, engine)
            except Exception as error:
                run.fail(source, error)
                continue
            if run.waiting and not run.has_room_for(case):
                run.flush()
            run.waiting.append(case)
            if run.is_full():
                run.flush()
        run.flush()
        run.outcome.interrupted = interruption.asked
    return run.outcome


@dataclass
class _Run:
    engine: Engine
    settings: dict[str, Any]
    report: Report
    outcome: Outcome
    waiting: list[Case] = field(default_factory=list)
    inputs: dict[Source, Fingerprint] = field(default_factory=dict)

    def earlier(self, source: Source) -> dict[str, Any] | None:
        engine = self.engine
        return earlier_record(
            source, self.inputs[source], self.settings, gap_map=engine.gap_map, proof=engine.proof
        )

    def fail(self, source: Source, error: Exception) -> None:
        self.outcome.failures.append((source, " ".join(str(error).split())))
        self.report.failed(source, error)

    def planes(self) -> int:
        return sum(len(case.statement.y) for case in self.waiting)

    def has_room_for(self, case: Case) -> bool:
        most = self.engine.fitting(*case.statement.y.shape[-2:])
        return self.waiting[0].fits_with(case) and self.planes() + len(case.statement.y) <= most

    def is_full(self) -> bool:
        """On a processor, a file that can be solved is solved: batches are not faster there."""
        alone = self.engine.device.type == "cpu" and self.engine.batch is None
        return alone or self.planes() >= self.engine.fitting(
            *self.waiting[0].statement.y.shape[-2:]
        )

    def flush(self) -> None:
        cases, self.waiting = self.waiting, []
        if not cases:
            return
        if self.engine.interruption.asked and len(cases) > 1:
            # Only evaluated, not solved: one of them was current, the others not yet begun.
            self.outcome.left += [case.source for case in cases[:-1]]
            cases = cases[-1:]
        self.report.solving(cases)
        try:
            statement = Statement.joined([case.statement for case in cases])
            solved = self.engine.solve(
                statement,
                cases[0].weight.value,
                lambda now: self.report.progress(cases, now),
                spent=max(case.weight.seconds for case in cases),
            )
        except Exception as error:
            if len(cases) == 1:
                self.fail(cases[0].source, error)
                return
            for case in cases:  # one of them is to blame, or all together are too large
                self.waiting = [case]
                self.flush()
            return
        first = 0
        for case in cases:
            rows = slice(first, first + len(case.statement.y))
            first = rows.stop
            self.finish(case, solved.part(rows), len(cases))

    def finish(self, case: Case, solved: Solved, files_at_once: int) -> None:
        try:
            record = record_of(case, solved, self.settings | {"files_at_once": files_at_once})
            _require_bound(case, record)
            record["inputs"] = self.inputs[case.source]
            proof = self.engine.proof_of(case.statement, case.weight.value, solved)
            write_result(case, solved, record, proof)
        except Exception as error:
            self.fail(case.source, error)
            return
        self.outcome.records.append(record)
        self.report.finished(case, record)


def _require_bound(case: Case, record: dict[str, Any]) -> None:
    """Raise unless something is proven: an image without a useful bound is no result."""
    unproven = record["lower_bound"] is None or not math.isfinite(record["objective"])
    if unproven or record["status"] == "NOT_FINITE":
        ended = record["status"].lower().replace("_", " ")
        raise InputError(
            f"no useful lower bound was found with the weight {case.weight.value:.3g} ({ended} "
            f"after {record['iterations']} iterations), so nothing is proven and nothing was "
            "written; choose another --weight, or allow more iterations or time"
        )
