"""Workers of a Dask cluster beside a plain loop: speed-up, overhead, and many small tasks.

    OMP_NUM_THREADS=1 python benchmarks/workers.py --files 24 --size 512 --rounds 3
    OMP_NUM_THREADS=1 python benchmarks/workers.py --tiles 2048 --rounds 3
    python benchmarks/workers.py --tasks 10000

Noisy pictures are denoised with total variation to a gap of 1e-3: by a loop, by one worker and by
two, one after the other in every round, all with one thread. With ``--tiles``, one picture of that
side is solved in tiles instead. The numbers are medians of ratios within a round: on a machine with
other work, wall times of different rounds cannot be compared. Processor times count all processes:
client, scheduler and workers. A speed-up needs two idle cores; the share of the machine that
others leave is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed import Client, LocalCluster
from large_images import picture

import convexlift as cl
from convexlift.cluster import completed

OPTIONS = {"regularizer": "tv", "sigma": 0.05, "tolerance": 1e-3, "device": "cpu"}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--tiles", type=int, help="the side of one picture, in place of files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, help="trivial tasks, in place of pictures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.tasks is not None:
        many_tasks(options.tasks)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        count, side = (1, options.tiles) if options.tiles else (options.files, options.size)
        for number in range(count):
            turned = np.roll(picture(side, side, False), 37 * number, (0, 1))
            np.save(folder / "in" / f"{number:04d}.npy", turned)
        rounds = [compared(folder, f"{k}", bool(options.tiles)) for k in range(options.rounds)]
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        each = ", ".join(f"{value:.3f}" for value in values)
        print(f"{name:44} {statistics.median(values):7.3f}   ({each})")


def compared(folder: Path, name: str, tiles: bool) -> dict[str, float]:
    """One round: a loop, one worker, two workers."""
    found = {}
    for workers in (0, 1, 2):
        target = folder / f"out-{name}-{workers}"
        found[workers] = timed(folder / "in", target, workers, {"tiles": 512} if tiles else {})
    (loop, spent, free), (one, spent_one, _), (two, spent_two, free_two) = found.values()
    return {
        "seconds of the loop": loop,
        "wall time, one worker / loop": one / loop,
        "wall time, one worker / two workers": one / two,
        "processor time, one worker / loop": spent_one / spent,
        "processor time, two workers / loop": spent_two / spent,
        "cores that others left to the loop": free,
        "cores that others left to two workers": free_two,
    }


def timed(place: Path, target: Path, workers: int, more: dict[str, Any]) -> tuple[float, ...]:
    """Wall time, processor time of all processes, and cores that other programs left."""
    arguments: dict[str, Any] = {**OPTIONS, **more}
    inputs = str(place) if not more else str(next(place.iterdir()))
    output = target if not more else target.with_suffix(".npy")
    if not workers:
        begun, spent, others = time.perf_counter(), time.process_time(), busy()
        cl.reconstruct_many(inputs, output, **arguments)
        seconds, spent = time.perf_counter() - begun, time.process_time() - spent
        return seconds, spent, left(others, spent, seconds)
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            host="127.0.0.1",
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        client.run(warm)
        before = sum(client.run(time.process_time).values()) + time.process_time()
        begun, others = time.perf_counter(), busy()
        cl.reconstruct_many(inputs, output, client=client, **arguments)
        seconds = time.perf_counter() - begun
        spent = sum(client.run(time.process_time).values()) + time.process_time() - before
        return seconds, spent, left(others, spent, seconds)


def local(workers: int) -> LocalCluster:
    """Processes of one thread each, which nobody else can reach."""
    place = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    return LocalCluster(n_workers=workers, threads_per_worker=1, **place)


def warm() -> None:
    """Import everything, and load what is loaded once."""
    torch.set_num_threads(1)
    cl.reconstruct(np.zeros((16, 16), np.uint8), **OPTIONS)


def busy() -> float:
    """Seconds of all cores that were not idle, since the start of the machine."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *rest = (int(each) for each in file.readline().split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def left(before: float, own: float, seconds: float) -> float:
    """Cores that were not taken by other programs."""
    return (os.cpu_count() or 1) - max(0.0, busy() - before - own) / seconds


def same(item: int) -> int:
    """A trivial task."""
    return item


def many_tasks(count: int) -> None:
    """Trivial tasks: time for each, and how many the scheduler knows at a time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local(2) as cluster,
        Client(cluster) as client,
    ):
        client.upload_file(__file__)
        known, begun, spent = [0], time.perf_counter(), time.process_time()
        before = client.run(time.process_time)
        for number, _ in enumerate(
            completed(client, same, range(count), folder=Path(folder)), start=1
        ):
            if number % 500 == 0:
                look = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
                known.append(look)
        seconds, spent = time.perf_counter() - begun, time.process_time() - spent
        after = client.run(time.process_time)
        on_workers = sum(after.values()) - sum(before.values())
    print(f"{number} tasks in {seconds:.1f} s, {1e3 * seconds / number:.2f} ms each")
    print(f"processor time of client and scheduler {1e3 * spent / number:.2f} ms a task, ", end="")
    print(f"of workers {1e3 * on_workers / number:.2f} ms")
    print(f"at most {max(known)} tasks at the scheduler")


if __name__ == "__main__":
    main()
