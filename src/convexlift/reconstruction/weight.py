"""Rules for the regularization weight, and data held out to choose it.

``card``         the weight of the regularizer's card, times (sigma / sigma_card)^1.2. If an image
                 and its noise got a factor, a regularizer of degree 1 would need that factor too
                 (power 1); if R were minus the logarithm of a density, the power would be 2.
                 The best weights of ``photo-any-size`` and of total variation on the six pictures
                 of the package, for sigma from 0.01 to 0.4, grow with the power 1.2. For salt and
                 pepper, fractions from 0.05 to 0.5, it is 0.25.
``auto``         the weight whose image best predicts held-out data; found by steps of a factor of
                 2, then of its root, and a parabola in the logarithm.
``discrepancy``  the weight whose residual is as large as the noise (Morozov 1966, "On the solution
                 of functional equations by the method of regularization"). A classical rule that
                 smooths too much: it stays 1 to 2 dB below the best weight on those pictures,
                 ``auto`` within 0.1 dB for Gaussian noise, 0.3 dB for salt and pepper.

Each kind of noise allows one to split the data into two independent parts:

    Gaussian        y + sqrt(a) sigma n  and  y - sigma n / sqrt(a),  n standard normal, are
                    independent and have the mean of y (Oliveira, Lei and Tibshirani 2021,
                    "Unbiased risk estimation in the normal means problem via coupled bootstrap
                    techniques"); the squared distance to the second, less a constant, is
                    the error of the image of the first, on average.
    Poisson         a binomial part of each count and the rest are independent, and Poisson (Neufeld
                    et al. 2023, "Inference after latent variable estimation for single-cell RNA
                    sequencing data", Biostatistics).
    salt, pepper    pixels that are left out: whatever x is between 0 and 1, a pixel that is 0 or 1
                    with equal chances has the mean distance 1/2 from it, so the mean distance to
                    all of them is that to the clean pixels, times (1 - f), plus f / 2.
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
from torch import Tensor

from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2, WeightedL2
from convexlift.networks.architectures import TotalVariation
from convexlift.operators.imaging import Mask
from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.noise import Kind, Noise, unclipped
from convexlift.reconstruction.solution import PiecewiseSolver, stated, within
from convexlift.solvers.solution import Status, StopWhen
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper

Rule = Literal["card", "auto", "discrepancy"]
WeightChoice = float | Rule

POWERS: dict[Kind, float] = {"gaussian": 1.2, "salt-and-pepper": 0.25}
"""The powers of the noise level with which weights grow."""
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
"""Noise below this level counts as this level: a problem needs a weight > 0."""
ACCURACY = 0.01
"""Relative accuracy of the residual of ``discrepancy``."""
LIMIT = 14
"""The most solves of a search."""
FARTHEST = 1e4
"""No search leaves its start by more than this factor."""
SEARCH_SHARE = 0.5
"""The largest share of the time limit for the search."""
SEARCH = StopWhen(gap=3e-3, max_iterations=150)
"""Accuracy of the images of a search."""
SEED = 7_305_118_642_907
"""Seed of the random numbers that split data. Users simulate noise with small seeds: with the same
seed here, noise and split would be the same numbers, and the parts would not be independent."""

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
        trials: (weight, measured value) of each solve of a search.
        note: the failure of the rule, or nothing.
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
    if isinstance(weight, str) and weight in get_args(Rule):
        return cast(Rule, weight)
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

    All images get one weight. A search, each of whose solves stops at ``search``, takes at most
    half of the solver's time limit.
    """
    if isinstance(choice, float):
        return Weight(choice, "given")
    network = solver.network
    own = TOTAL_VARIATION if isinstance(network, TotalVariation) else {}
    known = card_weight(network.card.weights if network.card else own, task, noise)
    if network.reads_data:
        known = 1.0  # its guide reads the noise level
    if choice == "card" and known is not None:
        return Weight(known, "card")
    start = 1.0 if known is None else known
    # A few of the images suffice to choose the weight for all of them.
    some = slice(None, None, -(-len(data) // solver.fitting(data)))
    there = solver.here(data.select(some))
    begin = time.perf_counter()
    end = begin + SEARCH_SHARE * (solver.stop.seconds or math.inf)
    state: Any = None  # of the latest solve, which the next one continues

    def image(of: Measurement, weight: float) -> Tensor:
        nonlocal state
        stop = within(search, end - time.perf_counter())
        problem = stated(of, solver.network, weight, solver.method)
        solution = solver.solve_once(problem, stop, state)
        if solver.interruption.status is not None or time.perf_counter() >= end:
            raise SearchEndedEarly
        state = solution.state
        return solution.x

    try:
        if choice == "discrepancy":
            chosen = discrepancy_weight(there, noise, start, image)
        else:
            generator = torch.Generator().manual_seed(SEED)
            chosen = predictive_weight(there, noise, start, image, generator)
    except SearchEndedEarly:
        note = "the time limit ended the search of the weight"
        if solver.interruption.status is Status.INTERRUPTED:
            note = "interrupted while the weight was searched"
        chosen = Weight(start, "discrepancy" if choice == "discrepancy" else "auto", (), note)
    return replace(chosen, seconds=time.perf_counter() - begin)


def card_weight(weights: Mapping[str, float], task: str, noise: Noise | None) -> float | None:
    """The rule ``card``: the weight of a task, scaled to the noise; None if there is none."""
    if noise is None:
        return weights.get(task)
    # Both have the data term 1/2 ||A x - y||^2: one replaces the other, at its own noise level.
    alike = (GaussianDenoising.name, Inpainting.name) if noise.kind == "gaussian" else ()
    level = max(noise.level, LEAST_LEVEL)
    for name in (task, *alike):
        if name in weights and name in CARD_LEVELS:
            return weights[name] * math.pow(level / CARD_LEVELS[name], POWERS[noise.kind])
    return None


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
    # A parabola needs a measured neighbour on both sides.
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


# Held-out data -----------------------------------------------------------------------------------

Score = Callable[[Tensor], float]
"""How badly images predict the held-out data."""
Split = tuple[Measurement, Score]

EXTRA = 0.1
"""a: the noise of the first part is sqrt(1 + a) times that of the data."""
LEAST_COUNTED = 0.05
"""If fewer pixels than this share are unclipped, the clipped ones count as well."""
HELD_OUT = 0.1
"""The share of the counts, or of the pixels."""


def split(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    """Independent data to reconstruct from, and a score by the held-out data; see the module."""
    return _rules(data)[0](data, noise, generator)


def discrepancy(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    """The residual of x over the residual that noise alone would leave.

    Squared L2    ||c (x - y)|| / (sigma sqrt(n)), where c picks n pixels, seen and not clipped;
    with weights  sqrt(mean of omega (A x - y)^2), over the rays that were measured;
    counts        sqrt(2 D(A x, y) / n): twice the data term is about chi^2 with n degrees;
    L1            ||A x - y||_1 / (f n / 2): a pixel that was hit is at the mean distance 1/2.
    """
    return _rules(data)[1](data, noise, x)


def _split_gaussian(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y, sigma = data.fidelity.y, _level(noise)
    drawn = data.operator(sigma * _normal(y, generator))
    other, counted = y - drawn / math.sqrt(EXTRA), _counted(data, sigma)

    def score(x: Tensor) -> float:
        return float((counted * (x - other)).double().square().sum())

    return replace(data, fidelity=SquaredL2(y + math.sqrt(EXTRA) * drawn)), score


def _gaussian_residual(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    counted, sigma = _counted(data, _level(noise)), _level(noise)
    residual = (counted * (x - data.fidelity.y)).double().norm()
    return float(residual) / (sigma * math.sqrt(max(1.0, float(counted.sum()))))


def _split_weighted(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y, A, omega = data.fidelity.y, data.operator, torch.as_tensor(data.fidelity.weights)
    deviation = torch.where(omega > 0, omega.clamp_min(1e-30).rsqrt(), 0.0)
    drawn = deviation * _normal(y, generator)
    other = y - drawn / math.sqrt(EXTRA)

    def score(x: Tensor) -> float:
        return float((omega * (A(x) - other) ** 2).double().sum())

    return replace(data, fidelity=WeightedL2(y + math.sqrt(EXTRA) * drawn, omega)), score


def _weighted_residual(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    omega = torch.as_tensor(data.fidelity.weights)
    terms = (omega * (data.operator(x) - data.fidelity.y) ** 2).double().sum()
    return math.sqrt(float(terms) / max(1, int((omega > 0).sum())))


def _split_counts(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y, A, background = data.fidelity.y, data.operator, float(data.fidelity.offset)
    chance = torch.full_like(y, HELD_OUT, device=generator.device)
    held = torch.binomial(y.to(generator.device), chance, generator=generator).to(y)
    rest = 1 - HELD_OUT
    judge = KullbackLeibler(held, HELD_OUT * background)

    def score(x: Tensor) -> float:
        return float(judge.value(HELD_OUT * A(x)).sum())

    kept = KullbackLeibler(y - held, rest * background)
    return replace(data, fidelity=kept, operator=rest * A), score


def _counts_residual(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    value = data.fidelity.value(data.operator(x)).sum()
    return math.sqrt(float(2 * value) / data.fidelity.y.numel())


def _split_pixels(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y = data.fidelity.y
    draw = torch.rand(y.shape, generator=generator, device=generator.device)
    apart, before = (draw < HELD_OUT).to(y), data.operator(torch.ones_like(y))
    seen, held = before * (1 - apart), before * apart

    def score(x: Tensor) -> float:
        return float((held * (x.clamp(0, 1) - y)).abs().double().sum())

    return replace(data, fidelity=L1(y * seen), operator=Mask(seen)), score


def _pixels_residual(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    y = data.fidelity.y
    count = float(data.operator(torch.ones_like(y)).sum())
    distance = float((data.operator(x) - y).abs().double().sum())
    return distance / max(1e-12, _level(noise) * count / 2)


Splitter = Callable[[Measurement, Noise | None, torch.Generator], Split]
Residual = Callable[[Measurement, Noise | None, Tensor], float]
RULES: dict[str, tuple[Splitter, Residual]] = {
    "gaussian": (_split_gaussian, _gaussian_residual),
    "weighted gaussian": (_split_weighted, _weighted_residual),
    "poisson": (_split_counts, _counts_residual),
    "impulses": (_split_pixels, _pixels_residual),
}
"""How to split the data and to measure residuals, by ``Fidelity.likelihood``."""


def _rules(data: Measurement) -> tuple[Splitter, Residual]:
    if data.fidelity.likelihood is None:
        raise TypeError(f"no rule for {type(data.fidelity).__name__}; give the weight as a number")
    return RULES[data.fidelity.likelihood]


def _level(noise: Noise | None) -> float:
    if noise is None:
        raise ValueError("the noise level must be known to choose a weight; give the weight")
    return noise.level


def _counted(data: Measurement, sigma: float) -> Tensor:
    """1 where the noise was not clipped; if that is nearly nowhere, where a pixel was seen."""
    seen = data.operator(torch.ones_like(data.fidelity.y))
    whole = unclipped(data.fidelity.y, seen, sigma)
    return whole if float(whole.sum()) > LEAST_COUNTED * float(seen.sum()) else seen


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)
