"""A case with its images: the problems that are solved, and what results depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from convexlift.images import psnr
from convexlift.training.settings import plain_settings
from experiments.benchmark.cases import Case, Trial
from experiments.competitors import Competitor
from experiments.curves import Start, batches
from experiments.data import Images
from experiments.parts import Part
from experiments.study import Study


@dataclass(frozen=True, eq=False)
class Setup:
    """The problems of an experiment.

    Attributes:
        case: task, regularizer and weight; its box is [0, 1] or another that contains the images,
            since the certificate needs one.
        images: clean ones.
        study: seed and device.
        prefix: of the names of its parts, where an experiment has several set-ups.
    """

    case: Case
    images: Images
    study: Study
    prefix: str = ""

    @cached_property
    def trial(self) -> Trial:
        """With the regularizer loaded."""
        return Trial.of(self.case, self.images.clean, self.study.seed, self.study.device)

    @property
    def count(self) -> int:
        """How many images there are."""
        return len(self.images.names)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What every result depends on: task, weights of the network, images, seed, device."""
        return {
            "task": plain_settings(self.case.task),
            "weight": self.trial.weight,
            "network": plain_settings(list(self.trial.regularizer.state_dict().values())),
            "images": plain_settings(self.images.clean),
            "seed": self.study.seed,
            "device": self.study.device.type,
        }

    def start(
        self, chosen: Sequence[int], competitor: Competitor, *, bounded: bool = True
    ) -> Start:
        """The problem of some images, and where a method begins: at the data, as in the paper."""
        measured = self.trial.measurement(chosen)
        if not bounded:
            measured = replace(measured, box=None)
        return Start(
            measured.problem(self.trial.regularizer, self.trial.weight),
            self.trial.truth(chosen),
            None if competitor.own_start else measured.picture,
        )

    def starts(self, count: int, competitor: Competitor, *, bounded: bool = True) -> list[Start]:
        """All of the first ``count`` images, in batches that suit the device."""
        groups = batches(min(count, self.count), self.study.device)
        return [self.start(group, competitor, bounded=bounded) for group in groups]

    def data(self) -> Part:
        """What is given: names, PSNR of the data, and the first clean image with its data."""
        quality = []
        for i in range(self.count):
            picture = self.trial.measurement([i]).picture
            quality.append(float(psnr(picture, self.trial.truth([i]))))
        first = self.trial.measurement([0])
        return Part(
            {
                "names": list(self.images.names),
                "source": self.images.source,
                "faithful": self.images.faithful,
                "mask": self.images.mask is not None,
                "weight": self.trial.weight,
                "regularizer": self.case.title,
                "psnr": quality,
                "quick": self.study.quick,
            },
            {
                "clean": self.images.clean[0, 0].numpy(),
                "picture": first.picture[0, 0].cpu().numpy(),
            },
        )
