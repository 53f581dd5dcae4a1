"""Pictures, problems and machines for tests of Dask clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import torch
from reconstruct_runs import noisy, solved

import convexlift as cl
from convexlift import cluster
from convexlift.images import save_image


def with_pictures(folder, count, size):
    for i in range(count):
        save_image(folder / "in" / f"{i:02d}.png", torch.from_numpy(noisy(size=size, seed=i)))
    return folder


def pictures(place):
    return {path.name: path.read_bytes() for path in sorted(place.glob("*.png"))}


def many(folder, output, **more):
    return solved(folder / "in", folder / output, **more)


def large_problem(size=(80, 72)):
    y = noisy(size=80)[: size[0], : size[1]]
    return cl.LargeProblem(
        fidelity=cl.SquaredL2(torch.from_numpy(y.copy())[None, None]), weight=0.05, box=(0, 1),
        regularizer=cl.TotalVariation().float(),
    )  # fmt: skip


def tiled(folder, gap, size=32, **more):
    """Options of ``solve_tiles``."""
    tiles = cl.Tiles(size=size, overlap=16, folder=folder, **more)
    return {"tiles": tiles, "stop": cl.StopWhen(gap=gap)}


def assert_same(one, other):
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.objective, other.objective)
    assert torch.equal(one.lower_bound, other.lower_bound)
    assert one.status == other.status


class Machines:
    """A scheduler and workers, each a process."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.processes = folder, []
        self.file = folder / "scheduler.json"
        self.scheduler = self.start("scheduler", "--port", "0", "--no-dashboard", "--no-show")

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, kind, *words, **variables):
        log = (self.folder / f"{kind}-{len(self.processes)}.log").open("wb")
        command = [sys.executable, "-m", "dask", kind, "--scheduler-file", self.file]
        command += ["--host", "127.0.0.1", *words]
        with log:
            started = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            )  # fmt: skip
        self.processes.append(started)
        return started

    def worker(self, **variables):
        return self.start("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", **variables)

    @contextmanager
    def connected(self):
        """A client, and two workers."""
        workers = self.worker(), self.worker()
        with cluster.connected(self.address) as client:
            client.wait_for_workers(2, timeout=120)
            yield client, workers

    @property
    def address(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.file.is_file() and (text := self.file.read_text()).endswith("}"):
                return json.loads(text)["address"]
            time.sleep(0.05)
        raise TimeoutError


class Killer(cl.reconstruction.BatchListener):
    """Kills a process when so many results are written."""

    def __init__(self, process, count):
        self.process, self.count, self.done = process, count, 0

    def finished(self, source, record):
        self.done += 1
        if self.done == self.count:
            os.kill(self.process.pid, signal.SIGKILL)
