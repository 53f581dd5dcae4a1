"""Adversarial regularization: a critic that tells clean images from damaged ones.

    mean R(clean) - mean R(damaged) + penalty E[(||grad R|| - 1)_+^2]        (eq. AR_loss)

The gradient is taken on lines between clean and damaged images. The damaged images are pictures
of the data, A^+ y (Lunz et al. 2018; Mukherjee et al. 2020 with convex networks).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from convexlift.networks.derivatives import gradient
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.tasks import Task
from convexlift.tensors import expand_per_image
from convexlift.training.data import Batch, ImageSet
from convexlift.training.distributed import gather
from convexlift.training.objectives import Loss, Objective


class Adversarial(Objective):
    """The loss of adversarial regularization.

    Args:
        task: makes damaged images of clean ones; None if they are given.
        penalty: lambda_GP.
        paired: whether a line joins a clean image and its own damaged version, or the next
            image's.
        damaged: images in place of a task's, one for each training image and of its size, for
            batches of whole images that are not mirrored.
    """

    mixed_precision_allowed = True
    metric_names = ("distance", "steepness")

    def __init__(
        self,
        task: Task | None,
        penalty: float = 5.0,
        *,
        paired: bool = True,
        damaged: ImageSet | None = None,
    ) -> None:
        super().__init__()
        if (task is None) == (damaged is None):
            raise ValueError("Adversarial needs a task that damages images, or damaged images")
        if not 0 <= penalty < math.inf:
            raise ValueError(f"Adversarial needs penalty >= 0, got {penalty}")
        self.task = task
        self.penalty = penalty
        self.paired = paired
        self.damaged = damaged

    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """See the module."""
        clean = batch.clean
        damaged = self._damage(batch)
        partner = damaged if self.paired else _previous(damaged, batch)
        places = [
            torch.rand((), generator=generator, device=clean.device)
            for generator in batch.generators(clean.device, stream=1)
        ]
        s = expand_per_image(torch.stack(places), clean)
        between = s * clean + (1 - s) * partner

        slope = gradient(network.bind(tuple(clean.shape[1:]), detach=False), between)
        steepness = slope.flatten(1).norm(dim=1)
        excess = (steepness - 1).clamp_min(0).square().mean()
        on_damaged, on_clean = network(torch.cat([damaged, clean])).chunk(2)
        distance = (on_damaged - on_clean).mean()
        loss = self.penalty * excess - distance
        metrics = {"distance": distance.detach(), "steepness": steepness.detach().mean()}
        return Loss(loss, loss.detach(), metrics)

    def settings(self) -> dict[str, Any]:
        """See ``Objective``."""
        names = ("task", "penalty", "paired", "damaged")
        return {**super().settings(), **{name: getattr(self, name) for name in names}}

    def _damage(self, batch: Batch) -> Tensor:
        clean = batch.clean
        if self.task is not None:
            return self.task.measure(clean, batch.generators(clean.device)).picture
        assert self.damaged is not None
        if (last := int(batch.indices.max())) >= len(self.damaged):
            raise ValueError(
                f"image {last} of the training set has no damaged version: there are "
                f"{len(self.damaged)}; give one for each, in the same order"
            )
        pictures = torch.stack([self.damaged[i] for i in batch.indices.tolist()]).to(clean)
        if pictures.shape != clean.shape:
            raise ValueError(
                f"damaged images of {tuple(pictures.shape[1:])} do not match clean ones of "
                f"{tuple(clean.shape[1:])}"
            )
        return pictures


def _previous(damaged: Tensor, batch: Batch) -> Tensor:
    """The damaged image one place before each, in the batch of all processes together."""
    everyone, places = gather(damaged), gather(batch.positions.to(damaged.device))
    in_order = everyone[places.argsort()]
    return in_order[(batch.positions.to(damaged.device) - 1) % len(in_order)]
