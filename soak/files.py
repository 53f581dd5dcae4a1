"""Damaged files for every reader: ``python -m soak.files``.

Each mutation of a valid sample must be accepted, or refused by a ValueError or OSError that names
the file, within 5 seconds and 1 GB. Worker processes read; this one watches them. Mutation N of a
seed is always the same, and ``--case N`` repeats it alone, with its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from soak.samples import READERS, Reader, mutated

HANG = 5.0
"""Seconds after which a mutation counts as a hang."""

CONTAINED_HANG = 2.0
"""The same for readers that the library runs in a process with limits of its own."""

MEMORY = 2**30
"""Bytes that a worker may use in addition to its memory at the start."""

SHOWN = 20
"""Violations that are printed; JSON has all."""

Sample = dict[str, bytes]

_NO_MEMORY = re.compile(
    r"(unable|can't|cannot) (to )?allocate|memory allocation failed|not enough memory", re.I
)


def make_samples() -> list[Sample]:
    """The files of each reader's sample, by name; each can be read before it is damaged."""
    samples = []
    for reader in READERS:
        with tempfile.TemporaryDirectory() as name:
            reader.make(Path(name) / f"sample{reader.ending}")
            files = {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}
            for read in reader.reads:
                read(Path(name) / f"sample{reader.ending}")
        samples.append(files)
    return samples


def choose(seed: int, case: int) -> tuple[int, random.Random]:
    """The reader of a case, and its random numbers."""
    chance = random.Random(f"{seed}:{case}")
    (which,) = chance.choices(range(len(READERS)), [reader.share for reader in READERS])
    return which, chance


def attempt(reader: Reader, files: Sample, folder: Path) -> tuple[str, str]:
    """The outcome of one mutation (accepted, refused, contained or violation), and the reason."""
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    path = folder / f"sample{reader.ending}"
    outcome = "accepted"
    for read in reader.reads:
        try:
            read(path)
        except Exception as error:
            trouble = _trouble(error, folder)
            if trouble and not (reader.contained and trouble == "memory"):
                place = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(place.filename).name}:{place.lineno}"
                return "violation", f"{trouble}: {type(error).__name__} at {where}: {error}"
            outcome = "contained" if trouble else "refused"
    return outcome, ""


def _trouble(error: BaseException, folder: Path) -> str:
    """The rule that an error violates, or an empty text."""
    if not isinstance(error, ValueError | OSError):
        return "wrong type"
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, MemoryError) or _NO_MEMORY.search(str(chain)):
            return "memory"
        chain = chain.__cause__ or chain.__context__
    return "" if str(folder) in str(error) else "does not name the file"


def work(connection: Any, first: int, last: int, seed: int, samples: list[Sample]) -> None:
    """Go through cases in a process of its own; tell before and after each."""
    silence()
    with tempfile.TemporaryDirectory() as name:
        limit_memory()
        for case in range(first, last):
            which, chance = choose(seed, case)
            connection.send((case, None, ""))
            files = mutated(READERS[which], samples[which], chance)
            connection.send((case, *attempt(READERS[which], files, Path(name))))
    connection.close()


def silence() -> None:
    """Decoders remark on every damaged file."""
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def limit_memory() -> None:
    """Limit the memory of this process, relative to its present use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Soak:
    """A run over many cases, and its findings."""

    def __init__(self, seed: int, mutations: int, seconds: float) -> None:
        self.seed, self.mutations = seed, mutations
        self.end = time.monotonic() + seconds
        self.samples = make_samples()
        self.counts: dict[str, Counter[str]] = {reader.name: Counter() for reader in READERS}
        self.violations: list[dict[str, Any]] = []
        self.slowest = (0.0, -1)

    def run(self) -> None:
        """All cases, with a new worker after each that had to be ended."""
        case = 0
        while case < self.mutations and time.monotonic() < self.end:
            case = self._watch_one_worker(case)

    def _watch_one_worker(self, first: int) -> int:
        """The first case that is not done when the worker ends, or has been ended."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        arguments = (theirs, first, self.mutations, self.seed, self.samples)
        worker = context.Process(target=work, args=arguments, daemon=True)
        worker.start()
        theirs.close()
        case = first
        try:
            for case, begun in self._cases(ours):
                spent = self._await_outcome(ours, case, begun, worker)
                if spent is None:
                    return case + 1
                self.slowest = max(self.slowest, (spent, case))
                if time.monotonic() > self.end:
                    return case + 1
            return self.mutations
        finally:
            worker.kill()
            worker.join()
            ours.close()

    def _cases(self, connection: Any) -> Iterator[tuple[int, float]]:
        with contextlib.suppress(EOFError):
            while True:
                case, _, _ = connection.recv()
                yield case, time.monotonic()

    def _await_outcome(self, connection: Any, case: int, begun: float, worker: Any) -> float | None:
        """Seconds that a case took, or None if its worker did not survive it."""
        reader = READERS[choose(self.seed, case)[0]]
        try:
            if connection.poll(CONTAINED_HANG if reader.contained else HANG):
                _, outcome, why = connection.recv()
                self._note(reader, case, outcome, why)
                return time.monotonic() - begun
            what = "hang"
        except EOFError:
            worker.join(5)
            what = f"crash, status {worker.exitcode}"
        self._note(reader, case, "contained" if reader.contained else "violation", what)
        return None

    def _note(self, reader: Reader, case: int, outcome: str, why: str) -> None:
        self.counts[reader.name][outcome] += 1
        if outcome == "violation":
            self.violations.append({"case": case, "reader": reader.name, "what": why})

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        total = sum((counts for counts in self.counts.values()), Counter())
        return {
            "seed": self.seed,
            "mutations": sum(total.values()),
            "outcomes": dict(total),
            "readers": {name: dict(counts) for name, counts in self.counts.items()},
            "slowest_seconds": round(self.slowest[0], 3),
            "slowest_case": self.slowest[1],
            "violations": self.violations,
        }


def repeat(seed: int, case: int) -> None:
    """Do one case here, with its traceback; keep its files."""
    which, chance = choose(seed, case)
    reader = READERS[which]
    files = mutated(reader, make_samples()[which], chance)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"case {case} of seed {seed}: {reader.name}; its files are in {folder}")
    limit_memory()
    outcome, why = attempt(reader, files, folder)
    print(f"{outcome} {why}")
    for read in reader.reads:
        try:
            read(folder / f"sample{reader.ending}")
        except Exception as error:
            error.__suppress_context__ = False
            traceback.print_exception(error)


def main() -> int:
    """The command; 1 if there was a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="end after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--case", type=int, help="repeat this mutation only")
    options = parser.parse_args()
    if options.case is not None:
        repeat(options.seed, options.case)
        return 0
    begun = time.monotonic()
    soak = Soak(options.seed, options.mutations, options.seconds)
    soak.run()
    found = soak.as_json() | {"seconds": round(time.monotonic() - begun, 1)}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    for name, counts in found["readers"].items():
        print(f"{name:20}", ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    print(
        f"{found['mutations']} mutations in {found['seconds']:.0f} s, the slowest in "
        f"{found['slowest_seconds']} s; {len(soak.violations)} violations; seed {options.seed}"
    )
    for each in soak.violations[:SHOWN]:
        print(f"  {each['reader']}: {each['what'][:300]}")
        print(f"    python -m soak.files --seed {options.seed} --case {each['case']}")
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
