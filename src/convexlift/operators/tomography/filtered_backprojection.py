"""Filtered back projection: the inversion formula of the Radon transform, discretised.

x = 1/2 integral over a full turn of (|xi| filtered p)(t, s(x)), for sinograms p without noise and
with enough rays. With noise, a window damps the high frequencies.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.operators.tomography.rays import Floats

Filter = Literal["ram-lak", "shepp-logan", "cosine", "hann"]
FILTERS: tuple[Filter, ...] = get_args(Filter)
"""|xi| times 1, sinc, cosine, or Hann's window."""


def fbp(operator: LinearOperator, sinogram: Tensor, filter: Filter = "ram-lak") -> Tensor:
    """Filtered back projection, (B, 1, angles, bins) -> (B, 1, H, W).

    Angles share the half turn (a parallel beam) or full turn (a fan) by the distances to their
    neighbours, so they need not be evenly spread; angles that were not measured stay out.

    Args:
        operator: a ``ParallelBeam``, a ``FanBeam`` of a full turn, or a multiple of one.
        sinogram: A x, with or without noise.
        filter: ``ram-lak``, ``shepp-logan``, ``cosine`` or ``hann``, from sharp to smooth.
    """
    if filter not in FILTERS:
        raise ValueError(f"filter must be one of {FILTERS}, got {filter!r}")
    return operator.approximate_inverse(sinogram, filter)


def ramp(bins: int, spacing: float) -> Floats:
    """The filter |xi| of a band-limited function at lags 0, 1, ..., -1 (periodic, long enough).

    1/(4 h^2) at 0, 0 at even lags, -1/(pi k h)^2 at odd lags k: sampled in space, since |xi| itself
    would lose the mean.
    """
    length = 2 ** math.ceil(math.log2(max(2 * bins, 64)))
    lag = lags(length)
    odd = lag % 2 == 1
    kernel = np.where(odd, -1 / (np.pi * np.where(odd, lag, 1) * spacing) ** 2, 0.0)
    kernel[0] = 1 / (4 * spacing**2)
    return kernel


def lags(length: int) -> Floats:
    """0, 1, ..., 2, 1: distances on a ring."""
    index = np.arange(length, dtype=np.float64)
    return np.minimum(index, length - index)


def filtered(p: Tensor, kernel: Floats, spacing: float, filter: str) -> Tensor:
    """Rows p convolved with a kernel, whose high frequencies a window damps."""
    response = np.fft.rfft(kernel).real * spacing * _window(len(kernel), filter)
    spectrum = torch.fft.rfft(p, n=len(kernel), dim=-1) * torch.from_numpy(response).to(p)
    result: Tensor = torch.fft.irfft(spectrum, n=len(kernel), dim=-1)[..., : p.shape[-1]]
    return result


def _window(length: int, filter: str) -> Floats:
    frequency = np.arange(length // 2 + 1) / length  # of the sampling rate, up to 1/2
    if filter == "shepp-logan":
        return np.sinc(frequency)
    if filter == "cosine":
        return np.cos(np.pi * frequency)
    if filter == "hann":
        return 0.5 + 0.5 * np.cos(2 * np.pi * frequency)
    return np.ones_like(frequency)


def angle_shares(angles: Floats, turn: float) -> Floats:
    """The weight of each angle: half the distance to either neighbour, modulo ``turn``.

    A gap much wider than the others counts as an average one: it was not measured.
    """
    folded = np.mod(angles, turn)
    folded[turn - folded < 1e-9] = 0.0
    order = np.argsort(folded, kind="stable")
    gaps = np.diff(folded[order], append=folded[order[0]] + turn)
    usual = np.median(gaps[gaps > 1e-9])
    gaps = np.where(gaps > 3 * usual, usual, gaps)
    shares = np.empty_like(gaps)
    shares[order] = (gaps + np.roll(gaps, 1)) / 2
    return shares


def interpolated(row: Tensor, position: Tensor) -> Tensor:
    """(B, bins) at positions between the bins 0, 1, ..., linearly; 0 outside."""
    bins = row.shape[-1]
    position = (position + 1).clamp_(0, bins + 1)
    left = position.floor()
    index, padded = left.to(torch.int64).flatten(), F.pad(row, (1, 2))
    ends = padded.index_select(1, index), padded[:, 1:].index_select(1, index)
    return torch.lerp(*ends, (position - left).flatten()).reshape(-1, *position.shape)
