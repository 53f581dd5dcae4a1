"""Methods, and the steps of every experiment: data, optima, curves, searches for steps, times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import convexlift as cl
from experiments.measuring import (
    Curve,
    Start,
    find_reference,
    first_below,
    record_batches,
    record_until,
    time_iterations,
    warm_up,
)
from experiments.runner import Part, Parts, Step, Work
from experiments.setups import Setup, Trial

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Competitor:
    """A method as it appears in figures and tables."""

    key: str  # names its parts
    family: str  # its colour, a key of ``figures.STYLES``
    label: str  # for people
    method: cl.Method  # with its step sizes
    # whether it starts where ``cl.solve`` does by itself; the paper starts from the data
    own_start: bool = False
    printed: bool = True  # whether its step sizes are the paper's

    needs: ClassVar[tuple[str, ...]] = ()

    def choose(self, parts: Parts) -> Competitor:
        """Itself: nothing is left to choose."""
        return self

    @property
    def parameters(self) -> Numbers:
        """The chosen step sizes, or (c_1, ..., c_L); empty for a method without."""
        return step_parameters(self.method)


@dataclass(frozen=True)
class Chosen:
    """A competitor whose step sizes follow from earlier parts."""

    key: str  # names its parts
    label: str  # for people
    choose: Callable[[Parts], Competitor]  # the competitor, from the parts of ``needs``
    needs: tuple[str, ...]  # full names of those parts


def step_parameters(method: cl.Method) -> Numbers:
    """The step size of a method, or (c_1, ..., c_L) of the paper's; empty for a method without."""
    if isinstance(method, cl.PDHG) and isinstance(method.steps, cl.PaperSteps):
        return method.steps.c
    return (method.step,) if isinstance(method, cl.Subgradient | cl.NMAPG) else ()


def proposed(c: Sequence[float]) -> Competitor:
    """The paper's PDHG with its parameters c; its duals start as in the authors' scripts."""
    steps = cl.PaperSteps(tuple(c), as_released=True)
    return Competitor("proposed", "paper", "Proposed", cl.PDHG(steps=steps))


def with_our_duals(competitor: Competitor) -> Competitor:
    """The paper's PDHG with duals that start from a backward pass through the network."""
    steps = cl.PaperSteps(competitor.parameters)
    return replace(
        competitor, key=f"{competitor.key}-our-duals", label=f"{competitor.label}, our duals",
        method=cl.PDHG(steps=steps), printed=False,
    )  # fmt: skip


def constant(step: float, *, printed: bool = True) -> Competitor:
    """SM-C."""
    method = cl.Subgradient(step)
    return Competitor(f"sm-c-{step:g}", "sm-c", f"SM-C, {step:g}", method, printed=printed)


def diminishing(step: float, *, printed: bool = True) -> Competitor:
    """SM-D."""
    method = cl.Subgradient(step, diminishing=True)
    return Competitor(f"sm-d-{step:g}", "sm-d", f"SM-D, {step:g}", method, printed=printed)


DEFAULT = Competitor("default", "default", "Our default", cl.PDHG(), own_start=True)
"""``cl.solve(problem)``: nothing to tune, and a start of its own."""
DEFAULT_SAME_START = Competitor(
    "default-same-start", "default", "Our default, same start", cl.PDHG()
)
L_BFGS = Competitor("lbfgs", "lbfgs", "L-BFGS", cl.LBFGS())


@dataclass(frozen=True)
class PaperInpainting:
    """The task and the step sizes of section 5.3, which section 5.3.1 has too."""

    missing: float = 0.3  # section 5.3
    noise: float = 0.03  # section 5.3
    c: tuple[float, float] = (0.01, 0.001)  # section 5.3, Parameters
    sm_c: float = 1.5  # section 5.3, Parameters
    sm_d: float = 50.0  # section 5.3, Parameters
    nmapg: float = 0.1  # section 5.3, Parameters


def papers_four(values: PaperInpainting) -> list[Competitor]:
    """The methods of section 5.3 with its step sizes, and NMAPG with the authors' options."""
    return [
        proposed(values.c),
        constant(values.sm_c),
        diminishing(values.sm_d),
        Competitor("nmapg", "nmapg", "NMAPG", cl.NMAPG.as_released(values.nmapg)),
    ]


def our_nmapg(values: PaperInpainting) -> Competitor:
    """NMAPG with our options for its line search."""
    method = cl.NMAPG(step=values.nmapg)
    return Competitor("nmapg-ours", "nmapg", "NMAPG, our options", method, printed=False)


def data_step(setup: Setup) -> Step:
    """The images and their data: part ``data``."""
    return setup.step("data", setup.data, title="Data")


