"""Steps that every experiment is made of: data, reference optima, curves, times to an error."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.benchmark.measure import (
    Limits,
    Reference,
    find_reference,
    first_below,
    record_curve,
    time_iterations,
    warm_up,
)
from experiments.competitors import Competitor
from experiments.curves import Curve, Start, trace
from experiments.parts import Array, Part
from experiments.setup import Setup
from experiments.steps import Step, Work

Choose = Callable[[Mapping[str, Part]], Competitor]
"""A competitor whose step sizes follow from earlier parts."""


def always(competitor: Competitor) -> Choose:
    """No choice."""
    return lambda parts: competitor


def data_step(setup: Setup) -> Step:
    """The images and their data: part ``data``."""
    return Step(f"{setup.prefix}data", setup.settings, lambda work: setup.data(), title="Data")


@dataclass(frozen=True)
class Accuracy:
    """Of reference optima.

    Attributes:
        gap: certified relative gap at which the search ends.
        iterations: at which it ends in any case.
    """

    gap: float
    iterations: int


def reference_step(setup: Setup, accuracy: Accuracy, cost: float) -> Step:
    """For each image the best objective known, and a lower bound: part ``reference``.

    The bound holds for all images in the box, so that it measures every method.
    """

    def compute(work: Work) -> Part:
        found: list[Reference] = []
        for i in range(setup.count):
            work.tell(i / setup.count)
            problem = setup.trial.problem([i])
            found.append(
                find_reference(problem, accuracy.iterations, gap=accuracy.gap, double=False)
            )
        return Part(
            {
                "objective": [each.objective for each in found],
                "gap": [each.gap for each in found],
                "iterations": [each.iterations for each in found],
                "guarantee": [each.guarantee.name for each in found],
            },
            {"picture": found[0].x[0, 0].cpu().numpy()},
        )

    settings = {**setup.settings, "accuracy": accuracy}
    return Step(f"{setup.prefix}reference", settings, compute, cost=cost, title="Reference optimum")


@dataclass(frozen=True)
class Looks:
    """How long curves are, and what is kept of them.

    Attributes:
        iterations: of each run.
        every: look so often.
        keep: iterations whose pictures are kept.
        images: how many images; the first ones.
    """

    iterations: int
    every: int = 1
    keep: tuple[int, ...] = ()
    images: int = 1


def curve_step(
    setup: Setup,
    competitor: Competitor,
    looks: Looks,
    *,
    name: str | None = None,
    cost: float = 1.0,
    bounded: bool = True,
) -> Step:
    """A run of one method: part ``curve-KEY`` unless named."""

    def compute(work: Work) -> Part:
        return _curve(setup, competitor, looks, work, bounded)

    settings = {**setup.settings, "competitor": competitor, "looks": looks, "bounded": bounded}
    return Step(f"{setup.prefix}{name or f'curve-{competitor.key}'}", settings, compute, cost=cost,
                title=competitor.label)  # fmt: skip


def chosen_curve_step(
    setup: Setup,
    key: str,
    choose: Choose,
    looks: Looks,
    needs: Sequence[str],
    *,
    cost: float = 1.0,
    bounded: bool = True,
    name: str | None = None,
) -> Step:
    """The same for a method whose step sizes are chosen by earlier parts."""

    def compute(work: Work) -> Part:
        return _curve(setup, choose(work.parts), looks, work, bounded)

    settings = {**setup.settings, "key": key, "looks": looks, "bounded": bounded}
    return Step(
        f"{setup.prefix}{name or f'curve-{key}'}",
        settings,
        compute,
        tuple(needs),
        cost,
        key.capitalize(),
    )


def _curve(setup: Setup, competitor: Competitor, looks: Looks, work: Work, bounded: bool) -> Part:
    starts = setup.starts(looks.images, competitor, bounded=bounded)
    curve = trace(
        starts, competitor.method, looks.iterations, every=looks.every, keep=looks.keep,
        tell=work.tell,
    )  # fmt: skip
    return curve.part(**_named(competitor))


def _named(competitor: Competitor) -> dict[str, Any]:
    return {
        "key": competitor.key,
        "label": competitor.label,
        "family": competitor.family,
        "printed": competitor.printed,
        "parameters": list(competitor.parameters),
    }


def average_objective(part: Part) -> float:
    """Of a curve's first image, over the iterations: the paper's measure of convergence."""
    return float(Curve.of(part).objective[1:, 0].mean())


@dataclass(frozen=True)
class Race:
    """Time to an objective error.

    Attributes:
        error: relative to the reference optimum.
        iterations: a run that has not got there by then does not.
        repeats: timed runs after one that warms up; the median counts.
        seconds: limit of a run that is continued beyond its curve.
    """

    error: float
    iterations: int
    repeats: int
    seconds: float = 600.0


def race_step(setup: Setup, name: str, choose: Choose, race: Race, *, cost: float) -> Step:
    """Iterations and seconds to an error, image by image: part ``time-NAME``.

    Iterations are counted along the curve of the method, part ``curve-NAME``, or in a longer run
    where it ends too early. Then a run with exactly so many iterations is timed, set-up included,
    in which nothing is evaluated on the way.
    """
    curve_name, reference_name = f"{setup.prefix}curve-{name}", f"{setup.prefix}reference"

    def compute(work: Work) -> Part:
        competitor = choose(work.parts)
        counted = Curve.of(work.parts[curve_name])
        iterations: list[int | None] = []
        seconds: list[float | None] = []
        for i, optimum in enumerate(work.parts[reference_name].values["objective"]):
            work.tell(i / setup.count)
            start = setup.start([i], competitor)
            needed = _needed(counted, i, optimum, race.error)
            if needed is None and counted.iteration[-1] < race.iterations:
                limits = Limits(race.iterations, race.seconds)
                curve = record_curve(start.problem, None, competitor.method, optimum, limits,
                                     error=race.error, start=start.x)  # fmt: skip
                needed = first_below(curve.error, race.error)
            iterations.append(needed)
            seconds.append(None if needed is None else _seconds(start, competitor, needed, race))
        return Part({**_named(competitor), "iterations": iterations, "seconds": seconds})

    return Step(f"{setup.prefix}time-{name}", {**setup.settings, "race": race}, compute,
                (reference_name, curve_name), cost, f"Time of {name}")  # fmt: skip


def _needed(curve: Curve, image: int, optimum: float, error: float) -> int | None:
    """The first iteration that was looked at with such an error."""
    errors = (curve.objective[:, image] - optimum) / abs(optimum)
    look = first_below(errors.tolist(), error)
    return None if look is None else int(curve.iteration[look])


def _seconds(start: Start, competitor: Competitor, iterations: int, race: Race) -> float:
    warm_up(start.problem, competitor.method)
    times = time_iterations(start.problem, competitor.method, iterations, race.repeats, start.x)
    return statistics.median(times)


@dataclass(frozen=True, eq=False)
class Optimum:
    """For each image, what the optimal objective lies between.

    Attributes:
        objective: the least that any run found, (B,).
        bound: the best certified lower bound, (B,).
    """

    objective: Array
    bound: Array

    @property
    def gap(self) -> Array:
        """The certified relative accuracy of ``objective``; smaller errors mean little, (B,)."""
        # Where both agree to rounding, the bound may come out above.
        return np.asarray(np.maximum(self.objective - self.bound, 0.0) / np.abs(self.objective))

    @classmethod
    def of(cls, reference: Part, found: Sequence[Curve]) -> Optimum:
        """From the reference and all runs on the same problems."""
        objective = np.asarray(reference.values["objective"], dtype=float)
        bound = objective - np.asarray(reference.values["gap"]) * np.abs(objective)
        for curve in found:
            count = curve.objective.shape[1]
            least = np.fmin.reduce(curve.objective, axis=0)
            highest = np.fmax.reduce(curve.lower_bound, axis=0)
            objective[:count] = np.fmin(objective[:count], least)
            bound[:count] = np.fmax(bound[:count], highest)
        return cls(objective, bound)

    def error(self, curve: Curve) -> Array:
        """(objective - optimum) / |optimum| of current images, (K, B)."""
        optimum = self.objective[: curve.objective.shape[1]]
        return np.asarray((curve.objective - optimum) / np.abs(optimum))

    def certified(self, curve: Curve) -> Array:
        """(objective - bound) / |objective|: at most so far from optimal, (K, B)."""
        bound = self.bound[: curve.objective.shape[1]]
        return np.asarray((curve.objective - bound) / np.abs(curve.objective))
