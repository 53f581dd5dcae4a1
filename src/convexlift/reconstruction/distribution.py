"""Many files on the workers of a Dask cluster: each file is a task, and a batch of one.

Workers call ``reconstruct_files``, as a run without them does; the listener is called when results
are written. Images stay on the workers. A single image that is solved in tiles is read and written
here, and each of its tiles is a task.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from convexlift import cluster
from convexlift.models.files import names, pair
from convexlift.reconstruction.batch import (
    BatchListener,
    BatchResult,
    earlier_record,
    reconstruct_files,
)
from convexlift.reconstruction.contents import InputError, is_path
from convexlift.reconstruction.pictures import Denoiser
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.sources import Source
from convexlift.reconstruction.volumes import altered


def distribute_files(
    sources: Sequence[Source],
    reconstructor: Reconstructor,
    listener: BatchListener | None = None,
    *,
    client: Any,
    **options: Any,
) -> BatchResult:
    """``reconstruct_files``, on the workers of ``client``, a ``distributed.Client``.

    Workers need this version of the package, and all files under the same names. Ctrl-C ends the
    run; workers finish the files they have started. ``options`` are those of ``reconstruct_files``.
    """
    if len(sources) == 1 and _in_tiles(sources[0], reconstructor, **options):
        return reconstruct_files(sources, reconstructor, listener, client=client, **options)
    result, listener = BatchResult(), listener or BatchListener()
    left = {_absolute(source): source for source in sources}
    tasks = cluster.completed(
        client, _reconstruct_one, list(left), pickle.dumps(_absolute_options(reconstructor)),
        options, folder=next(iter(left)).target.parent,
    )  # fmt: skip
    try:
        for task, outcome in tasks:
            source = left.pop(task)
            if isinstance(outcome, Exception):
                result.failures.append((source, " ".join(str(outcome).split())))
                listener.failed(source, outcome)
                continue
            result.records += outcome.records
            result.earlier += outcome.earlier
            for record in outcome.records:
                listener.finished(task, record)  # whose names are in the record
            if outcome.earlier:
                listener.kept(source)
            for _, reason in outcome.failures:
                result.failures.append((source, reason))
                listener.failed(source, InputError(reason))
    except KeyboardInterrupt:
        result.interrupted = True
    except ConnectionError as error:
        warnings.warn(str(error), stacklevel=2)
    finally:
        tasks.close()
    result.left = list(left.values())
    return result


def _in_tiles(
    source: Source, reconstructor: Reconstructor, *, proof: bool = False, resume: bool = False,
    **_: Any,
) -> bool:  # fmt: skip
    """Whether a file is one image too large to be solved at once, and not finished yet."""
    if source.slab is not None or not isinstance(reconstructor, Denoiser):  # scans have no tiles
        return False
    try:
        if resume:
            chosen = _absolute_options(reconstructor)
            if earlier_record(_absolute(source), chosen, proof=proof) is not None:
                return False  # a worker will report it
        solver = reconstructor.solver()
        # Any weight shows the size; the run itself searches the weight.
        data = altered(reconstructor, weight=1.0, strength=1.0).prepare(source.path, solver).data
        return len(data) == 1 and solver.tiles_for(data) is not None
    except Exception:  # a worker will report it
        return False


def _absolute_options(reconstructor: Reconstructor) -> Reconstructor:
    """The reconstructor with absolute paths, since workers run in other folders."""
    paths = {
        option.name: os.path.abspath(value)
        for option in fields(reconstructor)
        if is_path(value := getattr(reconstructor, option.name)) and _names_files(value)
    }
    return replace(reconstructor, **paths)  # type: ignore[arg-type]


def _names_files(value: str | os.PathLike[str]) -> bool:
    """Whether such a file or folder exists, or a regularizer saved under the name."""
    known = value in names()
    return not known and any(Path(each).exists() for each in (value, *pair(value)))


def _absolute(source: Source) -> Source:
    return replace(source, path=source.path.absolute(), target=source.target.absolute())


def _reconstruct_one(source: Source, packed: bytes, options: dict[str, Any]) -> BatchResult:
    """Reconstruct one file on a worker."""
    return reconstruct_files([source], _unpacked(packed), **options)


@lru_cache(maxsize=2)
def _unpacked(packed: bytes) -> Reconstructor:
    """The reconstructor, whose network a worker loads once."""
    reconstructor: Reconstructor = pickle.loads(packed)
    return reconstructor
