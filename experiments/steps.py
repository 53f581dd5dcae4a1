"""An experiment as steps, each of which makes one part from the parts it needs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import convexlift
from convexlift.training.settings import plain_settings
from experiments.parts import Part, PartStore


@dataclass(frozen=True, eq=False)
class Work:
    """What a step is given: the parts it needs, and whom to tell how far it is.

    Attributes:
        parts: the finished parts named in ``Step.needs``.
        tell: called with the fraction of this step that is done.
    """

    parts: Mapping[str, Part]
    tell: Callable[[float], None] = lambda fraction: None


@dataclass(frozen=True, eq=False)
class Step:
    """One part and how to compute it.

    Attributes:
        name: of the part and of its files.
        settings: all that the result depends on, as records and plain values; the part is
            computed again when they change.
        compute: makes the part.
        needs: names of earlier steps whose parts it uses; it also depends on their settings.
        cost: seconds it may take on two cores; only their proportions matter, for the time left.
        title: what is being done, for people.
    """

    name: str
    settings: Mapping[str, Any]
    compute: Callable[[Work], Part]
    needs: tuple[str, ...] = ()
    cost: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        title: of the present step.
        done: cost of what was computed in this run, in units of ``total``.
        total: cost of all that had to be computed in this run; finished parts do not count.
    """

    title: str
    done: float
    total: float


Report = Callable[[Progress], None]


@dataclass(eq=False)
class Plan:
    """Steps in their order, with digests, and what is there already."""

    steps: Sequence[Step]
    store: PartStore
    digests: dict[str, str] = field(default_factory=dict)
    finished: dict[str, Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step in self.steps:
            unknown = [name for name in step.needs if name not in self.digests]
            if unknown or step.name in self.digests:
                raise ValueError(f"step {step.name!r} is named twice, or needs later {unknown}")
            self.digests[step.name] = self._digest(step)
            part = self.store.read(step.name, self.digests[step.name])
            if part is not None:
                self.finished[step.name] = part

    @property
    def missing(self) -> list[Step]:
        """Steps whose parts are not there."""
        return [step for step in self.steps if step.name not in self.finished]

    def run(self, about: Mapping[str, Any], report: Report = lambda progress: None) -> None:
        """Compute and keep what is missing; Ctrl-C loses the step it interrupts, no more."""
        todo = self.missing
        total, done = sum(step.cost for step in todo), 0.0
        for step in todo:
            title = step.title or step.name

            def tell(
                fraction: float, step: Step = step, before: float = done, title: str = title
            ) -> None:
                report(Progress(title, before + step.cost * min(max(fraction, 0.0), 1.0), total))

            tell(0.0)
            began = time.perf_counter()
            part = step.compute(Work({name: self.finished[name] for name in step.needs}, tell))
            seconds = time.perf_counter() - began
            part = replace(part, about={**about, **part.about, "seconds": seconds})
            self.store.write(step.name, self.digests[step.name], part)
            self.finished[step.name] = part
            done += step.cost
        report(Progress("done", total, total))

    def _digest(self, step: Step) -> str:
        content = {
            "version": convexlift.__version__,
            "settings": plain_settings(step.settings),
            "needs": [self.digests[name] for name in step.needs],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
