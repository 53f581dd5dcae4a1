"""Many files, one after another or in batches; a bad file does not stop the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.reconstruction import results
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.reconstructor import (
    PreparedImage,
    Reconstruction,
    Reconstructor,
    version,
)
from convexlift.reconstruction.sources import Source, glance, sides
from convexlift.solvers.solution import Progress


class BatchListener:
    """Progress listener of a batch; does nothing by default."""

    def kept(self, source: Source) -> None:
        """A result of an earlier run is kept."""

    def reading(self, source: Source) -> None:
        """A file is read, and its noise and weight are found."""

    def progress(self, sources: Sequence[Source], now: Progress) -> None:
        """The solver made a check."""

    def finished(self, source: Source, record: dict[str, Any]) -> None:
        """A file is written."""

    def failed(self, source: Source, error: Exception) -> None:
        """A file could not be read, solved or written."""


@dataclass
class BatchResult:
    """The outcome of a run.

    Attributes:
        records: the records of the results written, as in their JSON files.
        failures: files without a result, and the reasons.
        left: files that were not started or not finished when Ctrl-C was pressed.
        earlier: records of results that an earlier run had finished.
        interrupted: whether Ctrl-C was pressed.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[Source, str]] = field(default_factory=list)
    left: list[Source] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """A row for each file, for a table; files without a result have an ``error``."""
        missing = [*self.failures, *((source, "not done") for source in self.left)]
        failed = [{"input": str(source), "error": reason} for source, reason in missing]
        return [*self.earlier, *self.records, *failed]


def reconstruct_files(
    sources: Sequence[Source],
    reconstructor: Reconstructor,
    listener: BatchListener | None = None,
    *,
    proof: bool = False,
    resume: bool = False,
    command: str | None = None,
) -> BatchResult:
    """Reconstruct all files, and write each result as soon as it is known.

    Files of one size and one weight are solved together if they fit into memory. After an error,
    the run continues with the next file. Ctrl-C ends the run and its current solve, whose images
    are written with the gap reached.

    Args:
        sources: files and targets.
        reconstructor: the task and its options.
        listener: receives the progress.
        proof: whether to write proof files.
        resume: skip files whose results an earlier run of this version finished, from the same
            inputs and with the same settings.
        command: the command line, for the records.
    """
    run = _Run(reconstructor, listener or BatchListener(), proof, command)
    good = []
    for source in sources:  # files that cannot be opened are reported before any work
        record = earlier_record(source, reconstructor, proof=proof) if resume else None
        if record is not None:
            run.result.earlier.append(record)
            run.listener.kept(source)
        elif (wrong := glance(source.path)) is None:
            good.append(source)
        else:
            run.fail(source, InputError(wrong))
    with run.solver.interruption.watching() as interruption:
        for number, source in enumerate(good):
            if interruption.status is not None:
                run.result.left += good[number:]
                break
            run.listener.reading(source)
            try:
                run.digests[source] = inputs_digest(source, reconstructor)
                image = reconstructor.prepare(source.path, run.solver, source.target)
                if proof and run.solver.tiles_for(image.data) is not None:
                    raise InputError(
                        "it is too large for a proof file, whose dual variables would not fit the "
                        "memory; leave out --proof: the gap is certified nevertheless"
                    )
                most = run.solver.fitting(image.data)  # raises if the memory is too small
            except Exception as error:
                run.fail(source, error)
                continue
            if run.waiting and not run.has_room_for(image, most):
                run.flush()
            run.waiting.append((source, image))
            if run.is_full(most):
                run.flush()
        run.flush()
        run.result.interrupted = interruption.status is not None
    return run.result


@dataclass
class _Run:
    reconstructor: Reconstructor
    listener: BatchListener
    proof: bool
    command: str | None
    result: BatchResult = field(default_factory=BatchResult)
    waiting: list[tuple[Source, PreparedImage]] = field(default_factory=list)
    digests: dict[Source, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.solver = self.reconstructor.solver()

    def fail(self, source: Source, error: Exception) -> None:
        self.result.failures.append((source, " ".join(str(error).split())))
        self.listener.failed(source, error)

    def planes(self) -> int:
        return sum(len(image.data) for _, image in self.waiting)

    def has_room_for(self, image: PreparedImage, most: int) -> bool:
        whole = self.planes() + len(image.data)
        return self.waiting[0][1].joinable(image) and whole <= most

    def is_full(self, most: int) -> bool:
        # Batches are not faster on a CPU, so each file is solved at once.
        alone = self.solver.device.type == "cpu" and self.solver.batch is None
        return alone or self.planes() >= most

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        if self.solver.interruption.status is not None and len(waiting) > 1:
            # After Ctrl-C they would only be evaluated: one was current, the others not started.
            self.result.left += [source for source, _ in waiting[:-1]]
            waiting = waiting[-1:]
        sources = [source for source, _ in waiting]
        try:
            solved = self.reconstructor.solve(
                [image for _, image in waiting], self.solver,
                lambda now: self.listener.progress(sources, now), keep_duals=self.proof,
            )  # fmt: skip
        except Exception as error:
            if len(waiting) == 1:
                self.fail(sources[0], error)
                return
            for each in waiting:  # one of them caused the error, or all together are too large
                self.waiting = [each]
                self.flush()
            return
        for source, result in zip(sources, solved, strict=True):
            self.finish(source, result)

    def finish(self, source: Source, result: Reconstruction) -> None:
        record = result.record
        record |= {"input": str(source), "output": str(source.target)}
        record |= {"command": self.command} if self.command else {}
        record["digest"] = self.digests.pop(source)
        try:
            results.require_bound(result)
            weights = self.reconstructor.weight_map
            results.write_result(source, result, weight_map=weights, proof=self.proof)
        except Exception as error:
            self.fail(source, error)
            return
        self.result.records.append(record)
        self.listener.finished(source, record)


def inputs_digest(source: Source, reconstructor: Reconstructor) -> str:
    """SHA-256 of all files that a result is made from, and of arrays given as options."""
    beside = [*sides(source.path), *reconstructor.reads([source.path])]
    files = results.files_digest([source.path, *beside, *reconstructor.saved])
    whole = hashlib.sha256(files.encode())
    for option in fields(reconstructor):
        value = getattr(reconstructor, option.name)
        if isinstance(value, Tensor | np.ndarray):
            whole.update(np.asarray(torch.as_tensor(value).cpu()).tobytes())
    return whole.hexdigest()


def earlier_record(
    source: Source, reconstructor: Reconstructor, *, proof: bool
) -> dict[str, Any] | None:
    """The record of a result that this version made from the same inputs and settings, else None.

    A result is finished if its files exist, the output is the one that was written, and Ctrl-C did
    not end its solve.
    """
    places = source.results(
        gap_map=reconstructor.gap_map, weight_map=reconstructor.weight_map, proof=proof
    )
    if not all(place.is_file() for place in places):
        return None
    settings = json.loads(json.dumps(reconstructor.settings()))  # with lists in place of tuples
    try:
        record: dict[str, Any] = json.loads(source.record.read_text(encoding="utf-8"))
        unfinished = record["status"] == "INTERRUPTED" or record["lower_bound"] is None
        if unfinished or (record["version"], record["settings"]) != (version(), settings):
            return None
        same_output = record["output_sha256"] == results.file_digest(source.target)
        same_inputs = record["digest"] == inputs_digest(source, reconstructor)
        return record if same_output and same_inputs else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # damaged, or of another version
