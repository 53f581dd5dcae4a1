"""The cases of a benchmark: tasks with a regularizer, and pictures for both."""

from __future__ import annotations

from collections.abc import Callable
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
from experiments.setups import Trial


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
