"""The times and the memory of certified solves on a GPU, in one run of a few minutes.

    python benchmarks/gpu_tables.py --output DIR
    python benchmarks/gpu_tables.py --output DIR --device cpu --quick    # whether it runs
    python benchmarks/gpu_tables.py --output DIR --only parts

Solves: milliseconds for each image from the stated problem to the claim, of a single image and of a
batch, to a certified gap of 1e-3; and of ten iterations of a single image, with its claim. Parts:
where a solve spends its time, its launches, and whether its numbers are the same without graphs of
checks and claims. Growth: nanoseconds for each pixel and iteration, and the peak of the device's
memory, for larger and larger images. Tasks: seconds, gap and memory of the largest of them, solved.
Scanners: microseconds of A and A* for a batch. First call: seconds of the first solve of a new
process, and of its second.
DIR/gpu.json is written after each table. For a closer look: ``gpu_iteration.py``,
``ray_transforms.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_iteration import CASES, problem

import convexlift as cl
from convexlift.solvers import cuda_graphs, fused_iterations, loop, replays
from convexlift.solvers.ledger import Ledger
from convexlift.solvers.pdhg import PDHG, RestartedPDHG

Row = dict[str, Any]
ITERATIONS = 20
"""Of the solves for the growth, which do not converge."""
TEN = cl.StopWhen(gap=None, max_iterations=10)
TASKS = {"inpainting": 0.18, "gaussian": 1.0, "salt-and-pepper": 7.3}
"""With the weights of the card."""


def main(arguments: list[str] | None = None) -> None:
    """Print every table as soon as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small images, one repetition")
    parser.add_argument("--only", help="one of the tables, by its first word")
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.first_call:
        print(json.dumps(first_call(given.device, given.quick)))
        return
    given.output.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    found: dict[str, Any] = {"device": where, "torch": torch.__version__}
    print(f"{where}, torch {torch.__version__}")
    for title, rows in (
        ("solves", solves), ("parts", parts), ("growth", growth), ("tasks", tasks),
        ("scanners", scanners), ("first call", in_a_new_process),
    ):  # fmt: skip
        if given.only not in (None, title.split()[0]):
            continue
        found[title] = []
        for row in rows(given.device, given.quick):
            print(f"{title:10}", *(f"{name} {value}" for name, value in row.items()), sep="  ",
                  flush=True)  # fmt: skip
            found[title].append(row)
        (given.output / "gpu.json").write_text(json.dumps(found, indent=1))


def solves(device: str, quick: bool) -> Iterator[Row]:
    """One image, and a batch; quickly, only with the network that takes any size."""
    for name in ["photo-any-size"] if quick else CASES:
        for batch in (1, 2) if quick else (1, 20):
            stated = problem(name, batch, 32 if quick else 256, device)
            solution = cl.solve(stated)
            each = seconds(lambda stated=stated: cl.solve(stated), device, quick) / batch
            ten = {}
            if batch == 1:
                some = seconds(lambda stated=stated: cl.solve(stated, stop=TEN), device, quick)
                ten = {"ten iterations": round(1e3 * some, 2)}
            yield {
                "network": name, "batch": batch, "ms": round(1e3 * each, 2), **ten,
                "iterations": int(solution.iterations.max()),
                "gap": float(f"{float(solution.gap.max()):.1e}"),
            }  # fmt: skip


def parts(device: str, quick: bool) -> Iterator[Row]:
    """Milliseconds for the whole batch; those of parts are waited for, and add up to more."""
    for name in ["photo-any-size"] if quick else CASES:
        for batch in (1, 2) if quick else (1, 20):
            stated = problem(name, batch, 32 if quick else 256, device)

            def solve(stated=stated) -> cl.Solution:
                return cl.solve(stated)

            replays.GRAPHS = None
            plain, without = solve(), seconds(solve, device, quick)
            replays.GRAPHS = cuda_graphs.CudaGraphs()
            warm = [round(1e3 * once(solve, device), 1) for _ in range(3)]
            whole = seconds(solve, device, quick)
            with watched(device) as spent:
                solution = solve()
            recordings = [each for workshop in replays.IDLE.values()
                          for each in workshop.recordings.values()]  # fmt: skip
            yield {
                "network": name, "batch": batch, "ms": round(1e3 * whole, 2),
                "without graphs": round(1e3 * without, 2), "first": warm,
                **{part: round(1e3 * time, 2) for part, time in spent.items()},
                "checks made": len(solution.history), **launches(solve, device),
                "graphs": sum(each.copies is not None for each in recordings),
                "refusals": [each.refusal for each in recordings if each.refusal],
                "x differs by": float((solution.x - plain.x).abs().max()),
                "gap differs by": float((solution.gap - plain.gap).abs().max()),
            }  # fmt: skip
            replays.IDLE.clear()


