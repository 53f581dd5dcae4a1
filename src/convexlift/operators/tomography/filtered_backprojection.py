"""Filtered back projection: the inversion formula of the Radon transform, discretised.

x = 1/2 integral over a full turn of (|w| filtered p)(t, s(x)), for sinograms p without noise and
with rays enough. With noise, a window damps the high frequencies.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import LinearOperator, Scaled
from convexlift.operators.tomography.beams import FanBeam, ParallelBeam, RayTransform
from convexlift.operators.tomography.rays import Floats

Filter = Literal["ram-lak", "shepp-logan", "cosine", "hann"]
FILTERS: tuple[Filter, ...] = get_args(Filter)
"""|w| times 1, sinc, cosine, or Hann's window."""
TURN = 2 * math.pi


def fbp(operator: LinearOperator, sinogram: Tensor, filter: Filter = "ram-lak") -> Tensor:
    """Filtered back projection, (B, 1, angles, bins) -> (B, 1, H, W).

    Angles share the half turn (a parallel beam) or full turn (a fan) by the distances to their
    neighbours, so they need not be evenly spread; what limited angles leave out stays out.

    Args:
        operator: a ``ParallelBeam``, a ``FanBeam`` of a full turn, or a multiple of one.
        sinogram: A x, with or without noise.
        filter: ``ram-lak``, ``shepp-logan``, ``cosine`` or ``hann``, from sharp to smooth.
    """
    if filter not in FILTERS:
        raise ValueError(f"filter must be one of {FILTERS}, got {filter!r}")
    if isinstance(operator, Scaled) and operator.factor != 0:
        return fbp(operator.operator, sinogram / operator.factor, filter)
    if not isinstance(operator, ParallelBeam | FanBeam):
        raise ValueError(
            f"fbp inverts ParallelBeam, FanBeam and multiples of them, not "
            f"{type(operator).__name__}"
        )
    shape = operator.output_shape((1, operator.grid.height, operator.grid.width))
    if tuple(sinogram.shape[1:]) != shape:
        raise ValueError(
            f"fbp expects sinograms of shape (batch, {', '.join(map(str, shape))}), "
            f"got {tuple(sinogram.shape)}"
        )
    if isinstance(operator, FanBeam):
        return _fan(operator, sinogram[:, 0], filter)[:, None]
    return _parallel(operator, sinogram[:, 0], filter)[:, None]


def invertible(operator: LinearOperator) -> bool:
    """Whether ``fbp`` takes this operator."""
    if isinstance(operator, Scaled):
        return operator.factor != 0 and invertible(operator.operator)
    if isinstance(operator, FanBeam):
        return _goes_around(angle_shares(operator.exact_angles, TURN))
    return isinstance(operator, ParallelBeam)


def _goes_around(shares: Floats) -> bool:
    return bool(shares.sum() >= 0.99 * TURN)


def _parallel(beam: ParallelBeam, p: Tensor, filter: Filter) -> Tensor:
    filtered = _filtered(p, ramp(p.shape[-1], beam.bin_width), beam.bin_width, filter)
    x, y = _centres(beam, p)
    image = p.new_zeros((p.shape[0], len(y), len(x)))
    shares = angle_shares(beam.exact_angles, math.pi)
    for k, (t, share) in enumerate(zip(beam.exact_angles, shares, strict=True)):
        s = x * math.cos(t) + y[:, None] * math.sin(t)
        image += share * _interpolated(filtered[:, k], beam, s)
    return image


