"""Regularizers that an experiment trains itself: a part with weights, and their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import convexlift as cl
from convexlift.tasks import Task
from convexlift.training import (
    AnyRecipe,
    ImageSet,
    RecipeResult,
    Validation,
    follow,
)
from experiments.runner import Part, Parts, Step, Study, Work
from experiments.setups import Regularizer

WEIGHTS = "weights."
"""The prefix of arrays that are weights."""


@dataclass(frozen=True, eq=False)
class Training:
    """One training of an experiment."""

    name: str  # of its part
    recipe: AnyRecipe  # what to do
    images: ImageSet  # to learn from
    # to choose the weight and the best moment on; None holds some of them out
    validation: ImageSet | None
    study: Study  # device
    # makes the network to start from, from the parts of ``needs``; None for the recipe's own
    # start
    start: Callable[[Parts], cl.InputConvexNetwork] | None = None
    needs: tuple[str, ...] = ()  # earlier trainings
    cost: float = 1.0  # see ``Step``
    title: str = ""  # what is trained

    def step(self) -> Step:
        """The training as a step, whose part holds the weights in half precision."""
        return Step(self.name, self.settings, self._compute, self.needs, self.cost, self.title)

    @property
    def settings(self) -> dict[str, Any]:
        """All that the weights depend on."""
        return {
            "recipe": self.recipe,
            "images": self.images,
            "image_size": list(self.images.size(0)),
            "validation": self.validation,
            "seed": self.study.seed,
            "device": self.study.device.type,
        }

    def network(self, part: Part) -> cl.InputConvexNetwork:
        """The trained network, on the device; always with the weights as they are in the part."""
        network = self.recipe.network.build(self.images.size(0), self.recipe.seed).float()
        stored = {
            name.removeprefix(WEIGHTS): torch.from_numpy(array.astype(np.float32))
            for name, array in part.arrays.items()
            if name.startswith(WEIGHTS)
        }
        network.load_state_dict(stored)
        network.check_convexity()
        return network.to(self.study.device)

    def regularizer(self, title: str) -> Regularizer:
        """The trained network with its best weight."""

        def make(parts: Parts) -> tuple[cl.InputConvexNetwork, float]:
            part = parts[self.name]
            return self.network(part), part.values["weight"]

        return Regularizer(title, make, (self.name,))

    def follow(self, work: Work) -> RecipeResult:
        """Train."""
        outcome = follow(
            self.recipe,
            self.images,
            network=None if self.start is None else self.start(work.parts),
            validation_images=self.validation,
            device=self.study.device,
            callback=lambda report: work.tell(report.step / report.steps),
        )
        if outcome.trained.interrupted:
            raise KeyboardInterrupt  # half a training is none
        return outcome

    def _compute(self, work: Work) -> Part:
        outcome = self.follow(work)
        state = outcome.trained.network.state_dict()
        return Part(
            training_values(outcome, self.recipe),
            {WEIGHTS + name: value.cpu().numpy().astype(np.float16)
             for name, value in state.items()},
        )  # fmt: skip


def training_values(outcome: RecipeResult, recipe: AnyRecipe) -> dict[str, Any]:
    """The weight of the regularizer, seconds, and PSNR on the validation images."""
    score = outcome.trained.score or {}
    return {
        "weight": next(iter(outcome.weights.values())),
        "seconds": outcome.trained.seconds,
        "validation_psnr": score.get("psnr"),
        "steps": recipe.options.steps,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.options.learning_rate,
    }


@dataclass(frozen=True, eq=False)
class Scoring:
    """Reconstructions of test images by the default solver, to a certified gap."""

    task: Task  # damages the images
    images: ImageSet  # never trained on
    stop: cl.StopWhen  # of the solver
    study: Study  # seed and device

    @property
    def settings(self) -> dict[str, Any]:
        """All that scores depend on, except network and weight."""
        return {
            "task": self.task,
            "images": self.images,
            "stop": self.stop,
            "seed": self.study.seed,
            "device": self.study.device.type,
        }

    def values(self, network: cl.InputConvexNetwork, weight: float) -> dict[str, Any]:
        """Scores with one weight."""
        score = Validation(
            self.task, self.images, weight=weight, stop=self.stop, seed=self.study.seed
        )(network.to(self.study.device))
        return {
            "weight": weight,
            "psnr": score.psnr.tolist(),
            "ssim": score.ssim.tolist(),
            "gap": score.gap.tolist(),
            "iterations": score.iterations.tolist(),
        }
