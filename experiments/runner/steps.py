"""A study as steps, each of which makes one part from the parts it needs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import convexlift as cl
from convexlift.training import plain_settings
from experiments.runner.parts import Part, Parts, PartStore


@dataclass(frozen=True, eq=False)
class Work:
    """The input of a step."""

    parts: Parts  # the finished parts named in ``Step.needs``
    # called with the fraction of this step that is done
    tell: Callable[[float], None] = lambda fraction: None


@dataclass(frozen=True, eq=False)
class Step:
    """One part and how to compute it."""

    name: str  # of the part and of its files
    # all that the result depends on, as records and plain values; the part is computed again when
    # they change
    settings: Mapping[str, Any]
    compute: Callable[[Work], Part]  # makes the part
    # names of earlier steps whose parts it uses; it also depends on their settings
    needs: tuple[str, ...] = ()
    # seconds it may take on two cores; only proportions matter, for the time left
    cost: float = 1.0
    title: str = ""  # shown while it is computed


Listener = Callable[[str, float, float], object]
"""Called with the title of the present step, the cost of all that is done, and the total cost.

Parts that were finished before this run count in neither.
"""


@dataclass(eq=False)
class Plan:
    """Steps in their order, their digests, and the parts that are finished."""

    steps: Sequence[Step]
    store: PartStore
    digests: dict[str, str] = field(default_factory=dict, init=False)
    finished: dict[str, Part] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for step in self.steps:
            unknown = set(step.needs) - set(self.digests)
            if step.name in self.digests or unknown:
                raise ValueError(f"step {step.name!r} is named twice, or needs later {unknown}")
            content = {
                "version": cl.__version__,
                "settings": plain_settings(step.settings),
                "needs": [self.digests[name] for name in step.needs],
            }
            text = json.dumps(content, sort_keys=True)
            digest = self.digests[step.name] = hashlib.sha256(text.encode()).hexdigest()
            if (part := self.store.read(step.name, digest)) is not None:
                self.finished[step.name] = part

    @property
    def missing(self) -> list[Step]:
        """Steps whose parts are absent."""
        return [step for step in self.steps if step.name not in self.finished]

    def run(
        self, about: Mapping[str, Any], listener: Listener = lambda title, done, total: None
    ) -> None:
        """Compute and keep the missing parts; Ctrl-C loses only the step that it interrupts."""
        todo = self.missing
        total, done = sum(step.cost for step in todo), 0.0
        for step in todo:

            def tell(fraction: float, step: Step = step, before: float = done) -> None:
                cost = step.cost * min(max(fraction, 0.0), 1.0)
                listener(step.title or step.name, before + cost, total)

            tell(0.0)
            began = time.perf_counter()
            part = step.compute(Work({name: self.finished[name] for name in step.needs}, tell))
            seconds = time.perf_counter() - began
            part = replace(part, about={**about, **part.about, "seconds": seconds})
            self.store.write(step.name, self.digests[step.name], part)
            self.finished[step.name] = part
            done += step.cost
        listener("done", total, total)
