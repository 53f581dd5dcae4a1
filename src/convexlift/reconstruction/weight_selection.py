"""Rules for the regularization weight.

``card``         the weight of the regularizer's card, times (sigma / sigma_card)^1.2. If an image
                 and its noise got a factor, a regularizer of degree 1 would need that factor too
                 (power 1); if R were minus the logarithm of a density, the power would be 2.
                 The best weights of ``photo-any-size`` and of total variation on the six pictures
                 of the package, for sigma from 0.01 to 0.4, grow with the power 1.2. For salt and
                 pepper, fractions from 0.05 to 0.5, it is 0.25.
``auto``         the weight whose image predicts data that were kept apart best (``noise_models``);
                 found by steps of a factor of 2, then of its root, and a parabola in the logarithm.
``discrepancy``  the weight whose residual is as large as the noise (Morozov 1966, "On the solution
                 of functional equations by the method of regularization"). A classical rule that
                 smooths too much: it stays 1 to 2 dB below the best weight on those pictures,
                 ``auto`` within 0.1 dB for Gaussian noise, 0.3 dB for salt and pepper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from convexlift.models.cards import ModelCard
from convexlift.reconstruction.noise import Kind, Noise
from convexlift.reconstruction.noise_models import Statement
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper

Rule = Literal["card", "auto", "discrepancy", "given"]

POWERS: dict[Kind, float] = {"gaussian": 1.2, "salt-and-pepper": 0.25}
"""Of the noise level, in the weight."""

TOTAL_VARIATION = {
    "gaussian-denoising": 0.086, "inpainting": 0.016, "salt-and-pepper": 0.7, "ct": 4.0,
}  # fmt: skip
"""The best of total variation on the test images of the cards."""

CARD_LEVELS = {
    GaussianDenoising.name: GaussianDenoising().sigma,
    Inpainting.name: Inpainting().noise,
    SaltAndPepper.name: SaltAndPepper().fraction,
}
"""Noise levels that the weights of cards are for."""

LEAST_LEVEL = 1e-4
"""A weight of 0 states no problem."""

ACCURACY = 0.01
"""How near the residual of ``discrepancy`` is to that of the noise."""

LIMIT = 14
"""Solves of a search."""

FARTHEST = 1e4
"""No search goes beyond this factor of its start."""

Solve = Callable[[Statement, float], Tensor]
"""An image for a weight; warm-started, and as accurate as a search needs it."""


@dataclass(frozen=True)
class Weight:
    """A weight, and where it comes from.

    Attributes:
        value: of the weight.
        rule: that chose it.
        trials: (weight, what the rule measured) of a search.
        note: what went wrong with the rule, or nothing.
        seconds: that a search took.
    """

    value: float
    rule: Rule
    trials: tuple[tuple[float, float], ...] = ()
    note: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For files."""
        record: dict[str, Any] = {"value": self.value, "rule": self.rule}
        if self.trials:
            record["trials"] = [{"weight": w, "measured": m} for w, m in self.trials]
        return record | ({"note": self.note} if self.note else {})


def card_weight(weights: dict[str, float], task: str, noise: Noise | None) -> float | None:
    """The rule ``card``, or None if there is no weight for such data.

    Args:
        weights: of the card, by task.
        task: that the data are for.
        noise: of the data, if it is Gaussian or salt and pepper.
    """
    if noise is None:
        return weights.get(task)
    # Both are 1/2 ||A x - y||^2: one stands in for the other, at its own noise level.
    alike = (GaussianDenoising.name, Inpainting.name) if noise.kind == "gaussian" else ()
    level = max(noise.level, LEAST_LEVEL)
    for name in (task, *alike):
        if name in weights and name in CARD_LEVELS:
            return weights[name] * math.pow(level / CARD_LEVELS[name], POWERS[noise.kind])
    return None


def known_weights(card: ModelCard | None, is_total_variation: bool) -> dict[str, float]:
    """Weights by task."""
    if is_total_variation:
        return TOTAL_VARIATION
    return {} if card is None else dict(card.weights)


def predictive_weight(
    statement: Statement, start: float, solve: Solve, generator: torch.Generator
) -> Weight:
    """The rule ``auto``: see the module."""
    kept, score = statement.split(generator)
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


def discrepancy_weight(statement: Statement, start: float, solve: Solve) -> Weight:
    """The rule ``discrepancy``: a bracket in log(weight), for residuals grow with the weight."""
    trials: dict[float, float] = {}

    def measured(weight: float) -> float:
        trials[weight] = statement.discrepancy(solve(statement, weight))
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
