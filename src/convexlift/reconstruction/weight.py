"""Rules for the regularization weight.

``card``         the weight of the regularizer's card, times (sigma / sigma_card)^1.2. If an image
                 and its noise got a factor, a regularizer of degree 1 would need that factor too
                 (power 1); if R were minus the logarithm of a density, the power would be 2.
                 The best weights of ``photo-any-size`` and of total variation on the six pictures
                 of the package, for sigma from 0.01 to 0.4, grow with the power 1.2. For salt and
                 pepper, fractions from 0.05 to 0.5, it is 0.25.
``auto``         the weight whose image best predicts held-out data (``held_out``); found by steps
                 of a factor of 2, then of its root, and a parabola in the logarithm.
``discrepancy``  the weight whose residual is as large as the noise (Morozov 1966, "On the solution
                 of functional equations by the method of regularization"). A classical rule that
                 smooths too much: it stays 1 to 2 dB below the best weight on those pictures,
                 ``auto`` within 0.1 dB for Gaussian noise, 0.3 dB for salt and pepper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from convexlift.models.cards import ModelCard
from convexlift.networks.architectures import TotalVariation
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.held_out import discrepancy, split
from convexlift.reconstruction.noise import Kind, Noise
from convexlift.reconstruction.solution import PiecewiseSolver, stated, within
from convexlift.solvers.solution import Status, StopWhen
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper

Rule = Literal["card", "auto", "discrepancy"]
WeightChoice = float | Rule

POWERS: dict[Kind, float] = {"gaussian": 1.2, "salt-and-pepper": 0.25}
"""Of the noise level, in the weight."""

TOTAL_VARIATION = {
    "gaussian-denoising": 0.086, "inpainting": 0.016, "salt-and-pepper": 0.7, "ct": 4.0,
}  # fmt: skip
"""The best weights of total variation on the test images of the cards."""

CARD_LEVELS = {
    GaussianDenoising.name: GaussianDenoising().sigma,
    Inpainting.name: Inpainting().noise,
    SaltAndPepper.name: SaltAndPepper().fraction,
}
"""Noise levels that the weights of cards are for."""

LEAST_LEVEL = 1e-4
"""A weight of 0 would state no problem."""

ACCURACY = 0.01
"""How near the residual of ``discrepancy`` is to that of the noise."""

LIMIT = 14
"""Solves of a search."""

FARTHEST = 1e4
"""No search leaves its start by more than this factor."""

SEARCH_SHARE = 0.5
"""Of the time limit, at most, for the search."""

SEARCH = StopWhen(gap=3e-3, max_iterations=150)
"""Accuracy of the images of a search."""

SEED = 7_305_118_642_907
"""For the random numbers that split data. Noise that somebody simulated with the same seed would be
the same numbers, and the parts would not be independent: a number that nobody chooses."""

Solve = Callable[[Measurement, float], Tensor]
"""The image for a weight; warm-started, and as accurate as a search needs it."""


class SearchEndedEarly(Exception):
    """Ctrl-C, or the end of the time, came during the search for a weight."""


@dataclass(frozen=True)
class Weight:
    """A weight, and where it comes from.

    Attributes:
        value: the weight.
        rule: the rule that chose it, or ``given``.
        trials: (weight, what the rule measured) of a search.
        note: what went wrong with the rule, or nothing.
        seconds: duration of the search.
    """

    value: float
    rule: Rule | Literal["given"]
    trials: tuple[tuple[float, float], ...] = ()
    note: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For records."""
        record: dict[str, Any] = {"value": self.value, "rule": self.rule}
        if self.trials:
            record["trials"] = [{"weight": w, "measured": m} for w, m in self.trials]
        return record | ({"note": self.note} if self.note else {})


def checked_weight(weight: object) -> WeightChoice:
    """A rule, or a number > 0, which may be an array or a tensor of one element."""
    for rule in get_args(Rule):
        if isinstance(weight, str) and weight == rule:
            return rule  # type: ignore[no-any-return]
    single = isinstance(weight, Tensor | np.ndarray) and weight.ndim == 0
    number = weight.item() if single else weight  # type: ignore[attr-defined]
    if isinstance(number, Real) and not isinstance(number, bool) and 0 < float(number) < math.inf:
        return float(number)
    raise InputError(f"--weight is card, auto, discrepancy or a number > 0, got {weight!r}")