@contextlib.contextmanager
def watched(device: str) -> Iterator[dict[str, float]]:
    """Seconds in each part of a solve, without the parts inside it."""
    spent: dict[str, float] = {}
    running: list[str] = []
    last = [time.perf_counter()]

    def switch() -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        part = running[-1] if running else "rest"
        spent[part] = spent.get(part, 0.0) + now - last[0]
        last[0] = now

    def timed(owner: Any, name: str, label: Callable[..., str]) -> Callable[[], None]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            switch()
            running.append(label(*args))
            try:
                return original(*args, **options)
            finally:
                switch()
                running.pop()

        setattr(owner, name, call)
        return lambda: setattr(owner, name, original)

    of_functions = {"judged": "checks", "proved": "claims", "claimed": "claims",
                    "guessed": "first image", "started": "first image"}  # fmt: skip
    undo = [
        timed(PDHG, "solver", lambda *_: "solver"),
        timed(loop, "_first_state", lambda *_: "start"),
        timed(RestartedPDHG, "advance", lambda *_: "iterations"),
        timed(Ledger, "check", lambda *_: "ledger"),
        timed(Ledger, "solution", lambda *_: "solution"),
        timed(
            replays.Replays, "launched", lambda _, function, *__: of_functions[function.__name__]
        ),
    ]
    try:
        yield spent
        switch()
    finally:
        for restore in undo:
            restore()


def launches(call: Callable[[], object], device: str) -> Row:
    """Launches of kernels and graphs, copies and waits of one call, from the profiler."""
    if device != "cuda":
        return {}
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        once(call, device)
    counts = {event.key: event.count for event in profile.key_averages()}
    words = {"launches": "LaunchKernel", "graph launches": "GraphLaunch",
             "copies": "MemcpyAsync", "waits": "Synchronize"}  # fmt: skip
    return {
        name: sum(count for key, count in counts.items() if key.startswith("cu") and word in key)
        for name, word in words.items()
    }


def growth(device: str, quick: bool) -> Iterator[Row]:
    """Time and memory for each pixel should not depend on the size."""
    stop = cl.StopWhen(gap=0.0, max_iterations=ITERATIONS)
    for size in (32, 64) if quick else (512, 1024, 2048, 4096):
        stated = problem("photo-any-size", 1, size, device)
        forget(device)
        times = [once(lambda stated=stated: cl.solve(stated, stop=stop), device) for _ in range(4)]
        ns = [round(1e9 * time / ITERATIONS / size**2, 1) for time in times[1:]]
        yield {"size": size, "ns": ns, **memory(device)}


def tasks(device: str, quick: bool) -> Iterator[Row]:
    """Solved to a gap of 1e-3: with a mask, without, and with kinks in the data term."""
    size = 64 if quick else 4096
    for task, weight in TASKS.items():
        stated = problem("photo-any-size", 1, size, device, task, weight)
        forget(device)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            solution = cl.solve(stated)
            times.append(round(time.perf_counter() - begin, 2))
            found = {"iterations": int(solution.iterations), "gap": f"{float(solution.gap):.1e}",
                     "status": solution.status[0].name}  # fmt: skip
            del solution  # its dual variables are large
        yield {"task": task, "size": size, **found, "s": times[1:], **memory(device)}


def forget(device: str) -> None:
    """Free the buffers and graphs that earlier solves left, and count peaks anew."""
    fused_iterations.IDLE.clear()
    replays.IDLE.clear()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def memory(device: str) -> Row:
    """Peaks of the memory that tensors take, and that torch has reserved for them."""
    if device != "cuda":
        return {}
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {
        name: round(peak / 1e9, 2) for name, peak in zip(("GB", "reserved"), peaks, strict=True)
    }


def scanners(device: str, quick: bool) -> Iterator[Row]:
    """The paper's size, parallel and fan beams, four images."""
    size, views, bins = (32, 20, 40) if quick else (512, 200, 400)
    geometry = {"image_size": size, "angles": views, "bins": bins}
    for name, A in (
        ("parallel", cl.ParallelBeam(**geometry)),
        ("fan", cl.FanBeam(**geometry, source_distance=2 * size, detector_distance=size)),
    ):
        beam = A.to(device=device)
        x = torch.rand((4, 1, size, size), device=device)
        y = beam(x)
        times = {"A": lambda beam=beam, x=x: beam(x), "A*": lambda beam=beam, y=y: beam.adjoint(y)}
        us = {key: round(1e6 * seconds(call, device, quick) / 4, 1) for key, call in times.items()}
        yield {"beam": name, "batch": 4, **us}


def in_a_new_process(device: str, quick: bool) -> Iterator[Row]:
    """Kernels are compiled, or read from a cache."""
    command = [sys.executable, __file__, "--first-call", "--output", ".", "--device", device]
    done = subprocess.run(
        command + ["--quick"] * quick, check=True, stdout=subprocess.PIPE, text=True
    )
    yield json.loads(done.stdout.splitlines()[-1])


def first_call(device: str, quick: bool) -> Row:
    """Seconds of the first and the second solve of this process."""
    stated = problem("photo-any-size", 1, 32 if quick else 256, device)
    times = [once(lambda: cl.solve(stated), device) for _ in range(2)]
    return {"first s": round(times[0], 2), "second s": round(times[1], 3)}


def seconds(call: Callable[[], object], device: str, quick: bool) -> float:
    """The median of some calls after one that is not counted."""
    times = [once(call, device) for _ in range(2 if quick else 8)]
    return statistics.median(times[1:])


def once(call: Callable[[], object], device: str) -> float:
    """One call, waited for."""
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
