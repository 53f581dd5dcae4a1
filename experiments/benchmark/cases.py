"""The settings of a benchmark, and its cases: tasks with a regularizer, and pictures for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import load_example
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet, mix, start_from_filters_
from experiments.images import EXAMPLES, TUNING_EXAMPLE, resized
from experiments.measuring import REFERENCE_GAP
from experiments.setups import Trial

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


@dataclass(frozen=True, eq=False)
class Case:
    """A task with a regularizer."""

    name: str  # of the case
    title: str  # a line
    task: Task  # damages clean images
    # makes the regularizer for square images of a size, from a seed if untrained
    network: Callable[[int, int], cl.InputConvexNetwork]
    weight: float | None = None  # of the regularizer; None for its card's
    only_size: int | None = None  # the image size the regularizer is made for, or None for any

    def with_mask(self, mask: Tensor) -> Case:
        """With one mask for all images, (H, W), if this is about inpainting."""
        if not isinstance(self.task, Inpainting):
            return self
        return replace(self, task=replace(self.task, mask=mask))

    def size(self, wanted: int) -> int:
        """The size of its images where other cases have the size ``wanted``."""
        return self.only_size or wanted

    def trial(self, clean: Tensor, seed: int, device: torch.device) -> Trial:
        """Load the regularizer."""
        network, weight = self.network(clean.shape[-1], seed).to(device), self.weight
        if weight is None:
            assert network.card is not None
            weight = network.card.weights[self.task.name]
        return Trial(self.task, network, weight, clean, seed, device)


def _shipped(name: str, size: int, seed: int) -> cl.InputConvexNetwork:
    return cl.load(name)


def _untrained_deep(size: int, seed: int) -> cl.InputConvexNetwork:
    """About the total variation of 16 cosine filters; no deep network is shipped."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix("benchmark network", seed))
        network = cl.networks.deep(image_size=size)
    start_from_filters_(network, strength=0.02)
    return network


def _any_size(name: str, title: str, task: Task) -> Case:
    return Case(f"any-size-{name}", f"{title}, photo-any-size", task,
                partial(_shipped, "photo-any-size"))  # fmt: skip


def _faces(name: str, title: str, task: Task, model: str) -> Case:
    return Case(name, f"{title}, {model}", task, partial(_shipped, model), only_size=256)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _faces("inpainting", "30 % missing, 3 % noise", Inpainting(), "faces-inpainting-bilevel"),
        _faces("inpainting-adversarial", "30 % missing, 3 % noise", Inpainting(),
               "faces-inpainting-adversarial"),
        _faces("salt-and-pepper", "25 % salt and pepper", SaltAndPepper(), "faces-denoising"),
        _any_size("gaussian", "10 % Gaussian noise", GaussianDenoising()),
        _any_size("inpainting", "30 % missing, 3 % noise", Inpainting()),
        _any_size("salt-and-pepper", "25 % salt and pepper", SaltAndPepper()),
        Case("deep", "10 % Gaussian noise, the deep network with untrained cosine filters",
             GaussianDenoising(), _untrained_deep, weight=0.4),
    )
}  # fmt: skip
"""By name."""

QUICK_CASES = tuple(name for name in CASES if name.startswith("any-size-"))
"""Cases with small pictures and a small network."""


def example_images() -> ImageSet:
    """The pictures inside the package; the one for choosing step sizes is the last."""
    names = (*EXAMPLES, TUNING_EXAMPLE)
    return ImageSet.from_tensors([load_example(name)[0, 0] for name in names], names)


def folder_images(folder: Path, count: int) -> ImageSet:
    """The first pictures of a folder, and one more for choosing step sizes."""
    return ImageSet.from_folder(folder, limit=count + 1)


def choose_images(images: ImageSet, count: int, size: int) -> Tensor:
    """The first ``count`` images and the last one, (count + 1, 1, size, size)."""
    if len(images) < count + 1:
        raise ValueError(
            f"{count} images to measure and one more to choose step sizes on are needed, and "
            f"there are {len(images)}; ask for a count of {max(len(images) - 1, 1)} or fewer, or "
            "give more images"
        )
    chosen = [*range(count), len(images) - 1]
    return torch.stack([resized(images[i], size) for i in chosen])
