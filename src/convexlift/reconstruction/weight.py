"""Rules for the regularization weight.

``card``         1 for a regularizer in units of the noise. Else the weight of the regularizer's
                 card, scaled to the noise, and for denoising to the texture of the image, which
                 needs smaller weights:

                     (sigma / sigma_card)^1.08 (1 + 28 t_card) / (1 + 28 t),   t = sigma_y - sigma,

                 where white noise of level sigma_y has the same R as the data y. These numbers
                 fit the best weights of ``photo-any-size`` on twelve photographs, sigma from 5/255
                 to 50/255 (``benchmarks/weight_rules.py``), and those of total variation as well.
                 Where pixels are missing, R(y) is not known: (sigma / sigma_card)^1.2. The same
                 for models whose card states the noise level of their training, sigma_card: R of
                 such a model may be larger on every image, which is not the image's texture. For
                 salt and pepper, fractions from 0.05 to 0.5, the power is 0.25.
``auto``         the weight whose image best predicts held-out data; found by steps of a factor of
                 2, then of its root, and a parabola in the logarithm. On those pictures it stays
                 within 0.1 dB of the best weight for Gaussian noise, 0.3 dB for salt and pepper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.one_pass import regularizer_at
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.held_out import split
from convexlift.reconstruction.noise import Kind, Noise, sampled
from convexlift.reconstruction.solution import PiecewiseSolver, stated, within
from convexlift.solvers.solution import Status, StopWhen
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper

Rule = Literal["card", "auto"]
WeightChoice = float | Rule

POWERS: dict[Kind, float] = {"gaussian": 1.2, "salt-and-pepper": 0.25}
"""The powers of the noise level with which weights grow."""
POWER, SLOPE, CARD_TEXTURE = 1.08, 28.0, 0.006
"""The power if the texture t is known, the factor of t, and t of a typical photograph with the
noise of the cards."""
TOTAL_VARIATION = {
    "gaussian-denoising": 0.086, "inpainting": 0.016, "salt-and-pepper": 0.7, "ct": 4.0,
}  # fmt: skip
"""The best weights of total variation on the test images of the cards."""
CARD_LEVELS = {
    GaussianDenoising.name: GaussianDenoising().sigma,
    Inpainting.name: Inpainting().noise,
    SaltAndPepper.name: SaltAndPepper().fraction,
}
"""Noise levels that the weights of cards are for, unless the card states others."""
LEAST_LEVEL = 1e-4
"""Noise below this level counts as this level: a problem needs a weight > 0."""
LIMIT = 14
"""The most solves of a search."""
FARTHEST = 1e4
"""The largest factor by which a search leaves its start."""
SEARCH_SHARE = 0.5
"""The largest share of the time limit for the search."""
SEARCH = StopWhen(gap=3e-3, max_iterations=150)
"""Accuracy of the images of a search."""
SEED = 7_305_118_642_907
"""Seed of the random split of data. Users simulate noise with small seeds: with the same seed here,
noise and split would be the same numbers, and the parts would not be independent."""

Solve = Callable[[Measurement, float], Tensor]
"""The image for a weight; warm-started, and as accurate as a search needs."""


class SearchEndedEarly(Exception):
    """Ctrl-C or the time limit ended the search for a weight."""


@dataclass(frozen=True)
class Weight:
    """A weight and its origin.

    Attributes:
        value: the weight.
        rule: the rule that chose it, or ``given``.
        trials: (weight, measured value) of each solve of a search.
        note: the failure of the rule, or nothing.
        seconds: duration of the search.
        card_level: the noise level that the card states for its weight, if the rule used it.
    """

    value: float
    rule: Rule | Literal["given"]
    trials: tuple[tuple[float, float], ...] = ()
    note: str = ""
    seconds: float = 0.0
    card_level: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The facts for records."""
        record: dict[str, Any] = {"value": self.value, "rule": self.rule}
        if self.trials:
            record["trials"] = [{"weight": w, "measured": m} for w, m in self.trials]
        if self.card_level is not None:
            record["card_level"] = self.card_level
        return record | ({"note": self.note} if self.note else {})


def checked_weight(weight: object) -> WeightChoice:
    """A rule, or a number > 0, which may be an array or a tensor of one element."""
    if isinstance(weight, str) and weight in get_args(Rule):
        return cast(Rule, weight)
    single = isinstance(weight, Tensor | np.ndarray) and weight.ndim == 0
    number = weight.item() if single else weight  # type: ignore[attr-defined]
    if isinstance(number, Real) and not isinstance(number, bool) and 0 < float(number) < math.inf:
        return float(number)
    raise InputError(f"--weight is card, auto or a number > 0, got {weight!r}")


