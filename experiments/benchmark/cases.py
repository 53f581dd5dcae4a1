"""What is solved: a task, a regularizer, and the pictures both are tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.images import load_example
from convexlift.models.store import load
from convexlift.networks.architectures import deep
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.variational import VariationalProblem
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper, Task
from convexlift.training.data import ImageSet, mix
from convexlift.training.initialization import start_from_filters_

EXAMPLES = ("astronaut", "coffee", "chelsea", "rocket", "brick")
TUNING_EXAMPLE = "camera"
"""Step sizes are chosen on this picture, which is never measured."""

SIZE, QUICK_SIZE = 256, 64


@dataclass(frozen=True, eq=False)
class Case:
    """A task with a regularizer.

    Attributes:
        name: of the case.
        title: what is solved, in a line.
        task: damages clean images.
        network: makes the regularizer for square images of a size, from a seed if untrained.
        weight: of the regularizer; None for that of its card.
        only_size: the image size the regularizer is made for, or None for any.
    """

    name: str
    title: str
    task: Task
    network: Callable[[int, int], InputConvexNetwork]
    weight: float | None = None
    only_size: int | None = None

    def with_mask(self, mask: Tensor | None) -> Case:
        """With one mask for all images, (H, W), if this is about inpainting."""
        if mask is None or not isinstance(self.task, Inpainting):
            return self
        return replace(self, task=replace(self.task, mask=mask))

    def size(self, wanted: int) -> int:
        """The size of its images where ``wanted`` is that of the others."""
        return self.only_size or wanted


@dataclass(frozen=True, eq=False)
class Trial:
    """A case with its regularizer and clean images, ready to state problems."""

    case: Case
    regularizer: InputConvexNetwork
    weight: float
    clean: Tensor  # on the CPU: noise is the same for every device
    seed: int
    device: torch.device

    @classmethod
    def of(cls, case: Case, clean: Tensor, seed: int, device: torch.device) -> Trial:
        """Load the regularizer."""
        network = case.network(clean.shape[-1], seed).to(device)
        weight = case.weight
        if weight is None:
            assert network.card is not None
            weight = network.card.weights[case.task.name]
        return cls(case, network, weight, clean, seed, device)

    def truth(self, chosen: Sequence[int]) -> Tensor:
        """Clean images, on the device."""
        return self.clean[list(chosen)].to(self.device)

    def problem(self, chosen: Sequence[int], *, bounded: bool = True) -> VariationalProblem:
        """The problem of some of the images, with the task's box or without."""
        measured = self.measurement(chosen)
        if not bounded:
            measured = replace(measured, box=None)
        return measured.problem(self.regularizer, self.weight)

    def measurement(self, chosen: Sequence[int]) -> Measurement:
        """Data of some of the images, on the device."""
        generators = [torch.Generator().manual_seed(mix("benchmark", self.seed, i)) for i in chosen]
        return self.case.task.measure(self.clean[list(chosen)], generators).to(device=self.device)


def _shipped(name: str, size: int, seed: int) -> InputConvexNetwork:
    return load(name)


def _untrained_deep(size: int, seed: int) -> InputConvexNetwork:
    """About the total variation of 16 cosine filters; no deep network is shipped."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix("benchmark network", seed))
        network = deep(image_size=size)
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
"""Those with small pictures and a small network."""


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


def resized(image: Tensor, size: int) -> Tensor:
    """The middle square of an image (1, H, W), brought to size x size."""
    side = min(image.shape[-2:])
    top, left = (image.shape[-2] - side) // 2, (image.shape[-1] - side) // 2
    square = image[..., top : top + side, left : left + side]
    if side == size:
        return square
    scaled = F.interpolate(
        square[None], (size, size), mode="bicubic", antialias=True, align_corners=False
    )
    return scaled[0].clamp(0, 1)
