"""``run_benchmark``: every method on every case; step sizes, curves, times and rows of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from convexlift import NamedMethod
from experiments.benchmark.cases import Case
from experiments.benchmark.results import (
    ERROR,
    GAP,
    Choice,
    Convergence,
    Entry,
    Results,
    Row,
    spread,
)
from experiments.catalogue import SIZE, BenchmarkSettings
from experiments.common_steps import step_parameters
from experiments.measuring import (
    REFERENCE_GAP,
    Reference,
    Start,
    Trace,
    find_reference,
    first_below,
    record_until,
    time_gap,
    time_iterations,
    warm_up,
)
from experiments.runner.run import machine, now
from experiments.setups import Trial

TUNING_TOLERANCE, TUNING_CHECKS = 1e-3, 5
"""Steps are chosen for the fewest iterations to this objective error, counted in fives."""


@dataclass(frozen=True, eq=False)
class Request:
    """The input of a benchmark."""

    cases: Sequence[Case]  # tasks with regularizers
    methods: Sequence[cl.NamedMethod]  # with the step sizes among which to choose
    # for a size, ``settings.count`` clean images and, last, one to choose steps on
    images: Callable[[int], Tensor]
    settings: BenchmarkSettings  # accuracies and limits
    device: torch.device  # where to compute
    size: int = SIZE  # of the images, where a case does not need another

    def about(self, **more: Any) -> dict[str, Any]:
        """Date, machine and settings, and ``more``."""
        return {
            **more,
            "size": self.size,
            "date": now(),
            "device": self.device.type,
            "machine": machine(self.device),
            "reference_gap": REFERENCE_GAP,
            "options": asdict(self.settings),
        }


def run_benchmark(
    request: Request,
    results: Results | None = None,
    tell: Callable[[str, float], None] = lambda text, done: None,
    keep: Callable[[Results], object] = lambda results: None,
) -> Results:
    """Measure every method on every case.

    Args:
        request: the input.
        results: to add to; on Ctrl-C it holds all that was measured so far.
        tell: called with the present work and the fraction that is done.
        keep: called whenever there is more to keep.
    """
    results = Results(request.about()) if results is None else results
    total, done = len(request.cases) * (len(request.methods) + 1), 0

    def show(text: str) -> None:
        tell(text, done / total)

    for case in request.cases:
        images = request.images(case.size(request.size))
        trial = case.trial(images, request.settings.seed, request.device)
        bench = Bench(case.name, trial, request.settings, results, show)
        bench.reference(0, bounded=True)
        done += 1
        for method in request.methods:
            bench.measure(method)
            done += 1
            keep(results)
    results.complete = True
    keep(results)
    tell("done", 1.0)
    return results


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
        """The optimum of one image; less accurate where it serves to choose steps."""
        if (image, bounded) in self.found:
            return self.found[image, bounded]
        measured = image != self.tuning_image
        start = None if bounded else self.reference(image, bounded=True).x
        gap = REFERENCE_GAP if measured else TUNING_TOLERANCE / 10
        self.tell(f"{self.name}: reference{'' if bounded else ' without the box'}")
        found = find_reference(
            self.trial.problem([image], bounded=bounded),
            cl.StopWhen(gap=gap, max_iterations=self.settings.reference_iterations),
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
            result = (
                "the same." if same else f"smaller by {change:.1e}, and they are measured by it."
            )
            self.results.note(
                f"{self.name}: sm-c and sm-d solve the problem without the box; its optimum is "
                + result
            )

    def measure(self, contender: NamedMethod) -> None:
        """Choose steps, record curves, time them, and add the rows."""
        label, settings = f"{self.name}: {contender.name}", self.settings
        try:
            method = self.choose(contender)
            curves = []
            for image in range(settings.count):
                self.tell(f"{label}, counting iterations")
                curves.append(self.curve(contender, method, image))
        except ValueError as error:  # the method does not apply
            self.results.note(f"{label} does not apply: {error}.")
            self.results.rows += [
                self._row(contender, batch, measure, tolerance, [], [])
                for batch in settings.batches
                for measure in (ERROR, GAP)
                for tolerance in settings.tolerances
            ]
            return
        rows: list[Row] = []
        timed: dict[int, list[TimedBatch]] = {}
        for batch in settings.batches:
            self.tell(f"{label}, timing batches of {batch}")
            groups = [range(i, i + batch) for i in range(0, settings.count, batch)]
            timed[batch] = [
                self.time(self.trial.problem(group, bounded=contender.bounded), method,
                          [curves[i] for i in group])
                for group in groups
            ]  # fmt: skip
            for measure, tolerance in timed[batch][0].efforts:
                efforts = [each.efforts[measure, tolerance] for each in timed[batch]]
                rows.append(self._row(contender, batch, measure, tolerance, efforts, curves))
        first = timed[min(settings.batches)][0]
        self.results.rows += rows
        steps = cl.describe_steps(method)
        self.results.entries.append(
            Entry(self.name, contender.name, steps, tuple(curves), first.clock, first.trace)
        )

    def choose(self, contender: NamedMethod) -> cl.Method:
        """The best steps on the tuning image, where there is something to choose."""
        image, label = self.tuning_image, f"{self.name}: {contender.name}"
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
            lambda i: self.tell(f"{label}, steps {i + 1} of {len(candidates)}"),
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

    def time(
        self, problem: cl.VariationalProblem, method: cl.Method, curves: Sequence[Convergence]
    ) -> TimedBatch:
        """The efforts of one batch of images with known curves."""
        tolerances, repeats = self.settings.tolerances, self.settings.repeats
        efforts: dict[tuple[str, float], Effort] = {}
        warm_up(problem, method)
        # To an objective error: as many iterations as the slowest image needs.
        moments = {t: [first_below(curve.error, t) for curve in curves] for t in tolerances}
        needed = {t: _slowest(each) for t, each in moments.items()}
        counts = {k for k in needed.values() if k is not None} | {1}  # 1 tells the set-up
        if not counts - {0, 1}:  # nothing was reached: what does an iteration take?
            counts.add(min(max(len(curves[0]) - 1, 2), 20))
        times = {k: time_iterations(problem, method, k, repeats) for k in counts}
        for t, k in needed.items():
            efforts[ERROR, t] = Effort(k, [None] * repeats if k is None else times[k], moments[t])
        # To a certified gap: one run to the smallest, and repetitions as far as that one got.
        runs = time_gap(problem, method, self.stop(min(tolerances)), 1)
        certified = [t for t in tolerances if runs[0].reached(t) is not None]
        if certified and repeats > 1:
            runs += time_gap(problem, method, self.stop(min(certified)), repeats - 1)
        for t in tolerances:
            reached = [run.reached(t) for run in runs]
            k = reached[0] and reached[0][0]
            seconds = [each and each[1] for each in reached]
            efforts[GAP, t] = Effort(k, seconds, [k] * len(curves))
        clock = tuple(sorted((k, median(times[k])) for k in counts if k > 0))
        return TimedBatch(efforts, clock, runs[0])

    def _row(
        self,
        contender: NamedMethod,
        batch: int,
        measure: str,
        tolerance: float,
        efforts: Sequence[Effort],
        curves: Sequence[Convergence],
    ) -> Row:
        moments = [moment for effort in efforts for moment in effort.moments]
        now = [  # or the end of curves that did not reach the tolerance
            (curve, len(curve) - 1 if moment is None else min(moment, len(curve) - 1))
            for curve, moment in zip(curves, moments, strict=True)
        ]
        k, k_min, k_max = spread([effort.iterations for effort in efforts] or [None])
        s, s_min, s_max = spread([s for effort in efforts for s in effort.seconds] or [None])
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
class Effort:
    """Iterations of a batch to an accuracy, seconds of each repetition, iterations of each image.

    None stands for an accuracy that was not reached.
    """

    iterations: int | None
    seconds: Sequence[float | None]
    moments: Sequence[int | None]


@dataclass(frozen=True)
class TimedBatch:
    """The efforts of a batch by measure and tolerance, and the times behind them: see ``Entry``."""

    efforts: dict[tuple[str, float], Effort]
    clock: tuple[tuple[int, float], ...]
    trace: Trace


def _slowest(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def choose_steps(
    problem: cl.VariationalProblem,
    candidates: Sequence[cl.Method],
    reference: Reference,
    max_iterations: int,
    seconds: float,
    tell: Callable[[int], object] = lambda i: None,
) -> tuple[cl.Method, Choice]:
    """The candidate with the fewest iterations; with the smallest error if none is accurate enough.

    The candidates are one method with different steps, the problem is of one image, and ``tell`` is
    called with the number of each candidate before it is tried.
    """
    limit, scores = max_iterations, []
    for i, candidate in enumerate(candidates):
        tell(i)
        stop = cl.StopWhen(
            gap=None, max_iterations=limit, seconds=seconds, check_every=TUNING_CHECKS
        )
        optimum = reference.objective
        curve = record_until(Start(problem), candidate, stop, optimum, TUNING_TOLERANCE)
        error = curve.best_error(optimum)[:, 0]
        checks = first_below(error, TUNING_TOLERANCE)
        scores.append((checks is None, checks or 0, float(error[-1]), i))
        if checks is not None:  # slower candidates need not run to the end
            limit = min(limit, max(checks, 1) * TUNING_CHECKS)
    missed, checks, _, best = min(scores)
    return candidates[best], Choice(
        task="",
        method="",
        steps=cl.describe_steps(candidates[best]),
        candidates=len(candidates),
        iterations=None if missed else min(checks * TUNING_CHECKS, max_iterations),
        tolerance=TUNING_TOLERANCE,
        at_edge=_at_edge(candidates, best),
    )


def _at_edge(candidates: Sequence[cl.Method], best: int) -> bool:
    """Whether better steps may lie beyond the grid."""
    # Grids of the paper's steps vary the first and the last c; the others follow from them.
    values = [(numbers[0], numbers[-1]) for numbers in map(step_parameters, candidates)]
    return any(
        chosen in (min(column), max(column))
        for chosen, column in zip(values[best], zip(*values, strict=True), strict=True)
    )
