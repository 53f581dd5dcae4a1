"""Independent tasks on the workers of a Dask cluster: other processes, or other machines.

A task is one file, a few slices, or a tile of a large image. Workers read inputs and write results
themselves, so that the scheduler sees only names and records, never images. Tasks are submitted a
few at a time: a run of a million needs no more memory on the scheduler than a run of a hundred.
Dask repeats the tasks of a lost worker elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

from convexlift.files.formats import InputError, load_extra

Item = TypeVar("Item")
EACH, MORE = 4, 16
"""Tasks submitted at a time: for each thread, and in addition."""
SECONDS = 10.0
"""Seconds for a scheduler to answer."""
LOOK_EVERY = 2.0
"""Seconds between two checks of the workers."""
GONE = "the scheduler is gone, or cancelled the tasks; --resume does the missing tasks"


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
        dask = load_extra("dask", "runs on several workers", "dask")
        # Workers share the cores; by default, each has as many threads as there are cores.
        threads = str(max(1, (os.cpu_count() or 1) // int(match[1])))
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        with (
            dask.config.set({
                "distributed.nanny.pre-spawn-environ": dict.fromkeys(variables, threads)
            }),
            distributed.LocalCluster(
                n_workers=int(match[1]), threads_per_worker=1, dashboard_address="127.0.0.1:0",
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


def completed(
    client: Any, function: Callable[..., Any], items: Iterable[Item], *arguments: Any, folder: Path
) -> Generator[tuple[Item, Any], None, None]:
    """``function(item, *arguments)`` or its exception, for each item, in the order they end.

    Args:
        client: a ``distributed.Client``.
        function: a function of a module that workers can import.
        items: the items, sent to workers a few at a time.
        arguments: further arguments, the same for all items.
        folder: the folder of results; workers without it get no work.

    Raises:
        ConnectionError: the scheduler is gone.
    """
    crew, waiting = _Crew(client, folder), iter(items)
    running: dict[Any, Item] = {}
    ended: Queue[Any] = Queue()  # several may end between two iterations, and share one message
    try:
        upcoming = list(itertools.islice(waiting, 1))
        while upcoming or running:
            found: list[tuple[Any, Any]] = []
            with _connection(client):
                crew.look()
                while upcoming and len(running) < crew.room:
                    item = upcoming.pop()
                    future = client.submit(
                        function, item, *arguments, pure=False, workers=crew.restricted
                    )
                    running[future] = item
                    future.add_done_callback(ended.put)
                    upcoming = list(itertools.islice(waiting, 1))
                found = _outcomes(client, _some(ended) if running else [])
            for future, outcome in found:
                yield running.pop(future), outcome
    finally:
        if running and client.status == "running":
            client.cancel(list(running))


@contextlib.contextmanager
def _connection(client: Any) -> Iterator[None]:
    """Raise a clear error when the scheduler is gone."""
    try:
        yield
    except (CancelledError, OSError):
        raise ConnectionError(GONE) from None
    if client.status != "running":
        raise ConnectionError(GONE)


def _some(ended: Queue[Any]) -> list[Any]:
    """Futures that ended; none after a timeout."""
    found = []
    with contextlib.suppress(Empty):
        found.append(ended.get(timeout=LOOK_EVERY))
        while True:
            found.append(ended.get_nowait())
    return found


def _outcomes(client: Any, futures: list[Any]) -> list[tuple[Any, Any]]:
    """The results of tasks, or exceptions that explain their absence."""
    good = [future for future in futures if future.status == "finished"]
    found = list(zip(good, client.gather(good), strict=True))
    for future in futures:
        if future not in good:
            error = future.exception()
            if type(error).__name__ == "KilledWorker":
                error = InputError(
                    "several workers died while they worked on it; it may need more memory than "
                    "they have"
                )
            found.append((future, error))
    return found


class _Crew:
    """The workers that can do the tasks: they have this version of the package, and the folder.

    Workers may come and go; unsuitable ones are named in a warning.
    """

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder = client, str(folder)
        self.able: dict[str, int] = {}
        self.unable: dict[str, str] = {}
        self.next_look, self.said = 0.0, False

    @property
    def room(self) -> int:
        """The number of tasks to submit."""
        return EACH * sum(self.able.values()) + MORE if self.able else 0

    @property
    def restricted(self) -> list[str] | None:
        """The workers to choose from; None for all, including later ones."""
        return list(self.able) if self.unable else None

    def look(self) -> None:
        """Examine new workers; raise if none of them can do the tasks."""
        if time.monotonic() < self.next_look:
            return
        threads = self.client.nthreads()
        new = [each for each in threads if each not in self.able and each not in self.unable]
        answers = self._ask(new) if new else {}
        self.unable = {each: why for each, why in self.unable.items() if each in threads}
        for each, why in answers.items():
            if why:
                self.unable[each] = why
                warnings.warn(f"the worker {each} gets no work: {why}", stacklevel=2)
        self.able = {each: n for each, n in threads.items() if each not in self.unable}
        if not self.able:
            if self.unable:
                raise InputError(f"no worker can do the work: {next(iter(self.unable.values()))}")
            if not self.said:
                warnings.warn("the scheduler has no workers; waiting for one", stacklevel=2)
            self.said = True
            time.sleep(0.2)
        # With no workers, check on every iteration.
        self.next_look = time.monotonic() + LOOK_EVERY * bool(self.able)

    def _ask(self, workers: list[str]) -> dict[str, str]:
        folder, here = self.folder, sys.modules["convexlift"].__version__

        def obstacle() -> str:  # nested, so that it is sent by value: workers may lack this module
            import contextlib
            import ctypes
            import os

            if "MALLOC_TRIM_THRESHOLD_" in os.environ:
                # Dask's nannies let workers return memory after every operation, and the next one
                # waits for fresh pages: four times the processor time. These are the thresholds
                # (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD) that glibc itself would arrive at.
                with contextlib.suppress(OSError, AttributeError, TypeError):  # no glibc
                    libc = ctypes.CDLL(None)
                    libc.mallopt(-1, 2**26)
                    libc.mallopt(-3, 2**25)
            try:
                import convexlift
            except ImportError as error:
                return f"it cannot import convexlift ({error}); install it there"
            if convexlift.__version__ != here:
                return f"it has convexlift {convexlift.__version__}, and this is {here}"
            if not os.path.isdir(folder):
                return f"it does not see {folder}; results need a folder that all machines share"
            return ""

        answers = self.client.run(obstacle, workers=workers, on_error="return")
        return {each: text if isinstance(text, str) else str(text)
                for each, text in answers.items()}  # fmt: skip
