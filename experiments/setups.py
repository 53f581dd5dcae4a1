"""A task with a regularizer and clean images: the problems of a study, and its steps on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from convexlift.tasks import Measurement, Task
from convexlift.training import mix, plain_settings
from experiments.images import Images
from experiments.runner import Part, Parts, Step, Study, Work


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
    ) -> Step:
        """A step on these problems; ``name`` is without the prefix."""
        return Step(
            self.prefix + name,
            {**self.settings, **(settings or {})},
            lambda work: compute(self.trial(work.parts), work),
            (*self.regularizer.needs, *needs),
            cost,
            title or name,
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
