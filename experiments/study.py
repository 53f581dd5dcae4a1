"""What a run of an experiment is asked for, and what an experiment is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from experiments.document import Document
from experiments.parts import Part
from experiments.steps import Step


@dataclass(frozen=True)
class Study:
    """The options of a run.

    Attributes:
        quick: fewer images and iterations, for minutes on two cores.
        seed: of noise and masks.
        device: where to compute; noise is drawn on the CPU, the same for all devices.
        data: the data folder, or None for the images inside the package.
    """

    quick: bool = False
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data: Path | None = None


@dataclass(frozen=True, eq=False)
class Experiment:
    """One experiment of the paper.

    Attributes:
        name: of the command.
        title: a line.
        section: of the paper.
        steps: what to compute, in order, for a study.
        report: what was found, from the finished parts alone: it works where the data and the
            device of the computation are not.
    """

    name: str
    title: str
    section: str
    steps: Callable[[Study], Sequence[Step]]
    report: Callable[[Mapping[str, Part]], Document]
