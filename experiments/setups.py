"""A task with images and a regularizer, loaded or trained: the problems of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from convexlift.tasks import Measurement, Task
from convexlift.training import (
    AnyRecipe,
    ImageSet,
    RecipeResult,
    Validation,
    follow,
    mix,
    plain_settings,
)
from experiments.images import Images
from experiments.runner import Part, Parts, Step, Study, Work

WEIGHTS = "weights."
"""The prefix of arrays that are weights."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A task, a regularizer with its weight, and clean images, from which problems are stated."""

    task: Task
    network: cl.InputConvexNetwork
    weight: float
    clean: Tensor  # on the CPU: noise is the same for every device
    seed: int
    device: torch.device

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self.clean)

    def truth(self, chosen: Sequence[int]) -> Tensor:
        """Clean images, on the device."""
        return self.clean[list(chosen)].to(self.device)

    def measurement(self, chosen: Sequence[int], *, bounded: bool = True) -> Measurement:
        """Data of some of the images, on the device, with the task's box or without."""
        generators = [torch.Generator().manual_seed(mix("benchmark", self.seed, i)) for i in chosen]
        found = self.task.measure(self.clean[list(chosen)], generators).to(device=self.device)
        return found if bounded else replace(found, box=None)

    def problem(self, chosen: Sequence[int], *, bounded: bool = True) -> cl.VariationalProblem:
        """The problem of some of the images."""
        return self.measurement(chosen, bounded=bounded).problem(self.network, self.weight)


@dataclass(frozen=True, eq=False)
class Regularizer:
    """R with its weight."""

    title: str  # a line
    # R and its weight, from the parts of ``needs``
    make: Callable[[Parts], tuple[cl.InputConvexNetwork, float]]
    needs: tuple[str, ...] = ()  # steps that train it; none if it is known from the start

    @classmethod
    def loaded(cls, name: str, task: Task, weight: float | None = None) -> Regularizer:
        """A shipped one or one in a file, with a weight or the one of its card."""

        def make(parts: Parts) -> tuple[cl.InputConvexNetwork, float]:
            network = cl.load(name)
            if weight is not None:
                return network, weight
            assert network.card is not None
            return network, network.card.weights[task.name]

        return cls(name, make)


@dataclass(frozen=True, eq=False)
class Setup:
    """The problems of an experiment."""

    task: Task  # its box contains the images, since the certificate needs a box
    regularizer: Regularizer  # perhaps trained by earlier steps
    images: Images  # clean ones
    study: Study  # seed and device
    prefix: str = ""  # of the names of its parts, where an experiment has several set-ups
    _trials: list[Trial] = field(default_factory=list, init=False, repr=False)

    def trial(self, parts: Parts) -> Trial:
        """With the regularizer; made once, as loading it and computing norms takes time."""
        if not self._trials:
            network, weight = self.regularizer.make(parts)
            study = self.study
            self._trials.append(
                Trial(self.task, network.to(study.device), weight, self.images.clean, study.seed,
                      study.device)
            )  # fmt: skip
        return self._trials[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that results depend on: task, images, seed, device, and a network if it is known."""
        known: dict[str, Any] = {}
        if not self.regularizer.needs:
            trial = self.trial({})
            known = {"weight": trial.weight, "network": list(trial.network.state_dict().values())}
        settings = {
            "task": self.task,
            "images": self.images.clean,
            "seed": self.study.seed,
            "device": self.study.device.type,
            **known,
        }
        return {name: plain_settings(value) for name, value in settings.items()}

    def step(
        self,
        name: str,
        compute: Callable[[Trial, Work], Part],
        settings: Mapping[str, Any] | None = None,
        *,
        needs: Sequence[str] = (),
        cost: float = 1.0,
        title: str = "",
        alone: bool = False,
    ) -> Step:
        """A step on these problems; ``name`` is without the prefix."""
        return Step(
            self.prefix + name,
            {**self.settings, **(settings or {})},
            lambda work: compute(self.trial(work.parts), work),
            (*self.regularizer.needs, *needs),
            cost,
            title or name,
            alone,
        )

    def data(self, trial: Trial, work: Work) -> Part:
        """Names, PSNR of the data, and the first clean image with its data."""
        pictures = [trial.measurement([i]).picture for i in range(trial.count)]
        quality = [float(psnr(each, trial.truth([i]))) for i, each in enumerate(pictures)]
        return Part(
            {
                "names": list(self.images.names),
                "source": self.images.source,
                "faithful": self.images.faithful,
                "mask": self.images.mask is not None,
                "weight": trial.weight,
                "regularizer": self.regularizer.title,
                "psnr": quality,
                "quick": self.study.quick,
            },
            {
                "clean": self.images.clean[0, 0].numpy(),
                "picture": pictures[0][0, 0].cpu().numpy(),
            },
        )


@dataclass(frozen=True, eq=False)
class Training:
    """One training of an experiment."""

    name: str  # of its part
    recipe: AnyRecipe
    images: ImageSet  # to learn from
    # to choose the weight and the best moment on; None holds some of them out
    validation: ImageSet | None
    study: Study  # device
    # makes the initial network, from the parts of ``needs``; None for the recipe's
    start: Callable[[Parts], cl.InputConvexNetwork] | None = None
    needs: tuple[str, ...] = ()  # earlier trainings
    cost: float = 1.0  # see ``Step``
    title: str = ""  # shown while it runs

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
