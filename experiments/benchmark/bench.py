"""One case: its references, and for each method steps, curves, times and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import convexlift as cl
from convexlift import NamedMethod
from experiments.benchmark.results import ERROR, GAP, Convergence, Entry, Results, Row, spread
from experiments.benchmark.settings import BenchmarkSettings
from experiments.benchmark.tuning import TUNING_TOLERANCE, choose_steps
from experiments.common_steps import record_until
from experiments.measuring import (
    REFERENCE_GAP,
    Reference,
    Start,
    Trace,
    find_reference,
    first_below,
    time_gap,
    time_iterations,
    warm_up,
)
from experiments.setups import Trial


@dataclass(eq=False)
class Bench:
    """One case, with the references found so far."""

    name: str
    trial: Trial
    settings: BenchmarkSettings
    results: Results
    tell: Callable[[str], None]
    found: dict[tuple[int, bool], Reference] = field(default_factory=dict)

    @property
    def tuning_image(self) -> int:
        """The image that is never measured."""
        return self.settings.count

    def reference(self, image: int, *, bounded: bool) -> Reference:
        """The optimum of one image; a tenth of the tolerance will do where steps are chosen."""
        if (image, bounded) in self.found:
            return self.found[image, bounded]
        measured = image != self.tuning_image
        start = None if bounded else self.reference(image, bounded=True).x
        self.tell(f"{self.name}: reference{'' if bounded else ' without the box'}")
        found = find_reference(
            self.trial.problem([image], bounded=bounded),
            self.settings.reference_iterations,
            gap=REFERENCE_GAP if measured else TUNING_TOLERANCE / 10,
            start=start,
            double=measured,
        )
        self.found[image, bounded] = found
        if measured:
            self.results.add_reference(self.name, image, bounded, found)
            self._judge(image, bounded, found)
        return found

    def _judge(self, image: int, bounded: bool, found: Reference) -> None:
        place = f"{self.name}, image {image}{'' if bounded else ' without the box'}"
        if not found.certified:
            self.results.note(
                f"{place}: the reference optimum is certified to a gap of {found.gap:.1e} only, "
                f"not to {REFERENCE_GAP:g}."
            )
        if not bounded:
            inside = self.found[image, True].objective
            change = (inside - found.objective) / abs(inside)
            same = abs(change) <= max(found.gap, REFERENCE_GAP)
            self.results.note(
                f"{self.name}: sm-c and sm-d solve the problem without the box; its optimum is "
                + (
                    "the same."
                    if same
                    else f"smaller by {change:.1e}, and they are measured by it."
                )
            )

    def measure(self, contender: NamedMethod) -> None:
        """Choose steps, record curves, time them, and add the rows."""
        label = f"{self.name}: {contender.name}"
        try:
            method = self.choose(contender)
            curves = []
            for image in range(self.settings.count):
                self.tell(f"{label}, counting iterations")
                curves.append(self.curve(contender, method, image))
        except ValueError as error:  # the method does not apply
            self.results.note(f"{label} does not apply: {error}.")
            self.results.rows += [
                self._row(contender, batch, measure, tolerance, [], [])
                for batch in self.settings.batches
                for measure in (ERROR, GAP)
                for tolerance in self.settings.tolerances
            ]
            return
        rows: list[Row] = []
        clock: dict[int, float] = {}
        trace: Trace | None = None
        for batch in self.settings.batches:
            self.tell(f"{label}, timing batches of {batch}")
            timed = self.time_errors(contender, method, curves, batch)
            traces = self.time_gaps(contender, method, batch)
            rows += self.rows(contender, curves, batch, timed, traces)
            if batch == min(self.settings.batches):
                clock = timed[0].clock
                trace = traces[0][0]
        self.results.rows += rows
        self.results.entries.append(
            Entry(
                self.name,
                contender.name,
                cl.describe_steps(method),
                tuple(curves),
                tuple(sorted(clock.items())),
                trace,
            )
        )

    def choose(self, contender: NamedMethod) -> cl.Method:
        """The best steps on the tuning image, where there is something to choose."""
        image = self.tuning_image
        problem = self.trial.problem([image], bounded=contender.bounded)
        candidates = contender.grid(problem, self.settings.coarse)
        if len(candidates) == 1:
            return candidates[0]
        method, choice = choose_steps(
            problem,
            candidates,
            self.reference(image, bounded=contender.bounded),
            self.settings.tuning_iterations,
            self.settings.seconds,
            lambda i: self.tell(
                f"{self.name}: {contender.name}, steps {i + 1} of {len(candidates)}"
            ),
        )
        self.results.choices.append(replace(choice, task=self.name, method=contender.name))
        return method

    def curve(self, contender: NamedMethod, method: cl.Method, image: int) -> Convergence:
        """One image, until the smallest tolerance is reached in both senses."""
        smallest = min(self.settings.tolerances)
        optimum = self.reference(image, bounded=contender.bounded).objective
        problem = self.trial.problem([image], bounded=contender.bounded)
        curve = record_until(
            Start(problem, self.trial.truth([image])), method, self.stop(None, check_every=1),
            optimum, error=smallest, gap=smallest,
        )  # fmt: skip
        columns = (curve.best_error(optimum), curve.gap, curve.psnr)
        return Convergence(*(tuple(values[:, 0].tolist()) for values in columns))

    def stop(self, gap: float | None, **options: int) -> cl.StopWhen:
        """The limits of measured runs."""
        limit, seconds = self.settings.max_iterations, self.settings.seconds
        return cl.StopWhen(gap=gap, max_iterations=limit, seconds=seconds, **options)

    def groups(self, batch: int) -> list[range]:
        """The images, batch by batch."""
        return [range(i, i + batch) for i in range(0, self.settings.count, batch)]

    def time_errors(
        self,
        contender: NamedMethod,
        method: cl.Method,
        curves: Sequence[Convergence],
        batch: int,
    ) -> list[TimedBatch]:
        """For each batch, the time of as many iterations as its slowest image needs."""
        timed = []
        for group in self.groups(batch):
            problem = self.trial.problem(group, bounded=contender.bounded)
            warm_up(problem, method)
            needed: dict[float, int | None] = {}
            for tolerance in self.settings.tolerances:
                counts = [first_below(curves[i].error, tolerance) for i in group]
                needed[tolerance] = (
                    None if None in counts else max(c for c in counts if c is not None)
                )
            runs = {k for k in needed.values() if k is not None} | {1}  # 1 tells the set-up
            if not runs - {0, 1}:  # nothing was reached: what does an iteration take?
                runs.add(min(max(len(curves[group[0]]) - 1, 2), 20))
            times = {k: time_iterations(problem, method, k, self.settings.repeats) for k in runs}
            timed.append(TimedBatch(needed, times))
        return timed

    def time_gaps(self, contender: NamedMethod, method: cl.Method, batch: int) -> list[list[Trace]]:
        """For each batch, a run to the smallest gap, and repetitions as far as that one got."""
        traces: list[list[Trace]] = []
        repeats = self.settings.repeats
        for group in self.groups(batch):
            problem = self.trial.problem(group, bounded=contender.bounded)
            warm_up(problem, method)
            runs = time_gap(problem, method, self.stop(min(self.settings.tolerances)), 1)
            reached = [t for t in self.settings.tolerances if runs[0].reached(t) is not None]
            if reached and repeats > 1:
                runs += time_gap(problem, method, self.stop(min(reached)), repeats - 1)
            traces.append(runs)
        return traces

    def rows(
        self,
        contender: NamedMethod,
        curves: Sequence[Convergence],
        batch: int,
        timed: Sequence[TimedBatch],
        traces: Sequence[Sequence[Trace]],
    ) -> list[Row]:
        """For every tolerance, of the error and of the gap."""
        rows = []
        for tolerance in self.settings.tolerances:
            moments = [first_below(curve.error, tolerance) for curve in curves]
            rows.append(
                self._row(
                    contender, batch, ERROR, tolerance,
                    [each.needed[tolerance] for each in timed],
                    [s for each in timed for s in each.seconds(tolerance, self.settings.repeats)],
                    curves, moments,
                )
            )  # fmt: skip
        for tolerance in self.settings.tolerances:
            iterations: list[float | None] = []
            seconds: list[float | None] = []
            moments = []
            for group, runs in zip(self.groups(batch), traces, strict=True):
                reached = [run.reached(tolerance) for run in runs]
                first = reached[0]
                iterations.append(None if first is None else first[0])
                seconds += [None if each is None else each[1] for each in reached]
                moments += [None if first is None else first[0]] * len(group)
            rows.append(
                self._row(
                    contender, batch, GAP, tolerance, iterations, seconds, curves, moments
                )
            )  # fmt: skip
        return rows

    def _row(
        self,
        contender: NamedMethod,
        batch: int,
        measure: str,
        tolerance: float,
        iterations: Sequence[float | None],
        seconds: Sequence[float | None],
        curves: Sequence[Convergence] = (),
        moments: Sequence[int | None] = (),
    ) -> Row:
        places = [
            len(curve) - 1 if moment is None else min(moment, len(curve) - 1)
            for curve, moment in zip(curves, moments, strict=True)
        ]
        now = list(zip(curves, places, strict=True))
        k, k_min, k_max = spread(iterations or [None])
        s, s_min, s_max = spread(seconds or [None])
        return Row(
            task=self.name, method=contender.name, device=self.trial.device.type, batch=batch,
            measure=measure, tolerance=tolerance,
            iterations=k, iterations_min=k_min, iterations_max=k_max,
            seconds=s, seconds_min=s_min, seconds_max=s_max,
            objective_error=max((curve.error[i] for curve, i in now), default=None),
            gap=max((curve.gap[i] for curve, i in now), default=None),
            psnr=mean(curve.psnr[i] for curve, i in now) if now else None,
            reached=sum(moment is not None for moment in moments),
            images=self.settings.count,
        )  # fmt: skip


@dataclass(frozen=True)
class TimedBatch:
    """Iterations that one batch needs for each tolerance, and seconds of so many iterations."""

    needed: dict[float, int | None]
    times: dict[int, list[float]]

    def seconds(self, tolerance: float, repeats: int) -> Sequence[float | None]:
        """All repetitions, or None for each of them."""
        k = self.needed[tolerance]
        return [None] * repeats if k is None else self.times[k]

    @property
    def clock(self) -> dict[int, float]:
        """Iterations and the median of their seconds."""
        middle = {k: spread(seconds)[0] for k, seconds in self.times.items() if k > 0}
        return {k: seconds for k, seconds in middle.items() if seconds is not None}
