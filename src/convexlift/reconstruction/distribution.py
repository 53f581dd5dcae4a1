"""Many files on the workers of a Dask cluster: each file is a task, and a batch of one.

Workers call ``reconstruct_files``, as a run without them does: they read inputs and write results
themselves, and the scheduler sees names and records, never images. The listener is called when
results are written. Dask repeats the tasks of lost workers elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from convexlift.files.formats import load_extra
from convexlift.models.files import names, pair
from convexlift.reconstruction.batch import BatchListener, BatchResult, reconstruct_files
from convexlift.reconstruction.contents import InputError, is_path
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.sources import Source

AT_ONCE = 1000
"""Files submitted at a time: the scheduler needs no more memory for a run of a million."""
RETRIES = 2
"""Attempts on other workers if one cannot run a task at all: it may have another version."""
SECONDS = 10.0
"""Seconds for a scheduler to answer."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MEMORY_KEPT = {"MALLOC_TRIM_THRESHOLD_": 2**26, "MALLOC_MMAP_THRESHOLD_": 2**25}
"""Dask lets workers return memory to the system after every operation, and the next one waits for
fresh pages: four times the processor time. glibc arrives at these thresholds by itself.
"""


@contextlib.contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """A client of the scheduler at an address, or of ``local[N]``: N processes on this machine."""
    distributed = load_extra("distributed", "runs on several workers", "dask")
    for name in ("distributed", "distributed.client"):  # our own messages explain
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if scheduler == "local" or scheduler.startswith("local["):
        match = re.fullmatch(r"local\[([1-9]\d*)\]", scheduler)
        if match is None:
            raise InputError(f"--scheduler is ADDRESS or local[N], N >= 1, got {scheduler!r}")
        dask, workers = load_extra("dask", "runs on several workers", "dask"), int(match[1])
        # Workers share the cores: by default, each has as many threads as there are cores.
        environment = MEMORY_KEPT | dict.fromkeys(THREADS, max(1, (os.cpu_count() or 1) // workers))
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ": environment}),
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0",
                silence_logs="CRITICAL",
            ) as cluster,
            distributed.Client(cluster) as client,
        ):  # fmt: skip
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=SECONDS)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"no scheduler answers at {scheduler} ({reason}); start one with dask scheduler, and "
            "give the address that it prints, such as tcp://10.0.0.1:8786, or use local[2]"
        ) from None
    with client:
        yield client


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
    distributed = load_extra("distributed", "runs on several workers", "dask")
    result, listener = BatchResult(), listener or BatchListener()
    version = sys.modules["convexlift"].__version__
    packed = pickle.dumps(_absolute_options(reconstructor))
    waiting, running = iter(sources), dict[Any, Source]()

    def submitted(count: int) -> list[Any]:
        """Futures of further files."""
        found = {
            client.submit(
                _reconstruct_one, _absolute(source), version, packed, options,
                pure=False, retries=RETRIES,
            ): source
            for source in itertools.islice(waiting, count)
        }  # fmt: skip
        running.update(found)
        return list(found)

    if not client.nthreads():
        warnings.warn("the scheduler has no workers; waiting for one", stacklevel=2)
    try:
        done = distributed.as_completed(submitted(AT_ONCE), loop=client.loop)
        for future in done:
            outcome = _outcome(future)
            _add(result, listener, running.pop(future), outcome)
            done.update(submitted(1))
    except KeyboardInterrupt:
        result.interrupted = True
    except CancelledError:
        gone = "the scheduler is gone, or cancelled the tasks; --resume does the others"
        warnings.warn(gone, stacklevel=2)
    finally:
        if running and client.status == "running":
            client.cancel(list(running))
    result.left = [*running.values(), *waiting]
    return result


def _outcome(future: Any) -> Any:
    """What a worker returned, or its exception; CancelledError without a scheduler."""
    try:
        error = future.exception()
        return future.result() if error is None else error
    except OSError:  # the connection broke while the result was sent
        raise CancelledError from None


def _add(result: BatchResult, listener: BatchListener, source: Source, outcome: Any) -> None:
    """Add the outcome of one file, and tell the listener."""
    if isinstance(outcome, Exception):
        result.failures.append((source, " ".join(str(outcome).split())))
        listener.failed(source, outcome)
        return
    result.records += outcome.records
    result.earlier += outcome.earlier
    for record in outcome.records:
        listener.finished(_absolute(source), record)  # the names are those in the record
    if outcome.earlier:
        listener.kept(source)
    for _, reason in outcome.failures:
        result.failures.append((source, reason))
        listener.failed(source, InputError(reason))


def _reconstruct_one(
    source: Source, version: str, packed: bytes, options: dict[str, Any]
) -> BatchResult:
    """Reconstruct one file on a worker."""
    if (own := sys.modules["convexlift"].__version__) != version:
        raise InputError(
            f"a worker has convexlift {own}, and the run was started with {version}; install the "
            "same version there"
        )
    return reconstruct_files([source], _unpacked(packed), **options)


@lru_cache(maxsize=2)
def _unpacked(packed: bytes) -> Reconstructor:
    """The reconstructor, whose network a worker loads once."""
    reconstructor: Reconstructor = pickle.loads(packed)
    return reconstructor


def _absolute(source: Source) -> Source:
    """With absolute paths, since workers run in other folders."""
    return replace(source, path=source.path.absolute(), target=source.target.absolute())


def _absolute_options(reconstructor: Reconstructor) -> Reconstructor:
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
