"""Data held out to choose a weight, and residuals compared with noise.

A regularization weight is good if the image predicts data that it was not made from. Each kind of
noise lets one split the data into two independent parts:

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

The data term says which: squared L2 (with one sigma, or with weights), Kullback-Leibler or L1.
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
"""How badly images predict the held-out data."""

EXTRA = 0.1
"""a: the noise of the first part is sqrt(1 + a) times that of the data."""

LEAST_COUNTED = 0.05
"""Of the pixels: with fewer unclipped ones, the clipped ones count as well."""

HELD_OUT = 0.1
"""Of the counts, or of the pixels."""


def split(
    data: Measurement, noise: Noise | None, generator: torch.Generator
) -> tuple[Measurement, Score]:
    """Independent data to reconstruct from, and a score by the held-out data; see the module."""
    match data.fidelity:
        case SquaredL2():
            return _split_gaussian(data, _level(noise), generator)
        case WeightedL2():
            return _split_weighted(data, data.fidelity.weights, generator)
        case KullbackLeibler():
            return _split_counts(data, float(data.fidelity.background), generator)
        case L1():
            return _split_pixels(data, generator)
    raise TypeError(f"no rule for {type(data.fidelity).__name__}; give the weight as a number")


def _split_gaussian(
    data: Measurement, sigma: float, generator: torch.Generator
) -> tuple[Measurement, Score]:
    y = data.fidelity.y
    noise = data.operator(sigma * _normal(y, generator))
    other, counted = y - noise / math.sqrt(EXTRA), _counted(data, sigma)

    def score(x: Tensor) -> float:
        return float((counted * (x - other)).double().square().sum())

    return replace(data, fidelity=SquaredL2(y + math.sqrt(EXTRA) * noise)), score


def _split_weighted(
    data: Measurement, omega: Tensor, generator: torch.Generator
) -> tuple[Measurement, Score]:
    y, A = data.fidelity.y, data.operator
    deviation = torch.where(omega > 0, omega.clamp_min(1e-30).rsqrt(), 0.0)
    noise = deviation * _normal(y, generator)
    other = y - noise / math.sqrt(EXTRA)

    def score(x: Tensor) -> float:
        return float((omega * (A(x) - other) ** 2).double().sum())

    return replace(data, fidelity=WeightedL2(y + math.sqrt(EXTRA) * noise, omega)), score


def _split_counts(
    data: Measurement, background: float, generator: torch.Generator
) -> tuple[Measurement, Score]:
    y, A = data.fidelity.y, data.operator
    chance = torch.full_like(y, HELD_OUT, device=generator.device)
    held = torch.binomial(y.to(generator.device), chance, generator=generator).to(y)
    rest = 1 - HELD_OUT
    judge = KullbackLeibler(held, HELD_OUT * background)

    def score(x: Tensor) -> float:
        return float(judge.value(HELD_OUT * A(x)).sum())

    kept = KullbackLeibler(y - held, rest * background)
    return replace(data, fidelity=kept, operator=rest * A), score


def _split_pixels(data: Measurement, generator: torch.Generator) -> tuple[Measurement, Score]:
    y = data.fidelity.y
    draw = torch.rand(y.shape, generator=generator, device=generator.device)
    apart, before = (draw < HELD_OUT).to(y), data.operator(torch.ones_like(y))
    seen, held = before * (1 - apart), before * apart

    def score(x: Tensor) -> float:
        return float((held * (x.clamp(0, 1) - y)).abs().double().sum())

    return replace(data, fidelity=L1(y * seen), operator=Mask(seen)), score


def discrepancy(data: Measurement, noise: Noise | None, x: Tensor) -> float:
    """The residual of x over what noise alone would leave: 1 means as large as the noise.

    Squared L2    ||c (x - y)|| / (sigma sqrt(n)), where c picks n pixels, seen and not clipped;
    with weights  sqrt(mean of omega (A x - y)^2), over the rays that were measured;
    counts        sqrt(2 D(A x, y) / n): twice the data term is about chi^2 with n degrees;
    L1            ||A x - y||_1 / (f n / 2): a pixel that was hit is at the mean distance 1/2.
    """
    y, predicted = data.fidelity.y, data.operator(x)
    match data.fidelity:
        case SquaredL2():
            counted, sigma = _counted(data, _level(noise)), _level(noise)
            residual = (counted * (x - y)).double().norm()
            return float(residual) / (sigma * math.sqrt(max(1.0, float(counted.sum()))))
        case WeightedL2():
            omega = data.fidelity.weights
            terms = (omega * (predicted - y) ** 2).double().sum()
            return math.sqrt(float(terms) / max(1, int((omega > 0).sum())))
        case KullbackLeibler():
            return math.sqrt(float(2 * data.fidelity.value(predicted).sum()) / y.numel())
        case L1():
            count = float(data.operator(torch.ones_like(y)).sum())
            distance = float((predicted - y).abs().double().sum())
            return distance / max(1e-12, _level(noise) * count / 2)
    raise TypeError(f"no rule for {type(data.fidelity).__name__}; give the weight as a number")


def _level(noise: Noise | None) -> float:
    if noise is None:
        raise ValueError("the noise level must be known to choose a weight; give the weight")
    return noise.level


def _counted(data: Measurement, sigma: float) -> Tensor:
    """1 where noise is as the model says; if that is nearly nowhere, where a pixel was seen."""
    seen = data.operator(torch.ones_like(data.fidelity.y))
    whole = unclipped(data.fidelity.y, seen, sigma)
    return whole if float(whole.sum()) > LEAST_COUNTED * float(seen.sum()) else seen


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)
