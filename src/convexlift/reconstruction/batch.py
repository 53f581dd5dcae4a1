"""Many files, one after the other or in batches; a bad one does not stop the others."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.images import save_image
from convexlift.reconstruction.contents import InputError, naming
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.result import PreparedImage, Reconstruction
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Source, glance, sides
from convexlift.solvers.solution import Progress

DECADES = 4
"""That the picture of a gap map shows, below its largest value."""

OF_THE_RUN = ("command", "files_at_once")
"""Settings that do not change results."""

Fingerprint = list[list[Any]]


class BatchListener:
    """Progress listener of a batch; does nothing by default."""

    def reading(self, source: Source) -> None:
        """A file is read, and its noise and weight are found."""

    def progress(self, sources: Sequence[Source], now: Progress) -> None:
        """The solver made a check."""

    def finished(self, source: Source, result: Reconstruction) -> None:
        """A file is written."""

    def failed(self, source: Source, error: Exception) -> None:
        """A file could not be read, solved or written."""


@dataclass
class BatchResult:
    """What became of the files.

    Attributes:
        records: of those that are written, as in their JSON files.
        failures: (file, reason) of those that are not.
        left: files that were not begun, or not ended, when Ctrl-C was pressed.
        earlier: records of results that an earlier run had finished.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[Source, str]] = field(default_factory=list)
    left: list[Source] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False


