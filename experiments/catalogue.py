"""Names and titles of the experiments, and settings of the benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Heading(NamedTuple):
    """The name of an experiment, its title, and its section in the paper."""

    name: str
    title: str
    section: str


HEADINGS = {
    heading.name: heading
    for heading in (
        Heading("denoising", "Salt-and-pepper denoising", "section 5.1"),
        Heading("ct", "Sparse-view tomography, Poisson noise", "section 5.2"),
        Heading("ct-deep", "Tomography with a deeper network", "section 5.2.1"),
        Heading("inpainting", "Inpainting, smooth network", "section 5.3"),
        Heading("training", "Training schemes and solvers, inpainting", "section 5.3.1"),
    )
}
"""The experiments of ``registry``, by name."""
ALL = "all"
"""In place of a name: every experiment."""

REFERENCE_GAP = 1e-6
"""The certified relative gap asked of reference optima."""

SIZE, QUICK_SIZE = 256, 64
"""Sides of the pictures, where a regularizer allows any."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """Settings of a benchmark."""

    # batch sizes; each divides ``count``, so that all are made of the same images
    batches: tuple[int, ...] = (1,)
    # of the relative objective error and of the certified gap
    tolerances: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)
    count: int = 1  # images that are measured
    repeats: int = 5  # timed runs of each measurement, after one that warms up
    max_iterations: int = 2000  # limit of every run
    seconds: float = 300.0  # limit of every run
    # limit of the search for a reference optimum, in each precision
    reference_iterations: int = 10_000
    tuning_iterations: int = 300  # limit of the runs that choose step sizes
    coarse: bool = False  # choose step sizes from every second value of the grids
    seed: int = 0  # of noise, masks and untrained networks

    @classmethod
    def quick(cls) -> BenchmarkSettings:
        """Two tolerances, few iterations and coarse grids: minutes."""
        return cls(
            tolerances=(1e-2, 1e-3), repeats=3, max_iterations=300, seconds=10.0,
            reference_iterations=400, tuning_iterations=60, coarse=True,
        )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("batches", "tolerances"):
            _require_different(name, getattr(self, name))
        counts = ("count", "repeats", "max_iterations", "reference_iterations", "tuning_iterations")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds}")
        for tolerance in self.tolerances:
            if not REFERENCE_GAP < tolerance < 1:
                raise ValueError(
                    f"tolerances lie between {REFERENCE_GAP:g}, the accuracy of the reference "
                    f"optimum, and 1; got {tolerance:g}"
                )
        for batch in self.batches:
            if batch < 1 or self.count % batch:
                raise ValueError(
                    f"batch sizes divide the number of images, and {batch} does not divide "
                    f"{self.count}; choose another count"
                )


def _require_different(name: str, values: Sequence[float]) -> None:
    if not values:
        raise ValueError(f"{name} must name at least one value")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} names a value twice: {', '.join(f'{v:g}' for v in values)}")
