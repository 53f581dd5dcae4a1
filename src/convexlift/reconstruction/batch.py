"""``cl.reconstruct`` for one image, and the same for many files; a bad one stops no other."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.images import save_image, weight_picture
from convexlift.reconstruction.contents import InputError, naming
from convexlift.reconstruction.mri import MRIReconstructor
from convexlift.reconstruction.pictures import Denoiser, Inpainter
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstruction, Reconstructor
from convexlift.reconstruction.scans import ScanLike, ScanReconstructor
from convexlift.reconstruction.solution import Callback
from convexlift.reconstruction.sources import Source, glance, sides
from convexlift.solvers.solution import Progress

DECADES = 4
"""The range of the picture of a gap map, below its largest value."""
OF_THE_RUN = ("command", "files_at_once")
"""Settings that do not change results."""

Fingerprint = list[list[Any]]


class BatchListener:
    """Progress listener of a batch; does nothing by default."""

    def kept(self, source: Source) -> None:
        """A result of an earlier run is kept."""

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
    """The outcome of a run.

    Attributes:
        records: of the results written, as in their JSON files.
        failures: files without a result, and the reasons.
        left: files that were not begun, or not finished, when Ctrl-C was pressed.
        earlier: records of results that an earlier run had finished.
        interrupted: whether Ctrl-C was pressed.
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
    """Reconstruct all files, and write each result as soon as it is known.

    Files of one size and one weight are solved together if they fit the memory. An error is noted,
    and the next file follows; Ctrl-C ends the run and its current solve, whose images are written
    with the gap reached.

    Args:
        sources: files and targets.
        reconstructor: the task and its options.
        listener: told about the progress.
        proof: whether to write proof files.
        resume: leave out files whose results an earlier run finished, from the same inputs and with
            the same settings.
        command: the command line, for the records.
    """
    run = _Run(reconstructor, listener or BatchListener(), proof, command)
    good = []
    for source in sources:  # files that cannot be opened are reported before any work
        beside = [*sides(source.path), *reconstructor.reads([source.path])]
        run.inputs[source] = fingerprint([source.path, *beside])
        if resume and (record := run.earlier(source)) is not None:
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
                image = reconstructor.prepare(source.path, run.solver, source.target)
                if proof and run.solver.tiles_for(image.data) is not None:
                    raise InputError(
                        "it is too large for a proof file, whose dual variables would not fit the "
                        "memory; leave out --proof: the gap is certified nevertheless"
                    )
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
        self.solver = self.reconstructor.solver()

    def earlier(self, source: Source) -> dict[str, Any] | None:
        """The record of a finished result, if it has the same inputs and settings, else None.

        A result is finished if its files are there and belong together, and if no Ctrl-C ended its
        solve.
        """
        options = self.reconstructor
        places = source.results(
            gap_map=options.gap_map, weight_map=options.weight_map, proof=self.proof
        )
        try:
            if not all(place.is_file() for place in places):
                return None
            record = json.loads(source.record.read_text(encoding="utf-8"))
            made = (record["inputs"], _options(record["settings"]), record["output_sha256"])
            settings = _options(self.reconstructor.settings())
            if made != (self.inputs[source], settings, digest(source.target)):
                return None
            unfinished = record["status"] == "INTERRUPTED" or record["lower_bound"] is None
            return None if unfinished else dict(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # not a record of this version

    def fail(self, source: Source, error: Exception) -> None:
        self.result.failures.append((source, " ".join(str(error).split())))
        self.listener.failed(source, error)

    def planes(self) -> int:
        return sum(len(image.data) for _, image in self.waiting)

    def has_room_for(self, image: PreparedImage) -> bool:
        whole = self.planes() + len(image.data)
        return self.waiting[0][1].joinable(image) and whole <= self.solver.fitting(image.data)

    def is_full(self, image: PreparedImage) -> bool:
        # Batches are not faster on a CPU, where each file is solved at once.
        alone = self.solver.device.type == "cpu" and self.solver.batch is None
        return alone or self.planes() >= self.solver.fitting(image.data)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        if self.solver.interruption.status is not None and len(waiting) > 1:
            # They would be evaluated only: one of them was current, the others not yet begun.
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
            for each in waiting:  # one of them caused the error, or all together are too large
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
            weights = self.reconstructor.weight_map
            write_result(source, result, weight_map=weights, proof=self.proof)
        except Exception as error:
            self.fail(source, error)
            return
        self.result.records.append(record)
        self.listener.finished(source, result)


def _require_bound(result: Reconstruction) -> None:
    """Raise unless there is a useful lower bound, without which an image proves nothing."""
    record = result.record
    unproven = record["lower_bound"] is None or not math.isfinite(record["objective"])
    if unproven or record["status"] == "NOT_FINITE":
        ended = record["status"].lower().replace("_", " ")
        raise InputError(
            f"no useful lower bound was found with the weight {result.weight.value:.3g} ({ended} "
            f"after {record['iterations']} iterations), so nothing is proven and nothing was "
            "written; choose another --weight, or allow more iterations or time"
        )


def write_result(
    source: Source, result: Reconstruction, *, weight_map: bool = False, proof: bool = False
) -> None:
    """Write the image, its maps and proof if there are any, and the record, which comes last.

    The record has its temporary name before the image is written: if the process is killed in
    between, ``--resume`` can tell that the image is a result.
    """
    record = result.record
    with naming(source.record), atomic_path(source.record) as part:
        part.touch()
        with naming(source.target):
            result.save(source.target)
        record["output_sha256"] = digest(source.target)
        if result.gap_map is not None:
            _write_map(result.gap_map, gap_picture(result.gap_map), *source.gap_maps)
            record["gap_map"] = [str(place) for place in source.gap_maps]
        weights = result.weight_map
        if weight_map and weights is not None:
            _write_map(weights, weight_picture(weights), *source.weight_maps)
            record["weight_map"] = [str(place) for place in source.weight_maps]
        if proof:
            with naming(source.proof):
                record["proof"] = str(result.solution.proof.save(source.proof))
        part.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_map(values: Tensor, shown: Tensor, numbers: Path, picture: Path) -> None:
    """The numbers of every plane, and a picture of them."""
    with naming(numbers), atomic_path(numbers) as part, part.open("wb") as file:
        np.save(file, values[:, 0].float().cpu().numpy(), allow_pickle=False)
    with naming(picture):
        save_image(picture, shown)


def gap_picture(values: Tensor) -> Tensor:
    """The sum over planes on a logarithmic scale, white at the largest value."""
    total = values.double().sum((0, 1)).clamp_min(0)
    scaled = (total / total.max().clamp_min(1e-300)).clamp_min(10.0**-DECADES)
    return (1 + torch.log10(scaled) / DECADES).clamp(0, 1)


# Results of an earlier run -----------------------------------------------------------------------


def fingerprint(paths: Sequence[Path]) -> Fingerprint:
    """Name, length and time of change, in ns, of all files that a result is made from."""
    found: Fingerprint = []
    for path in paths:
        try:
            found.append([path.name, path.stat().st_size, path.stat().st_mtime_ns])
        except OSError:  # reading the file explains why
            found.append([path.name, None, None])
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that results depend on, as JSON stores them."""
    kept = {name: value for name, value in settings.items() if name not in OF_THE_RUN}
    decoded: dict[str, Any] = json.loads(json.dumps(kept))
    return decoded


RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    kind.task: kind for kind in (Denoiser, Inpainter, ScanReconstructor, MRIReconstructor)
}
"""By the name of the task."""


def reconstruct(
    image: ScanLike,
    task: str = "denoise",
    *,
    progress: Callback | None = None,
    **options: Any,
) -> Reconstruction:
    """Estimate the noise, choose the weight, state the problem, and solve it with a proof.

    ``cl.reconstruct(image, task="denoise").x`` is the image. The command line and the web page make
    the same call; the options have the names and defaults of ``convexlift reconstruct``.

    Args:
        image: a path, or a tensor or array (H, W), (C, H, W) or (B, C, H, W); every channel and
            every image is a plane of its own. Floats are in [0, 1] or, like those of NPY files, in
            any range, which is then mapped to it. For ``ct``: the path of a sinogram, a
            ``cl.scans.Sinogram``, or an array of projections with ``geometry`` and ``quantity``;
            with ``simulate``, a slice as a path, a ``cl.scans.Volume`` or an array. For ``mri``:
            the path of a file with k-space, or a ``cl.scans.KSpace``.
        task: ``denoise``, ``inpaint``, ``ct`` or ``mri``.
        progress: called with a ``cl.Progress`` at every check of the solver, with the planes that
            are solved at once; return ``True`` to stop with the best image so far.
        options: of ``Denoiser``, ``Inpainter`` or ``ScanReconstructor``, which document them. Masks
            and truths are paths or arrays like the image, regularizers names, paths or networks.

    Raises:
        InputError: a ValueError that names the wrong option or the wrong part of the image.
        TypeError: an option that the task does not have.
    """
    with _python_names():
        chosen = reconstructor_for(task, **options)
        solver = chosen.solver()
        prepared = chosen.prepare(image, solver)
        return chosen.solve([prepared], solver, progress)[0]


def reconstructor_for(task: str, **options: Any) -> Reconstructor:
    """The reconstructor of a task, with its options checked."""
    if task not in RECONSTRUCTORS:
        raise InputError(f"there is no task {task!r}; choose one of {', '.join(RECONSTRUCTORS)}")
    kind = RECONSTRUCTORS[task]
    known = [option.name for option in fields(kind)]
    if unknown := set(options) - set(known):
        raise TypeError(
            f"{task} has no option {sorted(unknown)[0]!r}; it has {', '.join(sorted(known))}"
        )
    return kind(**options)


@contextlib.contextmanager
def _python_names() -> Iterator[None]:
    """Rewrite errors for Python: ``mask_colour=`` in place of the option ``--mask-colour``."""
    try:
        yield
    except InputError as error:
        text = re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_") + "=", str(error))
        raise InputError(text) from None


def _signature() -> inspect.Signature:
    """All options with their defaults, for ``help`` and notebooks."""
    whole = inspect.signature(reconstruct)
    parameters = {p.name: p for p in whole.parameters.values() if p.kind is not p.VAR_KEYWORD}
    for kind in RECONSTRUCTORS.values():
        for name, parameter in inspect.signature(kind).parameters.items():
            parameters.setdefault(name, parameter)
    return whole.replace(parameters=list(parameters.values()))


reconstruct.__signature__ = _signature()  # type: ignore[attr-defined]