def reference_step(setup: Setup, stop: cl.StopWhen, cost: float) -> Step:
    """For each image the best objective known, and a lower bound: part ``reference``.

    The bound holds for all images in the box, so that it measures every method.
    """

    def compute(trial: Trial, work: Work) -> Part:
        found = []
        for i in range(trial.count):
            work.tell(i / trial.count)
            found.append(find_reference(trial.problem([i]), stop, double=False))
        values = {
            "objective": [each.objective for each in found],
            "gap": [each.gap for each in found],
            "iterations": [each.iterations for each in found],
            "guarantee": [each.guarantee.name for each in found],
        }
        return Part(values, {"picture": found[0].x[0, 0].cpu().numpy()})

    return setup.step("reference", compute, {"stop": stop}, cost=cost,
                      title="Reference optimum")  # fmt: skip


@dataclass(frozen=True)
class Checks:
    """The length of a curve, and its checks."""

    iterations: int  # of each run
    every: int = 1  # iterations between checks
    keep: tuple[int, ...] = ()  # iterations whose pictures are kept
    images: int = 1  # the number of images; the first ones


def curve_step(
    setup: Setup,
    competitor: Competitor | Chosen,
    checks: Checks,
    *,
    name: str = "",
    cost: float = 1.0,
    bounded: bool = True,
) -> Step:
    """A run of one method: part ``curve-KEY`` unless named."""

    def compute(trial: Trial, work: Work) -> Part:
        found = competitor.choose(work.parts)
        count = min(checks.images, trial.count)
        # All images at once on a GPU; one by one on a CPU, whose cache holds one.
        size = count if trial.device.type == "cuda" else 1
        groups = [range(i, min(i + size, count)) for i in range(0, count, size)]
        curve = record_batches(
            [_start(trial, group, found, bounded) for group in groups], found.method,
            checks.iterations, every=checks.every, keep=checks.keep, tell=work.tell,
        )  # fmt: skip
        return curve.part(**_named(found))

    settings = {"competitor": competitor, "checks": checks, "bounded": bounded}
    return setup.step(name or f"curve-{competitor.key}", compute, settings,
                      needs=competitor.needs, cost=cost, title=competitor.label)  # fmt: skip


def average_objective(part: Part) -> float:
    """Of a curve's first image, over the iterations: the paper's measure of convergence."""
    return float(Curve.of(part).objective[1:, 0].mean())


@dataclass(frozen=True)
class Search:
    """A search for step sizes that suit a problem, from the paper's on, one number at a time.

    The paper tunes its methods by hand, for networks that are not ours.
    """

    key: str  # of the method; the winner is KEY-searched
    label: str  # of the method
    make: Callable[[Numbers], Competitor]  # the method with some numbers
    first: Numbers  # numbers to begin with
    factor: float  # by which one of them is multiplied or divided
    tries: int  # largest number of runs
    iterations: int  # of each run, whose last objective counts

    def climb(self, score: Callable[[Numbers], float]) -> dict[Numbers, float]:
        """All scores: each number in turn is changed as long as that lowers the score."""
        best = self.first
        scores = {best: score(best)}
        improved = True
        while improved:
            improved = False
            for i in range(len(best)):
                for change in (self.factor, 1 / self.factor):
                    while len(scores) < self.tries:
                        number = float(f"{best[i] * change:.2g}")
                        following = (*best[:i], number, *best[i + 1 :])
                        if following in scores:
                            break
                        scores[following] = score(following)
                        if not scores[following] < scores[best]:
                            break
                        best, improved = following, True
        return scores


def searches(
    c: Numbers, sm_c: float, sm_d: float, *, tries_c: int, tries_step: int, iterations: int
) -> list[Search]:
    """For the three methods whose step sizes do not adapt, from given ones on."""

    def of_step(key: str, make: Callable[[float], Competitor], first: float) -> Search:
        label = key.upper()
        return Search(key, label, lambda n: make(*n), (first,), 2.0, tries_step, iterations)

    return [
        Search("proposed", "Proposed", proposed, c, 10.0, tries_c, iterations),
        of_step("sm-c", constant, sm_c),
        of_step("sm-d", diminishing, sm_d),
    ]


