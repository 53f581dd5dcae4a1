"""A Dask cluster to reconstruct many files: other processes, or other machines."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from convexlift.files.formats import InputError, load_extra

SECONDS = 10.0
"""Seconds for a scheduler to answer."""
MEMORY_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**26), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
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
        with _local_cluster(int(match[1])) as cluster, distributed.Client(cluster) as client:
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


@contextlib.contextmanager
def _local_cluster(workers: int) -> Iterator[Any]:
    """Processes that share the cores: by default, each has as many threads as there are cores."""
    dask = load_extra("dask", "runs on several workers", "dask")
    distributed = load_extra("distributed", "runs on several workers", "dask")
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = MEMORY_KEPT | dict.fromkeys(variables, threads)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": environment}),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0",
            silence_logs="CRITICAL",
        ) as cluster,
    ):  # fmt: skip
        yield cluster
