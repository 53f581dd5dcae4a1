"""``run_benchmark``: every method on every case."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from convexlift.solvers.named_methods import METHODS
from experiments.benchmark.bench import Bench
from experiments.benchmark.cases import Case, Trial
from experiments.benchmark.options import REFERENCE_GAP, BenchmarkOptions
from experiments.benchmark.results import Results, machine

Report = Callable[[str, float], None]
"""Called with what is being done and the fraction of all that is done."""


def run_benchmark(
    cases: Sequence[Case],
    methods: Sequence[str],
    images: Callable[[int], Tensor],
    options: BenchmarkOptions,
    device: torch.device,
    *,
    size: int = 256,
    results: Results | None = None,
    report: Report = lambda text, done: None,
    keep: Callable[[Results], object] = lambda results: None,
) -> Results:
    """Measure every method on every case.

    Args:
        cases: what is solved.
        methods: names of ``METHODS``.
        images: for a size, ``options.count`` clean images and, last, one to choose steps on.
        options: what to measure.
        device: where.
        size: of the images, where a case does not need another.
        results: to add to; on Ctrl-C it holds what there is so far.
        report: told about the progress.
        keep: called whenever there is more to keep.
    """
    results = Results(describe_run(options, device)) if results is None else results
    total = len(cases) * (len(methods) + 1)
    done = 0

    def tell(text: str) -> None:
        report(text, done / total)

    for case in cases:
        trial = Trial.of(case, images(case.size(size)), options.seed, device)
        bench = Bench(trial, options, results, tell)
        bench.reference(0, bounded=True)
        done += 1
        for name in methods:
            bench.measure(METHODS[name])
            done += 1
            keep(results)
    results.complete = True
    keep(results)
    report("done", 1.0)
    return results


def describe_run(options: BenchmarkOptions, device: torch.device, **more: Any) -> dict[str, Any]:
    """Date, machine and options, and ``more``."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        **more,
        "date": now,
        "device": device.type,
        "machine": machine(device),
        "reference_gap": REFERENCE_GAP,
        "options": asdict(options),
    }
