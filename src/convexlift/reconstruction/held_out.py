"""Data held out to choose a weight.

For each kind of noise the data can be split into two independent parts:

    Gaussian        y + sqrt(a) sigma n  and  y - sigma n / sqrt(a),  n standard normal, are
                    independent and have the mean of y (Oliveira, Lei and Tibshirani 2021,
                    "Unbiased risk estimation in the normal means problem via coupled bootstrap
                    techniques"); the squared distance to the second, minus a constant, is
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
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2, WeightedL2
from convexlift.operators.imaging import Mask
from convexlift.reconstruction.noise import Noise, unclipped
from convexlift.tasks import Measurement

Score = Callable[[Tensor], float]
"""The prediction error of images on the held-out data."""
Split = tuple[Measurement, Score]

EXTRA = 0.1
"""a: the noise of the first part is sqrt(1 + a) times that of the data."""
LEAST_COUNTED = 0.05
"""If the share of unclipped pixels is smaller, clipped ones count too."""
HELD_OUT = 0.1
"""The held-out share of the counts or pixels."""


def split(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    """Independent data to reconstruct from, and a score by the held-out data; see the module."""
    if data.fidelity.likelihood is None:
        raise TypeError(f"no rule for {type(data.fidelity).__name__}; give the weight as a number")
    return SPLITTERS[data.fidelity.likelihood](data, noise, generator)


def _split_gaussian(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y, sigma = data.fidelity.y, _level(noise)
    drawn = data.operator(sigma * _normal(y, generator))
    other, counted = y - drawn / math.sqrt(EXTRA), _counted(data, sigma)

    def score(x: Tensor) -> float:
        return float((counted * (x - other)).double().square().sum())

    return replace(data, fidelity=SquaredL2(y + math.sqrt(EXTRA) * drawn)), score


def _split_weighted(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y, A, omega = data.fidelity.y, data.operator, torch.as_tensor(data.fidelity.weights)
    level = 1.0 if noise is None else noise.level
    deviation = level * torch.where(omega > 0, omega.clamp_min(1e-30).rsqrt(), 0.0)
    drawn = deviation * _normal(y, generator)
    other = y - drawn / math.sqrt(EXTRA)

    def score(x: Tensor) -> float:
        return float((omega * (A(x) - other) ** 2).double().sum())

    return replace(data, fidelity=WeightedL2(y + math.sqrt(EXTRA) * drawn, omega)), score


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


def _split_pixels(data: Measurement, noise: Noise | None, generator: torch.Generator) -> Split:
    y = data.fidelity.y
    draw = torch.rand(y.shape, generator=generator, device=generator.device)
    apart, before = (draw < HELD_OUT).to(y), data.operator(torch.ones_like(y))
    seen, held = before * (1 - apart), before * apart

    def score(x: Tensor) -> float:
        return float((held * (x.clamp(0, 1) - y)).abs().double().sum())

    return replace(data, fidelity=L1(y * seen), operator=Mask(seen)), score


Splitter = Callable[[Measurement, Noise | None, torch.Generator], Split]
SPLITTERS: dict[str, Splitter] = {
    "gaussian": _split_gaussian,
    "weighted gaussian": _split_weighted,
    "poisson": _split_counts,
    "impulses": _split_pixels,
}
"""The rules for splits, by ``Fidelity.likelihood``."""


def _level(noise: Noise | None) -> float:
    if noise is None:
        raise ValueError("the noise level must be known to choose a weight; give the weight")
    return noise.level


def _counted(data: Measurement, sigma: float) -> Tensor:
    """1 where the noise was not clipped, or where a pixel was seen if nearly all were clipped."""
    seen = data.operator(torch.ones_like(data.fidelity.y))
    whole = unclipped(data.fidelity.y, seen, sigma)
    return whole if float(whole.sum()) > LEAST_COUNTED * float(seen.sum()) else seen


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)
