"""Adversarial regularization: a critic that tells clean images from damaged ones.

    mean R(clean) - mean R(damaged) + penalty E[(||grad R|| - 1)_+^2]        (eq. AR_loss)

The gradient is taken on lines between clean and damaged images. The damaged images are pictures
of the data, A^+ y (Lunz et al. 2018; Mukherjee et al. 2020 with convex networks).
"""

from __future__ import annotations

import math

import torch

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.tasks import Task
from convexlift.tensors import expand_per_image
from convexlift.training.data import Batch
from convexlift.training.objectives import Loss, Objective


class Adversarial(Objective):
    """The loss of adversarial regularization.

    Args:
        task: makes damaged images of clean ones.
        penalty: lambda_GP.
        paired: whether a line joins a clean image and its own damaged version, or the next
            image's.
    """

    mixed_precision_allowed = True
    metric_names = ("distance", "steepness")

    def __init__(self, task: Task, penalty: float = 5.0, *, paired: bool = True) -> None:
        super().__init__()
        if not 0 <= penalty < math.inf:
            raise ValueError(f"Adversarial needs penalty >= 0, got {penalty}")
        self.task = task
        self.penalty = penalty
        self.paired = paired

    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """See the module."""
        clean = batch.clean
        damaged = self.task.measure(clean, batch.generators(clean.device)).picture
        partner = damaged if self.paired else damaged.roll(1, 0)
        places = [
            torch.rand((), generator=generator, device=clean.device)
            for generator in batch.generators(clean.device, stream=1)
        ]
        s = expand_per_image(torch.stack(places), clean)
        between = (s * clean + (1 - s) * partner).requires_grad_()

        (slope,) = torch.autograd.grad(network(between).sum(), between, create_graph=True)
        steepness = slope.flatten(1).norm(dim=1)
        excess = (steepness - 1).clamp_min(0).square().mean()
        distance = (network(damaged) - network(clean)).mean()
        loss = self.penalty * excess - distance
        metrics = {"distance": distance.detach(), "steepness": steepness.detach().mean()}
        return Loss(loss, loss.detach(), metrics)
