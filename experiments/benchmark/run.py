"""``run_benchmark``: every method on every case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from experiments.benchmark.bench import Bench
from experiments.benchmark.cases import Case
from experiments.benchmark.results import Results
from experiments.catalogue import SIZE, BenchmarkSettings
from experiments.measuring import REFERENCE_GAP
from experiments.runner.run import machine, now


@dataclass(frozen=True, eq=False)
class Request:
    """The input of a benchmark."""

    cases: Sequence[Case]  # tasks with regularizers
    methods: Sequence[cl.NamedMethod]  # with the step sizes among which to choose
    # for a size, ``settings.count`` clean images and, last, one to choose steps on
    images: Callable[[int], Tensor]
    settings: BenchmarkSettings  # accuracies and limits
    device: torch.device  # where to compute
    size: int = SIZE  # of the images, where a case does not need another

    def about(self, **more: Any) -> dict[str, Any]:
        """Date, machine and settings, and ``more``."""
        return {
            **more,
            "size": self.size,
            "date": now(),
            "device": self.device.type,
            "machine": machine(self.device),
            "reference_gap": REFERENCE_GAP,
            "options": asdict(self.settings),
        }


def run_benchmark(
    request: Request,
    results: Results | None = None,
    tell: Callable[[str, float], None] = lambda text, done: None,
    keep: Callable[[Results], object] = lambda results: None,
) -> Results:
    """Measure every method on every case.

    Args:
        request: the input.
        results: to add to; on Ctrl-C it holds all that was measured so far.
        tell: called with the present work and the fraction that is done.
        keep: called whenever there is more to keep.
    """
    results = Results(request.about()) if results is None else results
    total, done = len(request.cases) * (len(request.methods) + 1), 0

    def show(text: str) -> None:
        tell(text, done / total)

    for case in request.cases:
        images = request.images(case.size(request.size))
        trial = case.trial(images, request.settings.seed, request.device)
        bench = Bench(case.name, trial, request.settings, results, show)
        bench.reference(0, bounded=True)
        done += 1
        for method in request.methods:
            bench.measure(method)
            done += 1
            keep(results)
    results.complete = True
    keep(results)
    tell("done", 1.0)
    return results