def reconstruct_files(
    sources: Sequence[Source],
    reconstructor: Reconstructor,
    listener: BatchListener | None = None,
    *,
    proof: bool = False,
    resume: bool = False,
    command: str | None = None,
) -> BatchResult:
    """Reconstruct all files, and write each result as soon as it is there.

    Files of one size, with one weight, are solved together if they fit. An error is noted and the
    next file is taken; Ctrl-C ends the present solve, whose images are written with the gap they
    have, and the run.

    Args:
        sources: files and targets.
        reconstructor: what to do with each.
        listener: told about the progress.
        proof: whether to write proof files.
        resume: leave out files whose results an earlier run finished, from the same inputs and with
            the same settings.
        command: the command line, for the records.
    """
    run = _Run(reconstructor, listener or BatchListener(), proof, command)
    good = []
    for source in sources:  # before any work: what the first bytes of files say
        beside = [*sides(source.path), *reconstructor.reads([source.path])]
        run.inputs[source] = fingerprint(source, beside)
        if resume and (record := run.earlier(source)) is not None:
            run.result.earlier.append(record)
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
                image = reconstructor.prepare(source.path, run.solver, source.target)
            except Exception as error:
                run.fail(source, error)
                continue
            if run.waiting and not run.has_room_for(image):
                run.flush()
            run.waiting.append((source, image))
            if run.is_full(image):
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
    inputs: dict[Source, Fingerprint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.solver: PiecewiseSolver = self.reconstructor.solver()

    def earlier(self, source: Source) -> dict[str, Any] | None:
        places = source.results(gap_map=self.reconstructor.gap_map, proof=self.proof)
        return earlier_record(source, places, self.inputs[source], self.reconstructor.settings())

    def fail(self, source: Source, error: Exception) -> None:
        self.result.failures.append((source, " ".join(str(error).split())))
        self.listener.failed(source, error)

    def planes(self) -> int:
        return sum(len(image.data) for _, image in self.waiting)

    def has_room_for(self, image: PreparedImage) -> bool:
        most = self.solver.fitting(image.data)
        return self.waiting[0][1].joinable(image) and self.planes() + len(image.data) <= most

    def is_full(self, image: PreparedImage) -> bool:
        """On a processor, a file that can be solved is solved: batches are not faster there."""
        alone = self.solver.device.type == "cpu" and self.solver.batch is None
        return alone or self.planes() >= self.solver.fitting(image.data)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        if self.solver.interruption.status is not None and len(waiting) > 1:
            # Only evaluated, not solved: one of them was current, the others not yet begun.
            self.result.left += [source for source, _ in waiting[:-1]]
            waiting = waiting[-1:]
        sources = [source for source, _ in waiting]
        try:
            results = self.reconstructor.solve(
                [image for _, image in waiting], self.solver,
                lambda now: self.listener.progress(sources, now), keep_duals=self.proof,
            )  # fmt: skip
        except Exception as error:
            if len(waiting) == 1:
                self.fail(sources[0], error)
                return
            for each in waiting:  # one of them is to blame, or all together are too large
                self.waiting = [each]
                self.flush()
            return
        for source, result in zip(sources, results, strict=True):
            self.finish(source, result)

    def finish(self, source: Source, result: Reconstruction) -> None:
        record = result.record
        record["output"] = str(source.target)
        record["settings"] |= {"command": self.command} if self.command else {}
        try:
            _require_bound(result)
            record["inputs"] = self.inputs[source]
            write_result(source, result, proof=self.proof)
        except Exception as error:
            self.fail(source, error)
            return
        self.result.records.append(record)
        self.listener.finished(source, result)


def _require_bound(result: Reconstruction) -> None:
    """Raise unless something is proven: an image without a useful bound is no result."""
    record = result.record
    unproven = record["lower_bound"] is None or not math.isfinite(record["objective"])
    if unproven or record["status"] == "NOT_FINITE":
        ended = record["status"].lower().replace("_", " ")
        raise InputError(
            f"no useful lower bound was found with the weight {result.weight.value:.3g} ({ended} "
            f"after {record['iterations']} iterations), so nothing is proven and nothing was "
            "written; choose another --weight, or allow more iterations or time"
        )


def write_result(source: Source, result: Reconstruction, *, proof: bool = False) -> None:
    """The image, gap map and proof if there are any, and the record last: then the file is done.

    The record has its temporary name before the image is written. Should the process be killed in
    between, that is what tells ``--resume`` that the image is a result.
    """
    record = result.record
    with naming(source.record), atomic_path(source.record) as part:
        part.touch()
        with naming(source.target):
            result.save(source.target)
        record["output_sha256"] = digest(source.target)
        if result.gap_map is not None:
            _write_gap_map(result.gap_map.float(), *source.gap_maps)
            record["gap_map"] = [str(place) for place in source.gap_maps]
        if proof:
            with naming(source.proof):
                record["proof"] = str(result.solution.proof.save(source.proof))
        part.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_gap_map(values: Tensor, numbers: Path, picture: Path) -> None:
    """The numbers, and their sum over planes on a logarithmic scale: white is its largest value."""
    with naming(numbers), atomic_path(numbers) as part, part.open("wb") as file:
        np.save(file, values[:, 0].numpy(), allow_pickle=False)
    total = values.double().sum((0, 1)).clamp_min(0)
    scaled = (total / total.max().clamp_min(1e-300)).clamp_min(10.0**-DECADES)
    with naming(picture):
        save_image(picture, (1 + torch.log10(scaled) / DECADES).clamp(0, 1))


# Results of an earlier run -----------------------------------------------------------------------


def fingerprint(source: Source, also_read: Iterable[Path]) -> Fingerprint:
    """Name, length and time of change, in ns, of all files that a result is made from."""
    found: Fingerprint = []
    for path in (source.path, *also_read):
        try:
            status = path.stat()
        except OSError:  # reading it says more
            found.append([path.name, None, None])
        else:
            found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def earlier_record(
    source: Source, places: Sequence[Path], inputs: Fingerprint, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """The record of a finished result, if it was made from these inputs with these settings.

    A result is finished if its files are there and belong together, and if no Ctrl-C ended its
    solve. Anything else is None: the file is to be reconstructed again.
    """
    try:
        if not all(place.is_file() for place in places):
            return None
        record = json.loads(source.record.read_text(encoding="utf-8"))
        made = (record["inputs"], _options(record["settings"]), record["output_sha256"])
        wanted = (inputs, _options(settings), digest(source.target))
        if record["status"] == "INTERRUPTED" or record["lower_bound"] is None or made != wanted:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # no record of this version
    return dict(record)


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide on results, as JSON has them."""
    kept = {name: value for name, value in settings.items() if name not in OF_THE_RUN}
    decoded: dict[str, Any] = json.loads(json.dumps(kept))
    return decoded
