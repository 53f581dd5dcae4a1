"""Threads on the processor: their number, and how they wait for one another.

OpenMP lets waiting threads spin. Beside other programs, a spinning thread takes the core from the
one that it waits for, and a solve takes ten times as long. It reads its settings from the
environment when torch is imported, so the command line sets them first. Nothing here imports torch.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "PASSIVE"}
"""Settings to wait asleep: for GNU's OpenMP, after some microseconds, which cost nothing on a busy
machine and save waking up on an idle one (measured); for Intel's and LLVM's; for others."""
COUNT = "OMP_NUM_THREADS"
CGROUPS = Path("/sys/fs/cgroup")


def wait_asleep() -> None:
    """Let waiting threads sleep, unless the environment sets their behaviour."""
    if not any(name in os.environ for name in WAITING):
        os.environ.update(WAITING)


def use(count: int | None) -> None:
    """Compute on ``count`` threads; None: as the environment says, else one for each free core."""
    if count is None:
        if COUNT not in os.environ and "torch" not in sys.modules:
            os.environ[COUNT] = str(free_cores())
        return
    require(count)
    os.environ[COUNT] = str(count)
    if "torch" in sys.modules:  # torch has already read the environment
        sys.modules["torch"].set_num_threads(count)


def require(count: int) -> None:
    """Raise ValueError for fewer than one thread, or more than there are cores."""
    cores = os.cpu_count() or 1
    if not 1 <= count <= cores:
        raise ValueError(f"{count} threads on a machine with {cores} cores; give 1 to {cores}")


def available_cores() -> int:
    """The cores that this process may use: its affinity, and the quota of its container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, quota(CGROUPS))))


def free_cores() -> int:
    """The available cores that were idle in the last minute, at least one."""
    cores = available_cores()
    try:
        idle = (os.cpu_count() or 1) - round(os.getloadavg()[0])  # of the machine, not a container
    except (AttributeError, OSError):  # no load average on Windows
        return cores
    return max(1, min(cores, idle))


def quota(folder: Path) -> float:
    """Cores that a control group grants, from its files (version 2, then 1); infinite if none."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = " ".join((folder / name).read_text() for name in names)
            limit, period = map(float, text.replace("max", "inf").split())
        except (OSError, ValueError):
            continue
        return limit / period if limit > 0 < period else math.inf  # -1: no limit
    return math.inf
