"""Readings of X-ray detectors, their expected values and data terms.

By the law of Beer and Lambert, the mean reading of a detector behind an object x is

    I = dark + (flat - dark) exp(-A x),

with ``flat`` the reading without the object and ``dark`` without the beam. A x holds dimensionless
integrals of the attenuation along rays: if x is per millimetre, lengths of A are in millimetres.

Data enter in one of three ways, with different noise models:

    line_integrals(I, flat, dark)     readings; p = -log of the transmission, with its variance
    LineIntegrals(p, weights)         integrals, where the logarithm was already taken
    Counts(y, background)             y ~ Poisson(A x + r), without a logarithm: emission

Each has a ``fidelity()`` for ``VariationalProblem``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.data_terms import KullbackLeibler, WeightedL2
from convexlift.tensors import TensorRecord, first_non_finite, fits

Field = float | Tensor
"""A number, (bins,), exposures (n, bins) or (rows, n, bins) to average, or one per reading."""


@dataclass(frozen=True, eq=False)
class LineIntegrals(TensorRecord):
    """p = A x + noise with variances 1/weights, both (B, 1, angles, bins).

    Attributes:
        values: p, dimensionless.
        weights: the inverse variances omega; 0 where nothing was measured.
    """

    values: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        self.fidelity()  # checks both

    def fidelity(self) -> WeightedL2:
        """D(A x) = 1/2 sum omega (A x - p)^2; at the true x, about half the number of data."""
        return WeightedL2(self.values, self.weights)


@dataclass(frozen=True, eq=False)
class Counts(TensorRecord):
    """y ~ Poisson(A x + r): photons that x emits, on a background.

    Nothing is converted, but the model is checked: counts are integers. Scaled or corrected data
    have other noise; use ``KullbackLeibler`` for them.

    Attributes:
        values: y, of any number type; (B, 1, angles, bins), as the operator returns it.
        background: r >= 0, the mean number of counts without x.
    """

    values: Tensor
    background: float | Tensor = 0.0

    def __post_init__(self) -> None:
        values = _as_float("counts", self.values)
        if (fractional := values != values.round()).any():
            place = tuple(int(i) for i in fractional.nonzero()[0])
            raise ValueError(
                f"counts must be integers, but they are {float(values[place]):g} at index "
                f"{place}; for data that were scaled or corrected, write "
                "cl.KullbackLeibler(y, background)"
            )
        object.__setattr__(self, "values", values)
        self.fidelity()  # checks the rest

    def fidelity(self) -> KullbackLeibler:
        """D(A x) = sum A x + r - y + y log(y / (A x + r)), the negative log-likelihood."""
        return KullbackLeibler(self.values, self.background)


def expected_intensity(integrals: Tensor, flat: Field, dark: Field = 0.0) -> Tensor:
    """I = dark + (flat - dark) exp(-p), the mean reading behind line integrals p = A x.

    Args:
        integrals: p, (B, 1, angles, bins).
        flat: readings without object, as in ``line_integrals``.
        dark: readings without beam.
    """
    bright, black = fitted_field("flat", flat, integrals), fitted_field("dark", dark, integrals)
    return (black + (bright - black) * torch.exp(-integrals.double())).to(integrals)


def line_integrals(
    intensity: Tensor,
    flat: Field,
    dark: Field = 0.0,
    *,
    gain: float = 1.0,
    dark_variance: Field | None = None,
    floor: float = 0.5,
    saturation: float = math.inf,
) -> LineIntegrals:
    """p = -log((I - dark) / (flat - dark)), with weights (I - dark)^2 / Var I.

    A reading of N photons, each worth ``gain`` units, varies by Var I = gain (I - dark) + Var dark.
    If the dark reading is a count too, Var dark = gain dark, the default, the weights are

        omega = (I - dark)^2 / (gain I),

    and 1/2 omega (A x - p)^2 is the second-order expansion around p of the negative log-likelihood
    of I / gain ~ Poisson, up to a constant (Sauer and Bouman 1993, "A local update strategy for
    iterative reconstruction from projections", IEEE Transactions on Signal Processing 41). With
    dark = 0, omega is the number of photons. Flat and dark fields are treated as exact, so they
    should be means of many exposures.

    A signal I - dark below ``floor`` photons, or negative, has no meaningful logarithm: it is
    raised to that floor, which means "nearly opaque" with hardly any weight. Readings of dead
    pixels (flat <= dark) and saturated ones have weight 0. A warning counts both. Transmissions
    above one are due to noise and are kept: p is negative there.

    Args:
        intensity: I, (angles, bins) or (B, 1, angles, bins), integers or floats.
        flat: readings without object: a number, one for each bin, (bins,), several exposures to
            average, (n, bins), such exposures for each detector row of a batch, (B, n, bins), or
            one for each reading, (B or 1, 1, angles, bins).
        dark: readings without beam, in the same shapes.
        gain: units of the readings per photon.
        dark_variance: variance of the readings without beam, where they are not counts but an
            offset with electronic noise; for example ``dark.var(0)`` of the exposures.
        floor: the smallest signal, in photons.
        saturation: the value at and above which readings are saturated.
    """
    for name, value in (("gain", gain), ("floor", floor)):
        if not 0 < value < math.inf:
            raise ValueError(f"line_integrals needs a finite {name} > 0, got {name}={value}")
    if math.isnan(saturation):
        raise ValueError("line_integrals got saturation=nan; leave it out for none")
    reading = _as_float("the intensity", intensity)
    reading = reading[None, None] if reading.ndim == 2 else reading
    if reading.ndim != 4 or reading.shape[1] != 1 or reading.numel() == 0:
        raise ValueError(
            "the intensity must have the shape (angles, bins) or (batch, 1, angles, bins), "
            f"got {tuple(intensity.shape)}"
        )
    bright, black = fitted_field("flat", flat, reading), fitted_field("dark", dark, reading)
    if dark_variance is None:
        spread = gain * black.clamp_min(0)
    elif bool(((spread := fitted_field("dark_variance", dark_variance, reading)) < 0).any()):
        raise ValueError("line_integrals needs dark_variance >= 0")

    dead = (bright <= black).expand_as(reading)
    cut = (reading >= saturation) & ~dead
    measured = ~(dead | cut)
    signal = reading.double() - black
    starved = measured & (signal < gain * floor)
    _report(starved, dead, cut, floor)
    signal = signal.clamp_min(gain * floor)
    p = -torch.log(signal / torch.where(dead, 1.0, bright - black))
    omega = signal**2 / (gain * signal + spread)
    values, weights = (torch.where(measured, part, 0.0).to(reading) for part in (p, omega))
    return LineIntegrals(values, weights)


def _as_float(name: str, values: Tensor) -> Tensor:
    """Finite floating-point numbers; integers become torch's default type."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    _require_finite(name, values)
    return values


def fitted_field(name: str, field: Field, readings: Tensor) -> Tensor:
    """A flat or dark field in double precision, in a shape that fits the readings."""
    values = torch.as_tensor(field, dtype=torch.float64, device=readings.device)
    _require_finite(name, values)
    if values.ndim == 2:
        values = values.mean(0)
    elif values.ndim == 3 and values.shape[0] == readings.shape[0]:
        values = values.mean(1)[:, None, None]
    if values.ndim not in (0, 1, 4) or not fits(values.shape, readings.shape):
        raise ValueError(
            f"{name} of shape {tuple(torch.as_tensor(field).shape)} does not fit readings of "
            f"{tuple(readings.shape)}; give a number, (bins,), exposures (n, bins) or (batch, n, "
            "bins) to average, or one value for each reading, (batch, 1, angles, bins)"
        )
    return values


def _require_finite(name: str, values: Tensor) -> None:
    if (place := first_non_finite(values)) is not None:
        where = f" at index {place}" if place else ""
        raise ValueError(f"{name} must be finite, got {float(values[place])}{where}")


def _report(starved: Tensor, dead: Tensor, cut: Tensor, floor: float) -> None:
    """Warn about readings with little or no information; raise if there are no others."""
    total, counts = dead.numel(), [int(mask.sum()) for mask in (starved, dead, cut)]
    if counts[1] == total:
        raise ValueError(
            "flat <= dark for every reading: no beam was measured. Are flat and dark swapped, or "
            "is dark missing from both?"
        )
    if counts[1] + counts[2] == total:
        raise ValueError(f"all {total} readings are saturated or from dead pixels")
    said = (
        f"{counts[0]} were below {floor:g} photons and were raised to it",
        f"{counts[1]} are from dead pixels (flat <= dark) and have weight 0",
        f"{counts[2]} are saturated and have weight 0",
    )
    if parts := [text for text, count in zip(said, counts, strict=True) if count]:
        warnings.warn(f"of {total} readings, {'; '.join(parts)}", stacklevel=3)