def choose_weight(
    choice: WeightChoice,
    data: Measurement,
    task: str,
    noise: Noise | None,
    solver: PiecewiseSolver,
    search: StopWhen = SEARCH,
) -> Weight:
    """The weight given, or chosen by a rule; ``auto`` in place of ``card`` if the card has none.

    All images get one weight. A search takes at most half of the solver's time limit; each of its
    solves stops at ``search``.
    """
    if isinstance(choice, float):
        return Weight(choice, "given")
    network = solver.network_for(data)
    own = TOTAL_VARIATION if isinstance(network, TotalVariation) else {}
    weights = network.card.weights if network.card else own
    levels = network.card.noise_levels if network.card else {}
    if network.reads_data:
        # R is in units of Gaussian noise; impulses and counts use the weight of the card.
        unstated = weights.get(task, 1 / UNSTATED_NOISE)
        known: float | None = 1.0 if data.noise is not None else unstated
    elif noise is not None and task == GaussianDenoising.name and task in weights.keys() - levels:
        texture = texture_of(network, data.fidelity.y, noise.level)
        known = card_weight(weights, task, noise, texture)
    else:
        known = card_weight(weights, task, noise, levels=levels)
    if choice == "card" and known is not None:
        name = None if network.reads_data else weight_task(weights, task, noise)
        return Weight(known, "card", card_level=levels.get(name) if name else None)
    start = 1.0 if known is None else known
    # A few images suffice to choose the weight for all.
    some = slice(None, None, -(-len(data) // solver.fitting(data)))
    there = solver.here(data.select(some))
    begin = time.perf_counter()
    end = begin + SEARCH_SHARE * (solver.stop.seconds or math.inf)
    state: Any = None  # the state of the latest solve, which the next one continues
    ended = False

    def image(of: Measurement, weight: float) -> Tensor:
        nonlocal state, ended
        stop = within(search, end - time.perf_counter())
        problem = stated(of, network, weight, solver.method)
        solution = solver.solve_once(problem, stop, state)
        ended = solver.interruption.status is not None or time.perf_counter() >= end
        if ended:
            raise SearchEndedEarly
        state = solution.state
        return solution.x

    try:
        generator = torch.Generator().manual_seed(SEED)
        chosen = predictive_weight(there, noise, start, image, generator)
    except SearchEndedEarly:
        chosen = Weight(start, "auto")
    if ended:
        notes: dict[Status | None, str] = {
            Status.INTERRUPTED: "interrupted while the weight was searched",
            Status.STOPPED: "stopped while the weight was searched",
        }
        limit = "the time limit ended the search of the weight"
        note = notes.get(solver.interruption.status, limit)
        chosen = replace(chosen, note=note)
    return replace(chosen, seconds=time.perf_counter() - begin)


def card_weight(
    weights: Mapping[str, float],
    task: str,
    noise: Noise | None,
    texture: float | None = None,
    levels: Mapping[str, float] | None = None,
) -> float | None:
    """The rule ``card``: a task's weight on the card, scaled to noise and texture, or None.

    A texture requires the weight of ``GaussianDenoising``. ``levels`` are the noise levels that the
    card states for its weights.
    """
    known = CARD_LEVELS | dict(levels or {})
    if noise is None:
        return weights.get(task)
    level = max(noise.level, LEAST_LEVEL)
    if texture is not None:
        factor = (1 + SLOPE * CARD_TEXTURE) / (1 + SLOPE * texture)
        return weights[task] * math.pow(level / known[task], POWER) * factor
    name = weight_task(weights, task, noise)
    if name is None:
        return None
    return weights[name] * math.pow(level / known[name], POWERS[noise.kind])


def weight_task(weights: Mapping[str, float], task: str, noise: Noise | None) -> str | None:
    """The task whose weight is scaled to the noise: this one, or one with the same data term."""
    if noise is None:
        return None
    # Both have the data term 1/2 ||A x - y||^2: one replaces the other, at its own noise level.
    alike = (GaussianDenoising.name, Inpainting.name) if noise.kind == "gaussian" else ()
    return next((name for name in (task, *alike) if name in weights and name in CARD_LEVELS), None)


def texture_of(network: InputConvexNetwork, y: Tensor, sigma: float) -> float:
    """t of noisy images: the excess of their R over that of their noise, as a noise level.

    Images within [0, 1] may have been clipped. Then the noise for comparison is clipped too, around
    the mean of 5 x 5 pixels.
    """
    level, place = max(sigma, LEAST_LEVEL), network.output
    generator = torch.Generator().manual_seed(SEED)
    clipped, some = float(y.min()) >= 0 and float(y.max()) <= 1, sampled(y)
    noise = level * torch.randn(1, *some.shape[1:], generator=generator).to(place)
    whole = alone = 0.0
    with torch.no_grad():
        bound = network.bind(tuple(some.shape[1:]))
        for plane in some:
            there = plane[None].to(place)
            around = F.avg_pool2d(there, 5, 1, 2, count_include_pad=False)
            own = (around + noise).clamp(0, 1) - around if clipped else noise
            # In strips: a layer of 48 filters takes 48 times the memory of an image.
            total, of_noise = (float(regularizer_at(bound, x)[0]) for x in (there, own))
            whole, alone = whole + total, alone + of_noise
    return level * max(0.0, whole / alone - 1) if alone > 0 else 0.0


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

    here, farthest, note = 0, int(math.log2(FARTHEST)), ""
    try:
        direction = -1 if measured(0) <= measured(1) else 1
        while (
            len(trials) < LIMIT
            and abs(here) < farthest
            and measured(here + direction) < measured(here)
        ):
            here += direction
        if here + direction not in trials:
            note = "the best weight lies beyond those tried"
        exponent = min((here - 0.5, here + 0.5, float(here)), key=measured)
        # A parabola needs a measured neighbour on both sides.
        if exponent - 0.5 in trials and exponent + 0.5 in trials:
            sides = trials[exponent - 0.5], trials[exponent], trials[exponent + 0.5]
            exponent += vertex(*sides) / 2
    except SearchEndedEarly:
        if not trials:
            raise
        exponent = min(trials, key=trials.__getitem__)
    ordered = tuple((start * 2.0**k, trials[k]) for k in sorted(trials))
    return Weight(start * 2.0**exponent, "auto", ordered, note)


def vertex(left: float, middle: float, right: float) -> float:
    """The minimum in [-1, 1] of the parabola through (-1, left), (0, middle), (1, right)."""
    bend = left - 2 * middle + right
    return max(-1.0, min(1.0, (left - right) / (2 * bend))) if bend > 0 else 0.0
