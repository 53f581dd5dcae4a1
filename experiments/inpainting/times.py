"""Seconds to an objective error: Table 1 of the paper."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from experiments.runner import Parts
from experiments.tables import Table, number

OURS = {"proposed": "Proposed", "searched": "Proposed *", "default": "Default"}
"""Methods whose speed-up over the others is shown."""


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds to the error for every method and image; None where it was not reached."""

    parts: Parts

    @classmethod
    def of(cls, parts: Parts) -> Times:
        """Of all methods that were timed, by their keys."""
        timed = [part for name, part in parts.items() if name.startswith("time-")]
        return cls({part.values["key"]: part for part in timed})

    def seconds(self, key: str) -> list[float]:
        """Of the images that got there."""
        return [each for each in self.parts[key].values["seconds"] if each is not None]

    def iterations(self, key: str) -> list[int]:
        """Of the images that got there."""
        return [each for each in self.parts[key].values["iterations"] if each is not None]

    def all_reached(self, key: str) -> bool:
        """Whether all images did."""
        return None not in self.parts[key].values["seconds"]

    def mean(self, key: str) -> float | None:
        """Seconds, if all images got there: a mean over some of them would flatter."""
        return statistics.mean(self.seconds(key)) if self.all_reached(key) else None

    def deviation(self, key: str) -> float | None:
        """Over the images."""
        several = self.all_reached(key) and len(self.seconds(key)) > 1
        return statistics.stdev(self.seconds(key)) if several else None

    def speed_up(self, key: str, over: str) -> float | None:
        """Mean over the images of how many times longer ``over`` takes than ``key``."""
        if not (self.all_reached(key) and self.all_reached(over)):
            return None
        pairs = zip(self.seconds(over), self.seconds(key), strict=True)
        return statistics.mean(slow / fast for slow, fast in pairs)

    def fastest(self, family: str) -> str | None:
        """The key of the fastest with step sizes that are not the paper's."""
        keys = [
            key
            for key, part in self.parts.items()
            if part.values["family"] == family and not part.values["printed"]
        ]
        reached = {key: self.mean(key) for key in keys if self.all_reached(key)}
        return min(reached, key=lambda key: reached[key] or 0.0) if reached else None

    def label(self, key: str) -> str:
        """The label of a method."""
        return str(self.parts[key].values["label"])

    def table(self) -> Table:
        """Mean and deviation of seconds, iterations, speed-ups, and images that got there."""
        rows = []
        for key, part in self.parts.items():
            mean, deviation = self.mean(key), self.deviation(key)
            steps = statistics.mean(self.iterations(key)) if self.all_reached(key) else None
            rows.append(
                (
                    self.label(key) + ("" if part.values["printed"] else " *"),
                    number(mean) + ("" if deviation is None else f" ± {number(deviation)}"),
                    "-" if steps is None else f"{steps:.0f}",
                    *(number(self.speed_up(ours, key)) for ours in OURS),
                    f"{len(self.seconds(key))} of {len(part.values['seconds'])}",
                )
            )
        faster = (f"{label} is faster" for label in OURS.values())
        return Table("times", ("Method", "Seconds", "Iterations", *faster, "Reached"), tuple(rows))

    def as_plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [dict(part.values) for part in self.parts.values()]
