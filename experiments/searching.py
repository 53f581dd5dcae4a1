"""Step sizes that suit a problem, from the paper's on, one number at a time.

The paper tunes its methods by hand, for networks that are not ours. Its competitors here get the
best of a search on the very image that is measured, which is generous, and costs nothing in the
curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from experiments.competitors import Competitor
from experiments.curves import trace
from experiments.parts import Part
from experiments.setup import Setup
from experiments.steps import Step, Work

Numbers = tuple[float, ...]
Make = Callable[[Numbers], Competitor]


@dataclass(frozen=True)
class Search:
    """How to search.

    Attributes:
        first: numbers to begin with.
        factor: by which one of them goes up or down.
        tries: so many runs at most.
        iterations: of each run; the objective after them counts.
    """

    first: Numbers
    factor: float
    tries: int
    iterations: int


def search_step(setup: Setup, name: str, make: Make, search: Search, *, cost: float) -> Step:
    """The best numbers found: a part with all that was tried."""

    def compute(work: Work) -> Part:
        start = setup.start([0], make(search.first))
        tried = 0

        def score(numbers: Numbers) -> float:
            nonlocal tried
            work.tell(tried / search.tries)
            tried += 1
            method = make(numbers).method
            curve = trace([start], method, search.iterations, every=search.iterations)
            last = float(curve.objective[-1, 0])
            return last if math.isfinite(last) else math.inf

        scores = climb(search, score)
        best = min(scores, key=scores.__getitem__)
        values: dict[str, Any] = {
            "best": list(best),
            "tried": [{"numbers": list(each), "objective": scores[each]} for each in scores],
            "iterations": search.iterations,
        }
        return Part(values)

    settings = {**setup.settings, "first": make(search.first), "search": search}
    return Step(name, settings, compute, cost=cost, title=f"Search for steps, {name}")


def climb(search: Search, score: Callable[[Numbers], float]) -> dict[Numbers, float]:
    """Scores of what was tried: each number in turn is changed as long as that lowers the score."""
    best = search.first
    scores = {best: score(best)}
    improved = True
    while improved:
        improved = False
        for i in range(len(best)):
            for change in (search.factor, 1 / search.factor):
                while len(scores) < search.tries:
                    following = (*best[:i], _rounded(best[i] * change), *best[i + 1 :])
                    if following in scores:
                        break
                    scores[following] = score(following)
                    if not scores[following] < scores[best]:
                        break
                    best, improved = following, True
    return scores


def searched(part: Part, make: Make, key: str, label: str) -> Competitor:
    """The winner of a search."""
    best = tuple(part.values["best"])
    return replace(make(best), key=key, label=label, printed=False)


def _rounded(number: float) -> float:
    """To two digits."""
    return float(f"{number:.2g}")
