"""``cl.reconstruct`` for one image, and ``cl.reconstruct_many`` for files."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from convexlift.reconstruction import results
from convexlift.reconstruction.batch import BatchListener, BatchResult, reconstruct_files
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.distribution import distribute_files
from convexlift.reconstruction.pictures import Denoiser, Inpainter
from convexlift.reconstruction.reconstructor import Reconstruction, Reconstructor
from convexlift.reconstruction.scans import ScanLike, ScanReconstructor
from convexlift.reconstruction.solution import Callback
from convexlift.reconstruction.sources import Source, check_targets, find_sources

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    kind.task: kind for kind in (Denoiser, Inpainter, ScanReconstructor)
}
"""Reconstructors by task."""


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
            with ``simulate``, a slice as a path, a ``cl.scans.Volume`` or an array.
        task: ``denoise``, ``inpaint`` or ``ct``.
        progress: called with a ``cl.Progress`` at every check of the solver, with the planes that
            are solved at once; return ``True`` to stop with the best image so far.
        options: the fields of ``Denoiser``, ``Inpainter`` or ``ScanReconstructor``. Masks and
            truths are paths or arrays like the image, regularizers are names, paths or networks.

    Raises:
        InputError: a ValueError that names the wrong option or the wrong part of the image.
        TypeError: an option that the task does not have.
    """
    with _python_names():
        chosen = reconstructor_for(task, **options)
        solver = chosen.solver()
        prepared = chosen.prepare(image, solver)
        return chosen.solve([prepared], solver, progress)[0]


def reconstruct_many(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    task: str = "denoise",
    *,
    client: Any = None,
    proof: bool = False,
    resume: bool = False,
    force: bool = False,
    table: str | os.PathLike[str] | None = None,
    listener: BatchListener | None = None,
    **options: Any,
) -> BatchResult:
    """Reconstruct files, folders or globs into a folder, like ``convexlift reconstruct``.

    Every result has a record, a JSON file beside it that is written last: a run that was stopped,
    or lost workers, is completed by the same call with ``resume=True``.

    Args:
        inputs: a file, a folder or a glob, or several of them.
        output: a file for one input file, else a folder.
        task: ``denoise``, ``inpaint`` or ``ct``.
        client: a ``distributed.Client``, whose workers reconstruct one file at a time.
        proof: whether to write proof files.
        resume: keep finished results of an earlier run of this version with the same inputs and
            settings; other files with the names of results are replaced.
        force: overwrite earlier results.
        table: a Parquet or CSV file for gap, status, time and error of every file.
        listener: receives the progress.
        options: as for ``cl.reconstruct``.
    """
    with _python_names():
        chosen = reconstructor_for(task, **options)
        several = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
        sources = find_inputs(chosen, [str(each) for each in several], Path(output))
        tables = [] if table is None else [Path(table)]
        require_targets(chosen, sources, replace=force or resume, proof=proof, tables=tables)
        listener = listener or BatchListener()
        if client is None:
            result = reconstruct_files(sources, chosen, listener, proof=proof, resume=resume)
        else:
            result = distribute_files(
                sources, chosen, listener, client=client, proof=proof, resume=resume
            )
        for each in tables:
            results.write_table(each, result.rows())
        return result


def find_inputs(reconstructor: Reconstructor, inputs: Sequence[str], output: Path) -> list[Source]:
    """The files for the task, each with its target; wrong options are errors."""
    sources = find_sources(inputs, output, reconstructor.suffixes, reconstructor.ending)
    reconstructor.check(sources)
    return sources


def require_targets(
    reconstructor: Reconstructor, sources: Sequence[Source], *, replace: bool, proof: bool,
    summary: Path | None = None, tables: Sequence[Path] = (),
) -> None:  # fmt: skip
    """Create the folders, and raise if results or tables cannot be written."""
    for table in tables:
        results.require_table(table)
    also_read = [*reconstructor.reads([source.path for source in sources]), *reconstructor.saved]
    overviews = [*tables, *([] if summary is None else [summary])]
    check_targets(
        sources, replace=replace, gap_map=reconstructor.gap_map,
        weight_map=reconstructor.weight_map, proof=proof, also_read=also_read, overviews=overviews,
    )  # fmt: skip


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