def searched_curve_steps(
    setup: Setup, search: Search, checks: Checks, *, on: Setup, cost: float
) -> list[Step]:
    """A search on the first image of ``on``, part ``search-KEY``, and a run with its winner.

    ``cost`` is of one iteration on one image.
    """

    def compute(trial: Trial, work: Work) -> Part:
        start = _start(trial, [0], search.make(search.first))
        tried = 0

        def score(numbers: Numbers) -> float:
            nonlocal tried
            work.tell(tried / search.tries)
            tried += 1
            method, count = search.make(numbers).method, search.iterations
            last = float(record_batches([start], method, count, every=count).objective[-1, 0])
            return last if math.isfinite(last) else math.inf

        scores = search.climb(score)
        best = min(scores, key=scores.__getitem__)
        values: dict[str, Any] = {
            "best": list(best),
            "tried": [{"numbers": list(each), "objective": scores[each]} for each in scores],
            "iterations": search.iterations,
        }
        return Part(values)

    name, label = f"search-{search.key}", f"{search.label}, searched"
    found = on.step(
        name, compute, {"search": search, "first": search.make(search.first)},
        cost=cost * search.tries * search.iterations, title=f"Search for steps: {search.label}",
    )  # fmt: skip

    def winner(parts: Parts) -> Competitor:
        best = tuple(parts[found.name].values["best"])
        return replace(search.make(best), key=f"{search.key}-searched", label=label, printed=False)

    chosen = Chosen(f"{search.key}-searched", label, winner, (found.name,))
    return [
        found,
        curve_step(setup, chosen, checks, cost=cost * checks.iterations * checks.images),
    ]


@dataclass(frozen=True)
class TimeToError:
    """Time to an objective error."""

    error: float  # relative to the reference optimum
    iterations: int  # limit
    repeats: int  # timed runs after a warm-up; the median counts
    seconds: float = 600.0  # limit of a run that is continued beyond its curve
    every: int = 1  # iterations between the checks of such a run


def time_steps(
    setup: Setup, competitor: Competitor | Chosen, race: TimeToError, *, cost: float
) -> list[Step]:
    """Iterations and seconds to an error, image by image: parts ``count-KEY`` and ``time-KEY``.

    Iterations are counted along the curve of the method, part ``curve-KEY``, or in a longer run
    where it ends too early. Then a run with exactly so many iterations is timed, set-up included,
    without any evaluation on the way.
    """
    curve, reference = f"{setup.prefix}curve-{competitor.key}", f"{setup.prefix}reference"
    count = f"count-{competitor.key}"
    stop = cl.StopWhen(gap=None, max_iterations=race.iterations, seconds=race.seconds,
                       check_every=race.every)  # fmt: skip

    def needed(curve: Curve, image: int, optimum: float) -> int | None:
        look = first_below(curve.error(optimum)[:, image], race.error)
        return None if look is None else int(curve.iteration[look])

    def counted(trial: Trial, work: Work) -> Part:
        found, known = competitor.choose(work.parts), Curve.of(work.parts[curve])
        iterations: list[int | None] = []
        for i, optimum in enumerate(work.parts[reference].values["objective"]):
            work.tell(i / trial.count)
            k = needed(known, i, optimum)
            if k is None and known.iteration[-1] < race.iterations:
                start = _start(trial, [i], found)
                k = needed(record_until(start, found.method, stop, optimum, race.error), 0, optimum)
            iterations.append(k)
        return Part({**_named(found), "iterations": iterations})

    def timed(trial: Trial, work: Work) -> Part:
        found, known = competitor.choose(work.parts), work.parts[setup.prefix + count].values
        seconds: list[float | None] = []
        for i, k in enumerate(known["iterations"]):
            work.tell(i / trial.count)
            if k is None:
                seconds.append(None)
                continue
            start = _start(trial, [i], found)
            warm_up(start.problem, found.method)
            times = time_iterations(start.problem, found.method, k, race.repeats, start.x)
            seconds.append(statistics.median(times))
        return Part({**known, "seconds": seconds})

    return [
        setup.step(
            count, counted, {"race": race},
            needs=tuple(dict.fromkeys((reference, curve, *competitor.needs))), cost=cost / 2,
            title=f"Iterations of {competitor.key}",
        ),
        setup.step(
            f"time-{competitor.key}", timed, {"repeats": race.repeats},
            needs=(setup.prefix + count, *competitor.needs), cost=cost / 2,
            title=f"Time of {competitor.key}", alone=True,
        ),
    ]  # fmt: skip


def _start(trial: Trial, images: Any, competitor: Competitor, bounded: bool = True) -> Start:
    """The problem of some images, and the start of a method: the data, as in the paper."""
    measured = trial.measurement(images, bounded=bounded)
    return Start(
        measured.problem(trial.network, trial.weight),
        trial.truth(images),
        None if competitor.own_start else measured.picture,
    )


def _named(competitor: Competitor) -> dict[str, Any]:
    return {
        "key": competitor.key,
        "label": competitor.label,
        "family": competitor.family,
        "printed": competitor.printed,
        "parameters": list(competitor.parameters),
    }
