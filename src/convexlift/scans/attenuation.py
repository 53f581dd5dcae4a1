"""CT numbers, linear attenuation, and the unit interval on which regularizers are trained.

HU = 1000 (mu - mu_water) / mu_water. Attenuation is in 1/mm, as lengths in files are in mm. No
function clips: each has an exact inverse.
"""

from __future__ import annotations

import math

from torch import Tensor

WATER = 0.02059
"""mu of water in 1/mm at 60 keV, 0.2059 cm^2/g in the tables of Hubbell and Seltzer (NIST)."""

LOWEST = -1024.0
"""The CT number that is 0 in the unit interval."""

RANGE = 2524.0
"""CT numbers from 0 to 1 in the unit interval: up to 1500 HU."""


def hounsfield_to_attenuation(hu: Tensor, water: float = WATER) -> Tensor:
    """mu = mu_water (1 + HU / 1000).

    ``water`` is the attenuation of water for the spectrum of the scanner, in 1/mm.
    """
    _require_water(water)
    return water * (1 + hu / 1000)


def attenuation_to_hounsfield(mu: Tensor, water: float = WATER) -> Tensor:
    """HU = 1000 (mu / mu_water - 1)."""
    _require_water(water)
    return 1000 * (mu / water - 1)


def hounsfield_to_unit(hu: Tensor) -> Tensor:
    """(HU + 1024) / 2524: 0 and 1 stand for -1024 and 1500 HU."""
    return (hu - LOWEST) / RANGE


def unit_to_hounsfield(values: Tensor) -> Tensor:
    """2524 value - 1024."""
    return values * RANGE + LOWEST


def unit_attenuation(water: float = WATER) -> float:
    """2.524 mu_water, in 1/mm: the attenuation that 1 of the unit interval adds.

    For scanners of attenuation: with ``unit_attenuation() * A`` in place of A, images are on the
    scale of the regularizers, 24 HU lower than ``hounsfield_to_unit`` has them (0 is vacuum), which
    filters of mean zero do not see.
    """
    _require_water(water)
    return RANGE / 1000 * water


def _require_water(water: float) -> None:
    if not (math.isfinite(water) and water > 0):
        raise ValueError(f"water is an attenuation in 1/mm, for example {WATER}, got {water}")