def choose_weight(
    choice: WeightChoice,
    data: Measurement,
    task: str,
    noise: Noise | None,
    solver: PiecewiseSolver,
    search: StopWhen = SEARCH,
) -> Weight:
    """The weight given, or chosen by a rule; ``auto`` in place of ``card`` if the card has none.

    Args:
        choice: a number or a rule.
        data: of all images, which get one weight.
        task: that weights of cards are for.
        noise: of the data, if it has a level.
        solver: with the network; half of its time limit at most is used.
        search: when the solves of a search stop.
    """
    if isinstance(choice, float):
        return Weight(choice, "given")
    is_tv = isinstance(solver.network, TotalVariation)
    known = card_weight(known_weights(solver.network.card, is_tv), task, noise)
    if choice == "card" and known is not None:
        return Weight(known, "card")
    start = 1.0 if known is None else known
    # Some of the images tell the weight as well as all of them.
    some = slice(None, None, -(-len(data) // solver.fitting(data)))
    there = solver.here(data.select(some))
    begin = time.perf_counter()
    limit = None if solver.stop.seconds is None else SEARCH_SHARE * solver.stop.seconds
    state: list[object] = [None]

    def left() -> float | None:
        return None if limit is None else begin + limit - time.perf_counter()

    def image(of: Measurement, weight: float) -> Tensor:
        stop = within(search, left())
        problem = stated(of, solver.network, weight, solver.method)
        solution = solver.solve_once(problem, stop, state[0])
        rest = left()
        if solver.interruption.status is not None or (rest is not None and rest <= 0):
            raise SearchEndedEarly
        state[0] = solution.state
        return solution.x

    try:
        if choice == "discrepancy":
            chosen = discrepancy_weight(there, noise, start, image)
        else:
            generator = torch.Generator().manual_seed(SEED)
            chosen = predictive_weight(there, noise, start, image, generator)
    except SearchEndedEarly:
        interrupted = solver.interruption.status is Status.INTERRUPTED
        note = (
            "interrupted while the weight was searched"
            if interrupted
            else "the time limit ended the search of the weight"
        )
        chosen = Weight(start, "discrepancy" if choice == "discrepancy" else "auto", (), note)
    return replace(chosen, seconds=time.perf_counter() - begin)


def card_weight(weights: dict[str, float], task: str, noise: Noise | None) -> float | None:
    """The rule ``card``, or None if there is no weight for such data.

    Args:
        weights: of the card, by task.
        task: that the data are for.
        noise: of the data, if it is Gaussian or salt and pepper.
    """
    if noise is None:
        return weights.get(task)
    # Both have the data term 1/2 ||A x - y||^2: one replaces the other, at its own noise level.
    alike = (GaussianDenoising.name, Inpainting.name) if noise.kind == "gaussian" else ()
    level = max(noise.level, LEAST_LEVEL)
    for name in (task, *alike):
        if name in weights and name in CARD_LEVELS:
            return weights[name] * math.pow(level / CARD_LEVELS[name], POWERS[noise.kind])
    return None


def known_weights(card: ModelCard | None, is_total_variation: bool) -> dict[str, float]:
    """Weights by task: those of the card, or ours for total variation."""
    if is_total_variation:
        return TOTAL_VARIATION
    return {} if card is None else dict(card.weights)


def predictive_weight(
    data: Measurement, noise: Noise | None, start: float, solve: Solve, generator: torch.Generator
) -> Weight:
    """The rule ``auto``: see the module."""
    kept, score = split(data, noise, generator)
    trials: dict[float, float] = {}

    def measured(k: float) -> float:
        if k not in trials:
            trials[k] = score(solve(kept, start * 2.0**k))
        return trials[k]

    here, farthest = 0, int(math.log2(FARTHEST))
    direction = 1 if measured(1) < measured(0) else -1
    while (
        len(trials) < LIMIT and abs(here) < farthest and measured(here + direction) < measured(here)
    ):
        here += direction
    note = "" if abs(here) < farthest else "the best weight lies beyond those tried"
    exponent = min((here - 0.5, here + 0.5, float(here)), key=measured)
    if exponent - 0.5 in trials and exponent + 0.5 in trials:
        sides = trials[exponent - 0.5], trials[exponent], trials[exponent + 0.5]
        exponent += vertex(*sides) / 2
    ordered = tuple((start * 2.0**k, trials[k]) for k in sorted(trials))
    return Weight(start * 2.0**exponent, "auto", ordered, note)


def vertex(left: float, middle: float, right: float) -> float:
    """Where the parabola through (-1, left), (0, middle), (1, right) is least, within [-1, 1]."""
    bend = left - 2 * middle + right
    return max(-1.0, min(1.0, (left - right) / (2 * bend))) if bend > 0 else 0.0


def discrepancy_weight(
    data: Measurement, noise: Noise | None, start: float, solve: Solve
) -> Weight:
    """The rule ``discrepancy``: a bracket in log(weight), for residuals grow with the weight."""
    trials: dict[float, float] = {}

    def measured(weight: float) -> float:
        trials[weight] = discrepancy(data, noise, solve(data, weight))
        return trials[weight]

    low: float | None = None  # weights whose residuals are below and above that of the noise
    high: float | None = None
    weight = start
    while abs(math.log(max(measured(weight), 1e-300))) > ACCURACY and len(trials) < LIMIT:
        low, high = (weight, high) if trials[weight] < 1 else (low, weight)
        if low is None or high is None:
            weight = 4 * weight if high is None else weight / 4
            if abs(math.log(weight / start)) > math.log(FARTHEST):
                break
        else:
            # Residuals are about a power of the weight; stay inside, should they not be.
            below, above = math.log(max(trials[low], 1e-300)), math.log(trials[high])
            share = max(0.1, min(0.9, -below / (above - below)))
            weight = low * (high / low) ** share
    weight = min(trials, key=lambda w: abs(trials[w] - 1))
    reached = abs(trials[weight] - 1) <= ACCURACY
    note = "" if reached else f"the residual is {trials[weight]:.3g} times that of the noise"
    return Weight(weight, "discrepancy", tuple(sorted(trials.items())), note)
