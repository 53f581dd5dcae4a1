"""Regularizers that an experiment trains itself: a part with weights, and steps that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.solvers.stopping import StopWhen
from convexlift.tasks import Task
from convexlift.training.data import ImageSet
from convexlift.training.loop import Report
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe, Outcome, follow
from convexlift.training.validation import Score, Validation
from experiments.parts import Part
from experiments.setup import Setup
from experiments.steps import Step, Work
from experiments.study import Study

WEIGHTS = "weights."
"""Arrays of a part that are weights begin so."""

Parts = Mapping[str, Part]


@dataclass(frozen=True, eq=False)
class Training:
    """One training of an experiment.

    Attributes:
        name: of its part.
        recipe: what to do.
        images: to learn from.
        validation: to choose the weight and the best moment on; None holds some of them out.
        study: device.
        start: makes the network to start from, from the parts of ``needs``; None for the
            recipe's own start.
        needs: earlier trainings.
        cost: see ``Step``.
        title: what is trained.
    """

    name: str
    recipe: AdversarialRecipe | BilevelRecipe
    images: ImageSet
    validation: ImageSet | None
    study: Study
    start: Callable[[Parts], InputConvexNetwork] | None = None
    needs: tuple[str, ...] = ()
    cost: float = 1.0
    title: str = ""

    def step(self) -> Step:
        """The training as a step, whose part holds the weights in half precision."""
        return Step(self.name, self.settings, self._compute, self.needs, self.cost, self.title)

    @property
    def settings(self) -> dict[str, Any]:
        """What the weights depend on."""
        return {
            "recipe": self.recipe,
            "images": self.images,
            "image_size": list(self.images.size(0)),
            "validation": self.validation,
            "seed": self.study.seed,
            "device": self.study.device.type,
        }

    def network(self, part: Part) -> InputConvexNetwork:
        """What was trained, on the device; always the weights as they are in the part."""
        network = self.recipe.network.build(self.images.size(0), self.recipe.seed).float()
        stored = {
            name.removeprefix(WEIGHTS): torch.from_numpy(array.astype(np.float32))
            for name, array in part.arrays.items()
            if name.startswith(WEIGHTS)
        }
        network.load_state_dict(stored)
        network.check_convexity()
        return network.to(self.study.device)

    def follow(self, work: Work) -> Outcome:
        """Train."""

        def tell(report: Report) -> None:
            work.tell(report.step / report.steps)

        outcome = follow(
            self.recipe,
            self.images,
            network=None if self.start is None else self.start(work.parts),
            validation_images=self.validation,
            device=self.study.device,
            callback=tell,
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


def training_values(outcome: Outcome, recipe: AdversarialRecipe | BilevelRecipe) -> dict[str, Any]:
    """How a training went: weight of the regularizer, seconds, PSNR on the validation images."""
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
class LearnedSetup:
    """A set-up whose regularizer earlier steps make; its steps can be planned before.

    Attributes:
        settings: what its results depend on, beside the parts it needs.
        needs: the parts that hold its regularizer.
        make: the set-up, from those parts.
        prefix: of the names of its parts.
    """

    settings: Mapping[str, Any]
    needs: tuple[str, ...]
    make: Callable[[Parts], Setup]
    prefix: str = ""
    _made: dict[tuple[int, ...], Setup] = field(default_factory=dict, init=False, repr=False)

    def step(
        self,
        name: str,
        make: Callable[[Setup, Parts], Step],
        settings: Mapping[str, Any] | None = None,
        *,
        needs: tuple[str, ...] = (),
        cost: float = 1.0,
        title: str = "",
    ) -> Step:
        """A step that is made when it is computed.

        Args:
            name: of the part, without the prefix.
            make: the step that does the work, from the set-up and all parts that are needed.
            settings: what the result depends on, beside what the set-up does.
            needs: further parts.
            cost: see ``Step``.
            title: see ``Step``.
        """

        def compute(work: Work) -> Part:
            return make(self._setup(work.parts), work.parts).compute(work)

        return Step(
            self.prefix + name, {**self.settings, **(settings or {})}, compute,
            (*self.needs, *needs), cost, title or name,
        )  # fmt: skip

    def _setup(self, parts: Parts) -> Setup:
        """Made once: loading weights and computing norms takes time."""
        key = tuple(id(parts[name]) for name in self.needs)
        if key not in self._made:
            self._made.clear()
            self._made[key] = self.make(parts)
        return self._made[key]


@dataclass(frozen=True, eq=False)
class Scoring:
    """Reconstructions of test images, solved by the default to a certified gap.

    Attributes:
        task: damages the images.
        images: never trained on.
        stop: of the solver.
        study: seed and device.
    """

    task: Task
    images: ImageSet
    stop: StopWhen
    study: Study

    @property
    def settings(self) -> dict[str, Any]:
        """What scores depend on, beside network and weight."""
        return {
            "task": self.task,
            "images": self.images,
            "stop": self.stop,
            "seed": self.study.seed,
            "device": self.study.device.type,
        }

    def values(self, network: InputConvexNetwork, weight: float) -> dict[str, Any]:
        """Scores with one weight."""
        score: Score = Validation(
            self.task, self.images, weight=weight, stop=self.stop, seed=self.study.seed
        )(network.to(self.study.device))
        return {
            "weight": weight,
            "psnr": score.psnr.tolist(),
            "ssim": score.ssim.tolist(),
            "gap": score.gap.tolist(),
            "iterations": score.iterations.tolist(),
        }
