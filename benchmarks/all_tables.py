"""All tables of the solver's speed, on CPU and GPU, in one run of at most ten minutes.

    python benchmarks/all_tables.py --data DIR --output DIR

DIR of the data holds ``faces/test`` and ``faces/mask.png`` and, for photographs, ``natural/train``.
Benchmarks of the GPU take turns, so that each has it alone. Those of the CPU run beside them, each
on one thread, and measure processor time. The output is ``tables.md``, with a section for each
benchmark (its command, seconds and tables), its JSON files, and, where matplotlib is installed,
plots of certified gaps against seconds. A benchmark that fails or runs out of time is named, and
the others go on.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import torch
from time_to_error import CASES

HERE = Path(__file__).parent
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""For the C library: freed memory is kept.

Otherwise it depends on earlier calls whether methods that make large arrays in every iteration,
NMAPG and L-BFGS above all, spend two thirds of their time on new pages.
"""


@dataclass(frozen=True)
class Job:
    """A benchmark and the title of its section."""

    title: str
    script: str
    arguments: Sequence[str | Path] = ()

    @property
    def command(self) -> list[str]:
        """As a user would write it."""
        return ["python", f"benchmarks/{self.script}", *map(str, self.arguments)]

    def run(self, deadline: float, *, gpu: bool) -> str:
        """Its section; ``deadline`` is a time of ``time.monotonic``."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if not gpu:
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        if not gpu and self.script == "time_to_error.py":
            environment |= KEPT
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / self.script), *self.command[2:]],
                env=environment, timeout=max(1.0, deadline - begin), text=True, capture_output=True,
            )  # fmt: skip
            printed, failure = (
                done.stdout,
                f"Failed: {done.stderr[-2000:]}\n" if done.returncode else "",
            )
        except subprocess.TimeoutExpired as late:
            text = late.stdout or b""
            printed = text if isinstance(text, str) else text.decode(errors="replace")
            failure = "Ran out of time.\n"
        spent = f"`{shlex.join(self.command)}`, {time.monotonic() - begin:.0f} s"
        return f"## {self.title}\n\n{spent}\n\n```\n{printed}```\n{failure}"


def on_gpu(data: Path, output: Path) -> Iterator[Job]:
    """The benchmarks of the GPU, the shortest first."""
    yield Job("GPU: an iteration", "gpu_iteration.py")
    if shutil.which("ncu"):
        yield Job("GPU: what limits an iteration", "gpu_profile.py")
    yield Job("GPU: ray transforms", "ray_transforms.py")
    yield Job("GPU: solves, their parts, size, first call", "gpu_tables.py", ["--output", output])
    if (photographs := data / "natural" / "train").is_dir():
        yield Job("GPU: photographs", "gpu_photographs.py", [photographs])
    results = ["--output", output / "methods-gpu.json"]
    yield Job("GPU: seconds of every method", "time_to_error.py", ["--data", data, *results])


def on_cpu(data: Path, output: Path) -> Iterator[Job]:
    """The benchmarks of the CPU, the longest first."""
    for number, (name, task, _) in enumerate(CASES):
        results = ["--output", output / f"methods-cpu-{number}.json", "--cases", str(number)]
        title = f"CPU: seconds of every method, {name}, {task.name}"
        yield Job(title, "time_to_error.py", ["--data", data, *results])
    sizes = ["--sizes", "256", "512", "1024", "2048", "--iterations", "20"]
    yield Job("CPU: memory", "solver_memory.py", sizes)


def plots(output: Path) -> Iterator[Job]:
    """Gaps against seconds, from the files of the others."""
    for device in ("cpu", "gpu"):
        files = sorted(output.glob(f"methods-{device}*.json"))
        if files:
            plot = ["--plot", output / f"gap-{device}.svg"] if find_spec("matplotlib") else []
            title = f"{device.upper()}: every method in one table"
            yield Job(title, "time_to_error.py", ["--from", *files, *plot])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, and write each section as soon as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    given = parser.parse_args(arguments)
    if not (given.data / "faces" / "mask.png").is_file():
        parser.error(f"{given.data} has no faces/mask.png")
    given.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * given.minutes
    gpu = torch.cuda.is_available()
    where = f"{torch.cuda.get_device_name()}, " if gpu else "no GPU, "
    where += f"{platform.machine()} with {os.cpu_count()} cores"
    heading = f"# Tables\n\n{where}, torch {torch.__version__}, {date.today()}.\n"
    tables = given.output / "tables.md"
    tables.write_text(heading, encoding="utf-8")

    def add(section: str) -> None:
        with tables.open("a", encoding="utf-8") as file:
            file.write(f"\n{section}")
        print(section, flush=True)

    with ThreadPoolExecutor(given.processes) as pool:
        beside = [pool.submit(job.run, deadline, gpu=False)
                  for job in on_cpu(given.data, given.output)]  # fmt: skip
        for job in on_gpu(given.data, given.output) if gpu else ():
            add(job.run(deadline, gpu=True))
        for each in beside:
            add(each.result())
    for job in plots(given.output):
        add(job.run(deadline + 60, gpu=False))


if __name__ == "__main__":
    main()
