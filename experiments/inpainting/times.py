"""Seconds to an objective error: Table 1 of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.runner import Array, Parts
from experiments.tables import Table, number

OURS = {"proposed": "Proposed", "searched": "Proposed *", "default": "Default"}
"""Methods whose speed-up over the others is shown."""


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds and iterations to the error, by the key of the method.

    Means are None unless all images got there: a mean over some of them would flatter.
    """

    parts: Parts

    @classmethod
    def of(cls, parts: Parts) -> Times:
        """All methods that were timed."""
        timed = [part for name, part in parts.items() if name.startswith("time-")]
        return cls({part.values["key"]: part for part in timed})

    def label(self, key: str) -> str:
        """The label of a method."""
        return str(self.parts[key].values["label"])

    def all_reached(self, key: str) -> bool:
        """Whether all images got there."""
        return self.mean(key) is not None

    def mean(self, key: str) -> float | None:
        """Seconds, mean over the images."""
        return _known(self._values(key, "seconds").mean())

    def deviation(self, key: str) -> float | None:
        """The standard deviation of the seconds over the images, if there are several."""
        seconds = self._values(key, "seconds")
        return _known(seconds.std(ddof=1)) if len(seconds) > 1 else None

    def speed_up(self, key: str, over: str) -> float | None:
        """The factor by which ``over`` takes longer than ``key``, mean over the images."""
        return _known((self._values(over, "seconds") / self._values(key, "seconds")).mean())

    def fastest(self, family: str) -> str | None:
        """The key of the fastest with step sizes that are not the paper's."""
        means = {
            key: mean
            for key, part in self.parts.items()
            if part.values["family"] == family and not part.values["printed"]
            if (mean := self.mean(key)) is not None
        }
        return min(means, key=means.__getitem__) if means else None

    def table(self) -> Table:
        """Mean and deviation of seconds, iterations, speed-ups, and images that got there."""
        rows = []
        for key, part in self.parts.items():
            deviation, steps = self.deviation(key), self._values(key, "iterations")
            rows.append(
                (
                    self.label(key) + ("" if part.values["printed"] else " *"),
                    number(self.mean(key)) + (f" ± {number(deviation)}" if deviation else ""),
                    "-" if np.isnan(steps).any() else f"{steps.mean():.0f}",
                    *(number(self.speed_up(ours, key)) for ours in OURS),
                    f"{np.isfinite(steps).sum()} of {len(steps)}",
                )
            )
        faster = (f"{label} is faster" for label in OURS.values())
        return Table("times", ("Method", "Seconds", "Iterations", *faster, "Reached"), tuple(rows))

    def as_plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [dict(part.values) for part in self.parts.values()]

    def _values(self, key: str, name: str) -> Array:
        """Of all images; NaN where the error was not reached."""
        return np.array(self.parts[key].values[name], dtype=float)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