def _fan(beam: FanBeam, p: Tensor, filter: Filter) -> Tensor:
    """The same integral in the fan's coordinates: weights before the filter and after it."""
    shares = angle_shares(beam.exact_angles, TURN)
    if not _goes_around(shares):
        raise ValueError(
            f"fbp of a fan needs angles all around, not {math.degrees(shares.sum()):.0f} degrees "
            "of them; a short scan would need weights that are not here yet"
        )
    r, flat = beam.source_distance, beam.detector == "flat"
    distance = r + beam.detector_distance
    fan = beam.fan_angles(beam.bins)
    # The detector as if it were in the centre of the image (flat), or angles (curved).
    spacing = beam.bin_width * (r / distance if flat else 1 / distance)
    kernel = ramp(p.shape[-1], spacing)
    if not flat:
        lag = _lags(len(kernel)) * spacing
        kernel = kernel * np.where(lag == 0, 1.0, lag / np.where(lag == 0, 1.0, np.sin(lag))) ** 2
    weighted = p * torch.from_numpy(np.cos(fan)).to(p) * (1 if flat else r)
    filtered = _filtered(weighted, kernel, spacing, filter)
    x, y = _centres(beam, p)
    image = p.new_zeros((p.shape[0], len(y), len(x)))
    for k, (t, share) in enumerate(zip(beam.exact_angles, shares, strict=True)):
        along = x * math.cos(t) + y[:, None] * math.sin(t)
        depth = r - x * math.sin(t) + y[:, None] * math.cos(t)  # from the source, on its axis
        ratio = along / depth
        if flat:
            place, weight = distance * ratio, (r / depth) ** 2
        else:
            place, weight = distance * torch.atan(ratio), 1 / (along**2 + depth**2)
        image += 0.5 * share * weight * _interpolated(filtered[:, k], beam, place)
    return image


def ramp(bins: int, spacing: float) -> Floats:
    """The filter |w| of a band-limited function at lags 0, 1, ..., -1 (periodic, long enough).

    1/(4 h^2) at 0, 0 at even lags, -1/(pi k h)^2 at odd lags k: sampled in space, since |w| itself
    would lose the mean.
    """
    length = 2 ** math.ceil(math.log2(max(2 * bins, 64)))
    lag = _lags(length)
    odd = lag % 2 == 1
    kernel = np.where(odd, -1 / (np.pi * np.where(odd, lag, 1) * spacing) ** 2, 0.0)
    kernel[0] = 1 / (4 * spacing**2)
    return kernel


def _lags(length: int) -> Floats:
    index = np.arange(length, dtype=np.float64)
    return np.minimum(index, length - index)


def _filtered(p: Tensor, kernel: Floats, spacing: float, filter: Filter) -> Tensor:
    response = np.fft.rfft(kernel).real * spacing * _window(len(kernel), filter)
    spectrum = torch.fft.rfft(p, n=len(kernel), dim=-1) * torch.from_numpy(response).to(p)
    result: Tensor = torch.fft.irfft(spectrum, n=len(kernel), dim=-1)[..., : p.shape[-1]]
    return result


def _window(length: int, filter: Filter) -> Floats:
    frequency = np.arange(length // 2 + 1) / length  # of the sampling rate, up to 1/2
    if filter == "shepp-logan":
        return np.sinc(frequency)
    if filter == "cosine":
        return np.cos(np.pi * frequency)
    if filter == "hann":
        return 0.5 + 0.5 * np.cos(2 * np.pi * frequency)
    return np.ones_like(frequency)


def angle_shares(angles: Floats, turn: float) -> Floats:
    """What each angle stands for: half the way to either neighbour, modulo ``turn``.

    Where a gap is much wider than the others, nobody stands for it: its ends get what they have
    on their other side.
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


def _centres(beam: RayTransform, like: Tensor) -> tuple[Tensor, Tensor]:
    x, y = beam.grid.centres()
    return torch.from_numpy(x).to(like), torch.from_numpy(y).to(like)


def _interpolated(row: Tensor, beam: RayTransform, place: Tensor) -> Tensor:
    """(B, bins) at places on the detector, linearly between bins, 0 outside."""
    bins = row.shape[-1]
    position = ((place - beam.bins[0]) / beam.bin_width + 1).clamp_(0, bins + 1)
    left = position.floor()
    index, padded = left.to(torch.int64).flatten(), F.pad(row, (1, 2))
    ends = padded.index_select(1, index), padded[:, 1:].index_select(1, index)
    return torch.lerp(*ends, (position - left).flatten()).reshape(-1, *place.shape)
