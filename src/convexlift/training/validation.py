"""Validation: PSNR and SSIM of reconstructions of held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convexlift.images import psnr, ssim
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.parts import require_positive
from convexlift.solvers.method import Method
from convexlift.solvers.solution import StopWhen
from convexlift.solvers.solve import solve
from convexlift.tasks import Measurement, Task
from convexlift.training.image_sets import ImageSet, mix


@dataclass(frozen=True, eq=False)
class Score:
    """The result of a validation: PSNR and SSIM for each image, and the weight used."""

    psnr: Tensor
    ssim: Tensor
    weight: float
    gap: Tensor
    iterations: Tensor

    def summary(self) -> dict[str, float]:
        """Mean PSNR and SSIM, and the weight."""
        means = {"psnr": float(self.psnr.mean()), "ssim": float(self.ssim.mean())}
        return {**means, "weight": self.weight}


@dataclass(frozen=True, eq=False)
class Validation:
    """Reconstructions of held-out images, with the same noise every time.

    Args:
        task: the task, which damages the images.
        images: held-out images, never used in training.
        weight: the regularization weight, or the start of a search.
        search: whether to search for the weight, by factors of ``ratio``, for the best mean PSNR.
        crop: side of the central part of every image, or None for whole images.
        method: the method of the solver.
        stop: the stopping criterion of the solver.
        seed: the seed of the noise.
        ratio: the ratio of neighbouring weights in the search.
        from_picture: start at the data as an image, instead of at a better guess.
    """

    task: Task
    images: ImageSet
    weight: float = 1.0
    search: bool = False
    crop: int | None = None
    method: Method | None = None
    stop: StopWhen = field(default_factory=lambda: StopWhen(gap=1e-3, max_iterations=300))
    seed: int = 0
    ratio: float = 1.3
    from_picture: bool = False

    def __post_init__(self) -> None:
        require_positive(self, weight=self.weight)
        if not 1 < self.ratio < math.inf:
            raise ValueError(f"Validation needs ratio > 1, got ratio={self.ratio}")
        if self.crop is not None:
            self.images.require_at_least((self.crop, self.crop))
        else:
            self.images.require_size(self.images.size(0))

    def __call__(self, network: InputConvexNetwork, weight: float | None = None) -> Score:
        """Validate a network; a search for the weight starts from ``weight``."""
        parameter = next(network.parameters())
        clean = self._clean().to(parameter)
        # One generator for each image, so that its noise does not depend on the others.
        generators = [
            torch.Generator(clean.device).manual_seed(mix("validation", self.seed, i))
            for i in range(len(clean))
        ]
        measurement = self.task.measure(clean, generators)
        first = self.weight if weight is None else weight
        if not self.search:
            return self._score(network, measurement, clean, first)
        scores: dict[int, Score] = {}

        def score(power: int) -> float:
            if power not in scores:
                scores[power] = self._score(network, measurement, clean, first * self.ratio**power)
            return float(scores[power].psnr.mean())

        best = climb(score)
        return scores[best]

    def total_variation(self, like: InputConvexNetwork) -> Score:
        """Isotropic total variation in place of the network, with its best weight on the images.

        Args:
            like: a network with the channels, device and precision to use.
        """
        tv = TotalVariation(in_channels=like.in_channels).to(next(like.parameters()))
        return replace(self, weight=0.1, search=True, method=None, from_picture=False)(tv)

    def _score(
        self, network: InputConvexNetwork, measurement: Measurement, clean: Tensor, weight: float
    ) -> Score:
        problem = measurement.problem(network, weight)
        start = measurement.picture if self.from_picture else None
        solution = solve(problem, method=self.method, stop=self.stop, start=start)
        return Score(
            psnr(solution.x, clean),
            ssim(solution.x, clean),
            weight,
            solution.gap,
            solution.iterations,
        )

    def _clean(self) -> Tensor:
        pictures = [self.images[i] for i in range(len(self.images))]
        if self.crop is not None:
            pictures = [_middle(picture, self.crop) for picture in pictures]
        return torch.stack(pictures)


def climb(score: Callable[[int], float], limit: int = 20) -> int:
    """A local maximum over the integers, starting from 0: in strides of four, then of one."""
    here = 0
    for stride in (4, 1):
        for _ in range(limit):
            best = max((here, here - stride, here + stride), key=score)
            if best == here:
                break
            here = best
    return here


def _middle(picture: Tensor, size: int) -> Tensor:
    top, left = (picture.shape[-2] - size) // 2, (picture.shape[-1] - size) // 2
    return picture[..., top : top + size, left : left + size]
